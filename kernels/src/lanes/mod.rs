//! Sixteen f32 values at once: the one vector type every kernel is written over.
//!
//! Always sixteen, whatever the machine's registers hold, so that sums over lanes have one order.

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use half::{bf16, f16};

/// Lanes in a vector, and output features in a panel.
pub(crate) const N: usize = 16;

/// Sixteen lanes. Values of a type exist only while a kernel runs under [`crate::Isa`]'s dispatch,
/// which has checked that the machine has the instructions: that makes the methods safe.
pub(crate) trait Lanes: Copy {
    /// Sixteen 32-bit integers.
    type Int: Copy;

    fn splat(value: f32) -> Self;
    /// # Safety
    /// Sixteen readable values.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// Sixteen readable halves.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// # Safety
    /// Sixteen readable bfloat16.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// # Safety
    /// Sixteen readable bytes.
    unsafe fn load_i8(from: *const i8) -> Self;
    /// # Safety
    /// Sixteen writable values.
    unsafe fn store(self, to: *mut f32);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `if self > other { self } else { other }` (so a NaN in `other` stays).
    fn max(self, other: Self) -> Self;
    /// `if self < bound { yes } else { no }`.
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self;
    fn abs(self) -> Self;
    /// `2^self` for whole numbers in `-126..=127`; 0 for -127.
    fn exp2_whole(self) -> Self;
    /// Sum of the lanes, by halves: `i + (i+8)`, then 4, 2, 1.
    fn sum(self) -> f32;
    /// Greatest lane.
    fn greatest(self) -> f32;

    fn int_zero() -> Self::Int;
    /// For each lane `o`, adds `sum over j < 4 of w[4 o + j] * x[j]`; all in `-127..=127`.
    ///
    /// # Safety
    /// 64 readable bytes.
    unsafe fn dot4(sum: Self::Int, w: *const i8, x: [i8; 4]) -> Self::Int;
    /// The machine's own 8-bit multiply-add, unsigned by signed, for measuring its peak: 64 products.
    fn int8_step(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Nearest floats.
    fn from_int(value: Self::Int) -> Self;
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar([f32; N]);

impl Scalar {
    #[inline(always)]
    fn each(f: impl Fn(usize) -> f32) -> Self {
        let mut out = [0.0; N];
        for (i, out) in out.iter_mut().enumerate() {
            *out = f(i);
        }
        Self(out)
    }
}

impl Lanes for Scalar {
    type Int = [i32; N];

    #[inline]
    fn splat(value: f32) -> Self {
        Self([value; N])
    }
    #[inline]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { from.cast::<[f32; N]>().read_unaligned() })
    }
    #[inline]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        let bits = unsafe { from.cast::<[u16; N]>().read_unaligned() };
        Self::each(|i| f16::from_bits(bits[i]).to_f32())
    }
    #[inline]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller's promise.
        let bits = unsafe { from.cast::<[u16; N]>().read_unaligned() };
        Self::each(|i| bf16::from_bits(bits[i]).to_f32())
    }
    #[inline]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: the caller's promise.
        let values = unsafe { from.cast::<[i8; N]>().read_unaligned() };
        Self::each(|i| f32::from(values[i]))
    }
    #[inline]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; N]>().write_unaligned(self.0) };
    }
    #[inline]
    fn add(self, other: Self) -> Self {
        Self::each(|i| self.0[i] + other.0[i])
    }
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self::each(|i| self.0[i] - other.0[i])
    }
    #[inline]
    fn mul(self, other: Self) -> Self {
        Self::each(|i| self.0[i] * other.0[i])
    }
    #[inline]
    fn div(self, other: Self) -> Self {
        Self::each(|i| self.0[i] / other.0[i])
    }
    // In software where the target has no fused multiply-add: then a call more does not matter,
    // and a copy of it in every kernel would only take long to compile.
    #[cfg_attr(any(target_feature = "fma", target_arch = "aarch64"), inline(always))]
    #[cfg_attr(not(any(target_feature = "fma", target_arch = "aarch64")), inline(never))]
    fn fma(self, b: Self, c: Self) -> Self {
        Self::each(|i| self.0[i].mul_add(b.0[i], c.0[i]))
    }
    #[inline]
    fn max(self, other: Self) -> Self {
        Self::each(|i| if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] })
    }
    #[inline]
    fn select_lt(self, bound: Self, yes: Self, no: Self) -> Self {
        Self::each(|i| if self.0[i] < bound.0[i] { yes.0[i] } else { no.0[i] })
    }
    #[inline]
    fn abs(self) -> Self {
        Self::each(|i| self.0[i].abs())
    }
    #[inline]
    fn exp2_whole(self) -> Self {
        Self::each(|i| f32::from_bits(((self.0[i] as i32).wrapping_add(127) as u32) << 23))
    }
    #[inline]
    fn sum(self) -> f32 {
        let mut v = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] += v[i + half];
            }
        }
        v[0]
    }
    #[inline]
    fn greatest(self) -> f32 {
        let mut v = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] = if v[i] > v[i + half] { v[i] } else { v[i + half] };
            }
        }
        v[0]
    }
    #[inline]
    fn int_zero() -> Self::Int {
        [0; N]
    }
    #[inline]
    unsafe fn dot4(mut sum: Self::Int, w: *const i8, x: [i8; 4]) -> Self::Int {
        // SAFETY: the caller's promise.
        let w = unsafe { w.cast::<[[i8; 4]; N]>().read_unaligned() };
        for (sum, w) in sum.iter_mut().zip(w) {
            for (w, x) in w.into_iter().zip(x) {
                *sum += i32::from(w) * i32::from(x);
            }
        }
        sum
    }
    #[inline]
    fn from_int(value: Self::Int) -> Self {
        Self::each(|i| value[i] as f32)
    }
    #[inline]
    fn int8_step(mut sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        for i in 0..N {
            for (a, b) in a[i].to_ne_bytes().into_iter().zip(b[i].to_ne_bytes()) {
                sum[i] = sum[i].wrapping_add(i32::from(a) * i32::from(b as i8));
            }
        }
        sum
    }
}

/// What a weight is stored as; panels of any of them are read as [`Lanes`].
pub(crate) trait Elem: Copy + Default + Send + Sync + 'static {
    /// Is it f32 already?
    const PLAIN: bool = false;
    /// # Safety
    /// Sixteen readable values.
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L;
    fn to_f32(self) -> f32;
    /// Nearest, ties to even.
    fn from_f32(value: f32) -> Self;
}

impl Elem for f32 {
    const PLAIN: bool = true;
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(from) }
    }
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(value: f32) -> Self {
        value
    }
}

/// An IEEE half.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct F16(pub u16);

impl Elem for F16 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_f16(from.cast()) }
    }
    fn to_f32(self) -> f32 {
        f16::from_bits(self.0).to_f32()
    }
    fn from_f32(value: f32) -> Self {
        Self(f16::from_f32(value).to_bits())
    }
}

/// A bfloat16.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(crate) struct BF16(pub u16);

impl Elem for BF16 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_bf16(from.cast()) }
    }
    fn to_f32(self) -> f32 {
        bf16::from_bits(self.0).to_f32()
    }
    fn from_f32(value: f32) -> Self {
        Self(bf16::from_f32(value).to_bits())
    }
}

/// Whole numbers whose scale is somebody else's.
impl Elem for i8 {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_i8(from) }
    }
    fn to_f32(self) -> f32 {
        f32::from(self)
    }
    fn from_f32(value: f32) -> Self {
        value.round_ties_even() as Self
    }
}

/// Loads `n <= 16` values, the rest `fill`.
///
/// # Safety
/// `n` readable values.
#[inline(always)]
pub(crate) unsafe fn load_n<L: Lanes>(from: *const f32, n: usize, fill: f32) -> L {
    if n >= N {
        // SAFETY: sixteen readable values.
        return unsafe { L::load(from) };
    }
    let mut buf = [fill; N];
    for (i, v) in buf.iter_mut().enumerate().take(n) {
        // SAFETY: below `n`.
        *v = unsafe { *from.add(i) };
    }
    // SAFETY: an array of sixteen.
    unsafe { L::load(buf.as_ptr()) }
}

/// Stores the first `n <= 16` lanes.
///
/// # Safety
/// `n` writable values.
#[inline(always)]
pub(crate) unsafe fn store_n<L: Lanes>(value: L, to: *mut f32, n: usize) {
    if n >= N {
        // SAFETY: sixteen writable values.
        unsafe { value.store(to) };
        return;
    }
    let mut buf = [0.0; N];
    // SAFETY: an array of sixteen.
    unsafe { value.store(buf.as_mut_ptr()) };
    for (i, v) in buf.iter().enumerate().take(n) {
        // SAFETY: below `n`.
        unsafe { *to.add(i) = *v };
    }
}
