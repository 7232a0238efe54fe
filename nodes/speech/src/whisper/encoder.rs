//! The encoder: convolution stem, sinusoidal positions, bidirectional pre-norm layers.

use oxiline_kernels::{Epilogue, Matrix, Pool, attention, conv::Conv1d, ops};

use super::{Config, Mel};
use crate::parallel;

/// Epsilon of every layer norm.
pub(crate) const EPS: f32 = 1e-5;

/// Scale and shift of a layer norm.
pub(crate) struct Norm {
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
}

impl Norm {
    pub(crate) fn run(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        ops::layer_norm(pool, x, self.weight.len(), &self.weight, &self.bias, EPS, out);
    }
}

/// A linear layer.
pub(crate) struct Linear {
    pub(crate) weight: Matrix,
    pub(crate) bias: Option<Vec<f32>>,
}

impl Linear {
    pub(crate) fn run(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        self.weight.matmul(pool, x, self.bias.as_deref(), out);
    }
    pub(crate) fn run_gelu(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        self.weight.matmul_with(pool, x, self.bias.as_deref(), Epilogue::Gelu, out);
    }
    /// Adds the result to `out`.
    pub(crate) fn add(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        self.weight.matmul_with(pool, x, self.bias.as_deref(), Epilogue::AddTo, out);
    }
}

/// Multiplies every value.
pub(crate) fn scale(pool: &Pool, x: &mut [f32], by: f32) {
    parallel::chunks(pool, x, 1 << 16, |_, part| part.iter_mut().for_each(|v| *v *= by));
}

pub(crate) struct EncoderLayer {
    pub(crate) attention_norm: Norm,
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) out: Linear,
    pub(crate) ffn_norm: Norm,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

pub(crate) struct Encoder {
    pub(crate) conv1: Conv1d,
    pub(crate) conv2: Conv1d,
    /// `[positions, width]`.
    pub(crate) positions: Vec<f32>,
    pub(crate) layers: Vec<EncoderLayer>,
    pub(crate) norm: Norm,
}

/// An encoder pass over a few windows that is done a layer at a time, so that whoever drives it
/// can stop or do something else in between.
pub struct Encoding {
    /// Features not yet convolved, then the residual stream `[positions, width]`, per window.
    windows: Vec<Vec<f32>>,
    /// Steps done: 0 nothing, 1 the convolutions, 1 + n layers.
    done: usize,
    scratch: Scratch,
}

impl Encoding {
    /// A pass over windows `[frames, bins]`.
    pub(crate) fn new(windows: Vec<Vec<f32>>) -> Self {
        Self { windows, done: 0, scratch: Scratch::default() }
    }

    /// Steps done, of the checkpoint's encoder layers + 1.
    pub fn steps(&self) -> usize {
        self.done
    }

    pub(crate) fn into_windows(self) -> Vec<Vec<f32>> {
        self.windows
    }
}

/// Buffers of one window, used by all windows in turn: memory does not grow with their number.
#[derive(Default)]
struct Scratch {
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mixed: Vec<f32>,
    up: Vec<f32>,
}

/// Rows of the feed-forward part done at a time: its wide buffer stays in the cache.
const FFN_ROWS: usize = 384;

impl Encoder {
    /// One step of every window; true when the pass is complete.
    pub(crate) fn step(&self, pool: &Pool, config: &Config, pass: &mut Encoding) -> bool {
        if pass.done > self.layers.len() {
            return true;
        }
        let Encoding { windows, done, scratch } = pass;
        for window in windows {
            match done.checked_sub(1) {
                None => *window = self.stem(pool, window, config),
                Some(layer) => self.layers[layer].run(pool, config, window, scratch),
            }
            if *done == self.layers.len() {
                let normed = &mut scratch.normed;
                normed.resize(window.len(), 0.0);
                self.norm.run(pool, window, normed);
                std::mem::swap(window, normed);
            }
        }
        *done += 1;
        *done > self.layers.len()
    }

    fn stem(&self, pool: &Pool, mel: &[f32], config: &Config) -> Vec<f32> {
        debug_assert!(mel.len() <= Mel::WINDOW * config.mel_bins);
        let mut wide = Vec::new();
        self.conv1.run_with(pool, mel, Epilogue::Gelu, &mut wide);
        let mut hidden = Vec::new();
        self.conv2.run_with(pool, &wide, Epilogue::Gelu, &mut hidden);
        let len = hidden.len();
        ops::add(pool, &mut hidden, &self.positions[..len]);
        hidden
    }
}

impl EncoderLayer {
    fn run(&self, pool: &Pool, config: &Config, hidden: &mut [f32], scratch: &mut Scratch) {
        let Scratch { normed, q, k, v, mixed, up } = scratch;
        for buffer in [&mut *normed, q, k, v, mixed] {
            buffer.resize(hidden.len(), 0.0);
        }
        let head_dim = config.width / config.encoder_heads;
        self.attention_norm.run(pool, hidden, normed);
        self.q.run(pool, normed, q);
        scale(pool, q, (head_dim as f32).powf(-0.5));
        self.k.run(pool, normed, k);
        self.v.run(pool, normed, v);
        attention::full(pool, q, k, v, config.encoder_heads, head_dim, mixed);
        self.out.add(pool, mixed, hidden);

        self.ffn_norm.run(pool, hidden, normed);
        let rows = FFN_ROWS * config.width;
        for (hidden, normed) in hidden.chunks_mut(rows).zip(normed.chunks(rows)) {
            up.resize(normed.len() / config.width * config.encoder_ffn, 0.0);
            self.up.run_gelu(pool, normed, up);
            self.down.add(pool, up, hidden);
        }
    }
}
