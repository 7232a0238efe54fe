//! One-dimensional convolution over time-major activations.

use crate::{Matrix, Pool};

/// A 1-D convolution: kernel size `k`, `stride`, zero padding `pad`.
/// Input `[time, in_channels]`, output `[time_out, out_channels]`.
pub struct Conv1d {
    /// `[out_channels, k * in_channels]`, k-major inside a row.
    pub weight: Matrix,
    /// Bias.
    pub bias: Vec<f32>,
    /// Kernel size.
    pub kernel: usize,
    /// Stride.
    pub stride: usize,
    /// Zero padding at both ends.
    pub pad: usize,
}

impl Conv1d {
    /// Runs the convolution.
    pub fn run(&self, pool: &Pool, x: &[f32], out: &mut Vec<f32>) {
        let _ = (pool, x, out);
    }
}
