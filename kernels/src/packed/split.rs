//! GGUF's blocks taken apart: scales, minima and codes, without loss.

use crate::packed::layout::{Code, Form, Layout, Record};
use crate::quant::{BlockType, CURVE, DOUBLED, Integers};

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
const fn layout(kind: BlockType) -> Option<Layout> {
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
        T::IQ4_NL => looked_up(Code::Wide, 0, 1, 0, CURVE),
        T::IQ4_XS => looked_up(Code::Wide, 32, 8, 0, CURVE),
        T::MXFP4 => {
            let mut layout = looked_up(Code::Table, 0, 1, 12, DOUBLED);
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

/// Turns blocks of a type into records of its layout.
pub(crate) struct Splitter {
    kind: BlockType,
    layout: Layout,
    /// Table positions by the byte they stand for.
    position: [u8; 256],
}

impl Splitter {
    /// None for types that are not packed.
    pub(crate) fn new(kind: BlockType) -> Option<Self> {
        let layout = layout(kind)?;
        let mut position = [0; 256];
        // Of equal entries the first.
        for (i, value) in layout.table.iter().enumerate().rev() {
            position[usize::from(*value)] = i as u8;
        }
        Some(Self { kind, layout, position })
    }

    /// The layout.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Takes a row of blocks apart; `put(i, record)` gets block `i`.
    pub(crate) fn row(&self, blocks: &[u8], put: &mut dyn FnMut(usize, &Record)) {
        let (mut integers, mut record) = (Integers::default(), Record::EMPTY);
        for (i, block) in blocks.chunks_exact(self.kind.bytes()).enumerate() {
            self.split(block, &mut integers, &mut record);
            put(i, &record);
        }
    }

    /// Takes one block apart: the integers of its format, as bits and codes of the layout.
    fn split(&self, block: &[u8], integers: &mut Integers, to: &mut Record) {
        let Self { kind, layout, position } = self;
        kind.integers(block, integers);
        // The factor is a power of two, so that nothing is rounded.
        to.scale = layout.form.bits(integers.d / layout.factor);
        // A format's own minimum is taken off, the float one of a layout is added.
        to.min = layout.form.bits(if layout.sub == 0 { -integers.dmin } else { integers.dmin });
        if layout.sub != 0 {
            for (to, scale) in to.scales.iter_mut().zip(&integers.scales) {
                *to = *scale as i8;
            }
            to.mins = integers.mins;
        }
        let byte = |quant: i8| (i32::from(quant) + layout.offset) as u8;
        for (to, quants) in to.codes.iter_mut().zip(integers.quants[..kind.block()].as_chunks::<4>().0) {
            let codes = quants.map(byte);
            *to = u32::from_le_bytes(if layout.code.looked_up() {
                codes.map(|c| position[usize::from(c)])
            } else {
                codes
            });
        }
    }
}
