//! Causal attention of language models over [`KvCache`]s: grouped heads, windows, capped scores.
//!
//! A row's result is one computation, whatever runs beside it. For each page of keys it may see, in
//! order: scores (one chain over the head's values each), the greatest so far, `e^(score - greatest)`,
//! and one chain over the page's positions on top of the rescaled sums. Every `CHUNK` pages, counted
//! from position 0, start afresh and are merged into the whole in order: so chunks may run on
//! different threads.

use std::cmp::Reverse;
use std::ops::Range;

use crate::buf::scratch;
use crate::gemm::Epilogue;
use crate::isa::{Isa, Kernel};
use crate::kvcache::{Kept, KvCache, KvFormat, PAGE};
use crate::lanes::{F16, Lanes, N};
use crate::math::{exp_negative, tanh};
use crate::pool::{Parts, Pool};
use crate::tile::{MOST_ROWS as TILE, Tile, Tiles};

/// Pages whose partial results are merged as one.
const CHUNK: usize = 4;
/// Rows that go through the pages together: their numbers stay in the second cache.
const ROWS: usize = 96;
/// Fewer multiply-adds than this are not worth waking a thread.
const SMALL: usize = 128 * 1024;

/// Query rows of one sequence.
pub struct Attend<'a> {
    /// `[tokens, heads * head_dim]`, not scaled.
    pub q: &'a [f32],
    /// Keys and values; those of the rows themselves are already there.
    pub kv: &'a KvCache,
    /// Position of the first row.
    pub start: usize,
    /// Query heads: a multiple of the cache's heads; neighbours share a key/value head.
    pub heads: usize,
    /// Scores are products times this.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Position `p` sees `p - window + 1 ..= p` only.
    pub window: Option<usize>,
    /// For each head a score that takes its share of the weights and has no value.
    pub sinks: Option<&'a [f32]>,
    /// Result, `[tokens, heads * head_dim]`.
    pub out: &'a mut [f32],
}

impl<'a> Attend<'a> {
    /// Plain causal attention scaled by `1 / sqrt(head_dim)`, over the window of the cache.
    pub fn new(q: &'a [f32], kv: &'a KvCache, start: usize, heads: usize, out: &'a mut [f32]) -> Self {
        let scale = 1.0 / (kv.head_dim() as f32).sqrt();
        Self { q, kv, start, heads, scale, softcap: None, window: kv.window(), sinks: None, out }
    }
}

/// What is the same for all tasks of a span.
struct Span<'a> {
    q: *const f32,
    out: *mut f32,
    kv: &'a KvCache,
    start: usize,
    tokens: usize,
    heads: usize,
    scale: f32,
    softcap: Option<f32>,
    window: usize,
    sinks: Option<&'a [f32]>,
}

// SAFETY: threads read queries and write disjoint rows; both stay borrowed during the call.
unsafe impl Sync for Span<'_> {}

impl Span<'_> {
    fn group(&self) -> usize {
        self.heads / self.kv.kv_heads()
    }

    /// Positions that row `row` of a key/value head's `[tokens][group]` rows sees.
    fn visible(&self, row: usize) -> Range<usize> {
        let end = self.start + row / self.group() + 1;
        end.saturating_sub(self.window)..end
    }

    /// Where the row's values start.
    fn at(&self, head: usize, row: usize) -> usize {
        let group = self.group();
        (row / group * self.heads + head * group + row % group) * self.kv.head_dim()
    }

    /// Chunks that any of the rows sees.
    fn chunks(&self, rows: &Range<usize>) -> Range<usize> {
        let (first, last) = (self.visible(rows.start), self.visible(rows.end - 1));
        first.start / (CHUNK * PAGE)..last.end.div_ceil(CHUNK * PAGE)
    }
}

/// Rows of one key/value head, a piece of work.
#[derive(Clone)]
struct Block {
    span: usize,
    head: usize,
    rows: Range<usize>,
    chunks: Range<usize>,
    /// Where the partial results go, `[rows][greatest, sum, values]`; finished when there is none.
    partial: Option<usize>,
}

/// Attention of all spans in one parallel region (two for a few rows over many positions).
///
/// # Panics
/// When lengths do not belong together, or a row would see positions that the cache does not keep.
pub fn attend(pool: &Pool, spans: &mut [Attend<'_>]) {
    let isa = Isa::current();
    let mut list = Vec::with_capacity(spans.len());
    for s in spans.iter_mut() {
        let (kv_heads, dim) = (s.kv.kv_heads(), s.kv.head_dim());
        let width = s.heads * dim;
        assert_eq!(s.q.len(), s.out.len(), "as many results as queries");
        if width == 0 || s.q.is_empty() {
            continue;
        }
        assert!(kv_heads > 0 && s.heads.is_multiple_of(kv_heads), "{} heads over {kv_heads}", s.heads);
        assert!(s.q.len().is_multiple_of(width), "whole rows of {width} values");
        assert!(s.sinks.is_none_or(|sinks| sinks.len() == s.heads), "a sink a head");
        let tokens = s.q.len() / width;
        assert!(s.start + tokens <= s.kv.len(), "rows {}..{} of {}", s.start, s.start + tokens, s.kv.len());
        let window = s.window.unwrap_or(usize::MAX).max(1);
        let lowest = (s.start + 1).saturating_sub(window);
        assert!(lowest >= s.kv.first_position(), "position {lowest} was dropped behind the cache's window");
        list.push(Span {
            q: s.q.as_ptr(),
            out: s.out.as_mut_ptr(),
            kv: s.kv,
            start: s.start,
            tokens,
            heads: s.heads,
            scale: s.scale,
            softcap: s.softcap,
            window,
            sinks: s.sinks,
        });
    }
    let list = &list;
    let mut blocks = Vec::new();
    let mut work = 0;
    for (i, s) in list.iter().enumerate() {
        let total = s.tokens * s.group();
        let most = (ROWS * 128 / s.kv.head_dim()).clamp(24, ROWS) / TILE * TILE;
        let count = total.div_ceil(most);
        let per_block = if count == 1 { total } else { total.div_ceil(count).next_multiple_of(TILE) };
        for head in 0..s.kv.kv_heads() {
            for first in (0..total).step_by(per_block) {
                let rows = first..(first + per_block).min(total);
                work += 2 * rows.len() * s.visible(rows.end - 1).len() * s.kv.head_dim();
                blocks.push(Block { span: i, head, chunks: s.chunks(&rows), rows, partial: None });
            }
        }
    }
    if work < SMALL || pool.threads() == 1 {
        blocks.iter().for_each(|b| run_block(isa, list, b, None));
        return;
    }
    let whole = blocks.len();
    if whole < 4 * pool.threads() {
        // Few rows: the chunks of each are work of their own.
        let mut parts = Vec::new();
        let mut size = 0;
        let mut split = Vec::new();
        for b in &blocks {
            if b.chunks.len() == 1 {
                parts.push(b.clone());
                continue;
            }
            split.push((b.clone(), size));
            let each = b.rows.len() * (list[b.span].kv.head_dim().next_multiple_of(N) + 2);
            for chunk in b.chunks.clone() {
                parts.push(Block { chunks: chunk..chunk + 1, partial: Some(size), ..b.clone() });
                size += each;
            }
        }
        scratch(size, |buf| {
            let partials = Parts::new(buf);
            pool.run(parts.len(), |i| run_block(isa, list, &parts[i], Some(&partials)));
            // A few values a head: less than a region would cost.
            for (b, at) in &split {
                isa.call(Merge { span: &list[b.span], block: b, partials: &buf[*at..] });
            }
        });
        return;
    }
    // The longest first, so that no thread is left with one at the end.
    blocks.sort_by_key(|b| Reverse(b.chunks.len() * b.rows.len()));
    pool.run(blocks.len(), |i| run_block(isa, list, &blocks[i], None));
}

fn run_block(isa: Isa, list: &[Span<'_>], block: &Block, partials: Option<&Parts<f32>>) {
    let span = &list[block.span];
    match span.kv.format() {
        KvFormat::F32 => run_format::<f32>(isa, span, block, partials),
        KvFormat::F16 => run_format::<F16>(isa, span, block, partials),
        KvFormat::Int8 => run_format::<i8>(isa, span, block, partials),
    }
}

fn run_format<W: Kept>(isa: Isa, span: &Span<'_>, block: &Block, partials: Option<&Parts<f32>>) {
    let (rows, dim) = (block.rows.len(), span.kv.head_dim());
    let padded = dim.next_multiple_of(N);
    // For more than two tiles, panels are converted to f32 once.
    let convert = !W::PLAIN && rows > 2 * Tiles::<W>::of(isa).rows();
    let size = rows * (dim + PAGE + 2 * padded) + if convert { PAGE * (dim + padded) } else { 0 };
    scratch(size, |buf| {
        isa.call(Run::<W> { span, block, partials, isa, tiles: Tiles::of(isa), plain: Tiles::of(isa), convert, buf });
    });
}

/// Greatest score and sum of weights of a row so far.
#[derive(Clone, Copy)]
struct State {
    max: f32,
    sum: f32,
}

const EMPTY: State = State { max: f32::NEG_INFINITY, sum: 0.0 };

/// `e^x` of one value.
#[inline(always)]
fn exp_one<L: Lanes>(x: f32) -> f32 {
    exp_negative(L::splat(x)).greatest()
}

/// What scores are taken relative to: the greatest, or zero when all are `-inf`.
#[inline(always)]
fn shift(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Merges a chunk's result into the whole: both are `values` of `padded` floats.
///
/// # Safety
/// Whole vectors at both.
#[inline(always)]
unsafe fn merge<L: Lanes>(whole: &mut State, into: *mut f32, part: State, from: *const f32, padded: usize) {
    let max = if part.max > whole.max { part.max } else { whole.max };
    let (a, b) = (exp_one::<L>(whole.max - shift(max)), exp_one::<L>(part.max - shift(max)));
    *whole = State { max, sum: part.sum.mul_add(b, whole.sum * a) };
    let (a, b) = (L::splat(a), L::splat(b));
    for i in (0..padded).step_by(N) {
        // SAFETY: the caller's promise.
        unsafe { L::load(from.add(i)).fma(b, L::load(into.add(i)).mul(a)).store(into.add(i)) };
    }
}

/// Divides by the sum and writes the row.
///
/// # Safety
/// `values` are whole vectors; `out` has `dim` floats.
#[inline(always)]
unsafe fn finish<L: Lanes>(state: State, sink: Option<f32>, values: *const f32, dim: usize, out: *mut f32) {
    let (mut sum, mut share) = (state.sum, 1.0);
    if let Some(sink) = sink {
        let max = shift(if sink > state.max { sink } else { state.max });
        share = exp_one::<L>(state.max - max);
        sum = sum.mul_add(share, exp_one::<L>(sink - max));
    }
    let scale = L::splat(share / sum);
    for i in (0..dim).step_by(N) {
        // Zero is added so that a zero has no sign: how often a weight of zero was added would show.
        // SAFETY: the caller's promise.
        unsafe {
            let v = L::load(values.add(i)).mul(scale).add(L::splat(0.0));
            crate::lanes::store_n(v, out.add(i), (dim - i).min(N));
        }
    }
}

struct Merge<'a> {
    span: &'a Span<'a>,
    block: &'a Block,
    partials: &'a [f32],
}

impl Kernel for Merge<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { span, block, partials } = self;
        let dim = span.kv.head_dim();
        let padded = dim.next_multiple_of(N);
        let (count, each) = (block.rows.len(), padded + 2);
        let mut values = vec![0.0; padded];
        for (r, row) in block.rows.clone().enumerate() {
            let visible = span.visible(row);
            let mut whole = EMPTY;
            values.fill(0.0);
            for (c, chunk) in block.chunks.clone().enumerate() {
                if !sees(&visible, chunk) {
                    continue;
                }
                let part = &partials[(c * count + r) * each..][..each];
                let state = State { max: part[padded], sum: part[padded + 1] };
                // SAFETY: whole vectors both.
                unsafe { merge::<L>(&mut whole, values.as_mut_ptr(), state, part.as_ptr(), padded) };
            }
            let sink = span.sinks.map(|s| s[block.head * span.group() + row % span.group()]);
            // SAFETY: a row of the result, this caller's alone.
            unsafe { finish::<L>(whole, sink, values.as_ptr(), dim, span.out.add(span.at(block.head, row))) };
        }
    }
}

fn sees(visible: &Range<usize>, chunk: usize) -> bool {
    visible.start < (chunk + 1) * CHUNK * PAGE && visible.end > chunk * CHUNK * PAGE
}

struct Run<'a, W: 'static> {
    span: &'a Span<'a>,
    block: &'a Block,
    partials: Option<&'a Parts<f32>>,
    isa: Isa,
    tiles: &'static Tiles<W>,
    plain: &'static Tiles<f32>,
    convert: bool,
    buf: &'a mut [f32],
}

/// Rows of a tile and what of the page in hand they see.
#[derive(Clone, Copy)]
struct Group {
    first: usize,
    rows: usize,
    low: usize,
    high: usize,
}

/// Where a block's numbers lie.
struct Place {
    q: *const f32,
    scores: *mut f32,
    sums: *mut f32,
    dim: usize,
    padded: usize,
}

impl<W: Kept> Kernel for Run<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { span, block, .. } = self;
        let (count, dim) = (block.rows.len(), span.kv.head_dim());
        let padded = dim.next_multiple_of(N);
        let (q, rest) = self.buf.split_at_mut(count * dim);
        let (scores, rest) = rest.split_at_mut(count * PAGE);
        let (sums, rest) = rest.split_at_mut(count * padded);
        let (whole, converted) = rest.split_at_mut(count * padded);
        for (q, row) in q.chunks_exact_mut(dim).zip(block.rows.clone()) {
            // SAFETY: a query row is `dim` floats.
            unsafe { std::ptr::copy_nonoverlapping(span.q.add(span.at(block.head, row)), q.as_mut_ptr(), dim) };
        }
        let place = Place { q: q.as_ptr(), scores: scores.as_mut_ptr(), sums: sums.as_mut_ptr(), dim, padded };
        whole.fill(0.0);
        let (mut states, mut totals) = ([EMPTY; ROWS], [EMPTY; ROWS]);
        let last_page = span.visible(block.rows.end - 1).end.div_ceil(PAGE);
        for chunk in block.chunks.clone() {
            sums.fill(0.0);
            states[..count].fill(EMPTY);
            for page in chunk * CHUNK..((chunk + 1) * CHUNK).min(last_page) {
                if span.visible(block.rows.start).start >= (page + 1) * PAGE {
                    continue;
                }
                let panels = W::of(span.kv.page(page));
                let (keys, values) = (panels.keys(block.head, dim), panels.values(block.head, dim));
                let scales = panels.scales(block.head);
                let tainted = panels.tainted();
                let view = View { span, block, page, place: &place, scales, tainted };
                if self.convert {
                    let (k, v) = converted.split_at_mut(PAGE * dim);
                    let high = (span.visible(block.rows.end - 1).end - page * PAGE).min(PAGE);
                    // SAFETY: whole vectors inside both.
                    unsafe {
                        widen::<L, W>(&keys[..high.next_multiple_of(N) * dim], k);
                        for p in 0..padded / N {
                            widen::<L, W>(&values[p * PAGE * N..][..high * N], &mut v[p * PAGE * N..]);
                        }
                    }
                    view.run::<L, f32>(self.plain, k, v, &mut states);
                } else {
                    view.run::<L, W>(self.tiles, keys, values, &mut states);
                }
            }
            for (r, row) in block.rows.clone().enumerate() {
                if !sees(&span.visible(row), chunk) {
                    continue;
                }
                // SAFETY: rows of the block's numbers; partial results are this task's alone.
                unsafe {
                    let from = sums.as_ptr().add(r * padded);
                    match (block.partial, self.partials) {
                        (Some(at), Some(partials)) => {
                            let at = at + r * (padded + 2);
                            let to = partials.part(at..at + padded + 2);
                            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), padded);
                            (to[padded], to[padded + 1]) = (states[r].max, states[r].sum);
                        }
                        _ => merge::<L>(&mut totals[r], whole.as_mut_ptr().add(r * padded), states[r], from, padded),
                    }
                }
            }
        }
        let _ = self.isa;
        if block.partial.is_some() {
            return;
        }
        for (r, row) in block.rows.clone().enumerate() {
            let sink = span.sinks.map(|s| s[block.head * span.group() + row % span.group()]);
            // SAFETY: a row of the result, this task's alone.
            unsafe {
                let to = span.out.add(span.at(block.head, row));
                finish::<L>(totals[r], sink, whole.as_ptr().add(r * padded), dim, to);
            }
        }
    }
}

/// Panels as f32.
///
/// # Safety
/// `to` has room for `from`, which is whole vectors.
#[inline(always)]
unsafe fn widen<L: Lanes, W: Kept>(from: &[W], to: &mut [f32]) {
    for i in (0..from.len()).step_by(N) {
        // SAFETY: the caller's promise.
        unsafe { W::lanes::<L>(from.as_ptr().add(i)).store(to.as_mut_ptr().add(i)) };
    }
}

/// A page as the rows of a block see it.
struct View<'a> {
    span: &'a Span<'a>,
    block: &'a Block,
    page: usize,
    place: &'a Place,
    scales: Option<(&'a [f32], &'a [f32])>,
    tainted: bool,
}

impl View<'_> {
    /// What row `r` of the block sees of the page.
    #[inline(always)]
    fn sight(&self, r: usize) -> (usize, usize) {
        let visible = self.span.visible(self.block.rows.start + r);
        let base = self.page * PAGE;
        let (low, high) = (visible.start.saturating_sub(base).min(PAGE), visible.end.saturating_sub(base).min(PAGE));
        if low < high { (low, high) } else { (0, 0) }
    }

    #[inline(always)]
    fn run<L: Lanes, V: Kept>(&self, tiles: &Tiles<V>, keys: &[V], values: &[V], states: &mut [State; ROWS]) {
        let Place { q, scores, sums, dim, padded } = *self.place;
        let count = self.block.rows.len();
        let mut groups = [Group { first: 0, rows: 0, low: 0, high: 0 }; ROWS];
        // Rows spread evenly over tiles.
        let mut wanted = count.div_ceil(tiles.rows());
        let (mut first, mut used) = (0, 0);
        while first < count {
            let rows = (count - first).div_ceil(wanted);
            let (mut low, mut high) = (PAGE, 0);
            for r in first..first + rows {
                let (l, h) = self.sight(r);
                if l < h {
                    (low, high) = (low.min(l), high.max(h));
                }
            }
            if low < high {
                groups[used] = Group { first, rows, low, high };
                used += 1;
            }
            first += rows;
            wanted -= 1;
        }
        let groups = &groups[..used];
        let step = groups.iter().map(|g| tiles.width(g.rows)).max().unwrap_or(1);
        for start in (0..PAGE / N).step_by(step) {
            for g in groups {
                let (mut p, end) = (start.max(g.low / N), (start + step).min(g.high.div_ceil(N)));
                while p < end {
                    let n = tiles.width(g.rows).min(end - p);
                    let tile = Tile {
                        k: dim,
                        // SAFETY: a row of the block.
                        a: unsafe { q.add(g.first * dim) },
                        row: dim,
                        w: keys[p * dim * N..].as_ptr(),
                        panel: dim * N,
                        start: std::ptr::null(),
                        start_stride: 0,
                        // SAFETY: as above.
                        out: unsafe { scores.add(g.first * PAGE + p * N) },
                        out_stride: PAGE,
                        epilogue: Epilogue::None,
                    };
                    // SAFETY: rows, panels and scores are the block's.
                    unsafe { tiles.run(g.rows, n, &tile) };
                    p += n;
                }
            }
        }
        for g in groups {
            for r in g.first..g.first + g.rows {
                // SAFETY: the row's scores and sums, whole vectors.
                unsafe {
                    let (row, sum) = (scores.add(r * PAGE), sums.add(r * padded));
                    self.weigh::<L>(row, sum, self.sight(r), (g.low, g.high), &mut states[r]);
                }
            }
        }
        let panels = padded / N;
        for start in (0..panels).step_by(step) {
            for g in groups {
                let end = (start + step).min(panels);
                if self.tainted {
                    for r in g.first..g.first + g.rows {
                        let (low, high) = self.sight(r);
                        let one = Group { first: r, rows: 1, low, high };
                        // SAFETY: as below.
                        unsafe { self.sum(tiles, values, one, start..end) };
                    }
                } else {
                    // SAFETY: rows and panels of the block.
                    unsafe { self.sum(tiles, values, *g, start..end) };
                }
            }
        }
    }

    /// Adds the weighted values of a group's rows to their sums.
    ///
    /// # Safety
    /// Rows and panels of the block.
    #[inline(always)]
    unsafe fn sum<V: Kept>(&self, tiles: &Tiles<V>, values: &[V], g: Group, panels: Range<usize>) {
        let mut p = panels.start;
        while p < panels.end && g.low < g.high {
            let n = tiles.width(g.rows).min(panels.end - p);
            // SAFETY: the caller's promise.
            unsafe {
                let sums = self.place.sums.add(g.first * self.place.padded + p * N);
                let tile = Tile {
                    k: g.high - g.low,
                    a: self.place.scores.add(g.first * PAGE + g.low),
                    row: PAGE,
                    w: values[(p * PAGE + g.low) * N..].as_ptr(),
                    panel: PAGE * N,
                    start: sums,
                    start_stride: self.place.padded,
                    out: sums,
                    out_stride: self.place.padded,
                    epilogue: Epilogue::None,
                };
                tiles.run(g.rows, n, &tile);
            }
            p += n;
        }
    }

    /// Turns a row's products into weights of its values; rescales its sums to the new greatest.
    ///
    /// # Safety
    /// `row` has a page's scores, `sums` whole vectors.
    #[inline(always)]
    unsafe fn weigh<L: Lanes>(
        &self,
        row: *mut f32,
        sums: *mut f32,
        (low, high): (usize, usize),
        (from, to): (usize, usize),
        state: &mut State,
    ) {
        let fill = |range: Range<usize>, value: f32| {
            for i in range {
                // SAFETY: inside the page.
                unsafe { *row.add(i) = value };
            }
        };
        if low >= high {
            fill(from..to, 0.0);
            return;
        }
        let (start, end) = (low / N * N, high.next_multiple_of(N));
        let scale = L::splat(self.span.scale);
        for i in (start..end).step_by(N) {
            // SAFETY: whole vectors of the page, its scales as long.
            unsafe {
                let mut s = L::load(row.add(i));
                s = match self.scales {
                    Some((keys, _)) => s.mul(L::load(keys.as_ptr().add(i)).mul(scale)),
                    None => s.mul(scale),
                };
                if let Some(cap) = self.span.softcap {
                    s = tanh(s.div(L::splat(cap))).mul(L::splat(cap));
                }
                s.store(row.add(i));
            }
        }
        fill(start..low, f32::NEG_INFINITY);
        fill(high..end, f32::NEG_INFINITY);
        let mut max = L::splat(f32::NEG_INFINITY);
        for i in (start..end).step_by(N) {
            // SAFETY: as above.
            max = unsafe { L::load(row.add(i)) }.max(max);
        }
        let max = max.greatest();
        let max = if max > state.max { max } else { state.max };
        let (by, relative) = (shift(max), L::splat(shift(max)));
        let mut sum = L::splat(0.0);
        for i in (start..end).step_by(N) {
            // SAFETY: as above.
            unsafe {
                let e = exp_negative(L::load(row.add(i)).sub(relative));
                sum = sum.add(e);
                match self.scales {
                    Some((_, values)) => e.mul(L::load(values.as_ptr().add(i))).store(row.add(i)),
                    None => e.store(row.add(i)),
                }
            }
        }
        // Also where a stale scale made them NaN, and where only the tile's other rows see.
        fill(from.min(start)..low, 0.0);
        fill(high..end.max(to), 0.0);
        if max != state.max {
            let a = exp_one::<L>(state.max - by);
            state.sum *= a;
            let a = L::splat(a);
            for i in (0..self.place.padded).step_by(N) {
                // SAFETY: as above.
                unsafe { L::load(sums.add(i)).mul(a).store(sums.add(i)) };
            }
        }
        *state = State { max, sum: state.sum + sum.sum() };
    }
}
