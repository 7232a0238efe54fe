//! Graph time: virtual, paced and monotonic clocks behind one trait.
//!
//! Every wait of the runtime that can end by itself asks its clock how to wait; nothing
//! else sleeps. So the same graph runs live, at the pace of its media, or without waiting.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
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
    /// A device brings media in from now on: time begins here, not at [`Clock::start`].
    fn begin(&self) {}
    /// The master device: so many of its seconds pass in one of the monotonic clock. Only clocks that
    /// follow a device do anything.
    fn steer(&self, _rate: f64) {}
    /// Does it follow a device?
    fn is_steered(&self) -> bool {
        false
    }
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

/// Time has not begun.
const UNSET: Nanos = Nanos::MIN;

/// The operating system's monotonic clock.
#[derive(Debug)]
pub struct MonotonicClock {
    origin: Instant,
    /// Nanoseconds after `origin` at which time began ([`UNSET`]: it has not).
    zero: AtomicI64,
    paced: bool,
}

impl MonotonicClock {
    /// A clock that starts now; `paced`: sources hold items until their media time.
    pub fn new(paced: bool) -> Self {
        Self { origin: Instant::now(), zero: AtomicI64::new(UNSET), paced }
    }

    fn elapsed(&self) -> Nanos {
        Nanos::try_from(self.origin.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Nanos {
        match self.zero.load(Ordering::Relaxed) {
            UNSET => 0,
            zero => self.elapsed() - zero,
        }
    }
    fn until(&self, at: Nanos) -> Wait {
        real(at.saturating_sub(self.now()))
    }
    fn start(&self) {
        self.begin();
    }
    fn begin(&self) {
        // The first of several: whoever began before keeps its zero.
        let _ = self.zero.compare_exchange(UNSET, self.elapsed(), Ordering::Relaxed, Ordering::Relaxed);
    }
    fn paces(&self) -> bool {
        self.paced
    }
}

fn real(rest: Nanos) -> Wait {
    match u64::try_from(rest) {
        Ok(0) | Err(_) => Wait::Over,
        Ok(nanos) => Wait::Real(Duration::from_nanos(nanos)),
    }
}

/// The clock of the master device: the monotonic clock, running as fast as the device's node says. Until
/// it has measured anything that is the monotonic clock itself. Time never jumps: only its speed changes.
#[derive(Debug)]
pub struct DeviceClock {
    monotonic: MonotonicClock,
    /// Monotonic time and device time of the last change of speed, and the speed since.
    line: Mutex<(Nanos, Nanos, f64)>,
}

impl DeviceClock {
    /// The largest distance from the monotonic clock's speed: a device that is further off is broken, or
    /// measured wrongly.
    pub const MAX_DRIFT: f64 = 1e-3;

    /// A clock that has not begun.
    pub fn new() -> Self {
        Self { monotonic: MonotonicClock::new(false), line: Mutex::new((0, 0, 1.0)) }
    }

    fn line(&self) -> std::sync::MutexGuard<'_, (Nanos, Nanos, f64)> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for DeviceClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Device time at monotonic time `now`.
fn along((from, at, rate): (Nanos, Nanos, f64), now: Nanos) -> Nanos {
    // The difference is small beside an f64's 53 bits; the sum is exact.
    at + ((now - from) as f64 * rate) as Nanos
}

impl Clock for DeviceClock {
    fn now(&self) -> Nanos {
        // Under the lock, so that the line cannot be of a later time than the monotonic clock's.
        let line = self.line();
        along(*line, self.monotonic.now())
    }
    fn until(&self, at: Nanos) -> Wait {
        real(at.saturating_sub(self.now()))
    }
    fn start(&self) {
        self.monotonic.start();
    }
    fn begin(&self) {
        self.monotonic.begin();
    }
    fn steer(&self, rate: f64) {
        if !rate.is_finite() {
            return;
        }
        let mut line = self.line();
        let now = self.monotonic.now();
        *line = (now, along(*line, now), rate.clamp(1.0 - Self::MAX_DRIFT, 1.0 + Self::MAX_DRIFT));
    }
    fn is_steered(&self) -> bool {
        true
    }
}

/// The clock of a kind. `Auto` is that of the devices if the graph has any, else virtual.
pub fn clock(kind: ClockKind, devices: bool) -> Box<dyn Clock> {
    match kind {
        ClockKind::Auto if devices => Box::<DeviceClock>::default(),
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
    fn a_device_clock_changes_speed_and_never_jumps() {
        let line = (1_000, 5_000, 1.0002);
        assert_eq!(along(line, 1_000), 5_000);
        assert_eq!(along(line, 1_000_001_000), 5_000 + 1_000_200_000);
        let clock = DeviceClock::new();
        assert_eq!(clock.now(), 0, "time has not begun");
        clock.begin();
        let before = clock.now();
        for rate in [1.5, f64::NAN, 0.9999, 1.0] {
            clock.steer(rate);
            assert!(clock.now() >= before);
            assert!((clock.line().2 - 1.0).abs() <= DeviceClock::MAX_DRIFT);
        }
    }

    #[test]
    fn time_begins_once() {
        let clock = MonotonicClock::new(false);
        clock.begin();
        std::thread::sleep(Duration::from_millis(2));
        clock.start();
        assert!(clock.now() >= 2_000_000, "the start of the nodes does not move the beginning");
    }

    #[test]
    fn real_clocks_wait_for_the_rest() {
        let clock = MonotonicClock::new(false);
        assert_eq!(clock.until(-1), Wait::Over);
        assert!(matches!(clock.until(Nanos::MAX), Wait::Real(_)));
    }
}
