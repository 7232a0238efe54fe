//! Sample rate and channel conversion.
//!
//! A polyphase FIR: the ideal low-pass (sinc) under a Kaiser window, evaluated at exact rational
//! positions. Output sample `k` lies at input position `k * from / to`, kept as integers, so a
//! stream of any length does not drift, and every output depends only on the input samples
//! around it, so the result is the same bits however the input is cut into pieces.

use std::collections::VecDeque;

use oxiline_graph::{Error, Result};

/// The rate speech models work at, Hz.
pub const SPEECH_RATE: u32 = 16_000;
/// Rates above this are refused: no device or file has them, a damaged header does.
pub const MAX_RATE: u32 = 6_144_000;
/// Rates below this are refused.
pub const MIN_RATE: u32 = 100;

/// Zero crossings of the sinc on each side of its centre, at the lower of the two rates.
const CROSSINGS: f64 = 120.0;
/// Kaiser window parameter: side lobes 168 dB down.
const BETA: f64 = 17.6;
/// Where the filter is 6 dB down, of the lower Nyquist frequency. What is left unchanged ends at
/// 0.91 and everything that would alias is gone from 1.0 on: the transition of the reference
/// (soxr, very high quality), so that noise near the Nyquist frequency agrees with it too.
const CUTOFF: f64 = 0.9558;
/// Filter banks larger than this many coefficients are interpolated from a finer one instead.
const TABLE_LIMIT: usize = 1 << 21;
/// Phases of the interpolated bank. Linear interpolation of a band-limited kernel at 1/2048 of a
/// sample leaves an error of about (pi/2048)^2/8 = -130 dB.
const FINE_PHASES: usize = 2048;

/// Resamples mono `samples` from `rate_in` to `rate_out`: `round(n * rate_out / rate_in)` samples,
/// aligned with the input.
///
/// # Errors
/// When a rate is outside 100 Hz to 6.144 MHz.
pub fn resample(samples: &[f32], rate_in: u32, rate_out: u32) -> Result<Vec<f32>> {
    let mut resampler = Resampler::new(rate_in, 1, rate_out, 1)?;
    let mut out = Vec::new();
    resampler.push(samples, &mut out);
    resampler.finish(&mut out);
    Ok(out)
}

/// A streaming converter of rate and channels.
pub struct Resampler {
    input: (u32, u16),
    output: (u32, u16),
    /// Channels that go through the filter: the fewer of the two sides.
    inner: usize,
    filter: Option<Filter>,
    /// Per channel: the input around the next output, oldest first.
    history: Vec<VecDeque<f32>>,
    /// Input frame number of the oldest sample in `history` (negative: silence before the start).
    oldest: i64,
    /// Input frames taken.
    taken: u64,
    /// Output frames given.
    given: u64,
    scratch: Vec<f32>,
}

/// The filter bank of one ratio.
struct Filter {
    /// `to / gcd` and `from / gcd`.
    up: u64,
    down: u64,
    /// Taps in each phase; the window covers input `floor(position) - taps / 2 + 1 ..= floor(position) + taps / 2`.
    taps: usize,
    /// Phase after phase. Exact: `up` phases. Fine: `FINE_PHASES + 1`.
    bank: Vec<f32>,
    exact: bool,
}

impl Resampler {
    /// From `rate_in`, `channels_in` to `rate_out`, `channels_out`.
    ///
    /// Channels: to mono is the mean of all (as the reference implementations do); from mono is a
    /// copy for each; equal counts pass; otherwise every output channel is the mean of all inputs.
    ///
    /// # Errors
    /// When a rate is outside [`MIN_RATE`] to [`MAX_RATE`] or a channel count is 0.
    pub fn new(rate_in: u32, channels_in: u16, rate_out: u32, channels_out: u16) -> Result<Self> {
        for rate in [rate_in, rate_out] {
            if !(MIN_RATE..=MAX_RATE).contains(&rate) {
                return Err(Error::msg(format_args!(
                    "a sample rate of {rate} Hz cannot be converted: rates lie between {MIN_RATE} and {MAX_RATE} Hz"
                )));
            }
        }
        if channels_in == 0 || channels_out == 0 {
            return Err(Error::msg("sound with 0 channels cannot be converted"));
        }
        let inner = if channels_in == channels_out { usize::from(channels_in) } else { 1 };
        let filter = (rate_in != rate_out).then(|| Filter::new(rate_in, rate_out));
        let mut new = Self {
            input: (rate_in, channels_in),
            output: (rate_out, channels_out),
            inner,
            filter,
            history: vec![VecDeque::new(); inner],
            oldest: 0,
            taken: 0,
            given: 0,
            scratch: Vec::new(),
        };
        new.reset();
        Ok(new)
    }

    /// Rate and channels of the input.
    pub fn input(&self) -> (u32, u16) {
        self.input
    }

    /// Rate and channels of the output.
    pub fn output(&self) -> (u32, u16) {
        self.output
    }

    /// Output frames given since the start or the last [`reset`](Self::reset).
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Counts frames that the caller passes on itself, because input and output have one form.
    pub(crate) fn push_count(&mut self, frames: u64) {
        self.taken += frames;
        self.given += frames;
    }

    /// Seconds of input the output lags behind.
    pub fn delay(&self) -> f64 {
        self.filter.as_ref().map_or(0.0, |f| f.taps as f64 / 2.0 / f64::from(self.input.0))
    }

    /// Starts anew: silence before, no samples counted.
    pub fn reset(&mut self) {
        let lead = self.filter.as_ref().map_or(0, |f| f.taps / 2 - 1);
        for channel in &mut self.history {
            channel.clear();
            channel.extend(std::iter::repeat_n(0.0, lead));
        }
        (self.oldest, self.taken, self.given) = (-(lead as i64), 0, 0);
    }

    /// Takes interleaved samples (whole frames; a rest is ignored) and appends what can be
    /// computed from them to `out`, interleaved.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let channels = usize::from(self.input.1);
        let frames = samples.len() / channels;
        let samples = &samples[..frames * channels];
        if self.filter.is_none() {
            self.taken += frames as u64;
            self.given += frames as u64;
            if self.input.1 == self.output.1 {
                out.extend_from_slice(samples);
            } else {
                for frame in samples.chunks_exact(channels) {
                    out.extend(std::iter::repeat_n(mean(frame), usize::from(self.output.1)));
                }
            }
            return;
        }
        if self.inner == channels {
            for (c, history) in self.history.iter_mut().enumerate() {
                history.extend(samples.iter().skip(c).step_by(channels));
            }
        } else {
            self.history[0].extend(samples.chunks_exact(channels).map(mean));
        }
        self.taken += frames as u64;
        self.drain(u64::MAX, out);
    }

    /// The end of the input: appends the rest, so that in all
    /// `round(taken * rate_out / rate_in)` frames came out, and starts anew.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if let Some(filter) = &self.filter {
            let (num, den) = (u128::from(self.taken) * u128::from(filter.up), u128::from(filter.down));
            let total = u64::try_from((num + den / 2) / den).unwrap_or(u64::MAX);
            let tail = filter.taps + 1;
            for history in &mut self.history {
                history.extend(std::iter::repeat_n(0.0, tail));
            }
            self.drain(total, out);
        }
        self.reset();
    }

    /// Computes outputs while the input around them is there, up to output `end`.
    fn drain(&mut self, end: u64, out: &mut Vec<f32>) {
        let Some(filter) = &self.filter else { return };
        let half = filter.taps as i64 / 2;
        let have = self.oldest + self.history[0].len() as i64;
        let from = out.len();
        // Contiguous views: the window of an output must not straddle the ring's seam.
        let views: Vec<&[f32]> = self.history.iter_mut().map(|h| &*h.make_contiguous()).collect();
        while self.given < end {
            let position = u128::from(self.given) * u128::from(filter.down);
            let index = (position / u128::from(filter.up)) as i64;
            let phase = (position % u128::from(filter.up)) as u64;
            if index + half >= have {
                break;
            }
            let start = (index - half + 1 - self.oldest) as usize;
            let coefficients = filter.phase(phase, &mut self.scratch);
            for view in &views {
                let y = dot(coefficients, &view[start..start + filter.taps]);
                let copies = if self.inner == 1 { usize::from(self.output.1) } else { 1 };
                out.extend(std::iter::repeat_n(y, copies));
            }
            self.given += 1;
        }
        debug_assert!((out.len() - from).is_multiple_of(usize::from(self.output.1)));
        // Forget what no later output needs.
        let next = (u128::from(self.given) * u128::from(filter.down) / u128::from(filter.up)) as i64;
        let keep_from = next - half + 1;
        let drop = usize::try_from(keep_from - self.oldest).unwrap_or(0).min(self.history[0].len());
        if drop > 0 {
            self.history.iter_mut().for_each(|h| drop_front(h, drop));
            self.oldest += drop as i64;
        }
    }
}

fn drop_front(history: &mut VecDeque<f32>, n: usize) {
    history.drain(..n);
}

fn mean(frame: &[f32]) -> f32 {
    match frame {
        [one] => *one,
        // In f64, so that a mean of equal channels is that channel, bit for bit.
        _ => (frame.iter().map(|&x| f64::from(x)).sum::<f64>() / frame.len() as f64) as f32,
    }
}

/// Sum of products in eight lanes: one fixed order, whatever the alignment.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let ((a8, a1), (b8, b1)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (x, y) in a8.iter().zip(b8) {
        for i in 0..16 {
            lanes[i] += x[i] * y[i];
        }
    }
    let tail: f32 = a1.iter().zip(b1).map(|(x, y)| x * y).sum();
    let pairs: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let quads: [f32; 4] = std::array::from_fn(|i| pairs[i] + pairs[i + 4]);
    (quads[0] + quads[2]) + (quads[1] + quads[3]) + tail
}

impl Filter {
    fn new(rate_in: u32, rate_out: u32) -> Self {
        let g = u64::from(gcd(rate_in, rate_out));
        let (up, down) = (u64::from(rate_out) / g, u64::from(rate_in) / g);
        // Going down, the filter stretches with the ratio.
        let stretch = (down as f64 / up as f64).max(1.0);
        let half = (CROSSINGS * stretch / CUTOFF).ceil() as usize + 1;
        // A multiple of 8 on each side keeps the sums in whole lanes.
        let half = half.next_multiple_of(8);
        let taps = 2 * half;
        let exact = usize::try_from(up).is_ok_and(|u| u.saturating_mul(taps) <= TABLE_LIMIT);
        let phases = if exact { up as usize } else { FINE_PHASES + 1 };
        let of = if exact { up as f64 } else { FINE_PHASES as f64 };
        let mut bank = Vec::with_capacity(phases * taps);
        for p in 0..phases {
            bank.extend(phase(p as f64 / of, half, stretch));
        }
        Self { up, down, taps, bank, exact }
    }

    /// The coefficients for the position `phase / up` past an input sample.
    fn phase<'a>(&'a self, phase: u64, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        if self.exact {
            let at = phase as usize * self.taps;
            return &self.bank[at..at + self.taps];
        }
        let fine = phase as f64 / self.up as f64 * FINE_PHASES as f64;
        let (low, part) = (fine.floor() as usize, fine.fract() as f32);
        let row = |p: usize| &self.bank[p * self.taps..(p + 1) * self.taps];
        scratch.clear();
        scratch.extend(row(low).iter().zip(row(low + 1)).map(|(a, b)| a + (b - a) * part));
        scratch
    }
}

/// One phase: the kernel at `j - fraction` for `j` from `1 - half` to `half`, summing to 1 so that
/// a constant stays what it is.
pub(crate) fn phase(fraction: f64, half: usize, stretch: f64) -> Vec<f32> {
    let width = half as f64;
    let cutoff = CUTOFF / stretch;
    let taps: Vec<f64> = (0..2 * half)
        .map(|i| {
            let x = i as f64 + 1.0 - width - fraction;
            let window = (1.0 - (x / width) * (x / width)).max(0.0).sqrt();
            sinc(cutoff * x) * bessel_i0(BETA * window)
        })
        .collect();
    let sum: f64 = taps.iter().sum();
    taps.iter().map(|t| (t / sum) as f32).collect()
}

fn sinc(x: f64) -> f64 {
    let y = std::f64::consts::PI * x;
    if y.abs() < 1e-9 { 1.0 } else { y.sin() / y }
}

/// Modified Bessel function of the first kind, order 0, by its power series.
fn bessel_i0(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..200 {
        term *= quarter / f64::from(k * k);
        sum += term;
        if term < sum * 1e-17 {
            break;
        }
    }
    sum
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
