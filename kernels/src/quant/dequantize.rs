//! Blocks to f32, in the reference's order of operations.

use super::BlockType;
use super::integers::{Format, Integers, Visit, format, half};
use crate::Isa;
use crate::isa::Kernel;
use crate::lanes::Lanes;
use crate::pool::{Parts, Pool};

/// Weights a thread takes at least: below, waking one costs more than it saves.
const CHUNK: usize = 64 * 1024;

struct Run<'a> {
    kind: BlockType,
    blocks: &'a [u8],
    values: &'a mut [f32],
}

impl Kernel for Run<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { kind, blocks, values } = self;
        match kind {
            BlockType::F32 => {
                for (b, v) in blocks.as_chunks::<4>().0.iter().zip(values) {
                    *v = f32::from_le_bytes(*b);
                }
            }
            BlockType::F16 => {
                for (b, v) in blocks.as_chunks::<2>().0.iter().zip(values) {
                    *v = half(b[0], b[1]);
                }
            }
            BlockType::BF16 => {
                for (b, v) in blocks.as_chunks::<2>().0.iter().zip(values) {
                    *v = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                }
            }
            _ => {
                format(kind, Blocks { block: kind.block(), bytes: kind.bytes(), blocks, values });
            }
        }
    }
}

/// The blocks of one format.
struct Blocks<'a> {
    block: usize,
    bytes: usize,
    blocks: &'a [u8],
    values: &'a mut [f32],
}

impl Visit for Blocks<'_> {
    type Out = ();

    #[inline(always)]
    fn visit<F: Format>(self) {
        let mut integers = Integers::default();
        for (block, values) in self.blocks.chunks_exact(self.bytes).zip(self.values.chunks_exact_mut(self.block)) {
            F::unpack(block, &mut integers);
            let Integers { quants, scales, mins, d, dmin } = &integers;
            for (j, (values, quants)) in values.chunks_exact_mut(F::SUB).zip(quants.chunks_exact(F::SUB)).enumerate() {
                let (scale, min) = (d * scales[j] as f32, dmin * f32::from(mins[j]));
                for (value, quant) in values.iter_mut().zip(quants) {
                    *value = scale * f32::from(*quant) - min;
                }
            }
        }
    }
}

impl BlockType {
    /// The weights of whole blocks, bit for bit as gguf-py's reference computes them (a NaN is a
    /// NaN, its bits aside).
    ///
    /// # Panics
    /// When `blocks` isn't whole blocks or `values` is not as long as they say.
    pub fn dequantize(self, blocks: &[u8], values: &mut [f32]) {
        assert!(blocks.len().is_multiple_of(self.bytes()), "whole blocks of {}", self.name());
        assert_eq!(values.len(), blocks.len() / self.bytes() * self.block(), "a value a weight");
        Isa::current().call(Run { kind: self, blocks, values });
    }

    /// The same on all threads of `pool`; the values are the same bits.
    ///
    /// # Panics
    /// When `blocks` isn't whole blocks or `values` is not as long as they say.
    pub fn dequantize_on(self, pool: &Pool, blocks: &[u8], values: &mut [f32]) {
        assert!(blocks.len().is_multiple_of(self.bytes()), "whole blocks of {}", self.name());
        let count = blocks.len() / self.bytes();
        assert_eq!(values.len(), count * self.block(), "a value a weight");
        let parts = Parts::new(values);
        pool.run_chunks(count, CHUNK / self.block(), |range| {
            // SAFETY: the chunks of blocks don't overlap, so their weights don't either.
            let values = unsafe { parts.part(range.start * self.block()..range.end * self.block()) };
            self.dequantize(&blocks[range.start * self.bytes()..range.end * self.bytes()], values);
        });
    }
}
