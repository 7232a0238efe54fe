//! Keys and values of one attention layer of one stream.

use crate::attention::{Head, put_keys, put_values};
use crate::buf::{Buf, Plain};
use crate::lanes::{Elem, F16, N};

/// Keys and values of one attention layer of one stream, growing by rows (self-attention)
/// or filled once (cross-attention). Layout is the kernel's own.
pub struct Kv {
    heads: usize,
    head_dim: usize,
    len: usize,
    /// Positions there is room for, whole panels.
    capacity: usize,
    store: Store,
}

pub(crate) enum Store {
    F32(Panels<f32>),
    F16(Panels<F16>),
}

/// Keys `[head][capacity/16][dim][16]`, values `[head][dim/16][capacity][16]`.
pub(crate) struct Panels<W: Plain> {
    keys: Buf<W>,
    values: Buf<W>,
}

impl<W: Elem + Plain> Panels<W> {
    fn new(heads: usize, dim: usize, capacity: usize) -> Self {
        Self {
            keys: Buf::zeroed(heads * dim * capacity),
            values: Buf::zeroed(heads * dim.next_multiple_of(N) * capacity),
        }
    }

    pub(crate) fn head(&self, kv: &Kv, head: usize, len: usize) -> Head<'_, W> {
        let (key_size, value_size) = sizes(kv.head_dim, kv.capacity);
        Head {
            keys: &self.keys[head * key_size..(head + 1) * key_size],
            values: &self.values[head * value_size..(head + 1) * value_size],
            value_stride: kv.capacity * N,
            dim: kv.head_dim,
            len,
        }
    }

    /// A copy of the first `len` positions with room for `capacity`.
    fn copy(&self, kv: &Kv, len: usize, capacity: usize) -> Self {
        let mut copy = Self::new(kv.heads, kv.head_dim, capacity);
        copy.overwrite(self, kv, len, capacity);
        copy
    }

    /// Takes the first `len` positions of `from`, the panels of `kv`; `capacity` is our own.
    fn overwrite(&mut self, from: &Self, kv: &Kv, len: usize, capacity: usize) {
        let (old_size, _) = sizes(kv.head_dim, kv.capacity);
        let (new_size, _) = sizes(kv.head_dim, capacity);
        let used = len.next_multiple_of(N) * kv.head_dim;
        for h in 0..kv.heads {
            self.keys[h * new_size..][..used].copy_from_slice(&from.keys[h * old_size..][..used]);
        }
        for p in 0..kv.heads * kv.head_dim.div_ceil(N) {
            self.values[p * capacity * N..][..len * N].copy_from_slice(&from.values[p * kv.capacity * N..][..len * N]);
        }
    }

    fn put(&mut self, shape: (usize, usize, usize), at: usize, count: usize, k: &[f32], v: &[f32]) {
        let (heads, dim, capacity) = shape;
        let (key_size, value_size) = sizes(dim, capacity);
        for h in 0..heads {
            let keys = &mut self.keys[h * key_size..(h + 1) * key_size];
            put_keys(keys, dim, at, count, &k[h * dim..], heads * dim);
            let values = &mut self.values[h * value_size..(h + 1) * value_size];
            put_values(values, capacity * N, dim, at, count, &v[h * dim..], heads * dim);
        }
    }
}

/// Key and value floats of a head.
fn sizes(dim: usize, capacity: usize) -> (usize, usize) {
    (dim * capacity, dim.next_multiple_of(N) * capacity)
}

impl Kv {
    /// Room for `capacity` positions (more are made when needed), kept as f32.
    pub fn new(heads: usize, head_dim: usize, capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(N);
        Self { heads, head_dim, len: 0, capacity, store: Store::F32(Panels::new(heads, head_dim, capacity)) }
    }

    /// The same kept as IEEE half: half the memory, values rounded to 11 bits (65504 at most).
    pub fn new_f16(heads: usize, head_dim: usize, capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(N);
        Self { heads, head_dim, len: 0, capacity, store: Store::F16(Panels::new(heads, head_dim, capacity)) }
    }

    /// Positions kept.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing kept?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Values of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        let (keys, values) = sizes(self.head_dim, self.capacity);
        let size = if matches!(self.store, Store::F32(_)) { 4 } else { 2 };
        self.heads * (keys + values) * size
    }

    /// Forgets positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends rows `[n, heads * head_dim]`.
    ///
    /// # Panics
    /// When `k` and `v` are not the same number of whole rows.
    pub fn push(&mut self, k: &[f32], v: &[f32]) {
        let width = self.heads * self.head_dim;
        if width == 0 || k.is_empty() {
            return;
        }
        let count = k.len() / width;
        assert!(k.len() == count * width && v.len() == k.len(), "as many whole key rows as value rows");
        if self.len + count > self.capacity {
            let capacity = (self.len + count).max(self.capacity * 2).next_multiple_of(N);
            self.store = self.copied(self.len, capacity);
            self.capacity = capacity;
        }
        let shape = (self.heads, self.head_dim, self.capacity);
        match &mut self.store {
            Store::F32(p) => p.put(shape, self.len, count, k, v),
            Store::F16(p) => p.put(shape, self.len, count, k, v),
        }
        self.len += count;
    }

    /// An independent copy of the positions kept, with the same room (a beam going its own way).
    pub fn fork(&self) -> Self {
        Self {
            heads: self.heads,
            head_dim: self.head_dim,
            len: self.len,
            capacity: self.capacity,
            store: self.copied(self.len, self.capacity),
        }
    }

    /// Becomes a copy of the first `len` positions of `other`, reusing this one's memory where it
    /// is large enough.
    ///
    /// # Panics
    /// When the two differ in heads or head size, or `other` has fewer positions.
    pub fn copy_from(&mut self, other: &Self, len: usize) {
        assert!(self.heads == other.heads && self.head_dim == other.head_dim, "streams of one layer");
        assert!(len <= other.len, "{len} positions of {}", other.len);
        let capacity = if self.capacity >= len { self.capacity } else { other.capacity };
        match (&mut self.store, &other.store) {
            (Store::F32(to), Store::F32(from)) if self.capacity >= len => to.overwrite(from, other, len, capacity),
            (Store::F16(to), Store::F16(from)) if self.capacity >= len => to.overwrite(from, other, len, capacity),
            (store, _) => *store = other.copied(len, capacity),
        }
        self.capacity = capacity;
        self.len = len;
    }

    fn copied(&self, len: usize, capacity: usize) -> Store {
        match &self.store {
            Store::F32(p) => Store::F32(p.copy(self, len, capacity)),
            Store::F16(p) => Store::F16(p.copy(self, len, capacity)),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
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
