//! Scaled dot-product attention.
//!
//! For a block of query rows of one head: scores (a product with packed keys), softmax, and a
//! product with packed values; both products by the tiles of the matrix products. Each score is one
//! chain over the head's dimension, each output one chain over the positions in order, divided by
//! the sum of the weights at the end. So [`full`] and [`rows`] give the same bits for the same row.

use crate::buf::{Plain, scratch};
use crate::gemm::{Epilogue, Job};
use crate::isa::{Isa, Kernel};
use crate::lanes::{Elem, Lanes, N, load_n, store_n};
use crate::math::exp_negative;
use crate::pool::{Parts, Pool};
use crate::tile::Tiles;

use crate::kv::Store;
pub use crate::kv::{Kv, Query};

/// Query rows that go together: their scores stay in the second cache.
const ROWS: usize = 24;
/// Decoder rows that go together: one tile.
const FEW: usize = 6;
/// Fewer multiply-adds than this are not worth waking a thread.
const SMALL: usize = 16 * 1024;

/// One head's keys and values: `[len/16][dim][16]` and `[dim/16][positions][16]`.
pub(crate) struct Head<'a, W> {
    pub keys: &'a [W],
    pub values: &'a [W],
    /// From one panel of values to the next.
    pub value_stride: usize,
    pub dim: usize,
    pub len: usize,
}

/// A block of query rows of one head.
struct Attend<'a, W: 'static> {
    head: &'a Head<'a, W>,
    q: &'a [*const f32],
    out: &'a [*mut f32],
    /// For each row where its softmax weights go, or null.
    weights: &'a [*mut f32],
    tiles: &'static Tiles<W>,
    buf: &'a mut [f32],
}

impl<'a, W: Elem> Attend<'a, W> {
    /// Runs the block. The scratch is taken outside the kernel: a closure inside would not be
    /// compiled for its instructions.
    fn call(isa: Isa, head: &'a Head<'a, W>, q: &'a [*const f32], out: &'a [*mut f32], weights: &'a [*mut f32]) {
        let len = q.len() * (2 * head.dim + head.len.next_multiple_of(N) + 1);
        scratch(len, |buf| isa.call(Attend { head, q, out, weights, tiles: Tiles::of(isa), buf }));
    }
}

impl<W: Elem> Kernel for Attend<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Head { keys, values, value_stride, dim, len } = *self.head;
        let rows = self.q.len();
        let wide = len.next_multiple_of(N);
        let buf = self.buf;
        let (scores, rest) = buf.split_at_mut(rows * wide);
        let (q, rest) = rest.split_at_mut(rows * dim);
        let (sums, out) = rest.split_at_mut(rows);
        for (q, from) in q.chunks_exact_mut(dim).zip(self.q) {
            // SAFETY: a query row is `dim` floats.
            unsafe { std::ptr::copy_nonoverlapping(*from, q.as_mut_ptr(), dim) };
        }
        Job {
            x: q.as_ptr(),
            x_stride: dim,
            tokens: rows,
            k: dim,
            panels: keys,
            panel_stride: dim * N,
            out_dim: len,
            bias: None,
            y: scores.as_mut_ptr(),
            y_stride: wide,
            epilogue: Epilogue::None,
        }
        .few(self.tiles, 0..rows, 0..wide / N);
        for (r, row) in scores.chunks_exact_mut(wide).enumerate() {
            row[len..].fill(f32::NEG_INFINITY);
            sums[r] = exp_row::<L>(row);
        }
        Job {
            x: scores.as_ptr(),
            x_stride: wide,
            tokens: rows,
            k: len,
            panels: values,
            panel_stride: value_stride,
            out_dim: dim,
            bias: None,
            y: out.as_mut_ptr(),
            y_stride: dim,
            epilogue: Epilogue::None,
        }
        .few(self.tiles, 0..rows, 0..dim.div_ceil(N));
        for r in 0..rows {
            let scale = L::splat(1.0 / sums[r]);
            // SAFETY: output rows are `dim` floats, weight rows `len`, all this thread's.
            unsafe {
                let out = out.as_ptr().add(r * dim);
                for i in (0..dim).step_by(N) {
                    let n = (dim - i).min(N);
                    store_n(load_n::<L>(out.add(i), n, 0.0).mul(scale), self.out[r].add(i), n);
                }
                if !self.weights[r].is_null() {
                    let row = scores.as_ptr().add(r * wide);
                    for i in (0..len).step_by(N) {
                        store_n(L::load(row.add(i)).mul(scale), self.weights[r].add(i), (len - i).min(N));
                    }
                }
            }
        }
    }
}

/// `e^(x - max)` in place for a row of whole vectors; the sum of them.
#[inline(always)]
pub(crate) fn exp_row<L: Lanes>(row: &mut [f32]) -> f32 {
    let start = row.as_mut_ptr();
    let mut max = L::splat(f32::NEG_INFINITY);
    for i in (0..row.len()).step_by(N) {
        // SAFETY: the row is whole vectors.
        max = unsafe { L::load(start.add(i)) }.max(max);
    }
    let max = L::splat(max.greatest());
    let mut sum = L::splat(0.0);
    for i in (0..row.len()).step_by(N) {
        // SAFETY: as above.
        unsafe {
            let e = exp_negative(L::load(start.add(i)).sub(max));
            e.store(start.add(i));
            sum = sum.add(e);
        }
    }
    sum.sum()
}

/// Writes key rows into one head's panels: position `at + i` gets `row(i)`'s `dim` values.
pub(crate) fn put_keys<W: Elem>(keys: &mut [W], dim: usize, at: usize, count: usize, k: &[f32], stride: usize) {
    for i in 0..count {
        let start = (at + i) / N * dim * N + (at + i) % N;
        for (d, v) in k[i * stride..i * stride + dim].iter().enumerate() {
            keys[start + d * N] = W::from_f32(*v);
        }
    }
}

/// Writes value rows into one head's panels.
pub(crate) fn put_values<W: Elem>(
    values: &mut [W],
    value_stride: usize,
    dim: usize,
    at: usize,
    count: usize,
    v: &[f32],
    stride: usize,
) {
    for i in 0..count {
        for (p, v) in v[i * stride..i * stride + dim].chunks(N).enumerate() {
            let start = p * value_stride + (at + i) * N;
            for (to, v) in values[start..start + v.len()].iter_mut().zip(v) {
                *to = W::from_f32(*v);
            }
        }
    }
}

/// Bidirectional self-attention of one sequence: `q k v out` are `[tokens, heads * head_dim]`.
/// Queries are expected scaled.
///
/// # Panics
/// When the lengths do not belong together.
pub fn full(pool: &Pool, q: &[f32], k: &[f32], v: &[f32], heads: usize, head_dim: usize, out: &mut [f32]) {
    let width = heads * head_dim;
    if width == 0 || q.is_empty() {
        return;
    }
    let tokens = q.len() / width;
    assert!([q.len(), k.len(), v.len(), out.len()].iter().all(|&l| l == tokens * width), "q, k, v and out alike");
    let isa = Isa::current();
    let wide = tokens.next_multiple_of(N);
    let (key_size, value_stride) = (wide * head_dim, tokens * N);
    let value_size = head_dim.div_ceil(N) * value_stride;
    scratch(heads * (key_size + value_size), |buf| {
        let (keys, values) = buf.split_at_mut(heads * key_size);
        {
            let (k_parts, v_parts) = (Parts::new(keys), Parts::new(values));
            pool.run(heads, |h| {
                // SAFETY: one head a task.
                let (keys, values) = unsafe {
                    (k_parts.part(h * key_size..(h + 1) * key_size), v_parts.part(h * value_size..(h + 1) * value_size))
                };
                // Unused lanes are read by the tiles: whatever they hold, only their own lane sees it.
                let at = h * head_dim;
                put_keys(keys, head_dim, 0, tokens, &k[at..], width);
                put_values(values, value_stride, head_dim, 0, tokens, &v[at..], width);
            });
        }
        let out = Parts::new(out);
        let blocks = tokens.div_ceil(ROWS);
        let per_block = tokens.div_ceil(blocks).next_multiple_of(FEW);
        let blocks = tokens.div_ceil(per_block);
        let (keys, values) = (&*keys, &*values);
        let block = |i: usize| {
            let (h, b) = (i / blocks, i % blocks);
            let head = Head {
                keys: &keys[h * key_size..(h + 1) * key_size],
                values: &values[h * value_size..(h + 1) * value_size],
                value_stride,
                dim: head_dim,
                len: tokens,
            };
            let mut from = [std::ptr::null(); ROWS];
            let mut to = [std::ptr::null_mut(); ROWS];
            let rows = per_block.min(tokens - b * per_block);
            for r in 0..rows {
                let at = (b * per_block + r) * width + h * head_dim;
                from[r] = q[at..].as_ptr();
                // SAFETY: inside `out`.
                to[r] = unsafe { out.start().add(at) };
            }
            let weights = &[std::ptr::null_mut(); ROWS][..rows];
            Attend::call(isa, &head, &from[..rows], &to[..rows], weights);
        };
        if tokens * tokens * width < SMALL {
            (0..heads * blocks).for_each(block);
        } else {
            pool.run(heads * blocks, block);
        }
    });
}

/// A query's rows as addresses, so that threads can share the list.
struct Row {
    q: *const f32,
    out: *mut f32,
    /// `(head, start of its weights)`.
    weights: Vec<(usize, *mut f32)>,
}

// SAFETY: each (row, head) is one thread's; the slices stay borrowed during the region.
unsafe impl Sync for Row {}

/// Attention of query rows of any number of streams in one parallel region. A row's result does
/// not depend on the others. Neighbouring rows of the same stream that see the same positions
/// (beams sharing cross keys, a prompt) read them once.
///
/// # Panics
/// When a row's lengths do not belong to its stream.
pub fn rows(pool: &Pool, queries: &mut [Query<'_>]) {
    let isa = Isa::current();
    let mut rows = Vec::with_capacity(queries.len());
    // (first row, rows, stream, positions)
    let mut groups: Vec<(usize, usize, &Kv, usize)> = Vec::new();
    let mut work = 0;
    let mut tasks = Vec::new();
    for query in queries.iter_mut() {
        let kv = query.kv;
        let width = kv.heads() * kv.head_dim();
        assert!(query.q.len() == width && query.out.len() == width, "a row of {width} values");
        assert!(query.len > 0 && query.len <= kv.len(), "{} visible positions of {}", query.len, kv.len());
        let mut weights = Vec::new();
        if let Some((heads, into)) = &mut query.weights {
            assert_eq!(into.len(), heads.len() * query.len, "weights for every wanted head and position");
            assert!(heads.iter().all(|&h| h < kv.heads()), "wanted heads exist");
            weights = heads.iter().copied().zip(into.chunks_exact_mut(query.len).map(|w| w.as_mut_ptr())).collect();
        }
        work += 2 * query.len * width;
        match groups.last_mut() {
            Some((_, count, same, len)) if std::ptr::eq(*same, kv) && *len == query.len && *count < FEW => *count += 1,
            _ => groups.push((rows.len(), 1, kv, query.len)),
        }
        rows.push(Row { q: query.q.as_ptr(), out: query.out.as_mut_ptr(), weights });
    }
    for (g, (.., kv, _)) in groups.iter().enumerate() {
        tasks.extend((0..kv.heads()).map(|h| (g, h)));
    }
    let (rows, groups) = (&rows, &groups);
    let task = |i: usize| {
        let (g, h) = tasks[i];
        let (first, count, kv, len) = groups[g];
        let mut from = [std::ptr::null(); FEW];
        let mut to = [std::ptr::null_mut(); FEW];
        let mut weights = [std::ptr::null_mut(); FEW];
        for r in 0..count {
            let row = &rows[first + r];
            // SAFETY: inside a row of `heads * head_dim` values.
            unsafe {
                from[r] = row.q.add(h * kv.head_dim());
                to[r] = row.out.add(h * kv.head_dim());
            }
            weights[r] = row.weights.iter().find(|w| w.0 == h).map_or(std::ptr::null_mut(), |w| w.1);
        }
        let (q, out, weights) = (&from[..count], &to[..count], &weights[..count]);
        fn go<W: Elem + Plain>(isa: Isa, head: &Head<'_, W>, q: &[*const f32], out: &[*mut f32], w: &[*mut f32]) {
            Attend::call(isa, head, q, out, w);
        }
        match kv.store() {
            Store::F32(panels) => go(isa, &panels.head(kv, h, len), q, out, weights),
            Store::F16(panels) => go(isa, &panels.head(kv, h, len), q, out, weights),
        }
    };
    if work < SMALL {
        (0..tasks.len()).for_each(task);
    } else {
        pool.run(tasks.len(), task);
    }
    // A head wanted twice: its first copy is complete.
    for query in queries {
        if let Some((heads, into)) = &mut query.weights {
            for i in 0..heads.len() {
                if let Some(first) = heads[..i].iter().position(|h| *h == heads[i]) {
                    into.copy_within(first * query.len..(first + 1) * query.len, i * query.len);
                }
            }
        }
    }
}
