//! The i-quants: weights looked up, by groups in a grid of magnitudes or one by one in a curve.
//!
//! The files' scales are odd numbers of halves, quarters or eighths; here the integer scale is the
//! odd number and `d` has the power of two, which changes no bit of a weight.

use super::grids;
use super::integers::{Format, Integers, double, half, nibbles, word};

/// The curve of `IQ4_NL` and `IQ4_XS`.
pub(crate) const CURVE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Magnitudes with signs: bit `i` set makes weight `i` negative.
#[inline(always)]
fn signed(grid: &[i8], signs: u8, into: &mut [i8]) {
    for (i, (q, magnitude)) in into.iter_mut().zip(grid).enumerate() {
        let negative = -((signs >> i & 1) as i8);
        *q = (magnitude ^ negative) - negative;
    }
}

/// Seven signs; the eighth makes the number of negative weights even.
#[inline(always)]
fn even(signs: u32) -> u8 {
    let seven = (signs & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Four bits of scale as an odd number.
#[inline(always)]
fn odd(bits: u8) -> i32 {
    i32::from(bits & 15) * 2 + 1
}

/// f16 d, then for each 32 weights 4 grid codes, 4 times 7 signs and 4 bits of scale.
pub(super) struct Iq2Xxs;

impl Format for Iq2Xxs {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        for (j, (part, quants)) in block[2..66].chunks_exact(8).zip(into.quants.chunks_exact_mut(32)).enumerate() {
            let signs = double(part, 1);
            for (k, quants) in quants.chunks_exact_mut(8).enumerate() {
                signed(&grids::IQ2_XXS[usize::from(part[k])], even(signs >> (7 * k)), quants);
            }
            into.scales[j] = odd((signs >> 28) as u8);
        }
        into.scaled(half(block[0], block[1]) * 0.125);
    }
}

/// f16 d, for each 8 weights 9 bits of grid code and 7 signs, 4 bits of scale for each 16.
pub(super) struct Iq2Xs;

impl Format for Iq2Xs {
    const SUB: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        for (i, quants) in into.quants.chunks_exact_mut(8).enumerate() {
            let code = word(&block[2..66], i);
            signed(&grids::IQ2_XS[usize::from(code & 511)], even(u32::from(code >> 9)), quants);
        }
        scales_of_16(&block[66..74], into);
        into.scaled(half(block[0], block[1]) * 0.125);
    }
}

/// f16 d, 32 low bytes of grid codes, 32 bytes of signs, 2 high bits a code, 4 bits of scale for
/// each 16.
pub(super) struct Iq2S;

impl Format for Iq2S {
    const SUB: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        let (low, signs, high) = (&block[2..34], &block[34..66], &block[66..74]);
        for (i, quants) in into.quants.chunks_exact_mut(8).enumerate() {
            let code = usize::from(low[i]) | usize::from(high[i / 4] >> (2 * (i % 4)) & 3) << 8;
            signed(&grids::IQ2_S[code], signs[i], quants);
        }
        scales_of_16(&block[74..82], into);
        into.scaled(half(block[0], block[1]) * 0.125);
    }
}

/// Sixteen scales of 4 bits, low nibble first.
#[inline(always)]
fn scales_of_16(packed: &[u8], into: &mut Integers) {
    for (scales, byte) in into.scales.chunks_exact_mut(2).zip(packed) {
        scales[0] = odd(*byte);
        scales[1] = odd(byte >> 4);
    }
}

/// f16 d, 64 grid codes of 4 weights, for each 32 weights 4 times 7 signs and 4 bits of scale.
pub(super) struct Iq3Xxs;

impl Format for Iq3Xxs {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        let (codes, words) = (&block[2..66], &block[66..98]);
        for (i, quants) in into.quants.chunks_exact_mut(8).enumerate() {
            let signs = even(double(words, i / 4) >> (7 * (i % 4)));
            signed(&grids::IQ3_XXS[usize::from(codes[2 * i])], signs, &mut quants[..4]);
            signed(&grids::IQ3_XXS[usize::from(codes[2 * i + 1])], signs >> 4, &mut quants[4..]);
        }
        for j in 0..8 {
            into.scales[j] = odd((double(words, j) >> 28) as u8);
        }
        into.scaled(half(block[0], block[1]) * 0.25);
    }
}

/// f16 d, 64 low bytes of grid codes of 4 weights, their ninth bits, 32 bytes of signs, 4 bits of
/// scale for each 32.
pub(super) struct Iq3S;

impl Format for Iq3S {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        let (low, high, signs, scales) = (&block[2..66], &block[66..74], &block[74..106], &block[106..110]);
        let code = |i: usize| usize::from(low[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8;
        for (i, quants) in into.quants.chunks_exact_mut(8).enumerate() {
            signed(&grids::IQ3_S[code(2 * i)], signs[i], &mut quants[..4]);
            signed(&grids::IQ3_S[code(2 * i + 1)], signs[i] >> 4, &mut quants[4..]);
        }
        for j in 0..8 {
            into.scales[j] = odd(scales[j / 2] >> (4 * (j % 2)));
        }
        into.scaled(half(block[0], block[1]));
    }
}

/// A grid of -1, 0 and 1 moved an eighth up or down, in eighths.
#[inline(always)]
fn moved(code: usize, down: bool, into: &mut [i8]) {
    let step = if down { -1 } else { 1 };
    for (q, value) in into.iter_mut().zip(&grids::IQ1[code]) {
        *q = value + step;
    }
}

/// f16 d, 32 low bytes of grid codes, for each 32 weights 4 times 3 high bits, 3 bits of scale and
/// the direction.
pub(super) struct Iq1S;

impl Format for Iq1S {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        let (low, high) = (&block[2..34], &block[34..50]);
        for (i, quants) in into.quants.chunks_exact_mut(8).enumerate() {
            let bits = word(high, i / 4);
            let code = usize::from(low[i]) | usize::from(bits >> (3 * (i % 4)) & 7) << 8;
            moved(code, bits & 0x8000 != 0, quants);
        }
        for j in 0..8 {
            into.scales[j] = odd((word(high, j) >> 12 & 7) as u8);
        }
        into.scaled(half(block[0], block[1]) * 0.125);
    }
}

/// 32 low bytes of grid codes, for each 8 weights 3 high bits and the direction, 4 words of four
/// 3-bit scales whose top nibbles together are the f16 d.
pub(super) struct Iq1M;

impl Format for Iq1M {
    const SUB: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        let (low, high, scales) = (&block[..32], &block[32..48], &block[48..56]);
        for (i, quants) in into.quants.chunks_exact_mut(8).enumerate() {
            let bits = high[i / 2] >> (4 * (i % 2));
            moved(usize::from(low[i]) | usize::from(bits & 7) << 8, bits & 8 != 0, quants);
        }
        for j in 0..16 {
            into.scales[j] = odd((word(scales, j / 4) >> (3 * (j % 4)) & 7) as u8);
        }
        let d = half(scales[1] >> 4 | scales[3] & 0xf0, scales[5] >> 4 | scales[7] & 0xf0);
        into.scaled(d * 0.125);
    }
}

/// f16 d, 16 bytes of nibbles.
pub(super) struct Iq4Nl;

impl Format for Iq4Nl {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[2..18], 16, &mut into.quants[..32], |q| CURVE[usize::from(q & 15)]);
        into.plain(half(block[0], block[1]));
    }
}

/// f16 d, 2 high bits of 8 scales, their low nibbles, 128 bytes of nibbles.
pub(super) struct Iq4Xs;

impl Format for Iq4Xs {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[8..136], 16, &mut into.quants, |q| CURVE[usize::from(q & 15)]);
        let high = word(&block[2..4], 0);
        for j in 0..8 {
            let low = block[4 + j / 2] >> (4 * (j % 2)) & 15;
            into.scales[j] = (i32::from(low) | i32::from(high >> (2 * j) & 3) << 4) - 32;
        }
        into.scaled(half(block[0], block[1]));
    }
}
