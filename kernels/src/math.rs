//! Exponential and Gaussian distribution over [`Lanes`], the same bits on every instruction set.

use crate::lanes::Lanes;

/// From here down the power of two is 2^-127, whose bits are those of zero.
const EXP_LOW: f32 = -88.0;
/// Adding and taking away 1.5 * 2^23 rounds to a whole number.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts: a whole number times the first is exact.
const LN2_HIGH: f32 = 0.693_176_27;
const LN2_LOW: f32 = -2.908_897_1e-5;
/// Our fit of `(e^r - 1 - r - r^2/2) / r^3` on +-ln(2)/2 at Chebyshev nodes; relative error of `e^r`
/// 2.2e-8, a third of a unit in the last place.
const EXP_TAIL: [f32; 4] = [0.166_666_3, 0.041_666_62, 0.008_357_68, 0.001_391_931_4];

/// `e^x` for `x <= 0` within about one unit in the last place; 0 below -87.69, NaN stays.
#[inline(always)]
pub(crate) fn exp_negative<L: Lanes>(x: L) -> L {
    let clamped = L::splat(EXP_LOW).max(x);
    let n = clamped.fma(L::splat(std::f32::consts::LOG2_E), L::splat(ROUND)).sub(L::splat(ROUND));
    let r = n.fma(L::splat(-LN2_HIGH), clamped);
    let r = n.fma(L::splat(-LN2_LOW), r);
    let mut p = L::splat(EXP_TAIL[3]);
    for c in [EXP_TAIL[2], EXP_TAIL[1], EXP_TAIL[0], 0.5] {
        p = p.fma(r, L::splat(c));
    }
    let p = p.fma(r.mul(r), r).add(L::splat(1.0));
    p.mul(n.exp2_whole())
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
    // NaN compares as not below zero and as not below 14: x - 0 = NaN.
    x.select_lt(L::splat(0.0), lower, upper)
}

/// `e^-|x|` in the two forms a logistic function needs: `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    let e = exp_negative(L::splat(0.0).sub(x.abs()));
    x.select_lt(L::splat(0.0), e, one).div(one.add(e))
}

/// Our fit of `(tanh(y) - y) / y^3` in powers of `y^2` for `|y| <= 0.64`, relative error 5e-9.
const TANH: [f32; 6] = [-0.333_333_34, 0.133_332_97, -0.053_957_6, 0.021_755_7, -0.008_301_7, 0.002_246];

/// Hyperbolic tangent, within a few units in the last place.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    let square = x.mul(x);
    let mut p = L::splat(TANH[5]);
    for i in (0..5).rev() {
        p = p.fma(square, L::splat(TANH[i]));
    }
    let near = x.mul(square).fma(p, x);
    let a = x.abs();
    let e = exp_negative(a.mul(L::splat(-2.0)));
    let far = one.sub(e.add(e).div(one.add(e)));
    let far = x.select_lt(L::splat(0.0), L::splat(0.0).sub(far), far);
    a.select_lt(L::splat(0.625), near, far)
}
