//! MLX's affine groups: `scale * q + bias`, `q` unsigned of 2 to 8 bits in a little-endian stream.

use crate::packed::layout::{BLOCK, Code, Layout, Record};
use crate::packed::{Packed, form_of};
use crate::pool::Pool;

/// Are matrices of these groups packed?
pub(crate) fn supported(bits: usize, group: usize) -> bool {
    matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(group, 32 | 64 | 128 | 256)
}

impl Packed {
    /// Rows of whole groups: `row(r)` gives a row's bytes; `scales` and `biases` are `[out, in / group]`.
    pub(crate) fn from_affine<'a>(
        pool: &Pool,
        (out_dim, in_dim): (usize, usize),
        (bits, group): (usize, usize),
        row: impl Fn(usize) -> &'a [u8] + Sync,
        scales: &[f32],
        biases: &[f32],
    ) -> Self {
        let code = match bits {
            2 => Code::U2,
            3 => Code::U3,
            4 => Code::U4,
            5 => Code::U5,
            6 => Code::U6,
            _ => Code::S8,
        };
        let form = form_of(&[scales, biases]);
        // Bytes are kept signed, 128 less.
        let (offset, flip) = if bits == 8 { (-128, 0x8080_8080) } else { (0, 0) };
        let layout =
            Layout { code, sub: 0, blocks: group / BLOCK, min: true, offset, form, factor: 1.0, table: [0; 16] };
        let groups = in_dim / group;
        Self::pack(pool, out_dim, in_dim, layout, |r, put| {
            let bytes = row(r);
            let mut record = Record::EMPTY;
            for g in 0..groups {
                record.scale = form.bits(scales[r * groups + g]);
                record.min = form.bits(biases[r * groups + g]);
                for (i, codes) in record.codes[..group / 4].iter_mut().enumerate() {
                    *codes = four(bytes, (g * group + 4 * i) * bits, bits) ^ flip;
                }
                put(g, &record);
            }
        })
    }
}

/// Four numbers of `bits` bits from bit `at` of a stream, each in a byte.
fn four(bytes: &[u8], at: usize, bits: usize) -> u32 {
    let mut stream = 0_u64;
    for (i, b) in bytes[at / 8..].iter().take(5).enumerate() {
        stream |= u64::from(*b) << (8 * i);
    }
    let stream = stream >> (at % 8);
    (0..4).fold(0, |v, j| v | ((stream >> (j * bits)) as u32 & ((1 << bits) - 1)) << (8 * j))
}
