//! The weight of a linear layer in whatever format it is stored in.

use crate::pool::Pool;

/// How a matrix keeps its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// 32-bit floats.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// 8-bit integers in blocks of 32 with an f32 scale; activations are quantised too.
    Q8,
}

/// `[out, in]`: the weight of a linear layer.
pub struct Matrix {
    out_dim: usize,
    in_dim: usize,
    storage: Storage,
    data: Vec<f32>,
}

impl Matrix {
    /// From row-major `[out, in]` f32 values, kept as `storage` (rounded to nearest even).
    pub fn from_f32(out_dim: usize, in_dim: usize, values: &[f32], storage: Storage) -> Self {
        assert_eq!(values.len(), out_dim * in_dim);
        Self { out_dim, in_dim, storage, data: values.to_vec() }
    }
    /// Output features.
    pub fn out_dim(&self) -> usize {
        self.out_dim
    }
    /// Input features.
    pub fn in_dim(&self) -> usize {
        self.in_dim
    }
    /// How the weights are kept.
    pub fn storage(&self) -> Storage {
        self.storage
    }
    /// Bytes of weights kept.
    pub fn bytes(&self) -> usize {
        self.data.len() * 4
    }
    /// One row as f32 (an embedding lookup).
    pub fn row(&self, row: usize, into: &mut [f32]) {
        into.copy_from_slice(&self.data[row * self.in_dim..(row + 1) * self.in_dim]);
    }
    /// `y[t] = x[t] W^T + bias` for every token row `t`. `x` is `[tokens, in]`, `y` `[tokens, out]`.
    pub fn matmul(&self, pool: &Pool, x: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
        let _ = pool;
        for (x, y) in x.chunks_exact(self.in_dim).zip(y.chunks_exact_mut(self.out_dim)) {
            for (o, y) in y.iter_mut().enumerate() {
                let mut sum = bias.map_or(0.0, |b| b[o]);
                for (x, w) in x.iter().zip(&self.data[o * self.in_dim..]) {
                    sum = x.mul_add(*w, sum);
                }
                *y = sum;
            }
        }
    }
    /// The same for chosen output rows only (`y` is `[tokens, rows.len()]`): constrained decoding.
    pub fn matmul_rows(&self, _pool: &Pool, x: &[f32], rows: &[u32], y: &mut [f32]) {
        for (x, y) in x.chunks_exact(self.in_dim).zip(y.chunks_exact_mut(rows.len())) {
            for (&o, y) in rows.iter().zip(y) {
                let w = &self.data[o as usize * self.in_dim..];
                *y = x.iter().zip(w).fold(0.0, |sum: f32, (x, w)| x.mul_add(*w, sum));
            }
        }
    }
}
