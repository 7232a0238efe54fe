//! From the hidden states of a text's tokens to one vector.

use oxiline_graph::{Result, bail};

use crate::families::keys::{Json, Keys};

/// A way to make one vector of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The first token's.
    Cls,
    /// The greatest of each dimension.
    Max,
    /// The mean.
    Mean,
    /// The sum over the square root of the count.
    MeanSqrt,
    /// The mean weighted by position, 1 for the first token.
    Weighted,
    /// The last token's.
    Last,
}

/// The pooling of a model: its modes' vectors one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pooling {
    /// In the order of the result.
    pub modes: Vec<Mode>,
    /// A prompt's tokens count too.
    pub include_prompt: bool,
}

/// The keys of a pooling module in the order of the result.
const KEYS: [(&str, Mode); 6] = [
    ("pooling_mode_cls_token", Mode::Cls),
    ("pooling_mode_max_tokens", Mode::Max),
    ("pooling_mode_mean_tokens", Mode::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", Mode::MeanSqrt),
    ("pooling_mode_weightedmean_tokens", Mode::Weighted),
    ("pooling_mode_lasttoken", Mode::Last),
];

impl Pooling {
    /// One mode over all tokens.
    pub fn new(mode: Mode) -> Self {
        Self { modes: vec![mode], include_prompt: true }
    }

    /// From the configuration of a pooling module.
    pub(super) fn read(j: &Json) -> Result<Self> {
        let mut modes = Vec::new();
        for (key, mode) in KEYS {
            if j.flag(key)?.unwrap_or(false) {
                modes.push(mode);
            }
        }
        if modes.is_empty() {
            let named = match j.texts("pooling_mode") {
                Ok(list) => list,
                Err(_) => j.text("pooling_mode")?.map(|one| vec![one]),
            };
            for name in named.unwrap_or_default() {
                modes.push(match name.as_str() {
                    "cls" => Mode::Cls,
                    "max" => Mode::Max,
                    "mean" => Mode::Mean,
                    "mean_sqrt_len_tokens" => Mode::MeanSqrt,
                    "weightedmean" => Mode::Weighted,
                    "lasttoken" => Mode::Last,
                    _ => bail!("{} is `{name}`; cls, max, mean or lasttoken is expected", j.place("pooling_mode")),
                });
            }
        }
        if modes.is_empty() {
            bail!("{} and its like name no way of pooling", j.place("pooling_mode_mean_tokens"));
        }
        Ok(Self { modes, include_prompt: j.flag("include_prompt")?.unwrap_or(true) })
    }

    /// The vector of a text's hidden states `[tokens, width]`, of which the first `prompt` are the prompt's.
    pub fn pool(&self, hidden: &[f32], width: usize, prompt: usize) -> Vec<f32> {
        let tokens = hidden.len() / width;
        let first = if self.include_prompt { 0 } else { prompt.min(tokens) };
        let rows = &hidden[first * width..];
        let mut out = vec![0.0; self.modes.len() * width];
        for (mode, out) in self.modes.iter().zip(out.chunks_exact_mut(width)) {
            match mode {
                Mode::Cls => out.copy_from_slice(&hidden[..width]),
                Mode::Last => out.copy_from_slice(&hidden[hidden.len() - width..]),
                Mode::Max => {
                    out.fill(f32::NEG_INFINITY);
                    for row in rows.chunks_exact(width) {
                        out.iter_mut().zip(row).for_each(|(o, v)| *o = o.max(*v));
                    }
                }
                Mode::Mean | Mode::MeanSqrt | Mode::Weighted => {
                    let mut total = 0.0_f32;
                    for (i, row) in rows.chunks_exact(width).enumerate() {
                        let weight = if *mode == Mode::Weighted { (first + i + 1) as f32 } else { 1.0 };
                        total += weight;
                        out.iter_mut().zip(row).for_each(|(o, v)| *o += weight * v);
                    }
                    let by = if *mode == Mode::MeanSqrt { total.sqrt() } else { total };
                    out.iter_mut().for_each(|o| *o /= by.max(1e-9));
                }
            }
        }
        out
    }
}

/// Divides a vector by its length; a vector of zeros stays one.
pub fn normalise(x: &mut [f32]) {
    let length = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
    if length > 1e-12 {
        x.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}
