//! Keys and values of one layer of one sequence, in pages that forks share.
//!
//! A page holds [`PAGE`] positions of every key/value head, laid out as the attention tiles read
//! them. Pages are shared until written: a fork costs a list of pointers, and only the page both
//! go on writing is copied. Pages lie at absolute positions, so what a reader computes page by page
//! does not depend on how the cache came to be.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::attention::{put_keys, put_values};
use crate::buf::{Buf, Plain};
use crate::lanes::{Elem, F16, N};
use crate::pool::{Parts, Pool};
use crate::q8::quantise;

/// Positions in a page.
pub const PAGE: usize = 128;

/// Positions kept behind a window, so that a sequence can be taken back (speculation, a stop string).
pub const SLACK: usize = 256;

/// Fewer values than this are not worth waking a thread to write.
const SMALL: usize = 16 * 1024;

/// What keys and values are kept as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KvFormat {
    /// Exactly.
    #[default]
    F32,
    /// IEEE half: half the memory, values rounded to 11 bits (65504 at most).
    F16,
    /// Whole numbers of +-127 with one f32 scale for each position's key and value of each head:
    /// about a quarter of the memory.
    Int8,
}

impl KvFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Int8];

    /// Its name in options: `f32`, `f16`, `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }

    /// The format of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }
}

/// Head counts and sizes that pages of one cache have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    heads: usize,
    dim: usize,
}

impl Shape {
    /// Values of a head's key panels: `[PAGE / 16][dim][16]`.
    fn key_size(self) -> usize {
        PAGE * self.dim
    }

    /// Values of a head's value panels: `[dim / 16][PAGE][16]`.
    fn value_size(self) -> usize {
        PAGE * self.dim.next_multiple_of(N)
    }
}

/// A page's numbers: keys, values, and for whole numbers the scales `[head][key, value][PAGE]`.
pub(crate) struct Panels<W: Plain> {
    keys: Buf<W>,
    values: Buf<W>,
    scales: Buf<f32>,
    /// Does any value row hold an infinity or NaN? Then weights of zero do not silence it.
    tainted: bool,
}

/// A page in its format.
pub(crate) enum Page {
    F32(Panels<f32>),
    F16(Panels<F16>),
    Int8(Panels<i8>),
}

/// What pages are made of, so that readers are written once.
pub(crate) trait Kept: Elem + Plain {
    /// The page's panels; pages of one cache are all of its format.
    fn of(page: &Page) -> &Panels<Self>;
}

macro_rules! kept {
    ($type:ty, $variant:ident) => {
        impl Kept for $type {
            fn of(page: &Page) -> &Panels<Self> {
                match page {
                    Page::$variant(panels) => panels,
                    _ => unreachable!("pages of one cache are all of its format"),
                }
            }
        }
    };
}
kept!(f32, F32);
kept!(F16, F16);
kept!(i8, Int8);

/// The same for every format.
macro_rules! each_format {
    ($page:expr, $panels:ident => $e:expr) => {
        match $page {
            Page::F32($panels) => $e,
            Page::F16($panels) => $e,
            Page::Int8($panels) => $e,
        }
    };
}

impl<W: Elem + Plain> Panels<W> {
    fn new(shape: Shape, scales: usize) -> Self {
        Self {
            keys: Buf::zeroed(shape.heads * shape.key_size()),
            values: Buf::zeroed(shape.heads * shape.value_size()),
            scales: Buf::zeroed(shape.heads * scales),
            tainted: false,
        }
    }

    /// `[PAGE / 16][dim][16]`.
    pub(crate) fn keys(&self, head: usize, dim: usize) -> &[W] {
        &self.keys[head * PAGE * dim..(head + 1) * PAGE * dim]
    }

    /// `[dim / 16][PAGE][16]`.
    pub(crate) fn values(&self, head: usize, dim: usize) -> &[W] {
        let size = PAGE * dim.next_multiple_of(N);
        &self.values[head * size..(head + 1) * size]
    }

    /// Scales of a head's keys and of its values, by position; none for floats.
    pub(crate) fn scales(&self, head: usize) -> Option<(&[f32], &[f32])> {
        if self.scales.is_empty() {
            return None;
        }
        Some(self.scales[2 * head * PAGE..2 * (head + 1) * PAGE].split_at(PAGE))
    }

    pub(crate) fn tainted(&self) -> bool {
        self.tainted
    }

    /// A copy of the first `used` positions.
    fn copy(&self, shape: Shape, used: usize) -> Self {
        let mut copy = Self::new(shape, if self.scales.is_empty() { 0 } else { 2 * PAGE });
        let keys = used.next_multiple_of(N) * shape.dim;
        for h in 0..shape.heads {
            let at = h * shape.key_size();
            copy.keys[at..at + keys].copy_from_slice(&self.keys[at..at + keys]);
        }
        for p in 0..shape.heads * shape.dim.div_ceil(N) {
            let at = p * PAGE * N;
            copy.values[at..at + used * N].copy_from_slice(&self.values[at..at + used * N]);
        }
        copy.scales.copy_from_slice(&self.scales);
        copy.tainted = self.tainted;
        copy
    }

    fn row(&self, shape: Shape, at: usize, k: &mut [f32], v: &mut [f32]) {
        let Shape { dim, .. } = shape;
        for h in 0..shape.heads {
            let (keys, values) = (self.keys(h, dim), self.values(h, dim));
            let (ks, vs) = self.scales(h).map_or((1.0, 1.0), |(k, v)| (k[at], v[at]));
            for d in 0..dim {
                k[h * dim + d] = keys[at / N * dim * N + d * N + at % N].to_f32() * ks;
                v[h * dim + d] = values[d / N * PAGE * N + at * N + d % N].to_f32() * vs;
            }
        }
    }
}

/// Rows to write into a page: `count` of them, each head's `stride` apart.
#[derive(Clone, Copy)]
struct Rows<'a> {
    at: usize,
    count: usize,
    k: &'a [f32],
    v: &'a [f32],
}

impl Page {
    fn new(format: KvFormat, shape: Shape) -> Self {
        match format {
            KvFormat::F32 => Self::F32(Panels::new(shape, 0)),
            KvFormat::F16 => Self::F16(Panels::new(shape, 0)),
            KvFormat::Int8 => Self::Int8(Panels::new(shape, 2 * PAGE)),
        }
    }

    fn copy(&self, shape: Shape, used: usize) -> Self {
        match self {
            Self::F32(p) => Self::F32(p.copy(shape, used)),
            Self::F16(p) => Self::F16(p.copy(shape, used)),
            Self::Int8(p) => Self::Int8(p.copy(shape, used)),
        }
    }

    fn put(&mut self, pool: &Pool, shape: Shape, rows: Rows<'_>) {
        // From here on a half is infinite.
        let below = |limit: f32| rows.v.iter().all(|v| v.abs() < limit);
        match self {
            Self::F32(p) => {
                p.tainted |= !below(f32::INFINITY);
                put(pool, shape, p, rows);
            }
            Self::F16(p) => {
                p.tainted |= !below(65520.0);
                put(pool, shape, p, rows);
            }
            Self::Int8(p) => put_int8(pool, shape, p, rows),
        }
    }
}

/// Runs `task(head)` for every head, on the pool when there is much to write.
fn heads(pool: &Pool, shape: Shape, rows: Rows<'_>, task: impl Fn(usize) + Sync) {
    if rows.count * shape.heads * shape.dim < SMALL {
        (0..shape.heads).for_each(task);
    } else {
        pool.run(shape.heads, task);
    }
}

fn put<W: Elem + Plain>(pool: &Pool, shape: Shape, panels: &mut Panels<W>, rows: Rows<'_>) {
    let Rows { at, count, k, v } = rows;
    let (key_size, value_size, width) = (shape.key_size(), shape.value_size(), shape.heads * shape.dim);
    let (keys, values) = (Parts::new(&mut panels.keys), Parts::new(&mut panels.values));
    heads(pool, shape, rows, |h| {
        // SAFETY: one head a task.
        let (keys, values) =
            unsafe { (keys.part(h * key_size..(h + 1) * key_size), values.part(h * value_size..(h + 1) * value_size)) };
        put_keys(keys, shape.dim, at, count, &k[h * shape.dim..], width);
        put_values(values, PAGE * N, shape.dim, at, count, &v[h * shape.dim..], width);
    });
}

fn put_int8(pool: &Pool, shape: Shape, panels: &mut Panels<i8>, rows: Rows<'_>) {
    let Rows { at, count, k, v } = rows;
    let dim = shape.dim;
    let (key_size, value_size, width) = (shape.key_size(), shape.value_size(), shape.heads * dim);
    let (keys, values) = (Parts::new(&mut panels.keys), Parts::new(&mut panels.values));
    let scales = Parts::new(&mut panels.scales);
    heads(pool, shape, rows, |h| {
        // SAFETY: one head a task.
        let (keys, values, scales) = unsafe {
            (
                keys.part(h * key_size..(h + 1) * key_size),
                values.part(h * value_size..(h + 1) * value_size),
                scales.part(2 * h * PAGE..2 * (h + 1) * PAGE),
            )
        };
        let mut q = vec![0; dim];
        for i in 0..count {
            let (p, row) = (at + i, i * width + h * dim..i * width + (h + 1) * dim);
            scales[p] = quantise(&k[row.clone()], &mut q);
            let start = p / N * dim * N + p % N;
            for (d, q) in q.iter().enumerate() {
                keys[start + d * N] = *q;
            }
            scales[PAGE + p] = quantise(&v[row], &mut q);
            for (d, q) in q.iter().enumerate() {
                values[d / N * PAGE * N + p * N + d % N] = *q;
            }
        }
    });
}

/// Keys and values of one layer of one sequence. Layers that share keys and values (some families do)
/// share one cache: readers only borrow it.
pub struct KvCache {
    format: KvFormat,
    shape: Shape,
    window: Option<usize>,
    len: usize,
    /// Absolute number of the first page kept.
    first: usize,
    pages: VecDeque<Arc<Page>>,
}

impl KvCache {
    /// An empty cache of `kv_heads` heads of `head_dim` values.
    pub fn new(format: KvFormat, kv_heads: usize, head_dim: usize) -> Self {
        let shape = Shape { heads: kv_heads, dim: head_dim };
        Self { format, shape, window: None, len: 0, first: 0, pages: VecDeque::new() }
    }

    /// The same for a layer whose positions see at most `window` positions, their own included: pages
    /// further behind than that and [`SLACK`] are dropped.
    pub fn with_window(mut self, window: Option<usize>) -> Self {
        self.window = window.map(|w| w.max(1));
        self
    }

    /// Positions it has been through (with a window, the oldest may be dropped).
    pub fn len(&self) -> usize {
        self.len
    }

    /// No position yet?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.shape.heads
    }

    /// Values of a head.
    pub fn head_dim(&self) -> usize {
        self.shape.dim
    }

    /// What keys and values are kept as.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// How far positions see, where that is limited.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// First position still kept.
    pub fn first_position(&self) -> usize {
        self.first * PAGE
    }

    /// Bytes of the pages held, shared ones counted in full.
    pub fn bytes(&self) -> usize {
        self.pages.len() * PAGE * self.bytes_per_position()
    }

    /// Bytes of the pages that no fork shares: what dropping this cache gives back.
    pub fn own_bytes(&self) -> usize {
        self.pages.iter().filter(|p| Arc::strong_count(p) == 1).count() * PAGE * self.bytes_per_position()
    }

    /// Bytes a position takes (pages are whole: see [`PAGE`]).
    pub fn bytes_per_position(&self) -> usize {
        let values = self.shape.dim + self.shape.dim.next_multiple_of(N);
        self.shape.heads
            * match self.format {
                KvFormat::F32 => 4 * values,
                KvFormat::F16 => 2 * values,
                KvFormat::Int8 => values + 2 * size_of::<f32>(),
            }
    }

    /// Where [`Self::truncate`] would get to: `len`, or 0 when positions that the next one would see
    /// have been dropped behind the window.
    pub fn reachable(&self, len: usize) -> usize {
        let len = len.min(self.len);
        match self.window {
            Some(window) if self.first > 0 && len + 1 < self.first * PAGE + window => 0,
            _ => len,
        }
    }

    /// Forgets positions from `len` on; all of them when `len` is not [`Self::reachable`] any more.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.reachable(len);
        if self.len == 0 {
            self.first = 0;
            self.pages.clear();
        }
        self.pages.truncate(self.len.div_ceil(PAGE) - self.first);
    }

    /// Another sequence with the same past. Pages are shared until one of the two writes them.
    pub fn fork(&self) -> Self {
        Self { pages: self.pages.clone(), ..*self }
    }

    /// Appends rows `[tokens, kv_heads * head_dim]`. With a window, pages behind the window of the
    /// first of them are dropped, so that every row pushed can still be attended from.
    ///
    /// # Panics
    /// When `k` and `v` are not the same number of whole rows.
    pub fn push(&mut self, pool: &Pool, k: &[f32], v: &[f32]) {
        let width = self.shape.heads * self.shape.dim;
        if width == 0 || k.is_empty() {
            return;
        }
        let count = k.len() / width;
        assert!(k.len() == count * width && v.len() == k.len(), "as many whole key rows as value rows");
        if let Some(window) = self.window {
            let keep = self.len.saturating_sub(window + SLACK) / PAGE;
            while self.first < keep {
                self.pages.pop_front();
                self.first += 1;
            }
        }
        let mut done = 0;
        while done < count {
            let at = self.len % PAGE;
            let n = (PAGE - at).min(count - done);
            let range = done * width..(done + n) * width;
            let rows = Rows { at, count: n, k: &k[range.clone()], v: &v[range] };
            let (shape, format) = (self.shape, self.format);
            let index = self.len / PAGE - self.first;
            if index == self.pages.len() {
                self.pages.push_back(Arc::new(Page::new(format, shape)));
            }
            let page = &mut self.pages[index];
            match Arc::get_mut(page) {
                Some(page) => page.put(pool, shape, rows),
                None => {
                    let mut own = page.copy(shape, at);
                    own.put(pool, shape, rows);
                    *page = Arc::new(own);
                }
            }
            self.len += n;
            done += n;
        }
    }

    /// Reads one position back, as it is kept: `k` and `v` are `[kv_heads * head_dim]`.
    ///
    /// # Panics
    /// When the position is not kept or a length is not a row's.
    pub fn read(&self, position: usize, k: &mut [f32], v: &mut [f32]) {
        let width = self.shape.heads * self.shape.dim;
        assert!((self.first_position()..self.len).contains(&position), "position {position} of {}", self.len);
        assert!(k.len() == width && v.len() == width, "rows of {width} values");
        let page = &*self.pages[position / PAGE - self.first];
        each_format!(page, p => p.row(self.shape, position % PAGE, k, v));
    }

    /// An absolute page.
    pub(crate) fn page(&self, page: usize) -> &Page {
        &self.pages[page - self.first]
    }
}
