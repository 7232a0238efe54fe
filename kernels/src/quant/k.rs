//! The types with 256 weights a block and an integer scale a sub-block: `Q2_K` to `Q6_K`.

use super::integers::{Format, Integers, crumbs, half, nibbles};

/// 16 bytes of 4-bit scales (low) and mins (high), 64 bytes of 2-bit quants, f16 d, f16 dmin.
pub(super) struct Q2;

impl Format for Q2 {
    const SUB: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        crumbs(&block[16..80], &mut into.quants, |q, bits| *q = bits);
        for (j, byte) in block[..16].iter().enumerate() {
            into.scales[j] = i32::from(byte & 15);
            into.mins[j] = byte >> 4;
        }
        into.d = half(block[80], block[81]);
        into.dmin = half(block[82], block[83]);
    }
}

/// 32 bytes of third bits, 64 bytes of low 2 bits, 12 bytes of 6-bit scales, f16 d.
pub(super) struct Q3;

impl Format for Q3 {
    const SUB: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        // A third bit that is set adds four to quants that start at minus four.
        for (j, quants) in into.quants.chunks_exact_mut(32).enumerate() {
            for (q, byte) in quants.iter_mut().zip(&block[..32]) {
                *q = ((byte >> j & 1) << 2) as i8 - 4;
            }
        }
        crumbs(&block[32..96], &mut into.quants, |q, bits| *q += bits);
        let scales = &block[96..108];
        for j in 0..16 {
            let low = scales[j % 8] >> (4 * (j / 8)) & 15;
            let high = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
            into.scales[j] = i32::from(low | high << 4) - 32;
        }
        into.scaled(half(block[108], block[109]));
    }
}

/// f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles.
pub(super) struct Q4;

impl Format for Q4 {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[16..144], 32, &mut into.quants, |q| q as i8);
        scales_and_mins(block, into);
    }
}

/// f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 32 bytes of fifth bits, 128 bytes of nibbles.
pub(super) struct Q5;

impl Format for Q5 {
    const SUB: usize = 32;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[48..176], 32, &mut into.quants, |q| q as i8);
        for (j, quants) in into.quants.chunks_exact_mut(32).enumerate() {
            for (q, byte) in quants.iter_mut().zip(&block[16..48]) {
                *q |= ((byte >> j & 1) << 4) as i8;
            }
        }
        scales_and_mins(block, into);
    }
}

/// 128 bytes of low nibbles, 64 bytes of high 2 bits, 16 signed scales, f16 d.
pub(super) struct Q6;

impl Format for Q6 {
    const SUB: usize = 16;

    #[inline(always)]
    fn unpack(block: &[u8], into: &mut Integers) {
        nibbles(&block[..128], 64, &mut into.quants, |q| q as i8 - 32);
        crumbs(&block[128..192], &mut into.quants, |q, bits| *q += bits << 4);
        for (scale, byte) in into.scales.iter_mut().zip(&block[192..208]) {
            *scale = i32::from(*byte as i8);
        }
        into.scaled(half(block[208], block[209]));
    }
}

/// What `Q4_K` and `Q5_K` start with: d, dmin, and eight pairs of 6 bits. Scales 0..4 and mins 0..4
/// are in bytes of their own, whose upper 2 bits are those of scales and mins 4..8.
#[inline(always)]
fn scales_and_mins(block: &[u8], into: &mut Integers) {
    let packed = &block[4..16];
    for j in 0..4 {
        into.scales[j] = i32::from(packed[j] & 63);
        into.mins[j] = packed[4 + j] & 63;
        into.scales[4 + j] = i32::from(packed[8 + j] & 15 | packed[j] >> 2 & 48);
        into.mins[4 + j] = packed[8 + j] >> 4 | packed[4 + j] >> 2 & 48;
    }
    into.d = half(block[0], block[1]);
    into.dmin = half(block[2], block[3]);
}
