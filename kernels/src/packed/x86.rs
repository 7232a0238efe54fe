//! The products with AVX2.
//!
//! Unsigned codes times signed activations (`maddubs`), several summed in 16 bits as far as they
//! cannot overflow, then multiplied by the sub-block's scale into 32 bits (`maddwd`). The codes come
//! straight out of the packed rows for one or two tokens, and out of a slab's bytes in the first
//! cache for more. All sums of integers are exact, so their order does not matter; floats are
//! added in the order of `plain`.

use std::arch::x86_64::*;

use crate::packed::Job;
use crate::packed::acts::WIDTH;
use crate::packed::layout::{BLOCK, Code, Form, Layout, ROWS, SLAB};

/// Up to here tokens read codes where they are.
const DIRECT: usize = 2;

/// Where codes come from: 32 bytes of step `s` of the block at `p`, eight rows times four inputs.
trait Source {
    /// Bytes of a block.
    const BYTES: usize;
    /// Products that may be summed in 16 bits: `2 * 127 * greatest * DEPTH < 2^15`.
    const DEPTH: usize;
    /// Signed bytes?
    const SIGNED: bool = false;
    /// # Safety
    /// A block at `p`; AVX2.
    unsafe fn step(p: *const u8, s: usize, table: __m256i) -> __m256i;
}

/// # Safety
/// 32 bytes after `at` vectors; AVX2.
#[inline(always)]
unsafe fn load(p: *const u8, at: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(p.add(at * 32).cast()) }
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn right(v: __m256i, by: usize) -> __m256i {
    // SAFETY: the caller's promise. The count is a constant wherever this is inlined.
    unsafe { if by == 0 { v } else { _mm256_srl_epi16(v, _mm_cvtsi32_si128(by as i32)) } }
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn left(v: __m256i, by: usize) -> __m256i {
    // SAFETY: the caller's promise. The count is a constant wherever this is inlined.
    unsafe { if by == 0 { v } else { _mm256_sll_epi16(v, _mm_cvtsi32_si128(by as i32)) } }
}

/// The bits of plane `at` that step `s` has there, `bits` a step, moved to bit `to`.
///
/// # Safety
/// A plane at `at`; AVX2.
#[inline(always)]
unsafe fn plane(p: *const u8, at: usize, s: usize, bits: usize, to: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let per = 8 / bits;
        let (v, from) = (load(p, at + s / per), s % per * bits);
        let v = if from >= to { right(v, from - to) } else { left(v, to - from) };
        _mm256_and_si256(v, _mm256_set1_epi8((((1 << bits) - 1) << to) as i8))
    }
}

macro_rules! source {
    ($name:ident, $bytes:expr, $depth:expr, $signed:expr, |$p:ident, $s:ident, $table:ident| $step:expr) => {
        struct $name;
        impl Source for $name {
            const BYTES: usize = $bytes;
            const DEPTH: usize = $depth;
            const SIGNED: bool = $signed;
            #[inline(always)]
            unsafe fn step($p: *const u8, $s: usize, $table: __m256i) -> __m256i {
                // SAFETY: the caller's promise.
                unsafe { $step }
            }
        }
    };
}

source!(U2, 64, 8, false, |p, s, _t| plane(p, 0, s, 2, 0));
source!(U3, 96, 8, false, |p, s, _t| _mm256_or_si256(plane(p, 0, s, 2, 0), plane(p, 2, s, 1, 2)));
source!(U4, 128, 8, false, |p, s, _t| plane(p, 0, s, 4, 0));
source!(U5, 160, 4, false, |p, s, _t| _mm256_or_si256(plane(p, 0, s, 4, 0), plane(p, 4, s, 1, 4)));
source!(U6, 192, 2, false, |p, s, _t| _mm256_or_si256(plane(p, 0, s, 4, 0), plane(p, 4, s, 2, 4)));
source!(Table, 128, 4, false, |p, s, t| _mm256_shuffle_epi8(t, plane(p, 0, s, 4, 0)));
source!(Signed, 128, 2, true, |p, s, t| _mm256_shuffle_epi8(t, plane(p, 0, s, 4, 0)));
source!(Wide, 128, 1, true, |p, s, t| _mm256_shuffle_epi8(t, plane(p, 0, s, 4, 0)));
source!(S8, 256, 1, true, |p, s, _t| load(p, s));
source!(Bytes8, 256, 8, false, |p, s, _t| load(p, s));
source!(Bytes4, 256, 4, false, |p, s, _t| load(p, s));
source!(Bytes2, 256, 2, false, |p, s, _t| load(p, s));
source!(Signed2, 256, 2, true, |p, s, _t| load(p, s));

/// Records of one group times a few tokens.
struct Args<'a> {
    layout: &'a Layout,
    /// The first record, how many, bytes of each.
    record: *const u8,
    records: usize,
    stride: usize,
    /// Codes of the first record, bytes to the next one's.
    codes: *const u8,
    code_stride: usize,
    /// The first record's slab of the first token: see `Acts`.
    values: *const i8,
    scales: *const f32,
    sums: *const i32,
    scaled_sums: *const f32,
    /// Sums of sub-blocks, two at a time.
    pairs: *const i32,
    /// Tokens of a slab.
    tokens: usize,
    /// Eight sums a token, which the products are added to.
    out: *mut f32,
}

/// # Safety
/// As `Args` says, for as many tokens as the kernel is made for; the machine has the instructions.
type Run = unsafe fn(&Args<'_>);

/// # Safety
/// Eight scales of this form; AVX2 and F16C.
#[inline(always)]
unsafe fn floats(form: Form, p: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        match form {
            Form::F16 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
            Form::BF16 => {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))))
            }
            Form::F32 => _mm256_loadu_ps(p.cast()),
        }
    }
}

/// Adds the products of a block with `T` tokens; `scales` for its two halves as pairs of 16 bits.
///
/// # Safety
/// A block of `S` at `p`, 32 values at `x` for each of `T` tokens, `WIDTH` apart; AVX2.
#[inline(always)]
unsafe fn block<S: Source, const T: usize, const HALVES: bool>(
    p: *const u8,
    table: __m256i,
    x: *const i8,
    scales: [__m256i; 2],
    acc: &mut [__m256i; T],
) {
    let flush = if HALVES && S::DEPTH > 4 { 4 } else { S::DEPTH };
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [_mm256_setzero_si256(); T];
        for s in 0..8 {
            let w = S::step(p, s, table);
            let magnitude = if S::SIGNED { _mm256_abs_epi8(w) } else { w };
            for t in 0..T {
                let x = _mm256_set1_epi32(x.add(t * WIDTH + s * 4).cast::<i32>().read_unaligned());
                let x = if S::SIGNED { _mm256_sign_epi8(x, w) } else { x };
                let product = _mm256_maddubs_epi16(magnitude, x);
                sums[t] = if s % flush == 0 { product } else { _mm256_add_epi16(sums[t], product) };
                if s % flush == flush - 1 {
                    acc[t] = _mm256_add_epi32(acc[t], _mm256_madd_epi16(sums[t], scales[s / 4]));
                }
            }
        }
    }
}

/// Records with a float scale every block of 32 activations.
///
/// # Safety
/// As [`Run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn narrow<S: Source, const T: usize>(a: &Args<'_>) {
    let layout = a.layout;
    // SAFETY: the caller's promise.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(layout.table.as_ptr().cast()));
        let offset = _mm256_set1_epi32(layout.offset);
        let ones = [_mm256_set1_epi16(1); 2];
        let mut out = [_mm256_setzero_ps(); T];
        for t in 0..T {
            out[t] = _mm256_loadu_ps(a.out.add(t * ROWS));
        }
        for i in 0..a.records {
            let record = a.record.add(i * a.stride);
            let codes = a.codes.add(i * a.code_stride);
            let d = floats(layout.form, record);
            for b in 0..layout.blocks {
                let at = i * layout.blocks + b;
                let (slab, in_slab) = (at / SLAB * a.tokens, at % SLAB);
                let mut acc = [_mm256_setzero_si256(); T];
                let x = a.values.add(slab * WIDTH + in_slab * BLOCK);
                block::<S, T, false>(codes.add(b * S::BYTES), table, x, ones, &mut acc);
                let first = slab * SLAB + in_slab;
                for t in 0..T {
                    let at = first + t * SLAB;
                    if layout.offset != 0 {
                        let sum = _mm256_set1_epi32(*a.sums.add(at));
                        acc[t] = _mm256_sub_epi32(acc[t], _mm256_mullo_epi32(sum, offset));
                    }
                    let scale = _mm256_mul_ps(d, _mm256_set1_ps(*a.scales.add(at)));
                    out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t]), scale, out[t]);
                }
                if layout.min {
                    let m = floats(layout.form, record.add(layout.form.bytes()));
                    for t in 0..T {
                        let sum = _mm256_set1_ps(*a.scaled_sums.add(first + t * SLAB));
                        out[t] = _mm256_fmadd_ps(m, sum, out[t]);
                    }
                }
            }
        }
        for t in 0..T {
            _mm256_storeu_ps(a.out.add(t * ROWS), out[t]);
        }
    }
}

/// `sum over pairs of sub-blocks of small[pair] . sums[pair]`, for each row.
///
/// # Safety
/// As many pairs as said in both; AVX2.
#[inline(always)]
unsafe fn weighed<const T: usize, const HALVES: bool, const SIGN: bool>(
    small: *const u8,
    sums: *const i32,
) -> [__m256i; T] {
    let pairs = if HALVES { 8 } else { 4 };
    // SAFETY: the caller's promise.
    unsafe {
        let mut out = [_mm256_setzero_si256(); T];
        for p in 0..pairs {
            let bytes = _mm_loadu_si128(small.add(p * 16).cast());
            let pair = if SIGN { _mm256_cvtepi8_epi16(bytes) } else { _mm256_cvtepu8_epi16(bytes) };
            for t in 0..T {
                let sum = _mm256_set1_epi32(sums.add(t * pairs + p).read_unaligned());
                out[t] = _mm256_add_epi32(out[t], _mm256_madd_epi16(pair, sum));
            }
        }
        out
    }
}

/// Super-blocks: 8-bit scales every 32 inputs, or with `HALVES` every 16.
///
/// # Safety
/// As [`Run`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn wide<S: Source, const T: usize, const HALVES: bool>(a: &Args<'_>) {
    let layout = a.layout;
    let pairs = if HALVES { 8 } else { 4 };
    // SAFETY: the caller's promise.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(layout.table.as_ptr().cast()));
        // The even or odd of pairs, twice.
        let even = _mm256_set1_epi32(0x0100_0100);
        let lanes =
            _mm256_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c, 0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
        let even = _mm256_add_epi8(even, lanes);
        let odd = _mm256_add_epi8(even, _mm256_set1_epi8(2));
        let mut out = [_mm256_setzero_ps(); T];
        for t in 0..T {
            out[t] = _mm256_loadu_ps(a.out.add(t * ROWS));
        }
        for i in 0..a.records {
            let record = a.record.add(i * a.stride);
            let codes = a.codes.add(i * a.code_stride);
            let slab = i * a.tokens;
            let x = a.values.add(slab * WIDTH);
            let small = record.add(layout.floats());
            let mut acc = [_mm256_setzero_si256(); T];
            if HALVES {
                for b in 0..SLAB {
                    let pair = _mm256_cvtepi8_epi16(_mm_loadu_si128(small.add(b * 16).cast()));
                    let scales = [_mm256_shuffle_epi8(pair, even), _mm256_shuffle_epi8(pair, odd)];
                    block::<S, T, true>(codes.add(b * S::BYTES), table, x.add(b * BLOCK), scales, &mut acc);
                }
            } else {
                for b in 0..SLAB / 2 {
                    let pair = _mm256_cvtepi8_epi16(_mm_loadu_si128(small.add(b * 16).cast()));
                    let (first, second) = (_mm256_shuffle_epi8(pair, even), _mm256_shuffle_epi8(pair, odd));
                    let b = 2 * b;
                    block::<S, T, false>(codes.add(b * S::BYTES), table, x.add(b * BLOCK), [first; 2], &mut acc);
                    let b = b + 1;
                    block::<S, T, false>(codes.add(b * S::BYTES), table, x.add(b * BLOCK), [second; 2], &mut acc);
                }
            }
            let sums = a.pairs.add(slab * pairs);
            if layout.offset != 0 {
                let of_scales = weighed::<T, HALVES, true>(small, sums);
                let offset = _mm256_set1_epi32(layout.offset);
                for t in 0..T {
                    acc[t] = _mm256_sub_epi32(acc[t], _mm256_mullo_epi32(of_scales[t], offset));
                }
            }
            let d = floats(layout.form, record);
            for t in 0..T {
                let x_scale = *a.scales.add(slab + t) * layout.factor;
                let scale = _mm256_mul_ps(d, _mm256_set1_ps(x_scale));
                out[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[t]), scale, out[t]);
            }
            if layout.min {
                let of_mins = weighed::<T, HALVES, false>(small.add(pairs * 16), sums);
                let m = floats(layout.form, record.add(layout.form.bytes()));
                for t in 0..T {
                    let x_scale = *a.scales.add(slab + t) * layout.factor;
                    let scale = _mm256_mul_ps(m, _mm256_set1_ps(x_scale));
                    out[t] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(of_mins[t]), scale, out[t]);
                }
            }
        }
        for t in 0..T {
            _mm256_storeu_ps(a.out.add(t * ROWS), out[t]);
        }
    }
}

/// Writes the bytes of `blocks` blocks.
///
/// # Safety
/// That many blocks of `S` at `p`, 256 bytes for each at `to`; the machine has the instructions.
type Unpack = unsafe fn(p: *const u8, blocks: usize, table: &[u8; 16], to: *mut u8);

/// # Safety
/// As [`Unpack`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<S: Source>(p: *const u8, blocks: usize, table: &[u8; 16], to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        for b in 0..blocks {
            for s in 0..8 {
                let v = S::step(p.add(b * S::BYTES), s, table);
                _mm256_storeu_si256(to.add(b * 256 + s * 32).cast(), v);
            }
        }
    }
}

/// The kernels of a layout.
struct Kernels {
    /// One and two tokens.
    direct: [Run; DIRECT],
    unpack: Unpack,
    /// By tokens, from the most down.
    tile: [(usize, Run); 3],
}

macro_rules! kernels {
    ($source:ident, $tile:ident, narrow) => {
        Kernels {
            direct: [narrow::<$source, 1>, narrow::<$source, 2>],
            unpack: unpack::<$source>,
            tile: [(4, narrow::<$tile, 4>), (2, narrow::<$tile, 2>), (1, narrow::<$tile, 1>)],
        }
    };
    ($source:ident, $tile:ident, $halves:literal) => {
        Kernels {
            direct: [wide::<$source, 1, $halves>, wide::<$source, 2, $halves>],
            unpack: unpack::<$source>,
            tile: [(4, wide::<$tile, 4, $halves>), (2, wide::<$tile, 2, $halves>), (1, wide::<$tile, 1, $halves>)],
        }
    };
}

fn kernels(layout: &Layout) -> &'static Kernels {
    match (layout.code, layout.sub) {
        (Code::U2, 0) => &const { kernels!(U2, Bytes8, narrow) },
        (Code::U2, _) => &const { kernels!(U2, Bytes8, true) },
        (Code::U3, 0) => &const { kernels!(U3, Bytes8, narrow) },
        (Code::U3, _) => &const { kernels!(U3, Bytes8, true) },
        (Code::U4, 0) => &const { kernels!(U4, Bytes8, narrow) },
        (Code::U4, _) => &const { kernels!(U4, Bytes8, false) },
        (Code::U5, 0) => &const { kernels!(U5, Bytes4, narrow) },
        (Code::U5, _) => &const { kernels!(U5, Bytes4, false) },
        (Code::U6, 0) => &const { kernels!(U6, Bytes2, narrow) },
        (Code::U6, _) => &const { kernels!(U6, Bytes2, true) },
        (Code::S8, _) => &const { kernels!(S8, S8, narrow) },
        (Code::Table, 0) => &const { kernels!(Table, Bytes4, narrow) },
        (Code::Table, 16) => &const { kernels!(Table, Bytes4, true) },
        (Code::Table, _) => &const { kernels!(Table, Bytes4, false) },
        (Code::Signed, 16) => &const { kernels!(Signed, Signed2, true) },
        (Code::Signed, _) => &const { kernels!(Signed, Signed2, false) },
        (Code::Wide, 0) => &const { kernels!(Wide, S8, narrow) },
        (Code::Wide, _) => &const { kernels!(Wide, S8, false) },
    }
}

/// All groups of a job times its tokens, added to `sums`: `[group][token][8]`.
pub(crate) fn run(job: &Job<'_>, sums: &mut [f32]) {
    let (layout, acts) = (job.layout, job.acts);
    let n = job.tokens.len();
    let stride = layout.record();
    let records = job.group / stride;
    let groups = job.groups.len() / job.group;
    assert_eq!(sums.len(), groups * n * ROWS, "a sum an output");
    assert!(
        job.tokens.end <= acts.tokens
            && acts.values.len() >= (records * layout.blocks).div_ceil(SLAB) * acts.tokens * WIDTH
    );
    let all = kernels(layout);
    let pairs = if layout.sub == 16 { &acts.sums16 } else { &acts.sums32 };
    let pairs_per_slab = if layout.sub == 16 { 8 } else { 4 };
    let wide = layout.sub != 0;
    // What a kernel gets for tokens from `t` on of slab `slab`.
    let args = |group: usize, first: usize, count: usize, slab: usize, t: usize, out: *mut f32| {
        let at = slab * acts.tokens + job.tokens.start + t;
        let record = job.groups[group * job.group + first * stride..].as_ptr();
        let narrow = if wide { 0 } else { at * SLAB };
        Args {
            layout,
            record,
            records: count,
            stride,
            codes: record.wrapping_add(layout.header()),
            code_stride: stride,
            values: acts.values[at * WIDTH..].as_ptr(),
            scales: acts.scales[if wide { at } else { narrow }..].as_ptr(),
            sums: acts.sums[narrow..].as_ptr(),
            scaled_sums: acts.scaled_sums[narrow..].as_ptr(),
            pairs: pairs.as_ptr().wrapping_add(if wide { at * pairs_per_slab * 2 } else { 0 }).cast(),
            tokens: acts.tokens,
            out,
        }
    };
    if n <= DIRECT {
        for (group, sums) in sums.chunks_exact_mut(n * ROWS).enumerate() {
            // SAFETY: all records of a group, `n` tokens from the job's first on; the dispatch has
            // checked the machine.
            unsafe { all.direct[n - 1](&args(group, 0, records, 0, 0, sums.as_mut_ptr())) };
        }
        return;
    }
    #[repr(align(64))]
    struct Tile([u8; WIDTH * ROWS]);
    let mut tile = Tile([0; WIDTH * ROWS]);
    let per_slab = SLAB / layout.blocks;
    for slab in 0..records.div_ceil(per_slab) {
        let first = slab * per_slab;
        let count = per_slab.min(records - first);
        for group in 0..groups {
            let start = group * job.group + first * stride;
            for i in 0..count {
                let codes = &job.groups[start + i * stride + layout.header()..start + (i + 1) * stride];
                let to = &mut tile.0[i * layout.blocks * 256..(i + 1) * layout.blocks * 256];
                // SAFETY: the codes of a record and as many bytes as they have values.
                unsafe { (all.unpack)(codes.as_ptr(), layout.blocks, &layout.table, to.as_mut_ptr()) };
            }
            let mut t = 0;
            for (most, run) in all.tile {
                while n - t >= most {
                    let out = sums[(group * n + t) * ROWS..(group * n + t + most) * ROWS].as_mut_ptr();
                    let mut args = args(group, first, count, slab, t, out);
                    (args.codes, args.code_stride) = (tile.0.as_ptr(), layout.blocks * 256);
                    // SAFETY: the records of a slab, `most` tokens of it.
                    unsafe { run(&args) };
                    t += most;
                }
            }
        }
    }
}
