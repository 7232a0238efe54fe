//! Root mean square norms.

use super::{RUN, SMALL};
use crate::isa::{Isa, Kernel};
use crate::lanes::{Lanes, N, load_n, store_n};
use crate::pool::{Parts, Pool};

/// RMS norm of each row of `dim` values: `x / sqrt(mean(x^2) + eps) * weight`. Rows of `head_dim`
/// values make it the norm of each head. One row is done by the caller alone.
///
/// # Panics
/// When the lengths do not belong together.
pub fn rms_norm(pool: &Pool, x: &[f32], dim: usize, weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "as many results as values");
    // SAFETY: as many values on both sides.
    unsafe { run(pool, x.as_ptr(), std::ptr::null(), dim, weight, eps, out) };
}

/// [`rms_norm`] in place: queries and keys, whose rows are heads.
///
/// # Panics
/// When the lengths do not belong together.
pub fn rms_norm_in_place(pool: &Pool, x: &mut [f32], dim: usize, weight: Option<&[f32]>, eps: f32) {
    // SAFETY: the same values on both sides; each vector is read before it is written.
    unsafe { run(pool, x.as_ptr(), std::ptr::null(), dim, weight, eps, x) };
}

/// `x += y`, and the [`rms_norm`] of the new `x`.
///
/// # Panics
/// When the lengths do not belong together.
pub fn add_rms_norm(
    pool: &Pool,
    x: &mut [f32],
    y: &[f32],
    dim: usize,
    weight: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    assert!(x.len() == y.len() && x.len() == out.len(), "as many results as values");
    // SAFETY: as many values everywhere; `x` is ours to write.
    unsafe { run(pool, x.as_mut_ptr(), y.as_ptr(), dim, weight, eps, out) };
}

/// # Safety
/// `x` has as many values as `out` and may be the same; with `y`, as many too, `x` may be written.
unsafe fn run(
    pool: &Pool,
    x: *const f32,
    y: *const f32,
    dim: usize,
    weight: Option<&[f32]>,
    eps: f32,
    out: &mut [f32],
) {
    if dim == 0 {
        return;
    }
    assert!(out.len().is_multiple_of(dim), "whole rows of {dim} values");
    assert!(weight.is_none_or(|w| w.len() == dim), "a weight a value");
    let isa = Isa::current();
    let rows = out.len() / dim;
    let places = Parts::new(out);
    // Addresses as numbers: the slices they come from are borrowed until the region ends.
    let (x, y) = (x as usize, y as usize);
    pool.run_chunks(rows, (2 * SMALL).div_ceil(dim), |range| {
        for row in range {
            let at = row * dim;
            // SAFETY: one row, this task's alone.
            unsafe {
                let y = if y == 0 { std::ptr::null() } else { (y as *const f32).add(at) };
                let (x, out) = ((x as *mut f32).add(at), places.start().add(at));
                isa.call(RmsNorm { x, y, dim, weight, eps, out });
            }
        }
    });
}

/// One row.
struct RmsNorm<'a> {
    x: *mut f32,
    y: *const f32,
    dim: usize,
    weight: Option<&'a [f32]>,
    eps: f32,
    out: *mut f32,
}

impl Kernel for RmsNorm<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, y, dim, weight, eps, out } = self;
        let mut total = L::splat(0.0);
        let mut run = L::splat(0.0);
        for (i, at) in (0..dim).step_by(N).enumerate() {
            if i % RUN == 0 {
                total = total.add(run);
                run = L::splat(0.0);
            }
            let n = (dim - at).min(N);
            // SAFETY: inside the row, which whoever made the kernel promised.
            unsafe {
                let mut v = load_n::<L>(x.add(at), n, 0.0);
                if !y.is_null() {
                    v = v.add(load_n::<L>(y.add(at), n, 0.0));
                    store_n(v, x.add(at), n);
                }
                run = v.fma(v, run);
            }
        }
        let mean = total.add(run).sum() / dim as f32;
        let scale = L::splat(1.0 / (mean + eps).sqrt());
        for at in (0..dim).step_by(N) {
            let n = (dim - at).min(N);
            // SAFETY: as above.
            unsafe {
                let mut v = load_n::<L>(x.add(at), n, 0.0).mul(scale);
                if let Some(weight) = weight {
                    v = v.mul(load_n::<L>(weight.as_ptr().add(at), n, 0.0));
                }
                store_n(v, out.add(at), n);
            }
        }
    }
}
