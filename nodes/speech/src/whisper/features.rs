//! Log-mel features, computed in float64 and rounded once.
//!
//! The definition is the one Whisper was trained with: periodic Hann window of 400 samples, hop
//! 160, reflected edges, power spectrum, Slaney mel bank over 0..8000 Hz, `log10`, a floor 8
//! below the clip's maximum, `(x + 4) / 4`.

use oxiline_kernels::{Pool, fft::Fft};

use crate::parallel;

/// Samples per second that everything here expects.
pub const SAMPLE_RATE: usize = 16_000;
/// Samples from one frame to the next.
pub const HOP: usize = 160;
/// Samples of one encoder window: shorter clips are padded to it.
pub const WINDOW_SAMPLES: usize = 480_000;

const FFT: usize = 400;
const SPECTRUM: usize = FFT / 2 + 1;
/// Frames of one parallel task.
const BLOCK: usize = 256;

/// A normalised log-mel spectrogram of a whole clip, time-major as the encoder reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Mel {
    /// Values per frame.
    pub bins: usize,
    /// Frames, 10 ms each.
    pub frames: usize,
    /// `[frames, bins]`, row-major.
    pub data: Vec<f32>,
}

impl Mel {
    /// Frames of one encoder window.
    pub const WINDOW: usize = 3000;

    /// The encoder window of [`Mel::WINDOW`] frames from frame `seek` on, `[3000, bins]`, filled
    /// up with 0.0 past the end (the value the model was trained to see there, not silence).
    pub fn window(&self, seek: usize) -> Vec<f32> {
        let seek = seek.min(self.frames);
        let frames = Self::WINDOW.min(self.frames - seek);
        let mut window = Vec::with_capacity(Self::WINDOW * self.bins);
        window.extend_from_slice(&self.data[seek * self.bins..(seek + frames) * self.bins]);
        window.resize(Self::WINDOW * self.bins, 0.0);
        window
    }

    /// The values as `[bins, frames]`, the layout of published features.
    pub fn by_bin(&self) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.data.len());
        for bin in 0..self.bins {
            out.extend(self.data.iter().skip(bin).step_by(self.bins.max(1)));
        }
        out
    }
}

/// The feature extractor for one number of bins.
pub struct Features {
    fft: Fft,
    window: Vec<f64>,
    filters: Vec<Filter>,
}

/// One triangle of the mel bank: its non-zero weights from bin `first` on.
struct Filter {
    first: usize,
    weights: Vec<f64>,
}

impl Features {
    /// For `bins` mel bins (80 or 128 in published checkpoints).
    pub fn new(bins: usize) -> Self {
        let window = (0..FFT).map(|i| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / FFT as f64).cos()).collect();
        let bank = mel_bank(bins);
        let filters = (0..bins)
            .map(|bin| {
                let column: Vec<f64> = bank.iter().skip(bin).step_by(bins).copied().collect();
                let first = column.iter().position(|w| *w != 0.0).unwrap_or(0);
                let end = column.iter().rposition(|w| *w != 0.0).map_or(first, |last| last + 1);
                Filter { first, weights: column[first..end].to_vec() }
            })
            .collect();
        Self { fft: Fft::new(FFT), window, filters }
    }

    /// Features of a whole clip of 16 kHz mono samples. Clips of up to [`WINDOW_SAMPLES`] are
    /// padded with zeros to that length first (3000 frames); longer ones are featurised whole
    /// (`samples / 160` frames, rounded down). Samples that are not finite count as zero.
    pub fn mel(&self, samples: &[f32]) -> Mel {
        let bins = self.filters.len();
        let padded = samples.len().max(WINDOW_SAMPLES);
        let frames = padded / HOP;
        let mut data = vec![0.0f32; frames * bins];
        let blocks = frames.div_ceil(BLOCK);
        let maxima: Vec<std::sync::Mutex<f64>> =
            (0..blocks).map(|_| std::sync::Mutex::new(f64::NEG_INFINITY)).collect();
        let pool = Pool::global();
        parallel::chunks(pool, &mut data, BLOCK * bins, |block, out| {
            let max = self.block(samples, padded, block * BLOCK, out);
            if let Ok(mut slot) = maxima[block].lock() {
                *slot = max;
            }
        });
        let max = maxima.iter().filter_map(|m| m.lock().ok().map(|m| *m)).fold(f64::NEG_INFINITY, f64::max);
        // The floor is 8 decades below the maximum, which is 2 after the division by 4. Rounding
        // is monotonic: clamping the rounded values gives the rounded clamped ones.
        let floor = (max - 2.0) as f32;
        parallel::chunks(pool, &mut data, BLOCK * bins, |_, out| {
            for v in out {
                *v = v.max(floor);
            }
        });
        Mel { bins, frames, data }
    }

    /// Frames from `first` on into `out`, normalised but not clamped; their unrounded maximum.
    fn block(&self, samples: &[f32], padded: usize, first: usize, out: &mut [f32]) -> f64 {
        let mut frame = vec![0.0f64; FFT];
        let mut power = vec![0.0f64; SPECTRUM];
        let mut scratch = Vec::new();
        let mut max = f64::NEG_INFINITY;
        for (i, row) in out.chunks_exact_mut(self.filters.len()).enumerate() {
            let silent = gather(samples, padded, (first + i) * HOP, &mut frame);
            if silent {
                power.fill(0.0);
            } else {
                for (x, w) in frame.iter_mut().zip(&self.window) {
                    *x *= w;
                }
                self.fft.power(&frame, &mut scratch, &mut power);
            }
            for (filter, out) in self.filters.iter().zip(row) {
                let mel: f64 = filter.weights.iter().zip(&power[filter.first..]).map(|(w, p)| w * p).sum();
                let value = (mel.max(1e-10).log10() + 4.0) / 4.0;
                max = max.max(value);
                *out = value as f32;
            }
        }
        max
    }
}

/// The 400 samples around `center`, edges reflected without repeating the edge sample, zeros up to
/// `padded`. True when all are zero.
fn gather(samples: &[f32], padded: usize, center: usize, frame: &mut [f64]) -> bool {
    let start = center as isize - (FFT / 2) as isize;
    let last = padded as isize - 1;
    let mut silent = true;
    for (i, out) in frame.iter_mut().enumerate() {
        let at = (start + i as isize).abs();
        let at = if at > last { 2 * last - at } else { at };
        let x = samples.get(at as usize).copied().unwrap_or(0.0);
        *out = if x.is_finite() { f64::from(x) } else { 0.0 };
        silent &= *out == 0.0;
    }
    silent
}

/// The Slaney mel bank `[201, bins]`: linear to 1 kHz, logarithmic above, triangles scaled to
/// equal area.
pub fn mel_bank(bins: usize) -> Vec<f64> {
    const LINEAR: f64 = 200.0 / 3.0;
    const BREAK_MEL: f64 = 1000.0 / LINEAR;
    let step = 6.4f64.ln() / 27.0;
    let to_mel = |hz: f64| if hz >= 1000.0 { BREAK_MEL + (hz / 1000.0).ln() / step } else { hz / LINEAR };
    let to_hz = |mel: f64| if mel >= BREAK_MEL { 1000.0 * ((mel - BREAK_MEL) * step).exp() } else { mel * LINEAR };
    let top = to_mel(SAMPLE_RATE as f64 / 2.0);
    let edges: Vec<f64> = (0..bins + 2).map(|i| to_hz(top * i as f64 / (bins + 1) as f64)).collect();
    let mut bank = vec![0.0; SPECTRUM * bins];
    for (i, row) in bank.chunks_exact_mut(bins).enumerate() {
        let hz = i as f64 * SAMPLE_RATE as f64 / FFT as f64;
        for (weight, edge) in row.iter_mut().zip(edges.windows(3)) {
            let up = (hz - edge[0]) / (edge[1] - edge[0]);
            let down = (edge[2] - hz) / (edge[2] - edge[1]);
            *weight = up.min(down).max(0.0) * 2.0 / (edge[2] - edge[0]);
        }
    }
    bank
}
