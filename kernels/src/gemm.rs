//! Matrix products over packed panels.
//!
//! Weights lie in panels of 16 outputs, interleaved over the input dimension: `[out/16][in][16]`.
//! A tile is R token rows times P panels held in registers; each of its elements is one chain of
//! fused multiply-adds over the input dimension. Blocking over that dimension keeps the chain: the
//! accumulators are stored and loaded again, exactly.

use std::ops::Range;

use crate::buf::scratch;
use crate::isa::{Isa, Kernel};
use crate::lanes::{Elem, Lanes, N, load_n, store_n};
use crate::math::gelu;
use crate::pool::Pool;

/// Rows of a tile: 6 x 16 fills 12 of 16 registers with sums.
const ROWS: usize = 6;
/// Inputs in a block: a panel's block (16 KB) and a tile's rows (6 KB) stay in the first cache.
const BLOCK: usize = 256;
/// Tokens in a block: their rows (96 KB) stay in the second cache.
const TOKENS: usize = 96;
/// Up to here the rows are read where they are.
const FEW: usize = 24;
/// Fewer multiply-adds than this are not worth waking a thread.
const SMALL: usize = 16 * 1024;

/// What happens to a finished sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Epilogue {
    /// It is the result.
    #[default]
    None,
    /// Its exact GELU is the result.
    Gelu,
    /// It is added to what the output held (a residual).
    AddTo,
}

/// One product.
pub(crate) struct Job<'a, W> {
    /// Rows of `k` inputs, `x_stride` apart.
    pub x: *const f32,
    pub x_stride: usize,
    pub tokens: usize,
    pub k: usize,
    /// Panels, `panel_stride` apart.
    pub panels: &'a [W],
    pub panel_stride: usize,
    pub out_dim: usize,
    pub bias: Option<&'a [f32]>,
    pub y: *mut f32,
    pub y_stride: usize,
    pub epilogue: Epilogue,
}

// SAFETY: threads read `x` and write disjoint parts of `y`, both borrowed by whoever made the job.
unsafe impl<W: Sync> Sync for Job<'_, W> {}

/// R rows (`row` apart) times P panels (`panel` apart), `k` deep.
///
/// # Safety
/// `R` rows of `k` readable floats, `P` panels of `16 k` readable weights.
#[inline(always)]
pub(crate) unsafe fn tile<L: Lanes, W: Elem, const R: usize, const P: usize>(
    k: usize,
    a: *const f32,
    row: usize,
    w: *const W,
    panel: usize,
    mut acc: [[L; P]; R],
) -> [[L; P]; R] {
    for i in 0..k {
        // SAFETY: inside the rows and panels.
        unsafe {
            let mut b = [L::splat(0.0); P];
            for p in 0..P {
                b[p] = W::lanes::<L>(w.add(p * panel + i * N));
            }
            for r in 0..R {
                let x = L::splat(*a.add(r * row + i));
                for p in 0..P {
                    acc[r][p] = x.fma(b[p], acc[r][p]);
                }
            }
        }
    }
    acc
}

/// Where a tile's sums come from and go to.
struct Ends {
    /// First block of the input dimension: start from the bias.
    first: bool,
    /// Last: apply the epilogue and write the result.
    last: bool,
    /// Unfinished sums.
    c: *mut f32,
    c_stride: usize,
}

impl<W: Elem> Job<'_, W> {
    fn panel_count(&self) -> usize {
        self.out_dim.div_ceil(N)
    }

    /// Lanes of panel `p` that are outputs.
    #[inline(always)]
    fn width(&self, p: usize) -> usize {
        (self.out_dim - p * N).min(N)
    }

    /// One tile: rows from token `t`, panels from `p`; `c` of `ends` points at the tile.
    ///
    /// # Safety
    /// As for [`tile`]; the outputs belong to this thread.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    unsafe fn tile_at<L: Lanes, V: Elem, const R: usize, const P: usize>(
        &self,
        t: usize,
        p: usize,
        k: usize,
        a: *const f32,
        row: usize,
        w: *const V,
        panel: usize,
        ends: &Ends,
    ) {
        let mut acc = [[L::splat(0.0); P]; R];
        for j in 0..P {
            let n = self.width(p + j);
            if !ends.first {
                for r in 0..R {
                    // SAFETY: written by an earlier block.
                    acc[r][j] = unsafe { load_n::<L>(ends.c.add(r * ends.c_stride + j * N), n, 0.0) };
                }
            } else if let Some(bias) = self.bias {
                // SAFETY: `out_dim` biases.
                let b = unsafe { load_n::<L>(bias.as_ptr().add((p + j) * N), n, 0.0) };
                for r in 0..R {
                    acc[r][j] = b;
                }
            }
        }
        // SAFETY: the caller's promise.
        let acc = unsafe { tile::<L, V, R, P>(k, a, row, w, panel, acc) };
        for j in 0..P {
            let n = self.width(p + j);
            for r in 0..R {
                let mut value = acc[r][j];
                // SAFETY: inside the output (or the unfinished sums), ours to write.
                unsafe {
                    if !ends.last {
                        store_n(value, ends.c.add(r * ends.c_stride + j * N), n);
                        continue;
                    }
                    let y = self.y.add((t + r) * self.y_stride + (p + j) * N);
                    match self.epilogue {
                        Epilogue::None => {}
                        Epilogue::Gelu => value = gelu(value),
                        Epilogue::AddTo => value = load_n::<L>(y, n, 0.0).add(value),
                    }
                    store_n(value, y, n);
                }
            }
        }
    }

    /// Few tokens: weights are read once, straight from their storage, rows where they are.
    #[inline(always)]
    pub(crate) fn few<L: Lanes>(&self, tokens: Range<usize>, panels: Range<usize>) {
        let count = tokens.len();
        let tiles = count.div_ceil(ROWS).max(1);
        let ends = Ends { first: true, last: true, c: std::ptr::null_mut(), c_stride: 0 };
        let mut p = panels.start;
        while p < panels.end {
            let left = panels.end - p;
            let mut used = 1;
            let mut t = tokens.start;
            for i in 0..tiles {
                let rows = (tokens.end - t).div_ceil(tiles - i);
                // SAFETY: token and panel ranges lie inside the job.
                unsafe {
                    let a = self.x.add(t * self.x_stride);
                    let w = self.panels.as_ptr().add(p * self.panel_stride);
                    macro_rules! go {
                        ($r:literal, $p:literal) => {{
                            used = $p;
                            self.tile_at::<L, W, $r, $p>(t, p, self.k, a, self.x_stride, w, self.panel_stride, &ends);
                        }};
                    }
                    // A single tile may take several panels: enough sums to hide the latency.
                    let wide = tiles == 1;
                    match rows {
                        1 if wide && left >= 4 => go!(1, 4),
                        1 => go!(1, 1),
                        2 if wide && left >= 2 => go!(2, 2),
                        2 => go!(2, 1),
                        3 if wide && left >= 2 => go!(3, 2),
                        3 => go!(3, 1),
                        4 if wide && L::WIDE && left >= 2 => go!(4, 2),
                        4 => go!(4, 1),
                        5 if wide && L::WIDE && left >= 2 => go!(5, 2),
                        5 => go!(5, 1),
                        6 if wide && L::WIDE && left >= 2 => go!(6, 2),
                        _ => go!(6, 1),
                    }
                }
                t += rows;
            }
            p += used;
        }
    }

    /// Many tokens: rows of a block copied together, weights converted once a block.
    #[inline(always)]
    fn many<L: Lanes>(&self, tokens: Range<usize>, panels: Range<usize>, buf: &mut [f32]) {
        let blocks = self.k.div_ceil(BLOCK).max(1);
        let depth = self.k.div_ceil(blocks);
        let rows = tokens.len();
        let (a_len, b_len, own_c) = self.scratch_parts(rows);
        let c_stride = panels.len() * N;
        let (a, rest) = buf.split_at_mut(a_len);
        let (b, c) = rest.split_at_mut(b_len);
        let mut at = 0;
        while at < self.k || at == 0 {
            let k = depth.min(self.k - at);
            for (r, row) in a.chunks_exact_mut(BLOCK).enumerate() {
                // SAFETY: `k` inputs from `at` on of a token of ours.
                unsafe {
                    let from = self.x.add((tokens.start + r) * self.x_stride + at);
                    std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), k);
                }
            }
            let (first, last) = (at == 0, at + k >= self.k);
            let mut p = panels.start;
            while p < panels.end {
                let pair = L::WIDE && p + 1 < panels.end;
                let count = if pair { 2 } else { 1 };
                // SAFETY: this block of the panel.
                let w = unsafe { self.panels.as_ptr().add(p * self.panel_stride + at * N) };
                if !W::PLAIN {
                    for j in 0..count {
                        for i in 0..k {
                            // SAFETY: inside the panel and the scratch.
                            unsafe {
                                let v = W::lanes::<L>(w.add(j * self.panel_stride + i * N));
                                v.store(b.as_mut_ptr().add((j * BLOCK + i) * N));
                            }
                        }
                    }
                }
                let mut t = 0;
                while t < rows {
                    let n = (rows - t).min(ROWS);
                    // SAFETY: tokens, panels and scratch as laid out above.
                    unsafe {
                        let (c, c_stride) = if own_c {
                            (c.as_mut_ptr().add(t * c_stride + (p - panels.start) * N), c_stride)
                        } else {
                            (self.y.add((tokens.start + t) * self.y_stride + p * N), self.y_stride)
                        };
                        let ends = Ends { first, last, c, c_stride };
                        let row = a.as_ptr().add(t * BLOCK);
                        macro_rules! go {
                            ($r:literal, $p:literal) => {
                                if W::PLAIN {
                                    let (t, s) = (tokens.start + t, self.panel_stride);
                                    self.tile_at::<L, W, $r, $p>(t, p, k, row, BLOCK, w, s, &ends)
                                } else {
                                    let (t, w) = (tokens.start + t, b.as_ptr());
                                    self.tile_at::<L, f32, $r, $p>(t, p, k, row, BLOCK, w, BLOCK * N, &ends)
                                }
                            };
                        }
                        match (n, pair) {
                            (6, true) => go!(6, 2),
                            (5, true) => go!(5, 2),
                            (4, true) => go!(4, 2),
                            (3, true) => go!(3, 2),
                            (2, true) => go!(2, 2),
                            (1, true) => go!(1, 2),
                            (6, false) => go!(6, 1),
                            (5, false) => go!(5, 1),
                            (4, false) => go!(4, 1),
                            (3, false) => go!(3, 1),
                            (2, false) => go!(2, 1),
                            _ => go!(1, 1),
                        }
                    }
                    t += n;
                }
                p += count;
            }
            at += k.max(1);
        }
    }

    /// Floats of scratch for `rows` tokens: copied rows, converted weights, and whether unfinished
    /// sums need a place of their own (they go where the result will, unless that holds the residual).
    fn scratch_parts(&self, rows: usize) -> (usize, usize, bool) {
        let b_len = if W::PLAIN { 0 } else { 2 * BLOCK * N };
        (rows * BLOCK, b_len, self.epilogue == Epilogue::AddTo && self.k > BLOCK)
    }

    /// Runs the whole product.
    pub(crate) fn run(&self, pool: &Pool, isa: Isa) {
        if self.tokens == 0 || self.out_dim == 0 {
            return;
        }
        let panels = self.panel_count();
        let threads = pool.threads();
        let work = self.tokens * self.k.max(1) * panels * N;
        let few = self.tokens <= FEW;
        // Token blocks of whole tiles, all about the same size.
        let blocks = if few { 1 } else { self.tokens.div_ceil(TOKENS) };
        let per_block = self.tokens.div_ceil(blocks).next_multiple_of(ROWS);
        let blocks = self.tokens.div_ceil(per_block);
        let wanted = if threads == 1 { 1 } else { (work / SMALL).clamp(1, threads * 6) };
        // Four panels go together in the kernels; a panel of its own would waste them.
        let groups = wanted.div_ceil(blocks).clamp(1, panels.div_ceil(4));
        let per_group = panels.div_ceil(groups).next_multiple_of(4);
        let groups = panels.div_ceil(per_group);
        let part = |i: usize| {
            let (block, group) = (i / groups, i % groups);
            let tokens = block * per_block..((block + 1) * per_block).min(self.tokens);
            let panels = group * per_group..((group + 1) * per_group).min(panels);
            let mut len = 0;
            if !few {
                let (a, b, own_c) = self.scratch_parts(tokens.len());
                len = a + b + if own_c { tokens.len() * panels.len() * N } else { 0 };
            }
            // Outside the kernel: a closure inside would not be compiled for its instructions.
            scratch(len, |buf| isa.call(Part { job: self, tokens, panels, few, buf }));
        };
        if wanted == 1 {
            (0..blocks * groups).for_each(part);
        } else {
            pool.run(blocks * groups, part);
        }
    }
}

/// One thread's share.
struct Part<'a, W> {
    job: &'a Job<'a, W>,
    tokens: Range<usize>,
    panels: Range<usize>,
    few: bool,
    buf: &'a mut [f32],
}

impl<W: Elem> Kernel for Part<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        if self.few {
            self.job.few::<L>(self.tokens, self.panels);
        } else {
            self.job.many::<L>(self.tokens, self.panels, self.buf);
        }
    }
}
