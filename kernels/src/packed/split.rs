//! GGUF's blocks taken apart: scales, minima and codes, without loss.

use crate::packed::layout::{Code, Form, Layout, Record};
use crate::quant::BlockType;

const LOW: u32 = 0x0f0f_0f0f;
/// IEEE half 1.0.
const ONE: u16 = 0x3c00;
/// Values of the 4-bit codes of IQ4_NL and IQ4_XS.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Doubled values of MXFP4's codes.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Magnitudes in the grids of IQ2, IQ3_XXS, IQ3_S and eight times those of IQ1 with their shift.
const IQ2: [i8; 3] = [8, 25, 43];
const IQ3_XXS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const IQ3_S: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
const IQ1: [i8; 3] = [1, 7, 9];

/// Both signs of magnitudes.
const fn mirrored<const M: usize>(magnitudes: [i8; M]) -> [i8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < M {
        table[2 * i] = magnitudes[i];
        table[2 * i + 1] = -magnitudes[i];
        i += 1;
    }
    table
}

const fn looked_up(code: Code, sub: usize, blocks: usize, offset: i32, values: [i8; 16]) -> Layout {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (values[i] as i32 + offset) as u8;
        i += 1;
    }
    Layout { code, sub, blocks, min: false, offset, form: Form::F16, factor: 1.0, table }
}

const fn plain(code: Code, sub: usize, blocks: usize, min: bool, offset: i32) -> Layout {
    Layout { code, sub, blocks, min, offset, form: Form::F16, factor: 1.0, table: [0; 16] }
}

/// How blocks of this type are packed; None for plain floats.
pub(crate) const fn layout(kind: BlockType) -> Option<Layout> {
    use BlockType as T;
    Some(match kind {
        // Scales of sixteen weights that are floats themselves: there is no packed form of them yet.
        T::F32 | T::F16 | T::BF16 | T::NVFP4 => return None,
        T::Q4_0 => plain(Code::U4, 0, 1, false, 8),
        T::Q4_1 => plain(Code::U4, 0, 1, true, 0),
        T::Q5_0 => plain(Code::U5, 0, 1, false, 16),
        T::Q5_1 => plain(Code::U5, 0, 1, true, 0),
        T::Q8_0 => plain(Code::S8, 0, 1, false, 0),
        T::Q2_K => plain(Code::U2, 16, 8, true, 0),
        T::Q3_K => plain(Code::U3, 16, 8, false, 4),
        T::Q4_K => plain(Code::U4, 32, 8, true, 0),
        T::Q5_K => plain(Code::U5, 32, 8, true, 0),
        T::Q6_K => plain(Code::U6, 16, 8, false, 32),
        T::TQ1_0 | T::TQ2_0 => plain(Code::U2, 0, 8, false, 1),
        T::IQ4_NL => looked_up(Code::Wide, 0, 1, 0, IQ4),
        T::IQ4_XS => looked_up(Code::Wide, 32, 8, 0, IQ4),
        T::MXFP4 => {
            let mut layout = looked_up(Code::Table, 0, 1, 12, E2M1);
            layout.form = Form::BF16;
            layout
        }
        T::IQ2_XXS | T::IQ2_XS | T::IQ2_S => {
            let sub = if matches!(kind, T::IQ2_XXS) { 32 } else { 16 };
            let mut layout = looked_up(Code::Signed, sub, 8, 0, mirrored(IQ2));
            layout.factor = 0.125;
            layout
        }
        T::IQ3_XXS => {
            let mut layout = looked_up(Code::Signed, 32, 8, 0, mirrored(IQ3_XXS));
            layout.factor = 0.25;
            layout
        }
        T::IQ3_S => looked_up(Code::Table, 32, 8, 15, mirrored(IQ3_S)),
        T::IQ1_S | T::IQ1_M => {
            let sub = if matches!(kind, T::IQ1_S) { 32 } else { 16 };
            let mut layout = looked_up(Code::Table, sub, 8, 9, mirrored(IQ1));
            layout.factor = 0.125;
            layout
        }
    })
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Bits 0..4 into bit 0 of four bytes.
fn spread(bits: u32) -> u32 {
    ((bits & 15) * 0x0020_4081) & 0x0101_0101
}

/// 16 bytes: low halves are the first 16 codes, high halves the others.
fn nibbles(q: &[u8], codes: &mut [u32]) {
    for i in 0..4 {
        let v = u32_at(q, 4 * i);
        codes[i] = v & LOW;
        codes[i + 4] = (v >> 4) & LOW;
    }
}

/// The eight scales and minima of 6 bits in the 12 bytes of Q4_K and Q5_K.
fn six_bits(b: &[u8], to: &mut Record) {
    for j in 0..4 {
        to.scales[j] = (b[j] & 63) as i8;
        to.mins[j] = b[j + 4] & 63;
        to.scales[j + 4] = ((b[j + 8] & 15) | ((b[j] >> 6) << 4)) as i8;
        to.mins[j + 4] = (b[j + 8] >> 4) | ((b[j + 4] >> 6) << 4);
    }
}

/// Scales of 3 or 4 bits as the odd numbers they stand for.
fn odd(scales: &mut [i8; 16], number: impl Fn(usize) -> u32) {
    for (i, s) in scales.iter_mut().enumerate() {
        *s = (2 * number(i) + 1) as i8;
    }
}

/// Takes one block apart into `to`. `values` is room for 256 values.
pub(crate) fn split(kind: BlockType, b: &[u8], to: &mut Record, values: &mut [f32; 256]) {
    use BlockType as T;
    to.scale = u32::from(u16_at(b, 0));
    match kind {
        T::F32 | T::F16 | T::BF16 | T::NVFP4 => {}
        T::Q4_0 | T::IQ4_NL => nibbles(&b[2..], &mut to.codes),
        T::Q4_1 => {
            to.min = u32::from(u16_at(b, 2));
            nibbles(&b[4..], &mut to.codes);
        }
        T::Q5_0 | T::Q5_1 => {
            let at = if kind == T::Q5_0 { 2 } else { 4 };
            to.min = u32::from(u16_at(b, 2));
            nibbles(&b[at + 4..], &mut to.codes);
            let high = u32_at(b, at);
            for i in 0..8 {
                to.codes[i] |= spread(high >> (4 * i)) << 4;
            }
        }
        T::Q8_0 => (0..8).for_each(|i| to.codes[i] = u32_at(b, 2 + 4 * i)),
        T::Q2_K => {
            for i in 0..16 {
                to.scales[i] = (b[i] & 15) as i8;
                to.mins[i] = b[i] >> 4;
            }
            two_bits(&b[16..], &mut to.codes);
            to.scale = u32::from(u16_at(b, 80));
            to.min = u32::from(u16_at(b, 82));
        }
        T::Q3_K => {
            two_bits(&b[32..], &mut to.codes);
            for (i, c) in to.codes.iter_mut().enumerate() {
                *c |= ((u32_at(b, i % 8 * 4) >> (i / 8)) & 0x0101_0101) << 2;
            }
            let s = &b[96..108];
            for i in 0..16 {
                let low = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
                let high = (s[8 + i % 4] >> (2 * (i / 4))) & 3;
                to.scales[i] = (low | high << 4) as i8 - 32;
            }
            to.scale = u32::from(u16_at(b, 108));
        }
        T::Q4_K | T::Q5_K => {
            to.min = u32::from(u16_at(b, 2));
            six_bits(&b[4..16], to);
            let at = if kind == T::Q4_K { 16 } else { 48 };
            for i in 0..32 {
                let v = u32_at(b, at + 4 * i);
                let c = i / 8 * 16 + i % 8;
                to.codes[c] = v & LOW;
                to.codes[c + 8] = (v >> 4) & LOW;
            }
            if kind == T::Q5_K {
                for (i, c) in to.codes.iter_mut().enumerate() {
                    *c |= ((u32_at(b, 16 + i % 8 * 4) >> (i / 8)) & 0x0101_0101) << 4;
                }
            }
        }
        T::Q6_K => {
            for half in 0..2 {
                for i in 0..8 {
                    let (a, c) = (u32_at(b, half * 64 + 4 * i), u32_at(b, half * 64 + 32 + 4 * i));
                    let high = u32_at(b, 128 + half * 32 + 4 * i);
                    let low = [a & LOW, c & LOW, (a >> 4) & LOW, (c >> 4) & LOW];
                    for (j, low) in low.into_iter().enumerate() {
                        to.codes[half * 32 + j * 8 + i] = low | ((high >> (2 * j)) & 0x0303_0303) << 4;
                    }
                }
            }
            for i in 0..16 {
                to.scales[i] = b[192 + i] as i8;
            }
            to.scale = u32::from(u16_at(b, 208));
        }
        T::IQ4_XS => {
            let high = u32::from(u16_at(b, 2));
            for i in 0..8 {
                let low = u32::from(b[4 + i / 2] >> (4 * (i % 2))) & 15;
                to.scales[i] = (low | ((high >> (2 * i)) & 3) << 4) as i8 - 32;
                nibbles(&b[8 + 16 * i..], &mut to.codes[8 * i..]);
            }
        }
        T::MXFP4 => {
            // 2^(e - 128); the last two are subnormal.
            to.scale = match b[0] {
                0 => 0x20,
                1 => 0x40,
                e => u32::from(e - 1) << 7,
            };
            nibbles(&b[1..], &mut to.codes);
        }
        T::TQ2_0 => {
            two_bits(b, &mut to.codes);
            to.scale = u32::from(u16_at(b, 64));
        }
        T::TQ1_0 => {
            to.scale = u32::from(u16_at(b, 52));
            by_value(kind, b, values, to, &[-1, 0, 1]);
        }
        T::IQ2_XXS => {
            odd(&mut to.scales, |i| if i < 8 { u32_at(b, 2 + 8 * i + 4) >> 28 } else { 0 });
            by_value(kind, b, values, to, &mirrored(IQ2)[..6]);
        }
        T::IQ2_XS | T::IQ2_S => {
            let at = if kind == T::IQ2_XS { 66 } else { 74 };
            odd(&mut to.scales, |i| u32::from(b[at + i / 2] >> (4 * (i % 2))) & 15);
            by_value(kind, b, values, to, &mirrored(IQ2)[..6]);
        }
        T::IQ3_XXS => {
            odd(&mut to.scales, |i| if i < 8 { u32_at(b, 66 + 4 * i) >> 28 } else { 0 });
            by_value(kind, b, values, to, &mirrored(IQ3_XXS));
        }
        T::IQ3_S => {
            odd(&mut to.scales, |i| if i < 8 { u32::from(b[106 + i / 2] >> (4 * (i % 2))) & 15 } else { 0 });
            by_value(kind, b, values, to, &mirrored(IQ3_S));
        }
        T::IQ1_S => {
            odd(&mut to.scales, |i| if i < 8 { u32::from(u16_at(b, 34 + 2 * i) >> 12) & 7 } else { 0 });
            by_value(kind, b, values, to, &mirrored(IQ1)[..6]);
        }
        T::IQ1_M => {
            let word = |i: usize| u16_at(b, 48 + 2 * i);
            to.scale = (0..4).fold(0, |d, i| d | u32::from(word(i) >> 12) << (4 * i));
            odd(&mut to.scales, |i| u32::from(word(i / 4) >> (3 * (i % 4))) & 7);
            by_value(kind, b, values, to, &mirrored(IQ1)[..6]);
        }
    }
}

/// The order of 2-bit codes in Q2_K, Q3_K and TQ2_0: 32 bytes hold 128 codes, 32 a pair of bits.
fn two_bits(q: &[u8], codes: &mut [u32; 64]) {
    for (i, c) in codes.iter_mut().enumerate() {
        *c = (u32_at(q, i / 32 * 32 + i % 8 * 4) >> (2 * (i / 8 % 4))) & 0x0303_0303;
    }
}

/// Codes found by what they stand for: the block's values with a float scale of 1, divided by the
/// scales in `to`, are whole numbers; a code is where that number is in `table`.
fn by_value(kind: BlockType, block: &[u8], values: &mut [f32; 256], to: &mut Record, table: &[i8]) {
    let mut copy = [0; 128];
    let copy = &mut copy[..kind.bytes()];
    copy.copy_from_slice(block);
    let one = ONE.to_le_bytes();
    match kind {
        BlockType::TQ1_0 => copy[52..54].copy_from_slice(&one),
        BlockType::IQ1_M => {
            for i in 0..4 {
                copy[49 + 2 * i] = copy[49 + 2 * i] & 0x0f | ((ONE >> (4 * i)) as u8) << 4;
            }
        }
        _ => copy[..2].copy_from_slice(&one),
    }
    kind.dequantize(copy, values);
    let Some(layout) = layout(kind) else { return };
    // Table positions by value + 64.
    let mut position = [0; 128];
    for (i, v) in table.iter().enumerate() {
        position[(i32::from(*v) + 64) as usize] = i as u8;
    }
    for (i, c) in to.codes.iter_mut().enumerate() {
        let at = (4 * i).checked_div(layout.sub);
        let scale = at.map_or(1.0, |at| f32::from(to.scales[at]) * layout.factor);
        let code = |j: usize| position[((values[4 * i + j] / scale).round() as i32 + 64).clamp(0, 127) as usize];
        *c = u32::from_le_bytes([code(0), code(1), code(2), code(3)]);
    }
}
