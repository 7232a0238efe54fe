//! [`Lanes`] as two 256-bit registers or one 512-bit register.

use std::arch::x86_64::*;

use super::Lanes;

/// Intrinsics inside a kernel that the dispatch has started.
macro_rules! on_cpu {
    ($e:expr) => {
        // SAFETY: `Lanes` values of this module exist only inside kernels that `Isa::call` started
        // after checking that the machine has the instructions; pointers are the caller's promise.
        unsafe { $e }
    };
}

/// AVX2, FMA, F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// 8 -> 1 by halves.
#[inline(always)]
unsafe fn sum8(v: __m256) -> f32 {
    on_cpu!({
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    })
}

#[inline(always)]
unsafe fn max8(v: __m256) -> f32 {
    on_cpu!({
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    })
}

#[inline(always)]
unsafe fn bf16x8(from: *const u16) -> __m256 {
    on_cpu!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))))
}

/// Eight outputs, four products each: `|x|` unsigned times `w` with the sign of `x`; two products
/// are at most 32258, so the 16-bit sums are exact.
#[inline(always)]
unsafe fn dot4x8(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
    on_cpu!({
        let products = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
        _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)))
    })
}

impl Lanes for Avx2 {
    type Int = (__m256i, __m256i);

    #[inline(always)]
    fn splat(value: f32) -> Self {
        let v = on_cpu!(_mm256_set1_ps(value));
        Self(v, v)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        on_cpu!(Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        on_cpu!(Self(
            _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast()))
        ))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        on_cpu!(Self(bf16x8(from), bf16x8(from.add(8))))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        on_cpu!({
            let bytes = _mm_loadu_si128(from.cast());
            let (a, b) = (_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)));
            Self(_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b))
        })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        on_cpu!({
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        });
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        on_cpu!(Self(_mm256_add_ps(self.0, o.0), _mm256_add_ps(self.1, o.1)))
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        on_cpu!(Self(_mm256_sub_ps(self.0, o.0), _mm256_sub_ps(self.1, o.1)))
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        on_cpu!(Self(_mm256_mul_ps(self.0, o.0), _mm256_mul_ps(self.1, o.1)))
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        on_cpu!(Self(_mm256_div_ps(self.0, o.0), _mm256_div_ps(self.1, o.1)))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        on_cpu!(Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)))
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        on_cpu!(Self(_mm256_max_ps(self.0, o.0), _mm256_max_ps(self.1, o.1)))
    }
    #[inline(always)]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        on_cpu!(Self(
            _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0)),
            _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, bound.1))
        ))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        on_cpu!({
            let sign = _mm256_set1_ps(-0.0);
            Self(_mm256_andnot_ps(sign, self.0), _mm256_andnot_ps(sign, self.1))
        })
    }
    #[inline(always)]
    fn exp2_whole(self) -> Self {
        on_cpu!({
            let bias = _mm256_set1_epi32(127);
            let a = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(self.0), bias));
            let b = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(self.1), bias));
            Self(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        on_cpu!(sum8(_mm256_add_ps(self.0, self.1)))
    }
    #[inline(always)]
    fn greatest(self) -> f32 {
        on_cpu!(max8(_mm256_max_ps(self.0, self.1)))
    }
    #[inline(always)]
    fn int_zero() -> Self::Int {
        on_cpu!((_mm256_setzero_si256(), _mm256_setzero_si256()))
    }
    #[inline(always)]
    unsafe fn dot4(sum: Self::Int, w: *const i8, x: [i8; 4]) -> Self::Int {
        on_cpu!({
            let x = _mm256_set1_epi32(i32::from_ne_bytes(x.map(|v| v as u8)));
            (dot4x8(sum.0, _mm256_loadu_si256(w.cast()), x), dot4x8(sum.1, _mm256_loadu_si256(w.add(32).cast()), x))
        })
    }
    #[inline(always)]
    fn int8_step(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        on_cpu!({
            let ones = _mm256_set1_epi16(1);
            let p = _mm256_madd_epi16(_mm256_maddubs_epi16(a.0, b.0), ones);
            let q = _mm256_madd_epi16(_mm256_maddubs_epi16(a.1, b.1), ones);
            (_mm256_add_epi32(sum.0, p), _mm256_add_epi32(sum.1, q))
        })
    }
    #[inline(always)]
    fn from_int(value: Self::Int) -> Self {
        on_cpu!(Self(_mm256_cvtepi32_ps(value.0), _mm256_cvtepi32_ps(value.1)))
    }
}

/// AVX-512 F (integer products stay 256 bits wide).
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

#[inline(always)]
unsafe fn halves(v: __m512) -> (__m256, __m256) {
    on_cpu!((_mm512_castps512_ps256(v), _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v)))))
}

impl Lanes for Avx512 {
    type Int = (__m256i, __m256i);

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(on_cpu!(_mm512_set1_ps(value)))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(on_cpu!(_mm512_loadu_ps(from)))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        Self(on_cpu!(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        Self(on_cpu!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
            from.cast()
        ))))))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        Self(on_cpu!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        on_cpu!(_mm512_storeu_ps(to, self.0));
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        Self(on_cpu!(_mm512_add_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        Self(on_cpu!(_mm512_sub_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Self(on_cpu!(_mm512_mul_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        Self(on_cpu!(_mm512_div_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Self(on_cpu!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        Self(on_cpu!(_mm512_max_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        Self(on_cpu!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, bound.0), no.0, yes.0)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Self(on_cpu!(_mm512_abs_ps(self.0)))
    }
    #[inline(always)]
    fn exp2_whole(self) -> Self {
        on_cpu!({
            let n = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(n)))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        on_cpu!({
            let (a, b) = halves(self.0);
            sum8(_mm256_add_ps(a, b))
        })
    }
    #[inline(always)]
    fn greatest(self) -> f32 {
        on_cpu!({
            let (a, b) = halves(self.0);
            max8(_mm256_max_ps(a, b))
        })
    }
    #[inline(always)]
    fn int_zero() -> Self::Int {
        Avx2::int_zero()
    }
    #[inline(always)]
    unsafe fn dot4(sum: Self::Int, w: *const i8, x: [i8; 4]) -> Self::Int {
        on_cpu!(Avx2::dot4(sum, w, x))
    }
    #[inline(always)]
    fn int8_step(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        Avx2::int8_step(sum, a, b)
    }
    #[inline(always)]
    fn from_int(value: Self::Int) -> Self {
        on_cpu!({
            let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(value.0), value.1);
            Self(_mm512_cvtepi32_ps(both))
        })
    }
}
