//! Products of packed matrices, divided among threads: one region for several matrices.

use std::ops::Range;

use crate::buf::scratch;
use crate::gemm::Epilogue;
use crate::isa::{Isa, Kernel};
use crate::lanes::{Lanes, N};
use crate::math::gelu;
use crate::packed::acts::Acts;
use crate::packed::{Packed, ROWS};
use crate::pool::{Parts, Pool};

/// Tokens that go together: their sums and slabs of activations stay in the caches.
const TOKENS: usize = 128;
/// Groups whose sums are kept together, with that many tokens.
const GROUPS: usize = 8;
/// Multiply-adds that are worth waking a thread for.
const SMALL: usize = 128 * 1024;

/// Groups of a matrix times all rows of the activations.
pub(crate) struct Product<'a> {
    pub matrix: &'a Packed,
    pub acts: &'a Acts,
    pub groups: Range<usize>,
    pub bias: Option<&'a [f32]>,
    pub epilogue: Epilogue,
    /// The result's first row at the first output of `groups`; rows `y_stride` apart.
    pub y: Parts<f32>,
    pub y_stride: usize,
}

struct Chunk {
    product: usize,
    groups: Range<usize>,
    tokens: Range<usize>,
}

/// Computes all products as one parallel region.
pub(crate) fn run_all(pool: &Pool, isa: Isa, products: &[Product<'_>]) {
    let work = |p: &Product<'_>| p.acts.tokens * p.groups.len() * ROWS * p.matrix.in_dim.max(1);
    let total: usize = products.iter().map(work).sum();
    let wanted = if pool.threads() == 1 { 1 } else { (total / SMALL).clamp(1, pool.threads() * 8) };
    let mut chunks = Vec::with_capacity(wanted + products.len());
    for (product, p) in products.iter().enumerate() {
        if p.acts.tokens == 0 || p.groups.is_empty() {
            continue;
        }
        let blocks = p.acts.tokens.div_ceil(TOKENS);
        let per_block = p.acts.tokens.div_ceil(blocks);
        let share = (wanted * work(p)).div_ceil(total.max(1)).div_ceil(blocks).max(1);
        // Kernels may take groups two by two.
        let mut per_chunk = p.groups.len().div_ceil(share).next_multiple_of(2);
        if p.acts.tokens > 8 {
            per_chunk = per_chunk.min(GROUPS * TOKENS / per_block.max(16));
        }
        for start in p.groups.clone().step_by(per_chunk) {
            for block in 0..blocks {
                let tokens = block * per_block..((block + 1) * per_block).min(p.acts.tokens);
                chunks.push(Chunk { product, groups: start..(start + per_chunk).min(p.groups.end), tokens });
            }
        }
    }
    let one = |i: usize| {
        let chunk = &chunks[i];
        products[chunk.product].chunk(isa, chunk);
    };
    if wanted == 1 {
        (0..chunks.len()).for_each(one);
    } else {
        pool.run(chunks.len(), one);
    }
}

impl Product<'_> {
    fn chunk(&self, isa: Isa, chunk: &Chunk) {
        let n = chunk.tokens.len();
        let len = chunk.groups.len() * n * ROWS;
        scratch(len.next_multiple_of(N), |sums| {
            for (group, sums) in chunk.groups.clone().zip(sums.chunks_exact_mut(n * ROWS)) {
                let mut start = [0.0; ROWS];
                if let Some(bias) = self.bias {
                    let bias = &bias[group * ROWS..self.matrix.out_dim.min((group + 1) * ROWS)];
                    start[..bias.len()].copy_from_slice(bias);
                }
                for sums in sums.as_chunks_mut::<ROWS>().0 {
                    *sums = start;
                }
            }
            self.matrix.products(isa, chunk.groups.clone(), self.acts, chunk.tokens.clone(), &mut sums[..len]);
            if self.epilogue == Epilogue::Gelu {
                isa.call(Gelu(sums));
            }
            for (group, sums) in chunk.groups.clone().zip(sums.chunks_exact(n * ROWS)) {
                let real = ROWS.min(self.matrix.out_dim - group * ROWS);
                for (t, sums) in chunk.tokens.clone().zip(sums.as_chunks::<ROWS>().0) {
                    let at = t * self.y_stride + (group - self.groups.start) * ROWS;
                    // SAFETY: outputs of this chunk's groups and tokens are this thread's.
                    let y = unsafe { self.y.part(at..at + real) };
                    if self.epilogue == Epilogue::AddTo {
                        y.iter_mut().zip(sums).for_each(|(y, s)| *y += s);
                    } else {
                        y.copy_from_slice(&sums[..real]);
                    }
                }
            }
        });
    }
}

struct Gelu<'a>(&'a mut [f32]);

impl Kernel for Gelu<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for v in self.0.as_chunks_mut::<N>().0 {
            // SAFETY: sixteen values.
            unsafe { gelu(L::load(v.as_ptr())).store(v.as_mut_ptr()) };
        }
    }
}
