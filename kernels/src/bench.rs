//! Figures of our kernels at the shapes models use, to be stated against [`crate::limits`].

use std::time::Duration;

use crate::limits::best;
use crate::{Matrix, Pool, Storage, attention};

/// A product: `[tokens, k]` times `[out, k]` transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows of activations.
    pub tokens: usize,
    /// Input features.
    pub k: usize,
    /// Output features.
    pub out: usize,
}

/// Whisper's products: the encoder's 1500 positions and a decoder's single token.
pub const WHISPER: [Shape; 11] = {
    const fn s(tokens: usize, k: usize, out: usize) -> Shape {
        Shape { tokens, k, out }
    }
    [
        s(1500, 384, 384),
        s(1500, 384, 1536),
        s(1500, 512, 512),
        s(1500, 512, 2048),
        s(1500, 1280, 5120),
        s(1, 384, 384),
        s(1, 384, 1536),
        s(1, 512, 512),
        s(1, 512, 2048),
        s(1, 1280, 5120),
        s(1, 384, 51865),
    ]
};

/// What a product reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The product.
    pub shape: Shape,
    /// How the weights are kept.
    pub storage: Storage,
    /// Shortest run, seconds.
    pub seconds: f64,
    /// Two operations a multiply-add, 10^9 a second.
    pub gflops: f64,
    /// Weight bytes read, 10^9 a second (one token is bound by this).
    pub gbytes: f64,
}

/// Measures products, each for about a fifth of a second.
pub fn gemm_figures(pool: &Pool, shapes: &[Shape], storage: Storage) -> Vec<Figure> {
    let figure = |shape: &Shape| {
        let Shape { tokens, k, out } = *shape;
        let matrix = Matrix::from_values(out, k, |i| (i % 17) as f32 / 17.0 - 0.5, storage);
        let x: Vec<f32> = (0..tokens * k).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
        let mut y = vec![0.0; tokens * out];
        let seconds = best(Duration::from_millis(200), || matrix.matmul(pool, &x, None, &mut y));
        Figure {
            shape: *shape,
            storage,
            seconds,
            gflops: 2.0 * (tokens * k * out) as f64 / seconds / 1e9,
            gbytes: matrix.bytes() as f64 / seconds / 1e9,
        }
    };
    shapes.iter().map(figure).collect()
}

/// GFLOP/s of [`attention::full`] over `tokens` positions.
pub fn attention_figure(pool: &Pool, tokens: usize, heads: usize, head_dim: usize) -> f64 {
    let width = heads * head_dim;
    let x: Vec<f32> = (0..tokens * width).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
    let mut out = vec![0.0; tokens * width];
    let seconds = best(Duration::from_millis(200), || attention::full(pool, &x, &x, &x, heads, head_dim, &mut out));
    4.0 * (tokens * tokens * width) as f64 / seconds / 1e9
}
