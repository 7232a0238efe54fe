//! One-dimensional convolution over time-major activations.

use crate::buf::scratch;
use crate::{Epilogue, Matrix, Pool};

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
    /// Output rows for `time` input rows.
    pub fn time_out(&self, time: usize) -> usize {
        let padded = time + 2 * self.pad;
        if padded < self.kernel { 0 } else { (padded - self.kernel) / self.stride.max(1) + 1 }
    }

    /// Runs the convolution.
    ///
    /// # Panics
    /// When the weight or the input does not have the shape described.
    pub fn run(&self, pool: &Pool, x: &[f32], out: &mut Vec<f32>) {
        self.run_with(pool, x, Epilogue::None, out);
    }

    /// The same with something done to each result while it is in a register
    /// ([`Epilogue::AddTo`] adds to zeros: `out` is new).
    ///
    /// # Panics
    /// When the weight or the input does not have the shape described.
    pub fn run_with(&self, pool: &Pool, x: &[f32], epilogue: Epilogue, out: &mut Vec<f32>) {
        assert!(self.kernel > 0 && self.stride > 0, "a kernel and a stride");
        let channels = self.weight.in_dim() / self.kernel;
        assert!(channels > 0 && self.weight.in_dim() == channels * self.kernel, "kernel size times channels");
        let time = x.len() / channels;
        assert_eq!(x.len(), time * channels, "whole rows of {channels} channels");
        let time_out = self.time_out(time);
        out.clear();
        out.resize(time_out * self.weight.out_dim(), 0.0);
        // A window of time-major rows is one stretch of memory: the rows of the product overlap.
        let padded = (time + 2 * self.pad) * channels;
        scratch(padded, |buf| {
            let (start, end) = (self.pad * channels, self.pad * channels + x.len());
            buf[..start].fill(0.0);
            buf[start..end].copy_from_slice(x);
            buf[end..].fill(0.0);
            self.weight.matmul_strided(pool, buf, self.stride * channels, Some(&self.bias), epilogue, out);
        });
    }
}
