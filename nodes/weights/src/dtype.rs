//! Element types of stored tensors.

use half::{bf16, f16};
use oxiline_kernels::BlockType;

/// The type of a stored tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    F64,
    I64,
    U64,
    C64,
    /// Quantised blocks of a GGUF file.
    Block(BlockType),
    /// Integers of `bits` bits with a scale and an offset for each `group` of a row (MLX).
    Affine {
        /// Bits of an integer.
        bits: u8,
        /// Weights that share a scale.
        group: u32,
    },
    /// 8-bit integers in blocks of 32 with an f32 scale, of a checkpoint this program wrote.
    Q8,
    /// 4-bit integers in blocks of 32 with an f16 scale, of a checkpoint this program wrote.
    Q4,
}

impl Dtype {
    /// Bytes of one element; of one block for types stored in blocks, 0 for weights whose parts lie
    /// in several tensors.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E5M2 | Self::F8E4M3 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::F64 | Self::I64 | Self::U64 | Self::C64 => 8,
            Self::Block(block) => block.bytes(),
            Self::Affine { .. } | Self::Q8 | Self::Q4 => 0,
        }
    }
    /// Weights in a block; 1 for types that aren't stored in blocks.
    pub fn block(self) -> usize {
        match self {
            Self::Block(block) => block.block(),
            Self::Affine { group, .. } => group as usize,
            Self::Q8 | Self::Q4 => 32,
            _ => 1,
        }
    }
    /// Is it quantised (in blocks, groups)?
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Block(_) | Self::Affine { .. } | Self::Q8 | Self::Q4)
    }
    /// The name safetensors uses, such as `BF16`; GGUF's for its block types.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::F8E5M2 => "F8_E5M2",
            Self::F8E4M3 => "F8_E4M3",
            Self::I16 => "I16",
            Self::U16 => "U16",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::I32 => "I32",
            Self::U32 => "U32",
            Self::F32 => "F32",
            Self::F64 => "F64",
            Self::I64 => "I64",
            Self::U64 => "U64",
            Self::C64 => "C64",
            Self::Block(block) => block.name(),
            Self::Affine { bits: 2, .. } => "MLX2",
            Self::Affine { bits: 3, .. } => "MLX3",
            Self::Affine { bits: 4, .. } => "MLX4",
            Self::Affine { bits: 5, .. } => "MLX5",
            Self::Affine { bits: 6, .. } => "MLX6",
            Self::Affine { .. } => "MLX8",
            Self::Q8 => "Q8",
            Self::Q4 => "Q4",
        }
    }
    /// The type safetensors calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        const ALL: [Dtype; 16] = [
            Dtype::Bool,
            Dtype::U8,
            Dtype::I8,
            Dtype::F8E5M2,
            Dtype::F8E4M3,
            Dtype::I16,
            Dtype::U16,
            Dtype::F16,
            Dtype::BF16,
            Dtype::I32,
            Dtype::U32,
            Dtype::F32,
            Dtype::F64,
            Dtype::I64,
            Dtype::U64,
            Dtype::C64,
        ];
        ALL.into_iter().find(|d| d.name() == name)
    }
    /// Little-endian `bytes` of this type as f32 (rounded where f32 is narrower); `None` for
    /// complex numbers and for weights whose parts lie in several tensors.
    pub fn to_f32(self, bytes: &[u8]) -> Option<Vec<f32>> {
        fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
            bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect()
        }
        Some(match self {
            Self::F32 => each(bytes, f32::from_le_bytes),
            Self::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f32()),
            Self::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F64 => each(bytes, |b| f64::from_le_bytes(b) as f32),
            Self::I64 => each(bytes, |b| i64::from_le_bytes(b) as f32),
            Self::U64 => each(bytes, |b| u64::from_le_bytes(b) as f32),
            Self::I32 => each(bytes, |b| i32::from_le_bytes(b) as f32),
            Self::U32 => each(bytes, |b| u32::from_le_bytes(b) as f32),
            Self::I16 => each(bytes, |b| f32::from(i16::from_le_bytes(b))),
            Self::U16 => each(bytes, |b| f32::from(u16::from_le_bytes(b))),
            Self::I8 => each(bytes, |[b]| f32::from(b as i8)),
            Self::U8 => each(bytes, |[b]| f32::from(b)),
            Self::Bool => each(bytes, |[b]| f32::from(u8::from(b != 0))),
            Self::F8E5M2 => each(bytes, |[b]| f16::from_bits(u16::from(b) << 8).to_f32()),
            Self::F8E4M3 => each(bytes, |[b]| f8e4m3(b)),
            Self::Block(block) => {
                // A rest that is no whole block is left out, as with the other types.
                let blocks = &bytes[..bytes.len() - bytes.len() % block.bytes()];
                let mut values = vec![0.0; blocks.len() / block.bytes() * block.block()];
                block.dequantize(blocks, &mut values);
                values
            }
            Self::C64 | Self::Affine { .. } | Self::Q8 | Self::Q4 => return None,
        })
    }
}

/// The finite-only variant (`e4m3fn`): no infinities, `S.1111.111` is NaN (OCP 8-bit floating
/// point specification, section 5).
fn f8e4m3(bits: u8) -> f32 {
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = ((bits >> 3) & 15, f32::from(bits & 7));
    let magnitude = match exponent {
        15 if bits & 7 == 7 => f32::NAN,
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(exponent) - 7),
    };
    sign * magnitude
}

#[cfg(test)]
mod tests {
    use super::Dtype;

    #[test]
    fn every_width_converts() {
        assert_eq!(Dtype::F16.to_f32(&[0x00, 0x3c, 0x01, 0x00]), Some(vec![1.0, 2f32.powi(-24)]));
        assert_eq!(Dtype::BF16.to_f32(&[0x80, 0xbf]), Some(vec![-1.0]));
        assert_eq!(Dtype::F64.to_f32(&0.5f64.to_le_bytes()), Some(vec![0.5]));
        assert_eq!(Dtype::I64.to_f32(&(-3i64).to_le_bytes()), Some(vec![-3.0]));
        assert_eq!(Dtype::F8E4M3.to_f32(&[0x38, 0x7e, 0x01]), Some(vec![1.0, 448.0, 2f32.powi(-9)]));
        assert_eq!(Dtype::F8E5M2.to_f32(&[0x3c, 0xbc]), Some(vec![1.0, -1.0]));
        assert_eq!(Dtype::C64.to_f32(&[0; 8]), None);
        assert_eq!(Dtype::from_name("F8_E4M3"), Some(Dtype::F8E4M3));
        assert_eq!(Dtype::from_name("F3"), None);
    }
}
