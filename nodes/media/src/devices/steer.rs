//! Asynchronous resampling: sound of a device that runs a little fast or slow, brought to graph time.
//!
//! The ratio stays within [`CLAMP`] of 1, so the filter is that of [`crate::resample`] at equal rates,
//! evaluated at positions that move by a little more or less than one frame.

use std::sync::{Arc, OnceLock};

use crate::resample::{dot, phase};

/// Largest correction, parts per million: beyond it the pitch would be heard to change.
pub const CLAMP: f64 = 500.0;
/// Misalignment is corrected over this time, seconds.
const SETTLE: f64 = 10.0;
/// Taps on each side.
const HALF: usize = 64;
/// Phases of the bank; linear interpolation between them is 118 dB down.
const PHASES: usize = 1024;

/// The correction of a stream whose device drifts by `ppm` and whose output lags by `late` seconds.
pub fn correction(ppm: f64, late: f64) -> f64 {
    (ppm - late / SETTLE * 1e6).clamp(-CLAMP, CLAMP)
}

/// The bank, 2 x [`HALF`] taps a phase, made once.
fn bank() -> Arc<[f32]> {
    static BANK: OnceLock<Arc<[f32]>> = OnceLock::new();
    BANK.get_or_init(|| (0..=PHASES).flat_map(|p| phase(p as f64 / PHASES as f64, HALF, 1.0)).collect()).clone()
}

/// A resampler whose ratio can be set between any two pushes.
pub struct Steer {
    bank: Arc<[f32]>,
    /// Per channel: input around the next output, oldest first.
    history: Vec<Vec<f32>>,
    /// Position of the next output in `history`.
    at: f64,
    /// Input frames that left `history`, with the silence before the start.
    gone: u64,
    /// Input frames an output frame.
    step: f64,
    taps: Vec<f32>,
}

impl Steer {
    /// For sound of `channels`.
    pub fn new(channels: u16) -> Self {
        let history = vec![vec![0.0; HALF - 1]; usize::from(channels.max(1))];
        Self { bank: bank(), history, at: (HALF - 1) as f64, gone: 0, step: 1.0, taps: vec![0.0; 2 * HALF] }
    }

    /// Takes `ppm` more (or fewer) input frames a million output frames from here on.
    pub fn set(&mut self, ppm: f64) {
        self.step = 1.0 + ppm.clamp(-CLAMP, CLAMP) * 1e-6;
    }

    /// Where the next output frame lies, input frames since the start.
    pub fn position(&self) -> f64 {
        self.gone as f64 + self.at - (HALF - 1) as f64
    }

    /// Takes whole interleaved frames and appends what can be computed to `out`.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let channels = self.history.len();
        for (c, history) in self.history.iter_mut().enumerate() {
            history.extend(samples.iter().skip(c).step_by(channels));
        }
        self.drain(out);
    }

    /// The end of the input: appends what is still inside.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        for history in &mut self.history {
            history.extend(std::iter::repeat_n(0.0, HALF));
        }
        self.drain(out);
    }

    fn drain(&mut self, out: &mut Vec<f32>) {
        let have = self.history[0].len();
        loop {
            let index = self.at as usize;
            if index + HALF >= have {
                break;
            }
            let fine = self.at.fract() * PHASES as f64;
            let (low, part) = (fine as usize, fine.fract() as f32);
            let row = |p: usize| &self.bank[p * 2 * HALF..(p + 1) * 2 * HALF];
            for ((tap, a), b) in self.taps.iter_mut().zip(row(low)).zip(row(low + 1)) {
                *tap = a + (b - a) * part;
            }
            let from = index + 1 - HALF;
            out.extend(self.history.iter().map(|history| dot(&self.taps, &history[from..from + 2 * HALF])));
            self.at += self.step;
        }
        let drop = (self.at as usize + 1).saturating_sub(HALF).min(have);
        self.history.iter_mut().for_each(|history| drop_front(history, drop));
        self.at -= drop as f64;
        self.gone += drop as u64;
    }
}

fn drop_front(history: &mut Vec<f32>, n: usize) {
    history.drain(..n);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_keeps_its_shape_at_the_new_pitch() {
        for ppm in [-500.0, 0.0, 200.0] {
            let mut steer = Steer::new(2);
            steer.set(ppm);
            let tone = |x: f64| (x * 0.131).sin() as f32 * 0.5;
            let input: Vec<f32> = (0..20_000).flat_map(|i| [tone(f64::from(i)), -tone(f64::from(i))]).collect();
            let mut out = Vec::new();
            input.chunks(2 * 333).for_each(|chunk| steer.push(chunk, &mut out));
            let given = out.len() / 2;
            for k in 200..given {
                let want = tone(k as f64 * (1.0 + ppm * 1e-6));
                assert!((out[2 * k] - want).abs() < 2e-5, "{ppm}, {k}: {} is not {want}", out[2 * k]);
                assert_eq!(out[2 * k + 1], -out[2 * k]);
            }
            steer.finish(&mut out);
            let want = 20_000.0 / (1.0 + ppm * 1e-6);
            assert!((out.len() as f64 / 2.0 - want).abs() <= 2.0, "{ppm}: {} frames", out.len() / 2);
            assert!((steer.position() - 20_000.0).abs() <= 2.0);
        }
    }

    #[test]
    fn corrections_are_clamped() {
        assert_eq!(correction(200.0, 0.0), 200.0);
        assert_eq!(correction(200.0, 0.001), 100.0);
        assert_eq!(correction(0.0, -1.0), CLAMP);
        assert_eq!(correction(900.0, 0.0), CLAMP);
    }
}
