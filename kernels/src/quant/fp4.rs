//! The types whose weights are 4-bit floats (sign, 2 bits of exponent, 1 of mantissa).

use super::integers::{Format, Integers, nibbles};

/// The sixteen floats, twice as large, so that they are integers; the scales are half as large.
pub(crate) const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `MXFP4`: a power of two's exponent, 16 bytes of nibbles.
pub(super) struct Mx;

impl Format for Mx {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[1..17], 16, &mut into.quants[..32], |q| DOUBLED[usize::from(q & 15)]);
        // 2^(e - 128): the two least are f32 subnormals.
        let exponent = u32::from(block[0]);
        let bits = if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 };
        into.plain(f32::from_bits(bits));
    }
}

/// `NVFP4`: 4 scales of 8 bits (4 of exponent, 3 of mantissa; no sign), 4 times 8 bytes of nibbles.
pub(super) struct Nv;

impl Format for Nv {
    const SUB: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[4..36], 8, &mut into.quants[..64], |q| DOUBLED[usize::from(q & 15)]);
        // In units of the least subnormal, halved; the code of NaN means zero.
        into.scaled(1.0 / 1024.0);
        for (scale, &byte) in into.scales.iter_mut().zip(&block[..4]) {
            let (exponent, mantissa) = (i32::from(byte >> 3 & 15), i32::from(byte & 7));
            *scale = match (byte, exponent) {
                (0x7f, _) => 0,
                (_, 0) => mantissa,
                _ => (8 + mantissa) << (exponent - 1),
            };
        }
    }
}
