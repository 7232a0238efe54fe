//! Rotary position embedding.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::isa::{Isa, Kernel};
use crate::lanes::{Lanes, N, load_n, store_n};
use crate::pool::{Parts, Pool};

/// Positions whose tables are made together.
const BLOCK: usize = 64;
/// Values a thread should at least get.
const SMALL: usize = 16 * 1024;

/// Which values of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pairs {
    /// Value `i` and value `i + rot / 2`.
    #[default]
    Halves,
    /// Values `2 i` and `2 i + 1`.
    Neighbours,
}

/// Rotations by position: a table of cosines and sines, made as positions are met, shared by all
/// layers that rotate alike.
///
/// Angles are `position * inverse frequency` rounded to f32, their cosines and sines the nearest f32
/// (times the attention factor), like the models' reference code.
pub struct Rope {
    inv_freq: Vec<f32>,
    factor: f32,
    pairs: Pairs,
    /// By `position / BLOCK`: `[BLOCK][cosines, sines]`.
    blocks: RwLock<HashMap<usize, Arc<[f32]>>>,
}

impl Rope {
    /// Rotates the first `2 * inv_freq.len()` values of a head; cosines and sines are multiplied by
    /// `factor` (1 for most models).
    pub fn new(inv_freq: Vec<f32>, factor: f32) -> Self {
        Self { inv_freq, factor, pairs: Pairs::Halves, blocks: RwLock::default() }
    }

    /// The same with other pairs.
    pub fn with_pairs(mut self, pairs: Pairs) -> Self {
        self.pairs = pairs;
        self
    }

    /// Values of a head that are rotated.
    pub fn rotated(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// Bytes of tables made so far.
    pub fn bytes(&self) -> usize {
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        blocks.len() * BLOCK * self.rotated() * size_of::<f32>()
    }

    fn block(&self, block: usize) -> Arc<[f32]> {
        let found = self.blocks.read().unwrap_or_else(PoisonError::into_inner).get(&block).cloned();
        if let Some(found) = found {
            return found;
        }
        let half = self.inv_freq.len();
        let mut table = vec![0.0; BLOCK * 2 * half];
        for (i, row) in table.chunks_exact_mut((2 * half).max(1)).enumerate() {
            let (cos, sin) = row.split_at_mut(half);
            let position = (block * BLOCK + i) as f32;
            for ((c, s), f) in cos.iter_mut().zip(sin).zip(&self.inv_freq) {
                let (sine, cosine) = f64::from(position * f).sin_cos();
                (*c, *s) = (cosine as f32 * self.factor, sine as f32 * self.factor);
            }
        }
        let table: Arc<[f32]> = table.into();
        self.blocks.write().unwrap_or_else(PoisonError::into_inner).entry(block).or_insert(table).clone()
    }

    /// Rotates in place the heads of `head_dim` values of rows at `positions`: `x` is
    /// `[positions, heads * head_dim]`.
    ///
    /// # Panics
    /// When the lengths do not belong together or a head is smaller than what is rotated.
    pub fn apply(&self, pool: &Pool, x: &mut [f32], head_dim: usize, positions: &[usize]) {
        if positions.is_empty() || self.inv_freq.is_empty() || x.is_empty() {
            return;
        }
        let width = x.len() / positions.len();
        assert!(head_dim >= self.rotated(), "heads of {head_dim} values, {} rotated", self.rotated());
        assert!(x.len() == width * positions.len() && width.is_multiple_of(head_dim), "whole rows of whole heads");
        let isa = Isa::current();
        let parts = Parts::new(x);
        pool.run_chunks(positions.len(), SMALL.div_ceil(width), |range| {
            let mut block = (usize::MAX, None);
            for t in range {
                let (b, at) = (positions[t] / BLOCK, positions[t] % BLOCK);
                if block.0 != b || block.1.is_none() {
                    block = (b, Some(self.block(b)));
                }
                let Some(table) = &block.1 else { continue };
                let table = &table[at * self.rotated()..(at + 1) * self.rotated()];
                // SAFETY: a row, this chunk's alone.
                let row = unsafe { parts.part(t * width..(t + 1) * width) };
                match self.pairs {
                    Pairs::Halves => isa.call(Rotate { row, head_dim, table }),
                    Pairs::Neighbours => neighbours(row, head_dim, table),
                }
            }
        });
    }
}

fn neighbours(row: &mut [f32], head_dim: usize, table: &[f32]) {
    let (cos, sin) = table.split_at(table.len() / 2);
    for head in row.chunks_exact_mut(head_dim) {
        for ((pair, c), s) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
            (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s);
        }
    }
}

struct Rotate<'a> {
    row: &'a mut [f32],
    head_dim: usize,
    table: &'a [f32],
}

impl Kernel for Rotate<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let half = self.table.len() / 2;
        for head in self.row.chunks_exact_mut(self.head_dim) {
            for at in (0..half).step_by(N) {
                let n = (half - at).min(N);
                // SAFETY: inside the table and the head, which is at least twice `half`.
                unsafe {
                    let c = load_n::<L>(self.table.as_ptr().add(at), n, 0.0);
                    let s = load_n::<L>(self.table.as_ptr().add(half + at), n, 0.0);
                    let (a, b) = (head.as_mut_ptr().add(at), head.as_mut_ptr().add(half + at));
                    let (x, y) = (load_n::<L>(a, n, 0.0), load_n::<L>(b, n, 0.0));
                    store_n(x.mul(c).sub(y.mul(s)), a, n);
                    store_n(y.mul(c).add(x.mul(s)), b, n);
                }
            }
        }
    }
}
