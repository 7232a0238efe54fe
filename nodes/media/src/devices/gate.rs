//! When a loudspeaker starts, and how much it keeps in hand.

use oxiline_graph::{Nanos, Span};

/// The cushion it starts with: two periods of most devices.
const FIRST: Span = Span::ms(60);
/// A shortfall is bridged for so long.
const HORIZON: f64 = 10.0;

/// Opens when enough is buffered. After the sound has run dry it asks for more than before.
#[derive(Debug, Clone)]
pub struct Gate {
    /// `None`: from what is measured.
    start: Option<Span>,
    cushion: Span,
    max: Span,
    /// When the first sound came, how much came since then.
    since: Option<Nanos>,
    arrived: Nanos,
}

impl Gate {
    /// `start`: what to wait for (`None`: as much as the measured shortfall asks for); `max`: never more.
    pub fn new(start: Option<Span>, max: Span) -> Self {
        Self { start, cushion: start.unwrap_or(FIRST).min(max), max, since: None, arrived: 0 }
    }

    /// Sound of `length` arrived at `now`.
    pub fn arrived(&mut self, now: Nanos, length: Nanos) {
        self.since.get_or_insert(now);
        self.arrived += length;
    }

    /// What has to be buffered before it opens, seen from `now`.
    pub fn needs(&self, now: Nanos) -> Span {
        let Some(since) = self.since.filter(|_| self.start.is_none()) else { return self.cushion };
        let took = (now - since).max(1) as f64;
        // Sound made at 0.8 of its own length falls behind by 0.2 s a second.
        let shortfall = (1.0 - self.arrived as f64 / took).max(0.0);
        let bridge = Span::ms((shortfall * HORIZON * 1e3) as u64);
        // One chunk says nothing about the speed of the next.
        if took < 2e8 { self.cushion } else { bridge.max(self.cushion).min(self.max) }
    }

    /// Does it open with so much buffered? `whole`: nothing more comes, or nothing more fits.
    pub fn opens(&self, now: Nanos, buffered: Nanos, whole: bool) -> bool {
        whole || buffered >= self.needs(now).nanos()
    }

    /// The sound ran dry: the cushion doubles. Returns it when it grew.
    pub fn ran_dry(&mut self) -> Option<Span> {
        let before = self.cushion;
        self.cushion = Span((before.0 * 2).min(self.max.0)).max(before);
        (self.cushion > before).then_some(self.cushion)
    }

    /// What it keeps in hand now.
    pub fn cushion(&self) -> Span {
        self.cushion
    }

    /// A new stream of sound: its speed is measured afresh.
    pub fn restart(&mut self) {
        (self.since, self.arrived) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn fast_sound_starts_at_once_and_slow_sound_waits() {
        let mut gate = Gate::new(None, Span::ms(1500));
        assert!(!gate.opens(0, 20 * MS, false));
        gate.arrived(0, 500 * MS);
        assert!(gate.opens(10 * MS, 60 * MS, false), "faster than real time");
        // 0.8 times real time over two seconds.
        let mut slow = Gate::new(None, Span::ms(3000));
        for n in 0..10 {
            slow.arrived(n * 200 * MS, 160 * MS);
        }
        let needs = slow.needs(2000 * MS).nanos() / MS;
        assert!((1900..=2100).contains(&needs), "{needs} ms for ten seconds at 0.8");
        assert!(!slow.opens(2000 * MS, 1600 * MS, false));
        assert!(slow.opens(2000 * MS, 1600 * MS, true), "nothing more to wait for");
        assert_eq!(Gate { max: Span::ms(1500), ..slow }.needs(2000 * MS), Span::ms(1500));
    }

    #[test]
    fn the_cushion_only_grows_and_has_an_end() {
        let mut gate = Gate::new(None, Span::ms(200));
        assert_eq!(gate.ran_dry(), Some(Span::ms(120)));
        assert_eq!(gate.ran_dry(), Some(Span::ms(200)));
        assert_eq!(gate.ran_dry(), None);
        assert!(!gate.opens(0, 199 * MS, false) && gate.opens(0, 200 * MS, false));
        let fixed = Gate::new(Some(Span::ms(40)), Span::ms(200));
        assert_eq!(fixed.needs(5_000 * MS), Span::ms(40));
    }
}
