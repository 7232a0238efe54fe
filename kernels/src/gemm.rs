//! Matrix products over packed panels.
//!
//! Weights lie in panels of 16 outputs, interleaved over the input dimension: `[out/16][in][16]`.
//! A tile is R token rows times P panels held in registers; each of its elements is one chain of
//! fused multiply-adds over the input dimension. Blocking over that dimension keeps the chain: the
//! accumulators are stored and loaded again, exactly.

use std::ops::Range;

use crate::buf::scratch;
use crate::isa::Isa;
use crate::lanes::{Elem, N};
use crate::pool::Pool;
use crate::tile::{MOST_ROWS, Tile, Tiles, convert};

/// Inputs in a block: a tile's panels (16 KB each) and rows (1 KB each) stay in the first cache.
const BLOCK: usize = 256;
/// Tiles of tokens in a block: their rows (16 KB a row of the tile) stay in the second cache.
const TILES: usize = 16;
/// Panels in a block of many tokens: their unfinished sums, as large as the rows, stay in the second cache too.
const GROUP: usize = 16;
/// Up to here the rows are read where they are.
const FEW: usize = 24;
/// Fewer multiply-adds than this are not worth waking a thread.
const SMALL: usize = 16 * 1024;
/// Panels a tile has at most.
const WIDEST: usize = 4;

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

/// Which rows and panels a tile covers and where its numbers are.
struct Place<W> {
    rows: usize,
    /// First panel and how many.
    p: usize,
    count: usize,
    k: usize,
    a: *const f32,
    row: usize,
    w: *const W,
    panel: usize,
    /// Unfinished sums to start from instead of the bias.
    start: Option<(*const f32, usize)>,
    out: *mut f32,
    out_stride: usize,
    epilogue: Epilogue,
}

impl<W: Elem> Job<'_, W> {
    fn panel_count(&self) -> usize {
        self.out_dim.div_ceil(N)
    }

    /// Runs one tile; at the right edge through a buffer, so that kernels know whole vectors only.
    ///
    /// # Safety
    /// Rows, weights and outputs as described are readable and this thread's to write.
    unsafe fn tile<V: Elem>(&self, tiles: &Tiles<V>, at: Place<V>) {
        let width = at.count * N;
        let real = width.min(self.out_dim - at.p * N);
        let mut tile = Tile {
            k: at.k,
            a: at.a,
            row: at.row,
            w: at.w,
            panel: at.panel,
            start: std::ptr::null(),
            start_stride: 0,
            out: at.out,
            out_stride: at.out_stride,
            epilogue: at.epilogue,
        };
        let bias = self.bias.map(|b| &b[at.p * N..at.p * N + real]);
        if real == width {
            match (at.start, bias) {
                (Some((start, stride)), _) => (tile.start, tile.start_stride) = (start, stride),
                (None, Some(bias)) => tile.start = bias.as_ptr(),
                (None, None) => {}
            }
            // SAFETY: the caller's promise.
            unsafe { tiles.run(at.rows, at.count, &tile) };
            return;
        }
        let mut start = [0.0_f32; MOST_ROWS * WIDEST * N];
        let mut out = [0.0_f32; MOST_ROWS * WIDEST * N];
        // SAFETY: `real` values of every row are inside what the caller promised.
        unsafe {
            for r in 0..at.rows {
                let to = start.as_mut_ptr().add(r * width);
                match (at.start, bias) {
                    (Some((from, stride)), _) => std::ptr::copy_nonoverlapping(from.add(r * stride), to, real),
                    (None, Some(bias)) => std::ptr::copy_nonoverlapping(bias.as_ptr(), to, real),
                    (None, None) => {}
                }
                if at.epilogue == Epilogue::AddTo {
                    let from = at.out.add(r * at.out_stride);
                    std::ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(r * width), real);
                }
            }
            (tile.start, tile.start_stride) = (start.as_ptr(), width);
            (tile.out, tile.out_stride) = (out.as_mut_ptr(), width);
            tiles.run(at.rows, at.count, &tile);
            for r in 0..at.rows {
                let to = at.out.add(r * at.out_stride);
                std::ptr::copy_nonoverlapping(out.as_ptr().add(r * width), to, real);
            }
        }
    }

    /// Few tokens: weights are read once, straight from their storage, rows where they are.
    pub(crate) fn few(&self, tiles: &Tiles<W>, tokens: Range<usize>, panels: Range<usize>) {
        let count = tokens.len().div_ceil(tiles.rows()).max(1);
        let mut p = panels.start;
        while p < panels.end {
            // A single tile may take several panels: enough sums to hide the latency.
            let rows = tokens.len().div_ceil(count);
            let used = tiles.width(rows).min(panels.end - p);
            let used = if used == 3 { 2 } else { used };
            let mut t = tokens.start;
            for i in 0..count {
                let rows = (tokens.end - t).div_ceil(count - i);
                let used_here = used.min(tiles.width(rows));
                let mut done = 0;
                while done < used {
                    let n = if used - done >= used_here { used_here } else { 1 };
                    // SAFETY: token and panel ranges lie inside the job.
                    unsafe {
                        let place = Place {
                            rows,
                            p: p + done,
                            count: n,
                            k: self.k,
                            a: self.x.add(t * self.x_stride),
                            row: self.x_stride,
                            w: self.panels.as_ptr().add((p + done) * self.panel_stride),
                            panel: self.panel_stride,
                            start: None,
                            out: self.y.add(t * self.y_stride + (p + done) * N),
                            out_stride: self.y_stride,
                            epilogue: self.epilogue,
                        };
                        self.tile(tiles, place);
                    }
                    done += n;
                }
                t += rows;
            }
            p += used;
        }
    }

    /// Many tokens: rows of a block copied together, weights converted once a block.
    fn many(&self, isa: Isa, tokens: Range<usize>, panels: Range<usize>, buf: &mut [f32]) {
        let (own, plain) = (Tiles::<W>::of(isa), Tiles::<f32>::of(isa));
        let depth = self.k.div_ceil(self.k.div_ceil(BLOCK).max(1));
        let (rows, tall) = (tokens.len(), own.rows());
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
            let epilogue = if last { self.epilogue } else { Epilogue::None };
            let mut p = panels.start;
            while p < panels.end {
                let count = own.width(tall).min(panels.end - p);
                // SAFETY: this block of the panel.
                let w = unsafe { self.panels.as_ptr().add(p * self.panel_stride + at * N) };
                if !W::PLAIN {
                    for j in 0..count {
                        // SAFETY: inside the panel.
                        let from = unsafe { std::slice::from_raw_parts(w.add(j * self.panel_stride), k * N) };
                        convert(isa, from, &mut b[j * BLOCK * N..j * BLOCK * N + k * N]);
                    }
                }
                // While the tiles of this panel run, the next one's block comes nearer.
                let next = &self.panels[((p + count) * self.panel_stride + at * N).min(self.panels.len())..];
                let next = &next[..(k * N * count).min(next.len())];
                let slice = next.len().div_ceil(rows.div_ceil(tall)).max(1);
                let mut slices = next.chunks(slice);
                let mut t = 0;
                while t < rows {
                    let n = (rows - t).min(tall);
                    prefetch(slices.next().unwrap_or_default());
                    // SAFETY: tokens, panels and scratch as laid out above.
                    unsafe {
                        let y = self.y.add((tokens.start + t) * self.y_stride + p * N);
                        let (sums, stride) = if own_c {
                            (c.as_mut_ptr().add(t * c_stride + (p - panels.start) * N), c_stride)
                        } else {
                            (y, self.y_stride)
                        };
                        let (out, out_stride) = if last { (y, self.y_stride) } else { (sums, stride) };
                        macro_rules! place {
                            ($w:expr, $panel:expr) => {
                                Place {
                                    rows: n,
                                    p,
                                    count,
                                    k,
                                    a: a.as_ptr().add(t * BLOCK),
                                    row: BLOCK,
                                    w: $w,
                                    panel: $panel,
                                    start: if first { None } else { Some((sums.cast_const(), stride)) },
                                    out,
                                    out_stride,
                                    epilogue,
                                }
                            };
                        }
                        if W::PLAIN {
                            self.tile(own, place!(w, self.panel_stride));
                        } else {
                            self.tile(plain, place!(b.as_ptr(), BLOCK * N));
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
        let tall = Tiles::<W>::of(isa).rows();
        let blocks = if few { 1 } else { self.tokens.div_ceil(TILES * tall) };
        let per_block = self.tokens.div_ceil(blocks).next_multiple_of(tall);
        let blocks = self.tokens.div_ceil(per_block);
        let wanted = if threads == 1 { 1 } else { (work / SMALL).clamp(1, threads * 6) };
        // Four panels go together in the kernels; a panel of its own would waste them.
        let least = if few { 1 } else { panels.div_ceil(GROUP) };
        let groups = wanted.div_ceil(blocks).clamp(least, panels.div_ceil(4));
        let per_group = panels.div_ceil(groups).next_multiple_of(4);
        let groups = panels.div_ceil(per_group);
        let part = |i: usize| {
            let (block, group) = (i / groups, i % groups);
            let tokens = block * per_block..((block + 1) * per_block).min(self.tokens);
            let panels = group * per_group..((group + 1) * per_group).min(panels);
            if few {
                self.few(Tiles::of(isa), tokens, panels);
                return;
            }
            let (a, b, own_c) = self.scratch_parts(tokens.len());
            let c = if own_c { tokens.len() * panels.len() * N } else { 0 };
            scratch(a + b + c, |buf| self.many(isa, tokens, panels, buf));
        };
        if wanted == 1 {
            (0..blocks * groups).for_each(part);
        } else {
            pool.run(blocks * groups, part);
        }
    }
}

/// Asks for a slice to be brought into the caches.
#[inline]
fn prefetch<T>(slice: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of_val(slice)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint, inside the slice; part of x86-64's base instructions.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(slice.as_ptr().cast::<i8>().add(at)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = slice;
}
