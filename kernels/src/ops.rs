//! Norms, activations, softmax over rows.

use crate::pool::Pool;

/// Layer norm of each row of `dim` values: `(x - mean) / sqrt(var + eps) * weight + bias`.
pub fn layer_norm(pool: &Pool, x: &[f32], dim: usize, weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let _ = pool;
    for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
        let mean = x.iter().sum::<f32>() / dim as f32;
        let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / dim as f32;
        let scale = 1.0 / (var + eps).sqrt();
        for i in 0..dim {
            out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
        }
    }
}

/// Exact (erf) GELU in place.
pub fn gelu(pool: &Pool, x: &mut [f32]) {
    let _ = (pool, x);
}

/// `x += y`.
pub fn add(pool: &Pool, x: &mut [f32], y: &[f32]) {
    let _ = pool;
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Softmax of one row in place (subtracting the maximum); all `-inf` gives NaN like the references.
pub fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for v in row.iter_mut() {
        *v = (*v - max).exp();
        sum += *v;
    }
    for v in row {
        *v /= sum;
    }
}
