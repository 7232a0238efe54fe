//! Percentiles of durations in fixed memory.

use serde::Serialize;

/// Buckets of an octave: a value is known within 1/16 of itself.
const FINE: usize = 8;
/// Octaves from a nanosecond to beyond a day.
const OCTAVES: usize = 48;

/// Counts of durations by size, and the longest of them.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Box<[u32]>,
    total: u64,
    longest: u64,
    /// The item it was.
    seq: u64,
}

/// What a histogram says, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Durations measured.
    pub count: u64,
    /// Half of them took at most this (within a sixteenth).
    pub p50: f64,
    /// Nineteen of twenty.
    pub p95: f64,
    /// Ninety-nine of a hundred.
    pub p99: f64,
    /// The longest, exactly.
    pub max: f64,
    /// Sequence number of the item that took it.
    pub max_seq: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; FINE * OCTAVES].into(), total: 0, longest: 0, seq: 0 }
    }
}

/// The bucket of a duration.
fn bucket(nanos: u64) -> usize {
    if nanos < FINE as u64 {
        return nanos as usize;
    }
    let octave = nanos.ilog2() as usize;
    let step = (nanos >> (octave - 3)) as usize - FINE;
    ((octave - 2) * FINE + step).min(FINE * OCTAVES - 1)
}

/// The middle of a bucket.
fn value(bucket: usize) -> f64 {
    if bucket < FINE {
        return bucket as f64;
    }
    let (octave, step) = (bucket / FINE + 2, bucket % FINE);
    (FINE as f64 + step as f64 + 0.5) * 2.0_f64.powi(octave as i32 - 3)
}

impl Histogram {
    /// Adds a duration of item `seq`.
    pub fn add(&mut self, nanos: u64, seq: u64) {
        let count = &mut self.counts[bucket(nanos)];
        *count = count.saturating_add(1);
        self.total += 1;
        if nanos >= self.longest {
            (self.longest, self.seq) = (nanos, seq);
        }
    }

    /// What it says; None when nothing was measured.
    pub fn percentiles(&self) -> Option<Percentiles> {
        if self.total == 0 {
            return None;
        }
        let at = |part: f64| {
            let wanted = (self.total as f64 * part).ceil() as u64;
            let mut seen = 0;
            let found = self.counts.iter().position(|count| {
                seen += u64::from(*count);
                seen >= wanted
            });
            // The middle of the last bucket may lie beyond what was measured.
            found.map_or(self.longest as f64, value).min(self.longest as f64) * 1e-9
        };
        Some(Percentiles {
            count: self.total,
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            max: self.longest as f64 * 1e-9,
            max_seq: self.seq,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_sixteenth() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentiles(), None);
        for i in 1..=10_000_u64 {
            histogram.add(i * 1000, i);
        }
        let p = histogram.percentiles().unwrap();
        for (got, wanted) in [(p.p50, 5e-3), (p.p95, 9.5e-3), (p.p99, 9.9e-3)] {
            assert!((got / wanted - 1.0).abs() < 1.0 / 16.0, "{got} for {wanted}");
        }
        assert_eq!((p.count, p.max, p.max_seq), (10_000, 1e-2, 10_000));
    }

    #[test]
    fn buckets_ascend_and_hold_what_they_say() {
        let mut last = 0;
        for nanos in (0..2000).chain((11..64).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1])) {
            let at = bucket(nanos);
            assert!(at >= last, "{nanos}");
            last = at;
            if at < FINE * OCTAVES - 1 {
                assert!((value(at) - nanos as f64).abs() <= nanos as f64 / 16.0 + 0.5, "{nanos} as {}", value(at));
            }
        }
        bucket(u64::MAX);
    }
}
