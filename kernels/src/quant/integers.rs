//! A block taken apart into integers: what every kernel over quantised weights starts from.

use super::{BlockType, fp4, iq, k, legacy, ternary};

/// One block of a quantised type as integers. Weight `i`, in sub-block `j = i / sub_block()`, is
///
/// ```text
/// (d * scales[j] as f32) * quants[i] as f32 - dmin * mins[j] as f32
/// ```
///
/// in f32, rounded after each operation in this order: bit for bit what gguf-py's dequantisation
/// gives (NaNs aside), for every type. Only the first `block()` quants and the first
/// `block() / sub_block()` scales and mins mean anything.
#[derive(Debug, Clone)]
pub struct Integers {
    /// The weights' small integers, within [`BlockType::quant_range`].
    pub quants: [i8; 256],
    /// Integer factor of each sub-block; 1 where the type has none.
    pub scales: [i32; 16],
    /// What each sub-block takes off, in `dmin`; 0 where the type takes nothing off, 1 where the
    /// block has one offset.
    pub mins: [u8; 16],
    /// Scale of the block.
    pub d: f32,
    /// Scale of the mins (`-m` for `Q4_1` and `Q5_1`, whose files store what is added).
    pub dmin: f32,
}

impl Default for Integers {
    fn default() -> Self {
        Self { quants: [0; 256], scales: [1; 16], mins: [0; 16], d: 0.0, dmin: 0.0 }
    }
}

impl Integers {
    /// A block with one scale and nothing taken off.
    #[inline(always)]
    pub(super) fn plain(&mut self, d: f32) {
        self.scales[0] = 1;
        self.scaled(d);
    }

    /// A block with a scale a sub-block (set by the caller) and nothing taken off.
    #[inline(always)]
    pub(super) fn scaled(&mut self, d: f32) {
        self.d = d;
        self.dmin = 0.0;
        self.mins = [0; 16];
    }
}

/// A quantised type: how its blocks come apart.
pub(super) trait Format {
    /// Weights that share an integer scale.
    const SUB: usize;

    /// `block` is one block; `into` may hold another one's remains.
    fn unpack(block: &[u8], into: &mut Integers);
}

/// Something done for a format.
pub(super) trait Visit {
    type Out;
    fn visit<F: Format>(self) -> Self::Out;
}

/// Calls `visit` with the format of a type; None for the floats, which hold no integers.
#[inline(always)]
pub(super) fn format<V: Visit>(kind: BlockType, visit: V) -> Option<V::Out> {
    Some(match kind {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => return None,
        BlockType::Q4_0 => visit.visit::<legacy::Q4_0>(),
        BlockType::Q4_1 => visit.visit::<legacy::Q4_1>(),
        BlockType::Q5_0 => visit.visit::<legacy::Q5_0>(),
        BlockType::Q5_1 => visit.visit::<legacy::Q5_1>(),
        BlockType::Q8_0 => visit.visit::<legacy::Q8_0>(),
        BlockType::Q2_K => visit.visit::<k::Q2>(),
        BlockType::Q3_K => visit.visit::<k::Q3>(),
        BlockType::Q4_K => visit.visit::<k::Q4>(),
        BlockType::Q5_K => visit.visit::<k::Q5>(),
        BlockType::Q6_K => visit.visit::<k::Q6>(),
        BlockType::IQ1_S => visit.visit::<iq::Iq1S>(),
        BlockType::IQ1_M => visit.visit::<iq::Iq1M>(),
        BlockType::IQ2_XXS => visit.visit::<iq::Iq2Xxs>(),
        BlockType::IQ2_XS => visit.visit::<iq::Iq2Xs>(),
        BlockType::IQ2_S => visit.visit::<iq::Iq2S>(),
        BlockType::IQ3_XXS => visit.visit::<iq::Iq3Xxs>(),
        BlockType::IQ3_S => visit.visit::<iq::Iq3S>(),
        BlockType::IQ4_NL => visit.visit::<iq::Iq4Nl>(),
        BlockType::IQ4_XS => visit.visit::<iq::Iq4Xs>(),
        BlockType::TQ1_0 => visit.visit::<ternary::Tq1>(),
        BlockType::TQ2_0 => visit.visit::<ternary::Tq2>(),
        BlockType::MXFP4 => visit.visit::<fp4::Mx>(),
        BlockType::NVFP4 => visit.visit::<fp4::Nv>(),
    })
}

impl BlockType {
    /// Takes one block apart. False, and nothing happens, for `F32`, `F16` and `BF16`.
    ///
    /// # Panics
    /// When `block` is not `bytes()` long.
    pub fn integers(self, block: &[u8], into: &mut Integers) -> bool {
        struct Unpack<'a>(&'a [u8], &'a mut Integers);
        impl Visit for Unpack<'_> {
            type Out = ();
            fn visit<F: Format>(self) {
                F::unpack(self.0, self.1);
            }
        }
        assert_eq!(block.len(), self.bytes(), "one block of {}", self.name());
        format(self, Unpack(block, into)).is_some()
    }

    /// Weights that share an integer scale and min; None for `F32`, `F16` and `BF16`.
    pub fn sub_block(self) -> Option<usize> {
        struct Sub;
        impl Visit for Sub {
            type Out = usize;
            fn visit<F: Format>(self) -> usize {
                F::SUB
            }
        }
        format(self, Sub)
    }

    /// Least and greatest quant that [`BlockType::integers`] gives; None for the floats. The least
    /// one is what to take off for unsigned weights.
    pub fn quant_range(self) -> Option<(i8, i8)> {
        Some(match self {
            Self::F32 | Self::F16 | Self::BF16 => return None,
            Self::Q4_0 => (-8, 7),
            Self::Q4_1 | Self::Q4_K => (0, 15),
            Self::Q5_0 => (-16, 15),
            Self::Q5_1 | Self::Q5_K => (0, 31),
            Self::Q8_0 => (-128, 127),
            Self::Q2_K => (0, 3),
            Self::Q3_K => (-4, 3),
            Self::Q6_K => (-32, 31),
            Self::IQ1_S | Self::IQ1_M => (-9, 9),
            Self::IQ2_XXS | Self::IQ2_XS | Self::IQ2_S => (-43, 43),
            Self::IQ3_XXS => (-62, 62),
            Self::IQ3_S => (-15, 15),
            Self::IQ4_NL | Self::IQ4_XS => (-127, 113),
            Self::TQ1_0 => (-1, 1),
            Self::TQ2_0 => (-1, 2),
            Self::MXFP4 | Self::NVFP4 => (-12, 12),
        })
    }
}

/// An IEEE half as f32, subnormals, infinities and NaNs included, without branches so that loops
/// over many vectorise.
#[inline(always)]
pub(super) fn half(low: u8, high: u8) -> f32 {
    let bits = u32::from(u16::from_le_bytes([low, high]));
    let (sign, rest) = ((bits & 0x8000) << 16, (bits & 0x7fff) << 13);
    let normal = rest + (112 << 23);
    // A subnormal's bits behind an implied one, which is then taken off.
    let tiny = (f32::from_bits(rest + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let finite = if rest < 1 << 23 { tiny } else { normal };
    f32::from_bits(sign | if rest < 31 << 23 { finite } else { rest | 0x7f80_0000 })
}

/// Two bytes, little-endian.
#[inline(always)]
pub(super) fn word(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

/// Four bytes, little-endian.
#[inline(always)]
pub(super) fn double(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

/// Each run of `width` bytes holds `2 * width` values: first all low nibbles, then all high ones.
#[inline(always)]
pub(super) fn nibbles(packed: &[u8], width: usize, into: &mut [i8], value: impl Fn(u8) -> i8) {
    for (packed, into) in packed.chunks_exact(width).zip(into.chunks_exact_mut(2 * width)) {
        let (low, high) = into.split_at_mut(width);
        for ((byte, low), high) in packed.iter().zip(low).zip(high) {
            *low = value(byte & 15);
            *high = value(byte >> 4);
        }
    }
}

/// Each run of 32 bytes holds 128 values: its lowest 2 bits, then the next ones. `put` gets the
/// value's place and its 2 bits.
#[inline(always)]
pub(super) fn crumbs(packed: &[u8], into: &mut [i8], put: impl Fn(&mut i8, i8)) {
    for (packed, into) in packed.chunks_exact(32).zip(into.chunks_exact_mut(128)) {
        for (s, into) in into.chunks_exact_mut(32).enumerate() {
            for (byte, into) in packed.iter().zip(into) {
                put(into, (byte >> (2 * s) & 3) as i8);
            }
        }
    }
}
