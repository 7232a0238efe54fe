//! The ternary types: weights -1, 0, 1 with one scale for 256.

use super::integers::{Format, Integers, crumbs, half};

/// 48 bytes of five digits to base three, 4 bytes of four, f16 d. Multiplied by a power of three
/// (and cut to a byte), a byte starts with the digit of that place.
pub(super) struct Tq1;

#[inline(always)]
fn digits(packed: &[u8], into: &mut [i8]) {
    let mut power = 1u8;
    for into in into.chunks_exact_mut(packed.len()) {
        for (byte, q) in packed.iter().zip(into) {
            *q = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as i8 - 1;
        }
        power = power.wrapping_mul(3);
    }
}

impl Format for Tq1 {
    const SUB: usize = 256;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        digits(&block[..32], &mut into.quants[..160]);
        digits(&block[32..48], &mut into.quants[160..240]);
        digits(&block[48..52], &mut into.quants[240..]);
        into.plain(half(block[52], block[53]));
    }
}

/// 64 bytes of 2-bit quants, one taken off each (so that 2 occurs, in broken files), f16 d.
pub(super) struct Tq2;

impl Format for Tq2 {
    const SUB: usize = 256;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        crumbs(&block[..64], &mut into.quants, |q, bits| *q = bits - 1);
        into.plain(half(block[64], block[65]));
    }
}
