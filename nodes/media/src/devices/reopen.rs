//! A device that went away: when it counts as lost, and when to look for it again.

use oxiline_graph::{Nanos, Span};

use super::ring::Health;
use std::sync::atomic::Ordering::Acquire;

/// Without a block for so long a running device is lost, whatever it says: an ALSA plug-in whose server
/// died only repeats an I/O error.
pub const SILENCE: Span = Span::ms(2000);
/// The first block may take longer: some servers wake their devices up.
pub const FIRST_BLOCK: Span = Span::ms(5000);
/// The first and the longest wait between two attempts.
const FIRST: Span = Span::ms(250);
const LONGEST: Span = Span::ms(4000);

/// Watches whether blocks keep coming.
#[derive(Debug, Clone)]
pub struct Watch {
    blocks: u64,
    since: Nanos,
}

impl Watch {
    /// A device opened at `now`.
    pub fn new(now: Nanos) -> Self {
        Self { blocks: 0, since: now }
    }

    /// Is the device lost at `now`?
    pub fn is_lost(&mut self, health: &Health, now: Nanos) -> bool {
        let blocks = health.blocks.load(Acquire);
        if blocks != self.blocks {
            (self.blocks, self.since) = (blocks, now);
        }
        let patience = if blocks == 0 { FIRST_BLOCK } else { SILENCE };
        health.is_gone() || now - self.since > patience.nanos()
    }
}

/// Waits that double.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Nanos,
    wait: Span,
}

impl Backoff {
    /// The first attempt is due at once.
    pub fn new(now: Nanos) -> Self {
        Self { next: now, wait: FIRST }
    }

    /// Is an attempt due? Asking counts as making it.
    pub fn due(&mut self, now: Nanos) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now.saturating_add(self.wait.nanos());
        self.wait = Span((self.wait.0 * 2).min(LONGEST.0));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::Fault;
    use super::*;

    #[test]
    fn attempts_come_at_doubling_distances() {
        let mut backoff = Backoff::new(0);
        let at: Vec<Nanos> = (0..20_000).filter(|ms| backoff.due(ms * 1_000_000)).collect();
        assert_eq!(at, [0, 250, 750, 1750, 3750, 7750, 11750, 15750, 19750]);
    }

    #[test]
    fn silence_is_loss_and_an_error_alone_is_not() {
        let health = Health::default();
        let mut watch = Watch::new(0);
        assert!(!watch.is_lost(&health, 4_000_000_000), "the first block may take its time");
        health.blocks.fetch_add(1, Acquire);
        assert!(!watch.is_lost(&health, 4_500_000_000));
        health.fault(Fault::Error, || "i/o".into());
        assert!(!watch.is_lost(&health, 6_400_000_000));
        assert!(watch.is_lost(&health, 6_600_000_000));
        let mut watch = Watch::new(0);
        health.fault(Fault::Gone, || "unplugged".into());
        assert!(watch.is_lost(&health, 1));
    }
}
