//! Scaled dot-product attention.

use crate::pool::Pool;

/// Bidirectional self-attention of one sequence: `q k v out` are `[tokens, heads * head_dim]`.
/// Queries are expected scaled.
pub fn full(pool: &Pool, q: &[f32], k: &[f32], v: &[f32], heads: usize, head_dim: usize, out: &mut [f32]) {
    let _ = (pool, q, k, v, heads, head_dim, out);
}

/// Keys and values of one attention layer of one stream, growing by rows (self-attention)
/// or filled once (cross-attention). Layout is the kernel's own.
pub struct Kv {
    heads: usize,
    head_dim: usize,
    len: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Kv {
    /// Room for `capacity` positions.
    pub fn new(heads: usize, head_dim: usize, capacity: usize) -> Self {
        let size = heads * head_dim * capacity;
        Self { heads, head_dim, len: 0, keys: Vec::with_capacity(size), values: Vec::with_capacity(size) }
    }
    /// Positions kept.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Nothing kept?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Forgets positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
    /// Appends rows `[n, heads * head_dim]`.
    pub fn push(&mut self, k: &[f32], v: &[f32]) {
        self.keys.extend_from_slice(k);
        self.values.extend_from_slice(v);
        self.len += k.len() / (self.heads * self.head_dim);
    }
}

/// One query row against the first `len` positions of a stream's keys and values.
pub struct Query<'a> {
    /// Scaled query, `[heads * head_dim]`.
    pub q: &'a [f32],
    /// The stream.
    pub kv: &'a Kv,
    /// Positions visible to this row.
    pub len: usize,
    /// Result, `[heads * head_dim]`.
    pub out: &'a mut [f32],
    /// Softmax weights of these heads are handed out, `[wanted heads][len]`.
    pub weights: Option<(&'a [usize], &'a mut [f32])>,
}

/// Attention of query rows of any number of streams in one parallel region. A row's result does
/// not depend on the others.
pub fn rows(pool: &Pool, queries: &mut [Query<'_>]) {
    let _ = (pool, queries);
}
