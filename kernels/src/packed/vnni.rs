//! The products with AVX-512 VNNI.
//!
//! Two groups of eight rows together: 16 lanes of 32 bits. Unsigned codes times signed activations
//! are summed four at a time straight into 32 bits (`vpdpbusd`); signed codes are made unsigned by
//! adding 128, which is taken away with the sum of the activations. All sums of integers are exact,
//! so the results are those of `plain`; floats are added in its order.

use std::arch::x86_64::*;

use crate::packed::Job;
use crate::packed::acts::WIDTH;
use crate::packed::layout::{BLOCK, Code, Form, Layout, ROWS, SLAB};

/// Up to here tokens read codes where they are.
const DIRECT: usize = 4;
/// Inputs of a block in steps of four, 16 rows: bytes of a block in a tile.
const TILE: usize = BLOCK * 2 * ROWS;

/// Does this machine have the instructions?
pub(crate) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Places in two groups.
type Pair = [*const u8; 2];

/// Both places, `by` bytes further.
#[inline(always)]
fn ahead(p: Pair, by: usize) -> Pair {
    p.map(|p| p.wrapping_add(by))
}

/// Where codes come from: 64 bytes of step `s` of the blocks at `p`, sixteen rows times four inputs,
/// unsigned.
trait Source {
    /// Bytes of a block of one group.
    const BYTES: usize;
    /// # Safety
    /// A block at both of `p`; AVX-512 BW.
    unsafe fn step(p: Pair, s: usize, table: __m512i) -> __m512i;
}

/// # Safety
/// 32 bytes at both places; AVX-512 F.
#[inline(always)]
unsafe fn load(p: Pair) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm512_castsi256_si512(_mm256_loadu_si256(p[0].cast()));
        _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(p[1].cast()))
    }
}

/// # Safety
/// 16 bytes at both places; AVX2.
#[inline(always)]
unsafe fn load_half(p: Pair) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm256_castsi128_si256(_mm_loadu_si128(p[0].cast()));
        _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(p[1].cast()))
    }
}

/// The bits of plane `at` that step `s` has there, `bits` a step, moved to bit `to`.
///
/// # Safety
/// A plane of 32-byte vectors from vector `at` on; AVX-512 BW.
#[inline(always)]
unsafe fn plane(p: Pair, at: usize, s: usize, bits: usize, to: usize) -> __m512i {
    // SAFETY: the caller's promise. Shifts are constants wherever this is inlined.
    unsafe {
        let per = 8 / bits;
        let (v, from) = (load(ahead(p, (at + s / per) * 32)), s % per * bits);
        let v = match (from, to) {
            (from, to) if from > to => _mm512_srl_epi16(v, _mm_cvtsi32_si128((from - to) as i32)),
            (from, to) if from < to => _mm512_sll_epi16(v, _mm_cvtsi32_si128((to - from) as i32)),
            _ => v,
        };
        _mm512_and_si512(v, _mm512_set1_epi8((((1 << bits) - 1) << to) as i8))
    }
}

macro_rules! source {
    ($name:ident, $bytes:expr, |$p:ident, $s:ident, $table:ident| $step:expr) => {
        struct $name;
        impl Source for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn step($p: Pair, $s: usize, $table: __m512i) -> __m512i {
                // SAFETY: the caller's promise.
                unsafe { $step }
            }
        }
    };
}

source!(U2, Code::U2.bytes(), |p, s, _t| plane(p, 0, s, 2, 0));
source!(U3, Code::U3.bytes(), |p, s, _t| _mm512_or_si512(plane(p, 0, s, 2, 0), plane(p, 2, s, 1, 2)));
source!(U4, Code::U4.bytes(), |p, s, _t| plane(p, 0, s, 4, 0));
source!(U5, Code::U5.bytes(), |p, s, _t| _mm512_or_si512(plane(p, 0, s, 4, 0), plane(p, 4, s, 1, 4)));
source!(U6, Code::U6.bytes(), |p, s, _t| _mm512_or_si512(plane(p, 0, s, 4, 0), plane(p, 4, s, 2, 4)));
source!(Table, Code::Table.bytes(), |p, s, t| _mm512_shuffle_epi8(t, plane(p, 0, s, 4, 0)));
source!(S8, Code::S8.bytes(), |p, s, _t| _mm512_xor_si512(load(ahead(p, s * 32)), _mm512_set1_epi8(i8::MIN)));
// A tile: both groups' bytes after one another, only the first place counts.
source!(Bytes, TILE, |p, s, _t| _mm512_loadu_si512(p[0].add(s * 64).cast()));

/// Records of two groups times a few tokens.
struct Args<'a> {
    layout: &'a Layout,
    /// The first records, how many, bytes of each.
    record: Pair,
    records: usize,
    stride: usize,
    /// Codes of the first records, bytes to the next one's.
    codes: Pair,
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
    out: [*mut f32; 2],
}

/// # Safety
/// As `Args` says, for as many tokens as the kernel is made for; the machine has the instructions.
type Run = unsafe fn(&Args<'_>);

/// What is taken away from every code: the layout's offset and what made it unsigned.
#[inline(always)]
fn offset(layout: &Layout) -> i32 {
    layout.offset + if layout.code.signed() { 128 } else { 0 }
}

/// # Safety
/// AVX-512 F.
#[inline(always)]
unsafe fn table(layout: &Layout) -> __m512i {
    // SAFETY: sixteen bytes; the caller's promise.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(layout.table.as_ptr().cast()));
        if layout.code.signed() { _mm512_xor_si512(table, _mm512_set1_epi8(i8::MIN)) } else { table }
    }
}

/// # Safety
/// Eight scales of this form at both places; AVX-512 F.
#[inline(always)]
unsafe fn floats(form: Form, p: Pair) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        match form {
            Form::F16 => _mm512_cvtph_ps(load_half(p)),
            Form::BF16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_half(p)))),
            Form::F32 => _mm512_castsi512_ps(load(p)),
        }
    }
}

/// The sums a kernel starts from.
///
/// # Safety
/// As [`Run`].
#[inline(always)]
unsafe fn start<const T: usize>(a: &Args<'_>) -> [__m512; T] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut out = [_mm512_setzero_ps(); T];
        for (t, out) in out.iter_mut().enumerate() {
            let at = a.out.map(|p| p.wrapping_add(t * ROWS).cast_const().cast());
            *out = _mm512_castsi512_ps(load(at));
        }
        out
    }
}

/// # Safety
/// As [`Run`].
#[inline(always)]
unsafe fn finish<const T: usize>(a: &Args<'_>, out: [__m512; T]) {
    // SAFETY: the caller's promise.
    unsafe {
        for (t, out) in out.into_iter().enumerate() {
            let out = _mm512_castps_pd(out);
            _mm256_storeu_pd(a.out[0].add(t * ROWS).cast(), _mm512_castpd512_pd256(out));
            _mm256_storeu_pd(a.out[1].add(t * ROWS).cast(), _mm512_extractf64x4_pd::<1>(out));
        }
    }
}

/// Products of steps `from .. to` of a block with `T` tokens.
///
/// # Safety
/// A block of `S` at `p`, 32 values at `x` for each of `T` tokens, `WIDTH` apart; VNNI.
#[inline(always)]
unsafe fn dots<S: Source, const T: usize>(
    p: Pair,
    table: __m512i,
    x: *const i8,
    from: usize,
    to: usize,
) -> [__m512i; T] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [_mm512_setzero_si512(); T];
        for s in from..to {
            let w = S::step(p, s, table);
            for (t, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(x.add(t * WIDTH + s * 4).cast::<i32>().read_unaligned());
                *sum = _mm512_dpbusd_epi32(*sum, w, x);
            }
        }
        sums
    }
}

/// Records with a float scale every block of 32 activations.
///
/// # Safety
/// As [`Run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn narrow<S: Source, const T: usize>(a: &Args<'_>) {
    let layout = a.layout;
    let offset = offset(layout);
    // SAFETY: the caller's promise.
    unsafe {
        let table = table(layout);
        let mut out = start::<T>(a);
        for i in 0..a.records {
            let record = ahead(a.record, i * a.stride);
            let codes = ahead(a.codes, i * a.code_stride);
            let d = floats(layout.form, record);
            for b in 0..layout.blocks {
                let at = i * layout.blocks + b;
                let (slab, in_slab) = (at / SLAB * a.tokens, at % SLAB);
                let x = a.values.add(slab * WIDTH + in_slab * BLOCK);
                let sums = dots::<S, T>(ahead(codes, b * S::BYTES), table, x, 0, 8);
                let first = slab * SLAB + in_slab;
                for t in 0..T {
                    let at = first + t * SLAB;
                    let away = _mm512_set1_epi32((*a.sums.add(at)).wrapping_mul(offset));
                    let scale = _mm512_mul_ps(d, _mm512_set1_ps(*a.scales.add(at)));
                    out[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums[t], away)), scale, out[t]);
                }
                if layout.min {
                    let m = floats(layout.form, ahead(record, layout.form.bytes()));
                    for (t, out) in out.iter_mut().enumerate() {
                        let sum = _mm512_set1_ps(*a.scaled_sums.add(first + t * SLAB));
                        *out = _mm512_fmadd_ps(m, sum, *out);
                    }
                }
            }
        }
        finish(a, out);
    }
}

/// `sum over pairs of sub-blocks of small[pair] . sums[pair]`, for each row.
///
/// # Safety
/// As many pairs as said in both; VNNI.
#[inline(always)]
unsafe fn weighed<const T: usize, const HALVES: bool, const SIGN: bool>(small: Pair, sums: *const i32) -> [__m512i; T] {
    let pairs = if HALVES { 8 } else { 4 };
    // SAFETY: the caller's promise.
    unsafe {
        let mut out = [_mm512_setzero_si512(); T];
        for p in 0..pairs {
            let bytes = load_half(ahead(small, p * 16));
            let pair = if SIGN { _mm512_cvtepi8_epi16(bytes) } else { _mm512_cvtepu8_epi16(bytes) };
            for (t, out) in out.iter_mut().enumerate() {
                let sum = _mm512_set1_epi32(sums.add(t * pairs + p).read_unaligned());
                *out = _mm512_dpwssd_epi32(*out, pair, sum);
            }
        }
        out
    }
}

/// Super-blocks: 8-bit scales every 32 inputs, or with `HALVES` every 16.
///
/// # Safety
/// As [`Run`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn wide<S: Source, const T: usize, const HALVES: bool>(a: &Args<'_>) {
    let layout = a.layout;
    let pairs = if HALVES { 8 } else { 4 };
    let offset = offset(layout);
    // SAFETY: the caller's promise.
    unsafe {
        let table = table(layout);
        let mut out = start::<T>(a);
        for i in 0..a.records {
            let record = ahead(a.record, i * a.stride);
            let codes = ahead(a.codes, i * a.code_stride);
            let slab = i * a.tokens;
            let x = a.values.add(slab * WIDTH);
            let small = ahead(record, layout.floats());
            let mut acc = [_mm512_setzero_si512(); T];
            for p in 0..pairs {
                // Two scales a row, as 32-bit numbers.
                let both = _mm512_cvtepi16_epi32(load_half(ahead(small, p * 16)));
                let first = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(both));
                let second = _mm512_srai_epi32::<8>(both);
                let (a, b) = if HALVES {
                    let (codes, x) = (ahead(codes, p * S::BYTES), x.add(p * BLOCK));
                    (dots::<S, T>(codes, table, x, 0, 4), dots::<S, T>(codes, table, x, 4, 8))
                } else {
                    let (at, x) = (ahead(codes, 2 * p * S::BYTES), x.add(2 * p * BLOCK));
                    let a = dots::<S, T>(at, table, x, 0, 8);
                    (a, dots::<S, T>(ahead(at, S::BYTES), table, x.add(BLOCK), 0, 8))
                };
                for t in 0..T {
                    acc[t] = _mm512_add_epi32(acc[t], _mm512_mullo_epi32(a[t], first));
                    acc[t] = _mm512_add_epi32(acc[t], _mm512_mullo_epi32(b[t], second));
                }
            }
            let sums = a.pairs.add(slab * pairs);
            if offset != 0 {
                let of_scales = weighed::<T, HALVES, true>(small, sums);
                let offset = _mm512_set1_epi32(offset);
                for t in 0..T {
                    acc[t] = _mm512_sub_epi32(acc[t], _mm512_mullo_epi32(of_scales[t], offset));
                }
            }
            let d = floats(layout.form, record);
            for t in 0..T {
                let x_scale = *a.scales.add(slab + t) * layout.factor;
                let scale = _mm512_mul_ps(d, _mm512_set1_ps(x_scale));
                out[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[t]), scale, out[t]);
            }
            if layout.min {
                let of_mins = weighed::<T, HALVES, false>(ahead(small, pairs * 16), sums);
                let m = floats(layout.form, ahead(record, layout.form.bytes()));
                for t in 0..T {
                    let x_scale = *a.scales.add(slab + t) * layout.factor;
                    let scale = _mm512_mul_ps(m, _mm512_set1_ps(x_scale));
                    out[t] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(of_mins[t]), scale, out[t]);
                }
            }
        }
        finish(a, out);
    }
}

/// Writes the bytes of `blocks` blocks of both groups.
///
/// # Safety
/// That many blocks of `S` at both of `p`, `TILE` bytes for each at `to`; the machine has the
/// instructions.
type Unpack = unsafe fn(p: Pair, layout: &Layout, to: *mut u8);

/// # Safety
/// As [`Unpack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn unpack<S: Source>(p: Pair, layout: &Layout, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let table = table(layout);
        for b in 0..layout.blocks {
            for s in 0..8 {
                let v = S::step(ahead(p, b * S::BYTES), s, table);
                _mm512_storeu_si512(to.add(b * TILE + s * 64).cast(), v);
            }
        }
    }
}

/// The kernels of a layout.
struct Kernels {
    /// One to four tokens.
    direct: [Run; DIRECT],
    unpack: Unpack,
    /// Over a tile, by tokens, from the most down.
    tile: [(usize, Run); 5],
}

macro_rules! kernels {
    ($source:ident, $kernel:ident $(, $halves:literal)?) => {
        &const {
            Kernels {
                direct: [
                    $kernel::<$source, 1 $(, $halves)?>,
                    $kernel::<$source, 2 $(, $halves)?>,
                    $kernel::<$source, 3 $(, $halves)?>,
                    $kernel::<$source, 4 $(, $halves)?>,
                ],
                unpack: unpack::<$source>,
                tile: [
                    (12, $kernel::<Bytes, 12 $(, $halves)?>),
                    (8, $kernel::<Bytes, 8 $(, $halves)?>),
                    (4, $kernel::<Bytes, 4 $(, $halves)?>),
                    (2, $kernel::<Bytes, 2 $(, $halves)?>),
                    (1, $kernel::<Bytes, 1 $(, $halves)?>),
                ],
            }
        }
    };
}

fn kernels(layout: &Layout) -> &'static Kernels {
    match (layout.code, layout.sub) {
        (Code::U2, 0) => kernels!(U2, narrow),
        (Code::U2, _) => kernels!(U2, wide, true),
        (Code::U3, 0) => kernels!(U3, narrow),
        (Code::U3, _) => kernels!(U3, wide, true),
        (Code::U4, 0) => kernels!(U4, narrow),
        (Code::U4, _) => kernels!(U4, wide, false),
        (Code::U5, 0) => kernels!(U5, narrow),
        (Code::U5, _) => kernels!(U5, wide, false),
        (Code::U6, 0) => kernels!(U6, narrow),
        (Code::U6, _) => kernels!(U6, wide, true),
        (Code::S8, _) => kernels!(S8, narrow),
        (Code::Table | Code::Signed | Code::Wide, 0) => kernels!(Table, narrow),
        (Code::Table | Code::Signed | Code::Wide, 16) => kernels!(Table, wide, true),
        (Code::Table | Code::Signed | Code::Wide, _) => kernels!(Table, wide, false),
    }
}

/// The groups of a job two by two times its tokens, added to `sums`: `[group][token][8]`. How many
/// groups were computed: all, or all but the last.
pub(super) fn run(job: &Job<'_>, sums: &mut [f32]) -> usize {
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
    // What a kernel gets for records from `first` on of two groups, tokens from `t` on of slab `slab`.
    let args = |two: [usize; 2], first: usize, count: usize, slab: usize, t: usize, out: [*mut f32; 2]| {
        let at = slab * acts.tokens + job.tokens.start + t;
        let record = two.map(|g| job.groups[g * job.group + first * stride..].as_ptr());
        let narrow = if wide { 0 } else { at * SLAB };
        Args {
            layout,
            record,
            records: count,
            stride,
            codes: ahead(record, layout.header()),
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
    let both = groups / 2 * 2;
    if n <= DIRECT {
        // Two halves side by side, each of them read from end to end: what is read ahead is used.
        let half = groups / 2;
        let (a, b) = sums[..both * n * ROWS].split_at_mut(half * n * ROWS);
        for (i, (a, b)) in a.chunks_exact_mut(n * ROWS).zip(b.chunks_exact_mut(n * ROWS)).enumerate() {
            let two = [i, half + i];
            // SAFETY: all records of two groups, `n` tokens from the job's first on; the dispatch
            // has checked the machine.
            unsafe { all.direct[n - 1](&args(two, 0, records, 0, 0, [a.as_mut_ptr(), b.as_mut_ptr()])) };
        }
        return both;
    }
    #[repr(align(64))]
    struct Tile([u8; SLAB * TILE]);
    let mut tile = Tile([0; SLAB * TILE]);
    let per_slab = SLAB / layout.blocks;
    for slab in 0..records.div_ceil(per_slab) {
        let first = slab * per_slab;
        let count = per_slab.min(records - first);
        for (i, sums) in sums.chunks_exact_mut(2 * n * ROWS).enumerate() {
            let (a, b) = sums.split_at_mut(n * ROWS);
            for j in 0..count {
                let codes = [2 * i, 2 * i + 1].map(|g| {
                    let record = g * job.group + (first + j) * stride;
                    job.groups[record + layout.header()..record + stride].as_ptr()
                });
                let to = &mut tile.0[j * layout.blocks * TILE..(j + 1) * layout.blocks * TILE];
                // SAFETY: the codes of two records and as many bytes as they have values.
                unsafe { (all.unpack)(codes, layout, to.as_mut_ptr()) };
            }
            let mut t = 0;
            for (most, run) in all.tile {
                while n - t >= most {
                    let at = t * ROWS..(t + most) * ROWS;
                    let out = [a[at.clone()].as_mut_ptr(), b[at].as_mut_ptr()];
                    let mut args = args([2 * i, 2 * i + 1], first, count, slab, t, out);
                    (args.codes, args.code_stride) = ([tile.0.as_ptr(); 2], layout.blocks * TILE);
                    // SAFETY: the records of a slab, `most` tokens of it.
                    unsafe { run(&args) };
                    t += most;
                }
            }
        }
    }
    both
}

/// Multiply-adds of a step of [`burst`].
pub(crate) const BURST: usize = 12 * 64;

/// `steps` rounds of nothing but products: what `limits` measures.
///
/// # Safety
/// The machine has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn burst(steps: usize) {
    let (w, x) = std::hint::black_box((_mm512_set1_epi8(1), _mm512_set1_epi8(1)));
    let mut sums = [_mm512_setzero_si512(); BURST / 64];
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, w, x);
        }
    }
    let all = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi32(a, b));
    std::hint::black_box(_mm512_reduce_add_epi32(all));
}
