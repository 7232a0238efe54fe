//! 8-bit weights: blocks of 32 inputs with a scale, activations quantised the same way.
//!
//! Each block's sum is an exact integer; the floats `(scale of x * scale of w) * sum` are added in
//! block order by fused multiply-adds from the bias on. So a result depends on nothing else.

use std::ops::Range;

use crate::buf::Buf;
use crate::gemm::Epilogue;
use crate::isa::{Isa, Kernel};
use crate::lanes::{Lanes, N, load_n, store_n};
use crate::math::gelu;
use crate::pool::{Parts, Pool};

/// Inputs in a block.
pub(crate) const BLOCK: usize = 32;
/// Bytes of a block of a panel: `[32 / 4][16 outputs][4 inputs]`.
const BLOCK_BYTES: usize = BLOCK * N;
/// Rounds floats up to 2^22 to whole numbers.
const ROUND: f32 = 12_582_912.0;

/// `[out, in]` in panels of 16 outputs.
pub(crate) struct Q8 {
    pub out_dim: usize,
    pub blocks: usize,
    /// `[panel][block][8][16][4]`.
    pub values: Buf<i8>,
    /// `[panel][block][16]`.
    pub scales: Buf<f32>,
}

/// Scale and whole numbers of up to 32 values; a NaN or infinity makes the scale NaN or infinite.
pub fn quantise(x: &[f32], q: &mut [i8]) -> f32 {
    let mut greatest = 0.0_f32;
    for v in x {
        let v = v.abs();
        if v > greatest || v.is_nan() {
            greatest = v;
        }
    }
    let inverse = if greatest > 0.0 { 127.0 / greatest } else { 0.0 };
    // A greatest value so small that its inverse is infinite counts as zero.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    for (q, v) in q.iter_mut().zip(x) {
        *q = ((v * inverse + ROUND) - ROUND).clamp(-127.0, 127.0) as i8;
    }
    greatest / 127.0
}

impl Q8 {
    /// Packs rows that `row` writes as f32.
    pub(crate) fn pack(pool: &Pool, out_dim: usize, in_dim: usize, row: impl Fn(usize, &mut [f32]) + Sync) -> Self {
        Self::packed(pool, out_dim, in_dim, |r, put| {
            let mut buf = vec![0.0; in_dim];
            row(r, &mut buf);
            for (b, x) in buf.chunks(BLOCK).enumerate() {
                let mut q = [0; BLOCK];
                let scale = quantise(x, &mut q);
                put(b, scale, &q);
            }
        })
    }

    /// Packs integers that are there already, rows of signed bytes and a scale a block.
    pub(crate) fn given<'a>(
        pool: &Pool,
        out_dim: usize,
        in_dim: usize,
        row: impl Fn(usize) -> &'a [u8] + Sync,
        scales: &[f32],
    ) -> Self {
        let blocks = in_dim.div_ceil(BLOCK);
        Self::packed(pool, out_dim, in_dim, |r, put| {
            for (b, codes) in row(r).chunks(BLOCK).enumerate() {
                let mut q = [0; BLOCK];
                for (q, c) in q.iter_mut().zip(codes) {
                    // -128 has no counterpart; the kernels take no such weight.
                    *q = (*c as i8).max(-127);
                }
                put(b, scales[r * blocks + b], &q);
            }
        })
    }

    /// Packs what `row` puts, block by block.
    fn packed(
        pool: &Pool,
        out_dim: usize,
        in_dim: usize,
        row: impl Fn(usize, &mut dyn FnMut(usize, f32, &[i8; BLOCK])) + Sync,
    ) -> Self {
        let (panels, blocks) = (out_dim.div_ceil(N), in_dim.div_ceil(BLOCK));
        let mut values = Buf::zeroed(panels * blocks * BLOCK_BYTES);
        let mut scales = Buf::zeroed(panels * blocks * N);
        let (v_parts, s_parts) = (Parts::new(&mut values), Parts::new(&mut scales));
        pool.run(panels, |p| {
            // SAFETY: one panel a task.
            let (values, scales) = unsafe {
                let size = blocks * BLOCK_BYTES;
                (v_parts.part(p * size..(p + 1) * size), s_parts.part(p * blocks * N..(p + 1) * blocks * N))
            };
            for lane in 0..N.min(out_dim - p * N) {
                row(p * N + lane, &mut |b, scale, q| {
                    scales[b * N + lane] = scale;
                    for (k, q) in q.iter().enumerate() {
                        values[b * BLOCK_BYTES + (k / 4) * 64 + lane * 4 + k % 4] = *q;
                    }
                });
            }
        });
        Self { out_dim, blocks, values, scales }
    }

    /// One row as f32.
    pub(crate) fn row(&self, row: usize, into: &mut [f32]) {
        let (p, lane) = (row / N, row % N);
        for (k, v) in into.iter_mut().enumerate() {
            let b = p * self.blocks + k / BLOCK;
            let q = self.values[b * BLOCK_BYTES + (k % BLOCK / 4) * 64 + lane * 4 + k % 4];
            *v = f32::from(q) * self.scales[b * N + lane];
        }
    }

    /// The whole product for panels `panels`; `y` starts at the first of them.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn matmul(
        &self,
        pool: &Pool,
        isa: Isa,
        x: &Rows,
        panels: Range<usize>,
        bias: Option<&[f32]>,
        epilogue: Epilogue,
        y: &mut [f32],
        y_stride: usize,
    ) {
        let parts = Parts::new(y);
        let (count, first) = (panels.len(), panels.start);
        let per_block = if x.tokens <= 48 { x.tokens.max(1) } else { 48 };
        let blocks = x.tokens.div_ceil(per_block);
        let work = x.tokens * self.blocks * BLOCK * count * N;
        let wanted = (work / (32 * 1024)).clamp(1, pool.threads() * 6);
        let per_group = count.div_ceil(wanted.div_ceil(blocks.max(1)).max(1)).max(1);
        let groups = count.div_ceil(per_group);
        let part = |i: usize| {
            let (block, group) = (i / groups, i % groups);
            isa.call(Part {
                q8: self,
                x,
                tokens: block * per_block..((block + 1) * per_block).min(x.tokens),
                panels: first + group * per_group..first + ((group + 1) * per_group).min(count),
                first,
                bias,
                epilogue,
                y: &parts,
                y_stride,
            });
        };
        if wanted == 1 {
            (0..blocks * groups).for_each(part);
        } else {
            pool.run(blocks * groups, part);
        }
    }
}

/// Quantised activations.
pub(crate) struct Rows {
    tokens: usize,
    /// `[token][block][32]`.
    values: Vec<i8>,
    /// `[token][block]`.
    scales: Vec<f32>,
}

impl Rows {
    /// Quantises `tokens` rows of `k` values, `stride` apart.
    pub(crate) fn quantise(pool: &Pool, isa: Isa, x: &[f32], stride: usize, tokens: usize, k: usize) -> Self {
        let blocks = k.div_ceil(BLOCK);
        let mut values = vec![0; tokens * blocks * BLOCK];
        let mut scales = vec![0.0; tokens * blocks];
        let (v_parts, s_parts) = (Parts::new(&mut values), Parts::new(&mut scales));
        let min = (16 * 1024_usize).div_ceil(k.max(1));
        pool.run_chunks(tokens, min, |range| {
            // SAFETY: every chunk has its own tokens.
            let (values, scales) = unsafe {
                let width = blocks * BLOCK;
                (
                    v_parts.part(range.start * width..range.end * width),
                    s_parts.part(range.start * blocks..range.end * blocks),
                )
            };
            isa.call(Quantise { x: &x[range.start * stride..], stride, k, blocks, values, scales });
        });
        Self { tokens, values, scales }
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    stride: usize,
    k: usize,
    blocks: usize,
    values: &'a mut [i8],
    scales: &'a mut [f32],
}

impl Kernel for Quantise<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for t in 0..self.scales.len() / self.blocks.max(1) {
            let x = &self.x[t * self.stride..t * self.stride + self.k];
            for b in 0..self.blocks {
                let at = t * self.blocks + b;
                let x = &x[b * BLOCK..((b + 1) * BLOCK).min(self.k)];
                self.scales[at] = quantise(x, &mut self.values[at * BLOCK..(at + 1) * BLOCK]);
            }
        }
    }
}

struct Part<'a> {
    q8: &'a Q8,
    x: &'a Rows,
    tokens: Range<usize>,
    panels: Range<usize>,
    /// The panel whose outputs start a row of `y`.
    first: usize,
    bias: Option<&'a [f32]>,
    epilogue: Epilogue,
    y: &'a Parts<f32>,
    y_stride: usize,
}

impl Kernel for Part<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for p in self.panels.clone() {
            let mut t = self.tokens.start;
            while t < self.tokens.end {
                // SAFETY: tokens and panels inside the product, this thread's own.
                unsafe {
                    match self.tokens.end - t {
                        1 => self.tile::<L, 1>(t, p),
                        2 => self.tile::<L, 2>(t, p),
                        3 | 5 | 6 => self.tile::<L, 3>(t, p),
                        _ => self.tile::<L, 4>(t, p),
                    }
                }
                t += match self.tokens.end - t {
                    n @ 1..=3 => n,
                    5 | 6 => 3,
                    _ => 4,
                };
            }
        }
    }
}

impl Part<'_> {
    /// # Safety
    /// `R` tokens from `t` and panel `p` are this thread's.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize>(&self, t: usize, p: usize) {
        let blocks = self.q8.blocks;
        let n = (self.q8.out_dim - p * N).min(N);
        // SAFETY: inside the matrix, the rows and the output.
        unsafe {
            let start = match self.bias {
                Some(bias) => load_n::<L>(bias.as_ptr().add(p * N), n, 0.0),
                None => L::splat(0.0),
            };
            let mut acc = [start; R];
            let mut w = self.q8.values.as_ptr().add(p * blocks * BLOCK_BYTES);
            let mut scale = self.q8.scales.as_ptr().add(p * blocks * N);
            let x = self.x.values.as_ptr().add(t * blocks * BLOCK);
            let x_scale = self.x.scales.as_ptr().add(t * blocks);
            for b in 0..blocks {
                let mut sum = [L::int_zero(); R];
                for g in 0..BLOCK / 4 {
                    for r in 0..R {
                        let x = x.add((r * blocks + b) * BLOCK + g * 4).cast::<[i8; 4]>().read();
                        sum[r] = L::dot4(sum[r], w.add(g * 64), x);
                    }
                }
                let w_scale = L::load(scale);
                for r in 0..R {
                    let s = L::splat(*x_scale.add(r * blocks + b)).mul(w_scale);
                    acc[r] = L::from_int(sum[r]).fma(s, acc[r]);
                }
                w = w.add(BLOCK_BYTES);
                scale = scale.add(N);
            }
            for r in 0..R {
                let y = self.y.start().add((t + r) * self.y_stride + (p - self.first) * N);
                let value = match self.epilogue {
                    Epilogue::None => acc[r],
                    Epilogue::Gelu => gelu(acc[r]),
                    Epilogue::AddTo => load_n::<L>(y, n, 0.0).add(acc[r]),
                };
                store_n(value, y, n);
            }
        }
    }
}
