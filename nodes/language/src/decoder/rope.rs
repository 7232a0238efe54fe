//! Rotary positions: frequencies of every variant, computed in f32 as the reference does.

use std::f64::consts::PI;

/// How trained positions are stretched to longer ones.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// Not at all.
    Default,
    /// All frequencies divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Positions the model was first trained on.
        original: f64,
    },
    /// YaRN: a ramp between divided and kept frequencies by their rotations in the original context.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Positions the model was first trained on.
        original: f64,
        /// Rotations from which on frequencies are kept.
        beta_fast: f64,
        /// Rotations below which they are divided.
        beta_slow: f64,
        /// The borders of the ramp are whole dimensions.
        truncate: bool,
        /// Cosines and sines are multiplied by this.
        attention: f64,
    },
    /// NTK-aware base that grows with the position once past the trained ones. Each position is
    /// rotated by the base of its own sequence length, so that no result depends on how a prompt
    /// was cut; within the trained positions this is no scaling at all.
    Dynamic {
        /// How far positions are meant to stretch.
        factor: f64,
        /// Trained positions.
        original: f64,
    },
    /// Frequencies divided by given numbers (GGUF's `rope_freqs`).
    Divisors(Vec<f32>),
}

/// A rotation of positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// Dimensions of a head that are rotated: the first ones; even.
    pub dims: usize,
    /// Stretching.
    pub scaling: Scaling,
}

/// Frequencies ready for use.
#[derive(Debug, Clone)]
pub struct Frequencies {
    inverse: Vec<f32>,
    attention: f32,
    dynamic: Option<Rope>,
}

/// `1 / base^(2i / dims)` in f32, for every pair.
fn plain(base: f64, dims: usize) -> Vec<f32> {
    let base = f64::from(base as f32);
    (0..dims / 2).map(|i| 1.0 / base.powf(f64::from((2 * i) as f32 / dims as f32)) as f32).collect()
}

/// YaRN's default factor on cosines and sines: `0.1 * scale * ln(factor) + 1`.
pub fn yarn_attention(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

impl Rope {
    /// An unscaled rotation of whole heads.
    pub fn plain(theta: f64, dims: usize) -> Self {
        Self { theta, dims, scaling: Scaling::Default }
    }

    /// The frequencies.
    pub fn frequencies(&self) -> Frequencies {
        let mut inverse = plain(self.theta, self.dims);
        let mut attention = 1.0;
        let mut dynamic = None;
        match &self.scaling {
            Scaling::Default => {}
            Scaling::Linear { factor } => inverse.iter_mut().for_each(|f| *f /= *factor as f32),
            Scaling::Llama3 { factor, low, high, original } => {
                let (long, short) = (original / low, original / high);
                for f in &mut inverse {
                    let wave = 2.0 * PI as f32 / *f;
                    if f64::from(wave) > long {
                        *f /= *factor as f32;
                    } else if f64::from(wave) >= short {
                        let smooth = (*original as f32 / wave - *low as f32) / (high - low) as f32;
                        *f = (1.0 - smooth) * *f / *factor as f32 + smooth * *f;
                    }
                }
            }
            Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate, attention: by } => {
                attention = *by as f32;
                let dims = self.dims as f64;
                let dim_of = |rotations: f64| dims * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
                let (mut low, mut high) = (dim_of(*beta_fast), dim_of(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(dims - 1.0));
                if low == high {
                    high += 0.001;
                }
                for (i, f) in inverse.iter_mut().enumerate() {
                    let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                    let kept = 1.0 - ramp;
                    let divided = 1.0 / (*factor as f32 * (1.0 / *f));
                    *f = divided * (1.0 - kept) + *f * kept;
                }
            }
            Scaling::Dynamic { .. } => dynamic = Some(self.clone()),
            Scaling::Divisors(by) => inverse.iter_mut().zip(by).for_each(|(f, by)| *f /= by),
        }
        Frequencies { inverse, attention, dynamic }
    }
}

impl Frequencies {
    /// Pairs that are rotated.
    pub fn pairs(&self) -> usize {
        self.inverse.len()
    }

    /// Cosines and sines are multiplied by this.
    pub fn attention(&self) -> f32 {
        self.attention
    }

    /// Radians a position, by pair (within the trained positions, for the dynamic kind).
    pub fn inverse(&self) -> &[f32] {
        &self.inverse
    }

    /// Cosines and sines of a position, each [`Self::pairs`] long.
    pub fn at(&self, position: usize, cos: &mut [f32], sin: &mut [f32]) {
        let stretched = self.dynamic.as_ref().and_then(|rope| {
            let Scaling::Dynamic { factor, original } = rope.scaling else { return None };
            let len = (position + 1) as f64;
            (len > original && rope.dims > 2).then(|| {
                let dims = rope.dims as f64;
                let grown = (factor * len / original - (factor - 1.0)).powf(dims / (dims - 2.0));
                plain(rope.theta * grown, rope.dims)
            })
        });
        let inverse = stretched.as_deref().unwrap_or(&self.inverse);
        for ((f, cos), sin) in inverse.iter().zip(cos).zip(sin) {
            // The product rounds to f32 as the reference's does; what follows is the nearest f32.
            let (s, c) = f64::from(position as f32 * f).sin_cos();
            *cos = c as f32 * self.attention;
            *sin = s as f32 * self.attention;
        }
    }
}
