//! Norms, activations, softmax over rows.

use crate::isa::{Isa, Kernel};
use crate::lanes::{Lanes, N, load_n, store_n};
use crate::math;
use crate::pool::{Parts, Pool};

mod gated;
mod rms;

pub use gated::{gelu_tanh, gelu_tanh_mul, gelu_tanh_mul_fused, scale, silu, silu_mul, silu_mul_fused, softcap};
pub use rms::{add_rms_norm, rms_norm, rms_norm_in_place};

/// Values a thread should at least get.
const SMALL: usize = 8 * 1024;

/// Layer norm of each row of `dim` values: `(x - mean) / sqrt(var + eps) * weight + bias`.
///
/// # Panics
/// When the lengths do not belong together.
pub fn layer_norm(pool: &Pool, x: &[f32], dim: usize, weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    if dim == 0 {
        return;
    }
    assert!(x.len() == out.len() && x.len().is_multiple_of(dim), "whole rows of {dim} values");
    assert!(weight.len() == dim && bias.len() == dim, "a weight and a bias a value");
    let isa = Isa::current();
    let parts = Parts::new(out);
    pool.run_chunks(x.len() / dim, SMALL.div_ceil(dim), |range| {
        let range = range.start * dim..range.end * dim;
        // SAFETY: every chunk has its own rows.
        let out = unsafe { parts.part(range.clone()) };
        isa.call(LayerNorm { x: &x[range], weight, bias, eps, out });
    });
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

/// Vectors added one after the other before they join the whole: keeps long sums accurate.
const RUN: usize = 8;

/// Sum over a row of `f(vector)`, missing lanes `fill`.
macro_rules! row_sum {
    ($L:ident, $x:expr, $fill:expr, |$v:ident| $f:expr) => {{
        let mut total = $L::splat(0.0);
        let mut run = $L::splat(0.0);
        for (i, at) in (0..$x.len()).step_by(N).enumerate() {
            if i % RUN == 0 {
                total = total.add(run);
                run = $L::splat(0.0);
            }
            // SAFETY: inside the row.
            let $v = unsafe { load_n::<$L>($x.as_ptr().add(at), ($x.len() - at).min(N), $fill) };
            run = run.add($f);
        }
        total.add(run).sum()
    }};
}

impl Kernel for LayerNorm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let dim = self.weight.len();
        for (x, out) in self.x.chunks_exact(dim).zip(self.out.chunks_exact_mut(dim)) {
            let mean = row_sum!(L, x, 0.0, |v| v) / dim as f32;
            // The rounding of the mean is taken back: sum of (x - mean) is what it is off by.
            let m = L::splat(mean);
            let mean = mean + row_sum!(L, x, mean, |v| v.sub(m)) / dim as f32;
            let m = L::splat(mean);
            let var = row_sum!(L, x, mean, |v| {
                let d = v.sub(m);
                d.mul(d)
            }) / dim as f32;
            let scale = L::splat(1.0 / (var + self.eps).sqrt());
            for at in (0..dim).step_by(N) {
                let n = (dim - at).min(N);
                // SAFETY: inside the rows.
                unsafe {
                    let v = load_n::<L>(x.as_ptr().add(at), n, 0.0).sub(m).mul(scale);
                    let w = load_n::<L>(self.weight.as_ptr().add(at), n, 0.0);
                    let b = load_n::<L>(self.bias.as_ptr().add(at), n, 0.0);
                    store_n(v.fma(w, b), out.as_mut_ptr().add(at), n);
                }
            }
        }
    }
}

/// Exact (erf) GELU in place.
pub fn gelu(pool: &Pool, x: &mut [f32]) {
    each(pool, x, |isa, x| isa.call(Gelu(x)));
}

/// Chunks of a slice on all threads.
fn each(pool: &Pool, x: &mut [f32], task: impl Fn(Isa, &mut [f32]) + Sync) {
    let isa = Isa::current();
    let len = x.len();
    let parts = Parts::new(x);
    // Whole vectors a chunk, so that only the last has a tail.
    pool.run_chunks(len.div_ceil(N), SMALL / N, |range| {
        // SAFETY: every chunk is its own.
        task(isa, unsafe { parts.part(range.start * N..(range.end * N).min(len)) });
    });
}

struct Gelu<'a>(&'a mut [f32]);

impl Kernel for Gelu<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in (0..self.0.len()).step_by(N) {
            let n = (self.0.len() - at).min(N);
            // SAFETY: inside the slice.
            unsafe {
                let p = self.0.as_mut_ptr().add(at);
                store_n(math::gelu(load_n::<L>(p, n, 0.0)), p, n);
            }
        }
    }
}

/// `x += y`.
///
/// # Panics
/// When the lengths differ.
pub fn add(pool: &Pool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "as many values on both sides");
    let parts = Parts::new(x);
    pool.run_chunks(y.len(), 2 * SMALL, |range| {
        // SAFETY: every chunk is its own.
        let x = unsafe { parts.part(range.clone()) };
        for (x, y) in x.iter_mut().zip(&y[range]) {
            *x += y;
        }
    });
}

/// `x *= y`.
///
/// # Panics
/// When the lengths differ.
pub fn mul(pool: &Pool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "as many factors as values");
    let parts = Parts::new(x);
    pool.run_chunks(y.len(), SMALL, |range| {
        // SAFETY: every chunk is its own.
        let x = unsafe { parts.part(range.clone()) };
        x.iter_mut().zip(&y[range]).for_each(|(x, y)| *x *= y);
    });
}

/// Softmax of one row in place (subtracting the maximum); all `-inf` gives NaN like the references.
pub fn softmax(row: &mut [f32]) {
    Isa::current().call(Softmax { row, log: false });
}

/// Logarithm of the softmax of one row in place.
pub fn log_softmax(row: &mut [f32]) {
    Isa::current().call(Softmax { row, log: true });
}

struct Softmax<'a> {
    row: &'a mut [f32],
    log: bool,
}

impl Kernel for Softmax<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let row = self.row;
        let (max, sum) = sum_exp::<L>(row);
        let (shift, log_sum, sum) = (L::splat(max), L::splat(sum.ln()), L::splat(sum));
        for at in (0..row.len()).step_by(N) {
            let n = (row.len() - at).min(N);
            // SAFETY: inside the row.
            unsafe {
                let p = row.as_mut_ptr().add(at);
                let v = load_n::<L>(p, n, 0.0).sub(shift);
                store_n(if self.log { v.sub(log_sum) } else { math::exp_negative(v).div(sum) }, p, n);
            }
        }
    }
}

/// Greatest value and sum of `e^(x - greatest)`.
#[inline(always)]
fn sum_exp<L: Lanes>(row: &[f32]) -> (f32, f32) {
    let mut max = L::splat(f32::NEG_INFINITY);
    for at in (0..row.len()).step_by(N) {
        // SAFETY: inside the row.
        max = unsafe { load_n::<L>(row.as_ptr().add(at), (row.len() - at).min(N), f32::NEG_INFINITY) }.max(max);
    }
    let max = max.greatest();
    let m = L::splat(max);
    (max, row_sum!(L, row, f32::NEG_INFINITY, |v| math::exp_negative(v.sub(m))))
}

/// `ln(sum(e^x))` of a row; `-inf` of an empty one.
pub fn logsumexp(row: &[f32]) -> f32 {
    let (max, sum) = Isa::current().call(SumExp(row));
    if max == f32::NEG_INFINITY { max } else { max + sum.ln() }
}

struct SumExp<'a>(&'a [f32]);

impl Kernel for SumExp<'_> {
    type Out = (f32, f32);
    #[inline(always)]
    fn run<L: Lanes>(self) -> (f32, f32) {
        sum_exp::<L>(self.0)
    }
}

/// Position of the greatest value, the first of equals; NaN is never greatest. None when there is
/// no number above `-inf`.
pub fn argmax(row: &[f32]) -> Option<usize> {
    let mut best = None;
    let mut greatest = f32::NEG_INFINITY;
    for (i, v) in row.iter().enumerate() {
        if *v > greatest {
            greatest = *v;
            best = Some(i);
        }
    }
    best
}
