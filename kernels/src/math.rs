//! Exponential and Gaussian distribution over [`Lanes`], the same bits on every instruction set.

use crate::lanes::Lanes;

/// Below this `e^x` is a subnormal; we say zero.
const EXP_LOW: f32 = -87.336_54;
/// Above this `e^x` is no f32.
const EXP_HIGH: f32 = 88.722_83;
/// Adding and taking away 1.5 * 2^23 rounds to a whole number.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts: a whole number times the first is exact.
const LN2_HIGH: f32 = 0.693_176_27;
const LN2_LOW: f32 = -2.908_897_1e-5;
/// Our fit of `(e^r - 1 - r - r^2/2) / r^3` on +-ln(2)/2 at Chebyshev nodes; relative error of `e^r` 8e-10.
const EXP_TAIL: [f32; 5] = [0.166_666_67, 0.041_666_55, 0.008_333_321, 0.001_392_692_7, 0.000_198_835_23];

/// `e^x` within about one unit in the last place; 0 below -87.34, `inf` above 88.72, NaN stays.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    let clamped = L::splat(EXP_LOW).max(x);
    // `!(x < high)` gives high only to numbers: a NaN must not be replaced.
    let clamped = L::splat(EXP_HIGH).select_lt(clamped, L::splat(EXP_HIGH), clamped);
    let n = clamped.fma(L::splat(std::f32::consts::LOG2_E), L::splat(ROUND)).sub(L::splat(ROUND));
    let r = n.fma(L::splat(-LN2_HIGH), clamped);
    let r = n.fma(L::splat(-LN2_LOW), r);
    let mut p = L::splat(EXP_TAIL[4]);
    for c in [EXP_TAIL[3], EXP_TAIL[2], EXP_TAIL[1], EXP_TAIL[0], 0.5] {
        p = p.fma(r, L::splat(c));
    }
    let p = p.fma(r.mul(r), r).add(L::splat(1.0));
    // n may be 128: half the power first, then twice the value.
    let half = n.mul(L::splat(0.5)).add(L::splat(ROUND)).sub(L::splat(ROUND));
    let value = p.mul(half.exp2_whole()).mul(n.sub(half).exp2_whole());
    let value = x.select_lt(L::splat(EXP_LOW), L::splat(0.0), value);
    L::splat(EXP_HIGH).select_lt(x, L::splat(f32::INFINITY), value)
}

/// `e^x` for `x <= 0` (softmax), without the care for large values.
#[inline(always)]
pub(crate) fn exp_negative<L: Lanes>(x: L) -> L {
    let clamped = L::splat(EXP_LOW).max(x);
    let n = clamped.fma(L::splat(std::f32::consts::LOG2_E), L::splat(ROUND)).sub(L::splat(ROUND));
    let r = n.fma(L::splat(-LN2_HIGH), clamped);
    let r = n.fma(L::splat(-LN2_LOW), r);
    let mut p = L::splat(EXP_TAIL[4]);
    for c in [EXP_TAIL[3], EXP_TAIL[2], EXP_TAIL[1], EXP_TAIL[0], 0.5] {
        p = p.fma(r, L::splat(c));
    }
    let p = p.fma(r.mul(r), r).add(L::splat(1.0));
    x.select_lt(L::splat(EXP_LOW), L::splat(0.0), p.mul(n.exp2_whole()))
}

/// Our fit of `Q(a) e^(a^2/2) / t` in powers of `t = 4 / (4 + a)`, `0 <= a <= 14`, where `Q` is the
/// upper tail of the normal distribution; relative error 1.3e-8 before rounding.
const TAIL: [f32; 10] = [
    0.099_751_79,
    0.099_416_62,
    0.096_150_87,
    0.069_011_636,
    0.095_375_57,
    -0.003_677_959_3,
    0.048_318_084,
    0.036_615_256,
    -0.056_345_463,
    0.015_383_603,
];

/// `x * Phi(x)`, the exact (erf) GELU.
#[inline(always)]
pub(crate) fn gelu<L: Lanes>(x: L) -> L {
    let a = x.abs();
    let t = L::splat(4.0).div(a.add(L::splat(4.0)));
    let mut p = L::splat(TAIL[9]);
    for i in (0..9).rev() {
        p = p.fma(t, L::splat(TAIL[i]));
    }
    // a^2 in two parts, or the tail loses its relative accuracy.
    let square = a.mul(a);
    let rest = a.fma(a, L::splat(0.0).sub(square));
    let e = exp_negative(square.mul(L::splat(-0.5)));
    let e = e.fma(rest.mul(L::splat(-0.5)), e);
    let tail = e.mul(p.mul(t));
    // Lower side: x * Q(-x). Upper side: x - x * Q(x). Far out the first is zero, not inf * 0.
    let lower = a.select_lt(L::splat(14.0), x.mul(tail), L::splat(0.0));
    let upper = x.sub(lower);
    let value = x.select_lt(L::splat(0.0), lower, upper);
    // NaN compares as not below zero and as not below 14: x - 0 = NaN.
    value
}
