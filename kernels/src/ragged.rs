//! Attention inside each of many sequences that lie one after another without padding: encoders.
//!
//! A row's result depends on its own sequence only: each score is one chain over the head's values,
//! each output one chain over the positions that any row of its block sees, in order. Positions that
//! a row does not see have a weight of exactly zero.

use std::ops::Range;

use crate::attention::{exp_row, put_keys, put_values};
use crate::buf::scratch;
use crate::gemm::{Epilogue, Job};
use crate::isa::{Isa, Kernel};
use crate::lanes::{Lanes, N, load_n, store_n};
use crate::pool::{Parts, Pool};
use crate::tile::Tiles;

/// Query rows that go together: their scores stay in the second cache.
const ROWS: usize = 24;
/// Fewer multiply-adds than this are not worth waking a thread.
const SMALL: usize = 16 * 1024;

/// What is added to scores by the distance of key and query.
pub struct Relative {
    /// `[heads, 2 * reach + 1]`: the value for a key `d` positions after the query is at `reach + d`.
    pub values: Vec<f32>,
    /// Greatest distance there is a value for.
    pub reach: usize,
}

/// Sequences one after another.
pub struct Ragged<'a> {
    /// `[rows, heads * head_dim]`, not scaled.
    pub q: &'a [f32],
    /// `[rows, kv_heads * head_dim]`.
    pub k: &'a [f32],
    /// As `k`.
    pub v: &'a [f32],
    /// First row of each sequence, and the number of rows at the end.
    pub starts: &'a [usize],
    /// Query heads: a multiple of `kv_heads`; neighbours share a key/value head.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Scores are products times this.
    pub scale: f32,
    /// A row sees so many rows before it; None: all.
    pub back: Option<usize>,
    /// A row sees so many rows after it; None: all. With `Some(0)` it is causal.
    pub ahead: Option<usize>,
    /// Added to scores.
    pub relative: Option<&'a Relative>,
}

/// Attention of every row over its own sequence, `out` as `q`.
///
/// # Panics
/// When lengths do not belong together, or a sequence is longer than `relative` reaches.
pub fn attend(pool: &Pool, r: &Ragged<'_>, out: &mut [f32]) {
    let (Some(&rows), width, kv_width) = (r.starts.last(), r.heads * r.head_dim, r.kv_heads * r.head_dim) else {
        return;
    };
    assert!(r.starts.is_sorted() && r.starts[0] == 0, "sequences lie one after another");
    assert!(r.kv_heads > 0 && r.heads.is_multiple_of(r.kv_heads), "query heads share key/value heads evenly");
    assert!(r.q.len() == rows * width && out.len() == rows * width, "rows of {width} queries");
    assert!(r.k.len() == rows * kv_width && r.v.len() == rows * kv_width, "rows of {kv_width} keys and values");
    let longest = r.starts.windows(2).map(|s| s[1] - s[0]).max().unwrap_or(0);
    if let Some(relative) = r.relative {
        assert!(longest <= relative.reach + 1, "sequences up to {} rows, not {longest}", relative.reach + 1);
        assert_eq!(relative.values.len(), r.heads * (2 * relative.reach + 1), "a value a head and distance");
    }
    if width == 0 || rows == 0 {
        return;
    }
    let isa = Isa::current();
    let parts = Parts::new(out);
    // The longest first: no thread is left with one at the end.
    let mut tasks: Vec<(Range<usize>, usize)> = Vec::with_capacity((r.starts.len() - 1) * r.kv_heads);
    for s in r.starts.windows(2).filter(|s| s[1] > s[0]) {
        tasks.extend((0..r.kv_heads).map(|h| (s[0]..s[1], h)));
    }
    tasks.sort_by_key(|(rows, _)| std::cmp::Reverse(rows.len()));
    let task = |i: usize| {
        let (rows, head) = &tasks[i];
        one(isa, r, rows.clone(), *head, &parts);
    };
    let work: usize = tasks.iter().map(|(rows, _)| rows.len() * rows.len()).sum::<usize>() * r.head_dim;
    if work < SMALL { (0..tasks.len()).for_each(task) } else { pool.run(tasks.len(), task) }
}

/// One key/value head of one sequence.
fn one(isa: Isa, r: &Ragged<'_>, rows: Range<usize>, head: usize, out: &Parts<f32>) {
    let (dim, len, group) = (r.head_dim, rows.len(), r.heads / r.kv_heads);
    let (width, kv_width) = (r.heads * dim, r.kv_heads * dim);
    let key_size = len.next_multiple_of(N) * dim;
    let value_stride = len * N;
    let value_size = dim.div_ceil(N) * value_stride;
    let wide = len.next_multiple_of(N);
    scratch(key_size + value_size + ROWS * (wide + 2 * dim + 1), |buf| {
        let (keys, rest) = buf.split_at_mut(key_size);
        let (values, rest) = rest.split_at_mut(value_size);
        let at = rows.start * kv_width + head * dim;
        put_keys(keys, dim, 0, len, &r.k[at..], kv_width);
        // What pads the last panel is multiplied by a weight of zero: it must be a number.
        if !dim.is_multiple_of(N) {
            values[value_size - value_stride..].fill(0.0);
        }
        put_values(values, value_stride, dim, 0, len, &r.v[at..], kv_width);
        for h in head * group..(head + 1) * group {
            for first in (0..len).step_by(ROWS) {
                let count = ROWS.min(len - first);
                let at = (rows.start + first) * width + h * dim;
                // SAFETY: the block's rows of this head are this task's alone.
                let to = unsafe { out.start().add(at) };
                let (from, buf) = (&r.q[at..], &mut *rest);
                let (keys, values) = (&*keys, &*values);
                let tiles = Tiles::of(isa);
                isa.call(Block { r, h, len, first, count, from, keys, values, value_stride, to, tiles, buf });
            }
        }
    });
}

/// Rows `first .. first + count` of a sequence of `len`, one query head.
struct Block<'a> {
    r: &'a Ragged<'a>,
    h: usize,
    len: usize,
    first: usize,
    count: usize,
    from: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    value_stride: usize,
    to: *mut f32,
    tiles: &'static Tiles<f32>,
    buf: &'a mut [f32],
}

impl Kernel for Block<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { r, h, len, first, count, from, keys, values, value_stride, to, tiles, buf } = self;
        let (dim, width) = (r.head_dim, r.heads * r.head_dim);
        let seen = |row: usize| {
            let low = r.back.map_or(0, |back| row.saturating_sub(back));
            low..r.ahead.map_or(len, |ahead| row.saturating_add(ahead + 1).min(len))
        };
        // What any row of the block sees, from the start of a panel on.
        let (low, high) = (seen(first).start / N * N, seen(first + count - 1).end);
        let (span, wide) = (high - low, (high - low).next_multiple_of(N));
        let (scores, rest) = buf.split_at_mut(count * wide);
        let (q, rest) = rest.split_at_mut(count * dim);
        let (sums, out) = rest.split_at_mut(count);
        for (q, from) in q.chunks_exact_mut(dim).zip(from.chunks(width)) {
            q.iter_mut().zip(from).for_each(|(q, v)| *q = v * r.scale);
        }
        Job {
            x: q.as_ptr(),
            x_stride: dim,
            tokens: count,
            k: dim,
            panels: &keys[low * dim..],
            panel_stride: dim * N,
            out_dim: span,
            bias: None,
            y: scores.as_mut_ptr(),
            y_stride: wide,
            epilogue: Epilogue::None,
        }
        .few(tiles, 0..count, 0..wide / N);
        for (i, row) in scores.chunks_exact_mut(wide).enumerate() {
            let seen = seen(first + i);
            if let Some(relative) = r.relative {
                let table = &relative.values[h * (2 * relative.reach + 1)..];
                let start = relative.reach + low - (first + i);
                row[..span].iter_mut().zip(&table[start..]).for_each(|(s, b)| *s += b);
            }
            row[..seen.start - low].fill(f32::NEG_INFINITY);
            row[seen.end - low..].fill(f32::NEG_INFINITY);
            sums[i] = exp_row::<L>(row);
        }
        Job {
            x: scores.as_ptr(),
            x_stride: wide,
            tokens: count,
            k: span,
            panels: &values[low * N..],
            panel_stride: value_stride,
            out_dim: dim,
            bias: None,
            y: out.as_mut_ptr(),
            y_stride: dim,
            epilogue: Epilogue::None,
        }
        .few(tiles, 0..count, 0..dim.div_ceil(N));
        for i in 0..count {
            let scale = L::splat(1.0 / sums[i]);
            for at in (0..dim).step_by(N) {
                let n = (dim - at).min(N);
                // SAFETY: `dim` values of a row of the output, this task's alone.
                unsafe {
                    let value = load_n::<L>(out.as_ptr().add(i * dim + at), n, 0.0).mul(scale);
                    store_n(value, to.add(i * width + at), n);
                }
            }
        }
    }
}
