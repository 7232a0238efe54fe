//! Graph time: virtual, paced and monotonic clocks behind one trait.
//!
//! Every wait of the runtime that can end by itself asks its clock how to wait; nothing
//! else sleeps. So the same graph runs live, at the pace of its media, or without waiting.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::plan::ClockKind;
use crate::time::Nanos;

/// How to wait for a point of graph time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It is now or past.
    Over,
    /// Wait so long in real time.
    Real(Duration),
    /// Do not wait: the scheduler calls [`Clock::jump`] once nothing else can happen.
    Jump,
}

/// A source of graph time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the graph started.
    fn now(&self) -> Nanos;
    /// How to wait until `at`.
    fn until(&self, at: Nanos) -> Wait;
    /// Moves time forward; only clocks that answer [`Wait::Jump`] do anything.
    fn jump(&self, _to: Nanos) {}
    /// Called when the nodes start.
    fn start(&self) {}
    /// Do sources hold each item until its media time?
    fn paces(&self) -> bool {
        false
    }
    /// Is time made by jumps (so results may not depend on the machine's speed)?
    fn is_virtual(&self) -> bool {
        false
    }
}

/// Time that passes only when every node waits: no waiting, same results on any machine.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicI64);

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        self.0.load(Ordering::Acquire)
    }
    fn until(&self, at: Nanos) -> Wait {
        if at <= self.now() { Wait::Over } else { Wait::Jump }
    }
    fn jump(&self, to: Nanos) {
        self.0.fetch_max(to, Ordering::AcqRel);
    }
    fn is_virtual(&self) -> bool {
        true
    }
}

/// The operating system's monotonic clock.
#[derive(Debug)]
pub struct MonotonicClock {
    origin: Instant,
    /// Nanoseconds after `origin` at which the nodes started.
    zero: AtomicI64,
    paced: bool,
}

impl MonotonicClock {
    /// A clock that starts now; `paced`: sources hold items until their media time.
    pub fn new(paced: bool) -> Self {
        Self { origin: Instant::now(), zero: AtomicI64::new(0), paced }
    }

    fn elapsed(&self) -> Nanos {
        Nanos::try_from(self.origin.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Nanos {
        self.elapsed() - self.zero.load(Ordering::Relaxed)
    }
    fn until(&self, at: Nanos) -> Wait {
        match u64::try_from(at.saturating_sub(self.now())) {
            Ok(0) | Err(_) => Wait::Over,
            Ok(nanos) => Wait::Real(Duration::from_nanos(nanos)),
        }
    }
    fn start(&self) {
        self.zero.store(self.elapsed(), Ordering::Relaxed);
    }
    fn paces(&self) -> bool {
        self.paced
    }
}

/// The clock of a kind. Without devices `Auto` is virtual.
pub fn clock(kind: ClockKind) -> Box<dyn Clock> {
    match kind {
        ClockKind::Auto | ClockKind::Virtual => Box::<VirtualClock>::default(),
        ClockKind::Paced => Box::new(MonotonicClock::new(true)),
        ClockKind::Monotonic => Box::new(MonotonicClock::new(false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_moves_only_by_jumps_and_never_back() {
        let clock = VirtualClock::default();
        assert_eq!(clock.until(5), Wait::Jump);
        clock.jump(5);
        clock.jump(3);
        assert_eq!(clock.now(), 5);
        assert_eq!(clock.until(5), Wait::Over);
    }

    #[test]
    fn real_clocks_wait_for_the_rest() {
        let clock = MonotonicClock::new(false);
        assert_eq!(clock.until(-1), Wait::Over);
        assert!(matches!(clock.until(Nanos::MAX), Wait::Real(_)));
    }
}
