//! A delay-locked loop: from the jittering times of callbacks to a device's own clock.
//!
//! A callback comes late by whatever the scheduler likes, but the frames are counted exactly. The loop follows
//! the line through the points (frames, time): its slope is the device's rate, its height the time of any frame
//! without the jitter. Its two gains are those of a Kalman filter, so it settles as fast as what it has seen
//! allows: sound servers report times that wander by tens of milliseconds over tens of seconds, which loops of
//! a fixed bandwidth take for drift of hundreds of parts per million.

use oxiline_graph::Nanos;

/// What a second of points tells about the line's height, seconds squared: 10 ms of wander that lasts 10 s.
const NOISE: f64 = 1e-3;
/// Variance of the first point, seconds squared.
const FIRST: f64 = 2e-3;
/// How far crystals lie from their nominal rate, squared.
const SPREAD: f64 = 1e-4 * 1e-4;
/// How fast they change: half a part per million in a second, as a random walk.
const WALK: f64 = 5e-7 * 5e-7;
/// No block is taken to be off by more than this, seconds: the rest is the scheduler, not the clock.
const BELIEVED: f64 = 50e-3;
/// Blocks in a row that lie this far off (nanoseconds) mean that the line itself has moved.
pub const MOVED: f64 = 80e6;
/// How many they have to be.
const IN_A_ROW: u32 = 8;
/// Largest believed distance from the nominal rate.
const MAX_DRIFT: f64 = 1e-3;

/// The line of one device.
#[derive(Debug, Clone)]
pub struct Dll {
    /// Nanoseconds a frame, nominal and estimated.
    nominal: f64,
    period: f64,
    /// A point of the line: a frame and its time.
    frame: u64,
    at: Nanos,
    /// Fraction of a nanosecond of `at`.
    rest: f64,
    /// What is not known of height and slope: variances and covariance.
    doubt: [f64; 3],
    /// Seconds followed so far; `None` before the first block.
    age: Option<f64>,
    off: u32,
}

impl Dll {
    /// For a device of nominally `rate` frames a second.
    pub fn new(rate: u32) -> Self {
        let nominal = 1e9 / f64::from(rate.max(1));
        Self { nominal, period: nominal, frame: 0, at: 0, rest: 0.0, doubt: [FIRST, 0.0, SPREAD], age: None, off: 0 }
    }

    /// Frame `frame` was captured or is heard at `at`. Returns true when the line had to be taken anew, because
    /// the device or the clock has jumped; the rate stays.
    pub fn update(&mut self, frame: u64, at: Nanos) -> bool {
        let Some(age) = self.age else {
            self.restart(frame, at);
            return false;
        };
        if frame <= self.frame {
            return false;
        }
        let frames = (frame - self.frame) as f64;
        let predicted = self.rest + frames * self.period;
        let error = (at - self.at) as f64 - predicted;
        if error.abs() > MOVED {
            self.off += 1;
            if self.off >= IN_A_ROW {
                self.restart(frame, at);
                return true;
            }
        } else {
            self.off = 0;
        }
        let seconds = frames * self.nominal * 1e-9;
        let [height, both, slope] = self.doubt;
        // The doubt grows with the way, and shrinks with what is seen.
        let (height, both, slope) =
            (height + 2.0 * seconds * both + seconds * seconds * slope, both + seconds * slope, slope + WALK * seconds);
        let sum = height + NOISE / seconds;
        let (up, tilt) = (height / sum, both / sum);
        self.doubt = [height - up * height, both - up * both, slope - tilt * both];
        let error = (error * 1e-9).clamp(-BELIEVED, BELIEVED);
        let moved = predicted + up * error * 1e9;
        self.at += moved.floor() as Nanos;
        self.rest = moved - moved.floor();
        self.frame = frame;
        let drift = self.nominal * MAX_DRIFT;
        let period = self.period + tilt * error * self.nominal;
        self.period = period.clamp(self.nominal - drift, self.nominal + drift);
        self.age = Some(age + seconds);
        false
    }

    /// Takes the line through this point, keeping the rate.
    pub fn restart(&mut self, frame: u64, at: Nanos) {
        (self.frame, self.at, self.rest, self.off) = (frame, at, 0.0, 0);
        (self.doubt[0], self.doubt[1]) = (FIRST, 0.0);
        self.age.get_or_insert(0.0);
    }

    /// When a frame is, on the line.
    pub fn time(&self, frame: u64) -> Nanos {
        let frames = frame as f64 - self.frame as f64;
        self.at + (self.rest + frames * self.period).round() as Nanos
    }

    /// Seconds of the device in one second of the clock.
    pub fn rate(&self) -> f64 {
        self.nominal / self.period
    }

    /// Distance from the nominal rate, parts per million.
    pub fn ppm(&self) -> f64 {
        (self.rate() - 1.0) * 1e6
    }

    /// Seconds it has followed the device.
    pub fn age(&self) -> f64 {
        self.age.unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 1024 frames at 48 kHz that come up to `jitter` seconds late.
    fn follow(dll: &mut Dll, ppm: f64, seconds: f64, jitter: f64, mut look: impl FnMut(&Dll, u64, f64)) {
        let mut seed = 1u64;
        let mut frame = 0;
        while (frame as f64) < seconds * 48_000.0 {
            let truth = frame as f64 / (48_000.0 * (1.0 + ppm * 1e-6));
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let late = (seed >> 40) as f64 / f64::from(1 << 24) * jitter;
            dll.update(frame, ((truth + late) * 1e9) as Nanos);
            look(dll, frame, truth);
            frame += 1024;
        }
    }

    #[test]
    fn the_rate_is_found_through_jitter() {
        for ppm in [-300.0, 0.0, 200.0] {
            let mut dll = Dll::new(48_000);
            let mut worst: f64 = 0.0;
            follow(&mut dll, ppm, 600.0, 0.010, |dll, frame, truth| {
                if truth > 120.0 {
                    // 5 ms: the mean lateness, which nobody can know.
                    let error = dll.time(frame) as f64 * 1e-9 - truth - 0.005;
                    worst = worst.max(error.abs());
                }
            });
            assert!((dll.ppm() - ppm).abs() < 20.0, "{ppm}: {}", dll.ppm());
            assert!(worst < 0.008, "{ppm}: {worst} s off the line");
        }
    }

    #[test]
    fn one_late_block_does_not_move_the_line_and_a_jump_does() {
        let mut dll = Dll::new(48_000);
        follow(&mut dll, 0.0, 60.0, 0.0, |_, _, _| {});
        let next = dll.frame + 1024;
        let on_time = dll.time(next);
        assert!(!dll.update(next, on_time + 300_000_000));
        assert!((dll.time(next) - on_time).abs() < 6_000_000, "{}", dll.time(next) - on_time);
        let jumped = (2..40).position(|n| {
            let frame = next + n * 1024;
            dll.update(frame, on_time + n as Nanos * 21_333_333 + 500_000_000)
        });
        assert!(jumped.is_some_and(|n| n < 12), "{jumped:?}");
        assert!(dll.ppm().abs() < 500.0);
    }

    #[test]
    fn days_do_not_cost_precision() {
        let mut dll = Dll::new(48_000);
        let day = 48_000u64 * 86_400;
        dll.update(day * 30, 30 * 86_400_000_000_000);
        for n in 1..1000 {
            dll.update(day * 30 + n * 480, 30 * 86_400_000_000_000 + n as Nanos * 10_000_000);
        }
        assert!(dll.ppm().abs() < 0.1, "{}", dll.ppm());
    }
}
