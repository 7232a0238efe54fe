//! Blocks to f32, in the reference's order of operations.

use half::{bf16, f16};

use super::BlockType;

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

pub(super) fn run(kind: BlockType, blocks: &[u8], values: &mut [f32]) {
    for (b, v) in blocks.chunks_exact(kind.bytes()).zip(values.chunks_exact_mut(kind.block())) {
        match kind {
            BlockType::F32 => v[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            BlockType::F16 => v[0] = half(b),
            BlockType::BF16 => v[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            BlockType::Q8_0 => {
                let d = half(b);
                for (v, q) in v.iter_mut().zip(&b[2..]) {
                    *v = d * f32::from(*q as i8);
                }
            }
            // The other types follow with their own files.
            _ => v.fill(f32::NAN),
        }
    }
}
