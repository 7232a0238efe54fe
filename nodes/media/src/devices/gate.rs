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
    /// When the first sound came and the last, and how much came after the first.
    since: Option<(Nanos, Nanos)>,
    arrived: Nanos,
}

impl Gate {
    /// `start`: what to wait for (`None`: as much as the measured shortfall asks for); `max`: never more.
    pub fn new(start: Option<Span>, max: Span) -> Self {
        Self { start, cushion: start.unwrap_or(FIRST).min(max), max, since: None, arrived: 0 }
    }

    /// Sound of `length` arrived at `now`.
    pub fn arrived(&mut self, now: Nanos, length: Nanos) {
        // How long the first piece took is not known: its making began before it came.
        match &mut self.since {
            None => self.since = Some((now, now)),
            Some((_, last)) => {
                *last = now;
                self.arrived += length;
            }
        }
    }

    /// What has to be buffered before it opens.
    pub fn needs(&self) -> Span {
        let Some((first, last)) = self.since.filter(|(first, last)| self.start.is_none() && last > first) else {
            return self.cushion;
        };
        // Sound made at 0.8 of its own length falls behind by 0.2 s a second.
        let shortfall = (1.0 - self.arrived as f64 / (last - first) as f64).max(0.0);
        Span::ms((shortfall * HORIZON * 1e3) as u64).max(self.cushion).min(self.max)
    }

    /// Does it open with so much buffered? `whole`: nothing more comes, or nothing more fits.
    pub fn opens(&self, buffered: Nanos, whole: bool) -> bool {
        whole || buffered >= self.needs().nanos()
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
        assert!(!gate.opens(20 * MS, false));
        gate.arrived(0, 250 * MS);
        gate.arrived(10 * MS, 250 * MS);
        assert!(gate.opens(60 * MS, false), "faster than real time");
        // 0.8 times real time over two seconds.
        let mut slow = Gate::new(None, Span::ms(3000));
        for n in 0..10 {
            slow.arrived(n * 200 * MS, 160 * MS);
        }
        let needs = slow.needs().nanos() / MS;
        assert!((1990..=2010).contains(&needs), "{needs} ms for ten seconds at 0.8");
        assert!(!slow.opens(1600 * MS, false));
        assert!(slow.opens(1600 * MS, true), "nothing more to wait for");
        assert_eq!(Gate { max: Span::ms(1500), ..slow }.needs(), Span::ms(1500));
    }

    #[test]
    fn the_cushion_only_grows_and_has_an_end() {
        let mut gate = Gate::new(None, Span::ms(200));
        assert_eq!(gate.ran_dry(), Some(Span::ms(120)));
        assert_eq!(gate.ran_dry(), Some(Span::ms(200)));
        assert_eq!(gate.ran_dry(), None);
        assert!(!gate.opens(199 * MS, false) && gate.opens(200 * MS, false));
        let fixed = Gate::new(Some(Span::ms(40)), Span::ms(200));
        assert_eq!(fixed.needs(), Span::ms(40));
    }
}
