//! What this machine can do at most, measured: the ceilings every figure is stated against.
//!
//! Each measurement is the best of many short bursts, so that a busy machine shows its speed and
//! not its load, and takes at most about 0.2 s.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::buf::Buf;
use crate::isa::{Isa, Kernel};
use crate::lanes::{Lanes, N};
#[cfg(target_arch = "x86_64")]
use crate::packed::vnni;
use crate::pool::{Parts, Pool};

/// Time a measurement may take beyond its set-up.
const BUDGET: Duration = Duration::from_millis(150);
/// Bytes read for the bandwidth: more than caches hold.
const BYTES: usize = 128 << 20;
/// Steps of a burst: some 10 us.
const STEPS: usize = 4096;

/// Ceilings with a number of threads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Threads used.
    pub threads: usize,
    /// Memory read, GB/s (10^9 bytes).
    pub read: f64,
    /// f32 multiply-adds, GFLOP/s (two a multiply-add).
    pub fma: f64,
    /// 8-bit multiply-adds (`maddubs`, `maddwd`, add), GOP/s (two a multiply-add).
    pub int8: f64,
    /// An empty parallel region, microseconds.
    pub region: f64,
}

impl Limits {
    /// Measures with the threads of `pool`.
    pub fn measure(pool: &Pool) -> Self {
        Self {
            threads: pool.threads(),
            read: read_bandwidth(pool),
            fma: fma_peak(pool),
            int8: int8_peak(pool),
            region: region_cost(pool),
        }
    }
}

/// Shortest time of `task` within the budget, seconds.
pub fn best(budget: Duration, mut task: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    loop {
        let before = Instant::now();
        task();
        best = best.min(before.elapsed().as_secs_f64());
        if start.elapsed() >= budget {
            return best;
        }
    }
}

/// Bytes a second read from memory by all threads of the pool, in GB/s.
pub fn read_bandwidth(pool: &Pool) -> f64 {
    let mut buf: Buf<f32> = Buf::zeroed(BYTES / 4);
    let len = buf.len();
    {
        // Untouched pages would all be the same page of zeros.
        let parts = Parts::new(&mut buf);
        // SAFETY: every chunk is its own.
        pool.run_chunks(len, 1 << 18, |range| unsafe { parts.part(range).fill(1.0) });
    }
    let isa = Isa::current();
    let seconds = best(BUDGET, || {
        pool.run_chunks(len / (8 * N), 1 << 13, |range| {
            black_box(isa.call(Read(&buf[range.start * 8 * N..range.end * 8 * N])));
        });
    });
    BYTES as f64 / seconds / 1e9
}

struct Read<'a>(&'a [f32]);

impl Kernel for Read<'_> {
    type Out = f32;
    #[inline(always)]
    fn run<L: Lanes>(self) -> f32 {
        let mut sums = [L::splat(0.0); 4];
        for at in (0..self.0.len() / (4 * N) * (4 * N)).step_by(4 * N) {
            for i in 0..4 {
                // SAFETY: inside the slice.
                sums[i] = unsafe { L::load(self.0.as_ptr().add(at + i * N)) }.max(sums[i]);
            }
        }
        sums[0].max(sums[1]).max(sums[2].max(sums[3])).greatest()
    }
}

/// Best rate of `per_burst` operations by every thread at once, in 10^9 a second.
fn peak(pool: &Pool, per_burst: f64, burst: impl Fn() + Sync) -> f64 {
    // Each thread's own best: a burst is short enough to run undisturbed.
    let start = Instant::now();
    let rates = std::sync::Mutex::new(Vec::new());
    pool.run(pool.threads(), |_| {
        let mut shortest = f64::INFINITY;
        while start.elapsed() < BUDGET {
            let before = Instant::now();
            burst();
            shortest = shortest.min(before.elapsed().as_secs_f64());
        }
        if shortest.is_finite() {
            rates.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(per_burst / shortest / 1e9);
        }
    });
    let rates = rates.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    // A thread that never got a turn counts like the others.
    rates.iter().sum::<f64>() / rates.len().max(1) as f64 * pool.threads() as f64
}

/// Peak of f32 fused multiply-adds of all threads of the pool, GFLOP/s.
pub fn fma_peak(pool: &Pool) -> f64 {
    let isa = Isa::current();
    // Twelve 256-bit or 512-bit sums.
    match isa {
        Isa::Avx512 => peak(pool, (2 * 12 * N * STEPS) as f64, || isa.call(Fma::<12>)),
        Isa::Avx2 => peak(pool, (2 * 6 * N * STEPS) as f64, || isa.call(Fma::<6>)),
        Isa::Scalar => peak(pool, (2 * 2 * N * STEPS) as f64, || isa.call(Fma::<2>)),
    }
}

struct Fma<const S: usize>;

impl<const S: usize> Kernel for Fma<S> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (a, b) = (L::splat(black_box(1e-9)), L::splat(black_box(1.0)));
        let mut sums = [L::splat(0.0); S];
        for _ in 0..STEPS {
            for s in 0..S {
                sums[s] = a.fma(b, sums[s]);
            }
        }
        let mut all = sums[0];
        for s in 1..S {
            all = all.add(sums[s]);
        }
        black_box(all.sum());
    }
}

/// Peak of 8-bit multiply-adds of all threads of the pool, GOP/s.
pub fn int8_peak(pool: &Pool) -> f64 {
    let isa = Isa::current();
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512 && vnni::available() {
        // SAFETY: the machine has the instructions.
        return peak(pool, (2 * vnni::BURST * STEPS) as f64, || unsafe { vnni::burst(STEPS) });
    }
    peak(pool, (2 * 4 * 64 * STEPS) as f64, || isa.call(Int8))
}

struct Int8;

impl Kernel for Int8 {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let w = black_box([1_i8; 4]);
        let bytes = black_box([1_i8; 64]);
        let mut sums = [L::int_zero(); 4];
        // SAFETY: 64 bytes.
        let (a, b) = unsafe { (L::dot4(L::int_zero(), bytes.as_ptr(), w), L::dot4(L::int_zero(), bytes.as_ptr(), w)) };
        for _ in 0..STEPS {
            // The first factor changes, or the product would be taken out of the loop.
            for s in 0..4 {
                sums[s] = L::int8_step(sums[s], sums[s], if s % 2 == 0 { a } else { b });
            }
        }
        for s in sums {
            black_box(L::from_int(s).sum());
        }
    }
}

/// Time of an empty parallel region, microseconds.
pub fn region_cost(pool: &Pool) -> f64 {
    const REGIONS: usize = 200;
    let count = pool.threads().max(2);
    let seconds = best(BUDGET / 3, || {
        for _ in 0..REGIONS {
            pool.run(count, |i| {
                black_box(i);
            });
        }
    });
    seconds / REGIONS as f64 * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_positive_numbers() {
        let limits = Limits::measure(&Pool::new(2));
        for v in [limits.read, limits.fma, limits.int8, limits.region] {
            assert!(v.is_finite() && v > 0.0, "{limits:?}");
        }
    }
}
