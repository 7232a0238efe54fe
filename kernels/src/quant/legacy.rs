//! The types with 32 weights a block and one scale: `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0`.

use super::integers::{Format, Integers, double, half, nibbles};

/// f16 d, 16 bytes of nibbles; eight is taken off each.
pub(super) struct Q4_0;

impl Format for Q4_0 {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[2..18], 16, &mut into.quants[..32], |q| q as i8 - 8);
        into.plain(half(block[0], block[1]));
    }
}

/// f16 d, f16 m, 16 bytes of nibbles.
pub(super) struct Q4_1;

impl Format for Q4_1 {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[4..20], 16, &mut into.quants[..32], |q| q as i8);
        offset(block, into);
    }
}

/// f16 d, 32 fifth bits, 16 bytes of nibbles; sixteen is taken off each.
pub(super) struct Q5_0;

impl Format for Q5_0 {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[6..22], 16, &mut into.quants[..32], |q| q as i8 - 16);
        fifth_bits(double(&block[2..6], 0), into);
        into.plain(half(block[0], block[1]));
    }
}

/// f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles.
pub(super) struct Q5_1;

impl Format for Q5_1 {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[8..24], 16, &mut into.quants[..32], |q| q as i8);
        fifth_bits(double(&block[4..8], 0), into);
        offset(block, into);
    }
}

/// f16 d, 32 signed bytes.
pub(super) struct Q8_0;

impl Format for Q8_0 {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        for (q, byte) in into.quants.iter_mut().zip(&block[2..34]) {
            *q = *byte as i8;
        }
        into.plain(half(block[0], block[1]));
    }
}

/// The scale and the offset in front of a block. What is stored is added; `Integers` takes off, and
/// subtracting the negative is the same bits.
#[inline(always)]
fn offset(block: &[u8], into: &mut Integers) {
    into.plain(half(block[0], block[1]));
    into.dmin = -half(block[2], block[3]);
    into.mins[0] = 1;
}

/// Adds sixteen where a bit is set.
#[inline(always)]
fn fifth_bits(bits: u32, into: &mut Integers) {
    for (i, q) in into.quants[..32].iter_mut().enumerate() {
        *q += ((bits >> i & 1) << 4) as i8;
    }
}
