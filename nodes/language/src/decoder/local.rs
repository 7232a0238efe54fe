//! Row operations of the decoder: norms, rotations, gates, attention over a cache.

use std::sync::{Arc, Mutex, PoisonError};

use oxiline_kernels::Pool;

use super::spec::Activation;

/// Values a thread should at least get.
const SMALL: usize = 8 * 1024;

/// Calls `work(row, values)` for every row of `width` values, on all threads when it pays.
pub(super) fn rows(pool: &Pool, data: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let count = data.len() / width.max(1);
    let per_task = SMALL.div_ceil(width.max(1)).max(count.div_ceil(4 * pool.threads()));
    if count <= per_task {
        data.chunks_exact_mut(width.max(1)).enumerate().for_each(|(i, row)| work(i, row));
        return;
    }
    let parts: Vec<Mutex<&mut [f32]>> = data.chunks_mut(per_task * width).map(Mutex::new).collect();
    pool.run(parts.len(), |t| {
        // Every part is taken by exactly one task, so the lock never waits.
        let mut part = parts[t].lock().unwrap_or_else(PoisonError::into_inner);
        part.chunks_exact_mut(width).enumerate().for_each(|(i, row)| work(t * per_task + i, row));
    });
}

/// Sum in eight lanes, then across them: one order whatever is around.
fn lanes(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let (a8, ra) = a.as_chunks::<8>();
    let (b8, rb) = b.as_chunks::<8>();
    for (a, b) in a8.iter().zip(b8) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    for (i, (a, b)) in ra.iter().zip(rb).enumerate() {
        sums[i] += a * b;
    }
    ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]))
}

fn norm_row(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (lanes(x, x) / x.len() as f32 + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

/// RMS norm of each row of `weight.len()` values, in place.
pub(super) fn rms_norm(pool: &Pool, x: &mut [f32], weight: &[f32], eps: f32) {
    rows(pool, x, weight.len(), |_, row| norm_row(row, weight, eps));
}

/// Rotates the first `2 * pairs` values of every head of every row; `cos` and `sin` are
/// `[rows, pairs]`.
pub(super) fn rotate(
    pool: &Pool,
    x: &mut [f32],
    width: usize,
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    pairs: usize,
) {
    rows(pool, x, width, |r, row| {
        let (cos, sin) = (&cos[r * pairs..(r + 1) * pairs], &sin[r * pairs..(r + 1) * pairs]);
        for head in row.chunks_exact_mut(head_dim) {
            let (a, b) = head[..2 * pairs].split_at_mut(pairs);
            for i in 0..pairs {
                let (u, v) = (a[i], b[i]);
                a[i] = u * cos[i] - v * sin[i];
                b[i] = v * cos[i] + u * sin[i];
            }
        }
    });
}

fn activate(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            const ROOT: f32 = 0.797_884_6;
            0.5 * x * (1.0 + (ROOT * (x + 0.044_715 * x * x * x)).tanh())
        }
    }
}

/// `gate = act(gate) * up`, or `act(gate)`.
pub(super) fn gate(pool: &Pool, gate: &mut [f32], up: Option<&[f32]>, width: usize, activation: Activation) {
    rows(pool, gate, width, |r, row| match up {
        Some(up) => {
            for (g, u) in row.iter_mut().zip(&up[r * width..(r + 1) * width]) {
                *g = activate(*g, activation) * u;
            }
        }
        None => row.iter_mut().for_each(|g| *g = activate(*g, activation)),
    });
}

/// `x = cap * tanh(x / cap)`.
pub(super) fn softcap(pool: &Pool, x: &mut [f32], cap: f32) {
    rows(pool, x, SMALL, |_, row| row.iter_mut().for_each(|v| *v = cap * (*v / cap).tanh()));
    let tail = x.len() / SMALL * SMALL;
    x[tail..].iter_mut().for_each(|v| *v = cap * (*v / cap).tanh());
}

/// Keys and values of one layer of one sequence; copies share until one of them grows.
#[derive(Clone)]
pub(super) struct KvCache {
    keys: Arc<Vec<f32>>,
    values: Arc<Vec<f32>>,
    width: usize,
}

impl KvCache {
    pub(super) fn new(width: usize) -> Self {
        Self { keys: Arc::default(), values: Arc::default(), width }
    }

    pub(super) fn truncate(&mut self, len: usize) {
        if self.keys.len() > len * self.width {
            Arc::make_mut(&mut self.keys).truncate(len * self.width);
            Arc::make_mut(&mut self.values).truncate(len * self.width);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        4 * (self.keys.capacity() + self.values.capacity())
    }

    pub(super) fn push(&mut self, k: &[f32], v: &[f32]) {
        Arc::make_mut(&mut self.keys).extend_from_slice(k);
        Arc::make_mut(&mut self.values).extend_from_slice(v);
    }
}

/// A query row of a sequence at a position.
pub(super) struct Query<'a> {
    pub cache: &'a KvCache,
    pub position: usize,
}

/// Sizes and rules of an attention layer.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub window: Option<usize>,
    pub scale: f32,
    pub softcap: Option<f32>,
}

/// Causal attention of query rows of any number of sequences: `q` and `out` are `[rows, heads * dim]`.
pub(super) fn attend(pool: &Pool, q: &[f32], queries: &[Query<'_>], how: Heads, out: &mut [f32]) {
    let width = how.heads * how.dim;
    let group = how.heads / how.kv_heads;
    rows(pool, out, width, |r, out| {
        let Query { cache, position } = queries[r];
        let first = how.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let mut scores = vec![0.0; position + 1 - first];
        for h in 0..how.heads {
            let q = &q[r * width + h * how.dim..][..how.dim];
            let at = h / group * how.dim;
            for (i, s) in scores.iter_mut().enumerate() {
                *s = lanes(q, &cache.keys[(first + i) * cache.width + at..][..how.dim]) * how.scale;
                if let Some(cap) = how.softcap {
                    *s = cap * (*s / cap).tanh();
                }
            }
            oxiline_kernels::ops::softmax(&mut scores);
            let out = &mut out[h * how.dim..(h + 1) * how.dim];
            out.fill(0.0);
            for (i, s) in scores.iter().enumerate() {
                let v = &cache.values[(first + i) * cache.width + at..][..how.dim];
                out.iter_mut().zip(v).for_each(|(o, v)| *o += s * v);
            }
        }
    });
}
