//! Activations as 8-bit integers, quantised once for all matrices that they meet.
//!
//! Each row alone: greatest magnitude of a block (32 inputs, or 256 for super-blocks), scale
//! `greatest / 127`, numbers rounded to nearest, ties to even. Infinities and NaN make the scale so
//! and the numbers zero.

use crate::isa::{Isa, Kernel};
use crate::lanes::Lanes;
use crate::packed::layout::{BLOCK, SLAB};
use crate::pool::{Parts, Pool};

/// Inputs of a slab.
pub(crate) const WIDTH: usize = BLOCK * SLAB;
/// Rounds floats up to 2^22 to whole numbers, the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// Quantised rows, slab by slab: `[slab][token][..]`.
pub(crate) struct Acts {
    pub tokens: usize,
    /// 256 a token.
    pub values: Vec<i8>,
    /// A scale a block: 8 a token; or with `wide` one a slab: 1 a token.
    pub scales: Vec<f32>,
    /// Without `wide`, sums of the numbers of a block, and those times the scale: 8 a token.
    pub sums: Vec<i32>,
    pub scaled_sums: Vec<f32>,
    /// With `wide`, sums of 16 numbers (16 a token) and of 32 (8 a token).
    pub sums16: Vec<i16>,
    pub sums32: Vec<i16>,
}

impl Acts {
    /// Quantises `tokens` rows of `k` values, `stride` apart; `wide` with one scale for 256.
    pub(crate) fn new(pool: &Pool, isa: Isa, x: &[f32], stride: usize, tokens: usize, k: usize, wide: bool) -> Self {
        let slabs = k.div_ceil(WIDTH);
        let all = slabs * tokens;
        let (narrow, wider) = if wide { (0, all) } else { (all, 0) };
        let mut out = Self {
            tokens,
            values: vec![0; all * WIDTH],
            scales: vec![0.0; narrow * SLAB + wider],
            sums: vec![0; narrow * SLAB],
            scaled_sums: vec![0.0; narrow * SLAB],
            sums16: vec![0; wider * 16],
            sums32: vec![0; wider * 8],
        };
        let per_token = out.scales.len() / all.max(1);
        let values = Parts::new(&mut out.values);
        let scales = Parts::new(&mut out.scales);
        let sums = Parts::new(&mut out.sums);
        let scaled_sums = Parts::new(&mut out.scaled_sums);
        let sums16 = Parts::new(&mut out.sums16);
        let sums32 = Parts::new(&mut out.sums32);
        let min = (16 * 1024_usize).div_ceil(k.max(1));
        pool.run_chunks(tokens, min, |range| {
            for t in range {
                let row = &x[t * stride..t * stride + k];
                for (slab, x) in row.chunks(WIDTH).enumerate() {
                    let at = slab * tokens + t;
                    // SAFETY: every token of every slab has its own parts, and one thread.
                    unsafe {
                        let values = values.part(at * WIDTH..(at + 1) * WIDTH);
                        let scales = scales.part(at * per_token..(at + 1) * per_token);
                        if wide {
                            let sums16 = sums16.part(at * 16..(at + 1) * 16);
                            let sums32 = sums32.part(at * 8..(at + 1) * 8);
                            isa.call(Wide { x, values, scales, sums16, sums32 });
                        } else {
                            let sums = sums.part(at * 8..(at + 1) * 8);
                            let scaled_sums = scaled_sums.part(at * 8..(at + 1) * 8);
                            isa.call(Narrow { x, values, scales, sums, scaled_sums });
                        }
                    }
                }
            }
        });
        out
    }
}

/// Whole numbers of up to 256 values and their scale.
#[inline(always)]
fn quantise(x: &[f32], q: &mut [i8]) -> f32 {
    // As integers NaN is greater than infinity is greater than numbers, in any order of comparing.
    let bits = x.iter().fold(0, |m: i32, v| m.max((v.to_bits() & 0x7fff_ffff) as i32));
    let greatest = f32::from_bits(bits as u32);
    // A greatest value so small that its inverse is infinite counts as zero.
    let inverse = if greatest > 0.0 && greatest.is_finite() { 127.0 / greatest } else { 0.0 };
    if inverse == 0.0 || !inverse.is_finite() {
        q.fill(0);
        return greatest / 127.0;
    }
    for (q, v) in q.iter_mut().zip(x) {
        *q = (v * inverse + ROUND).to_bits() as i8;
    }
    greatest / 127.0
}

struct Narrow<'a> {
    x: &'a [f32],
    values: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
    scaled_sums: &'a mut [f32],
}

impl Kernel for Narrow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (b, x) in self.x.chunks(BLOCK).enumerate() {
            let q = &mut self.values[b * BLOCK..(b + 1) * BLOCK];
            let scale = quantise(x, q);
            let sum = q.iter().fold(0, |s, q| s + i32::from(*q));
            self.scales[b] = scale;
            self.sums[b] = sum;
            self.scaled_sums[b] = scale * sum as f32;
        }
    }
}

struct Wide<'a> {
    x: &'a [f32],
    values: &'a mut [i8],
    scales: &'a mut [f32],
    sums16: &'a mut [i16],
    sums32: &'a mut [i16],
}

impl Kernel for Wide<'_> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        self.scales[0] = quantise(self.x, self.values);
        for (sum, q) in self.sums16.iter_mut().zip(self.values.chunks_exact(16)) {
            *sum = q.iter().fold(0, |s, q| s + i16::from(*q));
        }
        for (sum, pair) in self.sums32.iter_mut().zip(self.sums16.chunks_exact(2)) {
            *sum = pair[0] + pair[1];
        }
    }
}
