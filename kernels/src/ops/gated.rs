//! Activations of language models, alone and gating another row.

use super::{SMALL, each};
use crate::isa::{Isa, Kernel};
use crate::lanes::{Lanes, N, load_n, store_n};
use crate::math::{sigmoid, tanh};
use crate::pool::{Parts, Pool};

/// Which function.
#[derive(Clone, Copy)]
enum Function {
    Silu,
    GeluTanh,
    Softcap(f32),
    Scale(f32),
}

/// `sqrt(2 / pi)` and the cubic's share, of GELU's approximation, twice: `(1 + tanh u) / 2` is the
/// logistic function of `2 u`.
const GELU: (f32, f32) = (1.595_769_2, 0.071_354_814);

#[inline(always)]
fn apply<L: Lanes>(function: Function, x: L) -> L {
    match function {
        Function::Silu => x.mul(sigmoid(x)),
        Function::GeluTanh => {
            let inner = x.mul(x).fma(L::splat(GELU.1), L::splat(GELU.0)).mul(x);
            // Far below, the cube has overflowed and zero times infinity would be NaN.
            let y = x.mul(sigmoid(inner));
            x.select_lt(L::splat(-16.0), L::splat(0.0), y)
        }
        Function::Softcap(cap) => tanh(x.div(L::splat(cap))).mul(L::splat(cap)),
        Function::Scale(by) => x.mul(L::splat(by)),
    }
}

/// `silu(gate) * up`, in place of the gates; `silu(x) = x / (1 + e^-x)`.
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul(pool: &Pool, gate: &mut [f32], up: &[f32]) {
    two(pool, Function::Silu, gate, up);
}

/// `gelu(gate) * up`, in place of the gates, by the tanh formula of GELU.
///
/// # Panics
/// When the lengths differ.
pub fn gelu_tanh_mul(pool: &Pool, gate: &mut [f32], up: &[f32]) {
    two(pool, Function::GeluTanh, gate, up);
}

/// [`silu_mul`] of rows `[gate | up]` of `2 * width` values.
///
/// # Panics
/// When the lengths do not belong together.
pub fn silu_mul_fused(pool: &Pool, rows: &[f32], width: usize, out: &mut [f32]) {
    fused(pool, Function::Silu, rows, width, out);
}

/// [`gelu_tanh_mul`] of rows `[gate | up]` of `2 * width` values.
///
/// # Panics
/// When the lengths do not belong together.
pub fn gelu_tanh_mul_fused(pool: &Pool, rows: &[f32], width: usize, out: &mut [f32]) {
    fused(pool, Function::GeluTanh, rows, width, out);
}

/// `x / (1 + e^-x)` in place.
pub fn silu(pool: &Pool, x: &mut [f32]) {
    one(pool, Function::Silu, x);
}

/// GELU by its tanh formula, in place.
pub fn gelu_tanh(pool: &Pool, x: &mut [f32]) {
    one(pool, Function::GeluTanh, x);
}

/// `cap * tanh(x / cap)` in place.
pub fn softcap(pool: &Pool, x: &mut [f32], cap: f32) {
    one(pool, Function::Softcap(cap), x);
}

/// `x *= by`.
pub fn scale(pool: &Pool, x: &mut [f32], by: f32) {
    one(pool, Function::Scale(by), x);
}

fn one(pool: &Pool, function: Function, x: &mut [f32]) {
    each(pool, x, |isa, x| {
        let (len, x) = (x.len(), x.as_mut_ptr());
        isa.call(Gated { function, gate: x, up: std::ptr::null(), len, out: x });
    });
}

fn two(pool: &Pool, function: Function, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "a gate a value");
    let isa = Isa::current();
    let (len, parts) = (gate.len(), Parts::new(gate));
    pool.run_chunks(len.div_ceil(N), SMALL / N, |range| {
        let range = range.start * N..(range.end * N).min(len);
        // SAFETY: every chunk is its own.
        let gate = unsafe { parts.part(range.clone()) }.as_mut_ptr();
        isa.call(Gated { function, gate, up: up[range.clone()].as_ptr(), len: range.len(), out: gate });
    });
}

fn fused(pool: &Pool, function: Function, rows: &[f32], width: usize, out: &mut [f32]) {
    if width == 0 {
        return;
    }
    assert!(out.len().is_multiple_of(width) && rows.len() == 2 * out.len(), "rows of twice {width} values");
    let isa = Isa::current();
    // A row is cut into pieces of whole vectors, so that one row can go to several threads.
    let pieces = width.div_ceil(SMALL);
    let piece = width.div_ceil(pieces).next_multiple_of(N);
    let pieces = width.div_ceil(piece);
    let (count, parts) = (out.len() / width * pieces, Parts::new(out));
    pool.run_chunks(count, SMALL.div_ceil(piece), |range| {
        for i in range {
            let (row, at) = (i / pieces, i % pieces * piece);
            let len = piece.min(width - at);
            let gate = &rows[2 * row * width + at..];
            let up = &rows[(2 * row + 1) * width + at..][..len];
            // SAFETY: every piece is its own.
            let out = unsafe { parts.part(row * width + at..row * width + at + len) };
            isa.call(Gated { function, gate: gate.as_ptr(), up: up.as_ptr(), len, out: out.as_mut_ptr() });
        }
    });
}

/// `function(gate) * up` for `len` values; without `up`, `function(gate)`.
struct Gated {
    function: Function,
    gate: *const f32,
    up: *const f32,
    len: usize,
    out: *mut f32,
}

impl Kernel for Gated {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for at in (0..self.len).step_by(N) {
            let n = (self.len - at).min(N);
            // SAFETY: `len` values at all three, which whoever made the kernel promised.
            unsafe {
                let mut v = apply(self.function, load_n::<L>(self.gate.add(at), n, 0.0));
                if !self.up.is_null() {
                    v = v.mul(load_n::<L>(self.up.add(at), n, 0.0));
                }
                store_n(v, self.out.add(at), n);
            }
        }
    }
}
