//! f32 to blocks, byte for byte as gguf-py's reference.
//!
//! **What is not a number.** A NaN or an infinity spoils its own block and no other, as in the
//! reference: the block's scale (or, for some types, its offset) becomes NaN or infinite, so that
//! the weights that come back aren't finite either; its codes mean nothing. Weights too large for
//! an f16 scale make it infinite. Weights so small that the scale rounds to zero come back as zero.

use half::{bf16, f16};

use super::BlockType;

/// Largest magnitude's first value, with its sign; a NaN when there is one.
fn peak(values: &[f32]) -> f32 {
    let mut peak = values[0];
    for &v in values {
        if v.is_nan() {
            return v;
        }
        if v.abs() > peak.abs() {
            peak = v;
        }
    }
    peak
}

/// Least and greatest; NaNs when there is one.
fn ends(values: &[f32]) -> (f32, f32) {
    let (mut least, mut greatest) = (values[0], values[0]);
    for &v in values {
        if v.is_nan() {
            return (v, v);
        }
        if v < least {
            least = v;
        }
        if v > greatest {
            greatest = v;
        }
    }
    (least, greatest)
}

/// 1 / d, zero for zero: with f32's d, before it is rounded to f16.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// A code of `0..=most`. What no i32 holds gives zero, as the reference's conversion does.
fn code(value: f32, most: u8) -> u8 {
    if value.abs() < 2_147_483_648.0 { (value as i32 as u8).min(most) } else { 0 }
}

fn put_half(to: &mut [u8], value: f32) {
    to[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The low nibbles of 32 codes: the first half's in low nibbles, the second's in high ones.
fn put_nibbles(to: &mut [u8], codes: &[u8; 32]) {
    for (i, byte) in to.iter_mut().enumerate() {
        *byte = codes[i] & 15 | codes[i + 16] << 4;
    }
}

/// The fifth bits of 32 codes.
fn put_fifth(to: &mut [u8], codes: &[u8; 32]) {
    let bits = codes.iter().enumerate().fold(0u32, |bits, (i, code)| bits | u32::from(code >> 4) << i);
    to[..4].copy_from_slice(&bits.to_le_bytes());
}

/// Codes around a middle: the peak gets the least code, so its magnitude is kept exactly.
fn centred(values: &[f32], steps: f32) -> (f32, [u8; 32]) {
    let d = peak(values) / -steps;
    let inverse = inverse(d);
    let mut codes = [0; 32];
    for (to, v) in codes.iter_mut().zip(values) {
        *to = code((v * inverse + (steps + 0.5)).trunc(), 2 * steps as u8 - 1);
    }
    (d, codes)
}

/// Codes from the least weight up.
fn from_least(values: &[f32], most: u8) -> (f32, f32, [u8; 32]) {
    let (least, greatest) = ends(values);
    let d = (greatest - least) / f32::from(most);
    let inverse = inverse(d);
    let mut codes = [0; 32];
    for (to, v) in codes.iter_mut().zip(values) {
        *to = code(((v - least) * inverse + 0.5).trunc(), most);
    }
    (d, least, codes)
}

fn block(kind: BlockType, values: &[f32], to: &mut [u8]) {
    match kind {
        BlockType::Q8_0 => {
            let d = peak(values).abs() / 127.0;
            let inverse = inverse(d);
            put_half(to, d);
            for (to, v) in to[2..].iter_mut().zip(values) {
                let q = (v * inverse).round();
                *to = if q.is_finite() { q as i32 as u8 } else { 0 };
            }
        }
        BlockType::Q4_0 => {
            let (d, codes) = centred(values, 8.0);
            put_half(to, d);
            put_nibbles(&mut to[2..], &codes);
        }
        BlockType::Q5_0 => {
            let (d, codes) = centred(values, 16.0);
            put_half(to, d);
            put_fifth(&mut to[2..], &codes);
            put_nibbles(&mut to[6..], &codes);
        }
        BlockType::Q4_1 => {
            let (d, least, codes) = from_least(values, 15);
            put_half(to, d);
            put_half(&mut to[2..], least);
            put_nibbles(&mut to[4..], &codes);
        }
        BlockType::Q5_1 => {
            let (d, least, codes) = from_least(values, 31);
            put_half(to, d);
            put_half(&mut to[2..], least);
            put_fifth(&mut to[4..], &codes);
            put_nibbles(&mut to[8..], &codes);
        }
        BlockType::F16 => put_half(to, values[0]),
        BlockType::BF16 => to.copy_from_slice(&bf16::from_f32(values[0]).to_le_bytes()),
        _ => to.copy_from_slice(&values[0].to_le_bytes()),
    }
}

impl BlockType {
    /// The types [`BlockType::quantize`] makes.
    pub const QUANTIZABLE: [Self; 8] =
        [Self::F32, Self::F16, Self::BF16, Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0];

    /// Values to blocks of this type, byte for byte as gguf-py's reference. None when this type is
    /// only read ([`BlockType::QUANTIZABLE`] lists the others).
    ///
    /// A NaN or infinity makes its own block's weights NaN or infinite and leaves the others alone.
    ///
    /// # Panics
    /// When `values` isn't whole blocks.
    pub fn quantize(self, values: &[f32]) -> Option<Vec<u8>> {
        assert!(values.len().is_multiple_of(self.block()), "whole blocks of {}", self.name());
        if !Self::QUANTIZABLE.contains(&self) {
            return None;
        }
        let mut blocks = vec![0; values.len() / self.block() * self.bytes()];
        for (values, to) in values.chunks_exact(self.block()).zip(blocks.chunks_exact_mut(self.bytes())) {
            block(self, values, to);
        }
        Some(blocks)
    }
}
