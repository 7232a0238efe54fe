//! Quantised block formats: GGUF's block types and MLX's affine groups.
//!
//! A block is a fixed number of weights of one row in a fixed number of bytes. Rows are whole
//! blocks, so a row starts at a byte and rows can be moved about without touching their contents.

mod affine;
mod dequantize;
mod fp4;
mod grids;
mod integers;
mod iq;
mod k;
mod legacy;
mod quantize;
mod ternary;

pub use affine::Affine;
pub(crate) use fp4::DOUBLED;
pub use integers::Integers;
pub(crate) use iq::CURVE;

/// The element types of GGUF files that hold weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
}

/// Type, number in files, weights in a block, bytes of a block.
const TYPES: &[(BlockType, u32, &str, usize, usize)] = &[
    (BlockType::F32, 0, "F32", 1, 4),
    (BlockType::F16, 1, "F16", 1, 2),
    (BlockType::BF16, 30, "BF16", 1, 2),
    (BlockType::Q4_0, 2, "Q4_0", 32, 18),
    (BlockType::Q4_1, 3, "Q4_1", 32, 20),
    (BlockType::Q5_0, 6, "Q5_0", 32, 22),
    (BlockType::Q5_1, 7, "Q5_1", 32, 24),
    (BlockType::Q8_0, 8, "Q8_0", 32, 34),
    (BlockType::Q2_K, 10, "Q2_K", 256, 84),
    (BlockType::Q3_K, 11, "Q3_K", 256, 110),
    (BlockType::Q4_K, 12, "Q4_K", 256, 144),
    (BlockType::Q5_K, 13, "Q5_K", 256, 176),
    (BlockType::Q6_K, 14, "Q6_K", 256, 210),
    (BlockType::IQ1_S, 19, "IQ1_S", 256, 50),
    (BlockType::IQ1_M, 29, "IQ1_M", 256, 56),
    (BlockType::IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    (BlockType::IQ2_XS, 17, "IQ2_XS", 256, 74),
    (BlockType::IQ2_S, 22, "IQ2_S", 256, 82),
    (BlockType::IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    (BlockType::IQ3_S, 21, "IQ3_S", 256, 110),
    (BlockType::IQ4_NL, 20, "IQ4_NL", 32, 18),
    (BlockType::IQ4_XS, 23, "IQ4_XS", 256, 136),
    (BlockType::TQ1_0, 34, "TQ1_0", 256, 54),
    (BlockType::TQ2_0, 35, "TQ2_0", 256, 66),
    (BlockType::MXFP4, 39, "MXFP4", 32, 17),
    (BlockType::NVFP4, 40, "NVFP4", 64, 36),
];

impl BlockType {
    fn facts(self) -> (u32, &'static str, usize, usize) {
        let found = TYPES.iter().find(|t| t.0 == self);
        found.map_or((0, "F32", 1, 4), |t| (t.1, t.2, t.3, t.4))
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().map(|t| t.0)
    }

    /// The type of this number in GGUF files.
    pub fn from_ggml(number: u32) -> Option<Self> {
        TYPES.iter().find(|t| t.1 == number).map(|t| t.0)
    }

    /// The type of this name, such as `Q4_K` (any case).
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES.iter().find(|t| t.2.eq_ignore_ascii_case(name)).map(|t| t.0)
    }

    /// Its number in GGUF files.
    pub fn ggml(self) -> u32 {
        self.facts().0
    }

    /// Its name, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.facts().1
    }

    /// Weights in a block.
    pub fn block(self) -> usize {
        self.facts().2
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.facts().3
    }

    /// Bytes of a row of `in_dim` weights; None when that isn't whole blocks, or too many.
    pub fn row_bytes(self, in_dim: usize) -> Option<usize> {
        if in_dim.is_multiple_of(self.block()) { (in_dim / self.block()).checked_mul(self.bytes()) } else { None }
    }
}
