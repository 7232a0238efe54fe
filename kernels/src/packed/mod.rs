//! Quantised matrices in their own number of bits, times 8-bit activations.
//!
//! **One reduction order** here too: a block of 32 inputs (a super-block of 256 for types that have
//! them) is an exact sum of integers; the floats `sum * (scale of w * scale of x)` are added in the
//! order of the blocks by fused multiply-adds from the bias on, each followed by that of its minima.

pub(crate) mod acts;
mod affine;
mod layout;
mod plain;
mod product;
mod split;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vnni;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use crate::buf::Buf;
use crate::isa::Isa;
use crate::packed::acts::Acts;
use crate::packed::layout::{BLOCK, Form, Layout, Record};
use crate::packed::split::Splitter;
use crate::pool::{Parts, Pool};
use crate::q8;
use crate::quant::BlockType;

pub(crate) use affine::supported as affine_supported;
pub(crate) use layout::ROWS;
pub(crate) use product::{Product, run_all};

/// `[out, in]` in groups of eight rows.
pub(crate) struct Packed {
    pub out_dim: usize,
    pub in_dim: usize,
    layout: Layout,
    /// `[group][record]`.
    data: Buf<u8>,
}

/// Some groups times some tokens.
struct Job<'a> {
    layout: &'a Layout,
    groups: &'a [u8],
    /// Bytes of a group.
    group: usize,
    acts: &'a Acts,
    tokens: Range<usize>,
}

impl Packed {
    /// Packs rows record by record; `fill(row, i, record)` takes apart record `i` of a row.
    fn pack(
        pool: &Pool,
        out_dim: usize,
        in_dim: usize,
        layout: Layout,
        fill: impl Fn(usize, &mut dyn FnMut(usize, &Record)) + Sync,
    ) -> Self {
        let (groups, size) = (out_dim.div_ceil(ROWS), layout.records(in_dim) * layout.record());
        let mut data = Buf::zeroed(groups * size);
        let parts = Parts::new(&mut data);
        pool.run(groups, |g| {
            // SAFETY: one group a task.
            let group = unsafe { parts.part(g * size..(g + 1) * size) };
            for row in 0..ROWS.min(out_dim - g * ROWS) {
                fill(g * ROWS + row, &mut |i, record| {
                    layout.put(&mut group[i * layout.record()..(i + 1) * layout.record()], row, record);
                });
            }
        });
        Self { out_dim, in_dim, layout, data }
    }

    /// Packs rows of GGUF blocks; None for types that are plain floats.
    pub(crate) fn from_blocks<'a>(
        pool: &Pool,
        out_dim: usize,
        in_dim: usize,
        kind: BlockType,
        row: impl Fn(usize) -> &'a [u8] + Sync,
    ) -> Option<Self> {
        let splitter = Splitter::new(kind)?;
        Some(Self::pack(pool, out_dim, in_dim, splitter.layout(), |r, put| splitter.row(row(r), put)))
    }

    /// Quantises rows that `row` writes as f32 to Q4_0; the last block is filled up with zeros.
    pub(crate) fn quantise_q4(
        pool: &Pool,
        out_dim: usize,
        in_dim: usize,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        let Some(splitter) = Splitter::new(BlockType::Q4_0) else { unreachable!("Q4_0 is packed") };
        Self::pack(pool, out_dim, in_dim, splitter.layout(), |r, put| {
            let mut values = vec![0.0; in_dim.next_multiple_of(BLOCK)];
            row(r, &mut values[..in_dim]);
            let Some(blocks) = BlockType::Q4_0.quantize(&values) else { unreachable!("Q4_0 can be made") };
            splitter.row(&blocks, put);
        })
    }

    /// Quantises rows that `row` writes as f32 to 8 bits, a float scale for 32; the last block is filled up
    /// with zeros.
    pub(crate) fn quantise_q8(
        pool: &Pool,
        out_dim: usize,
        in_dim: usize,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        Self::pack(pool, out_dim, in_dim, layout::Q8, |r, put| {
            let mut values = vec![0.0; in_dim];
            row(r, &mut values);
            for (b, x) in values.chunks(BLOCK).enumerate() {
                let mut q = [0; BLOCK];
                let scale = q8::quantise(x, &mut q);
                put(b, &eight_bits(scale, &q));
            }
        })
    }

    /// Integers that are there already: `row(r)` gives a row's signed bytes; `scales` are `[out, blocks of 32]`.
    pub(crate) fn from_q8<'a>(
        pool: &Pool,
        out_dim: usize,
        in_dim: usize,
        row: impl Fn(usize) -> &'a [u8] + Sync,
        scales: &[f32],
    ) -> Self {
        let blocks = in_dim.div_ceil(BLOCK);
        Self::pack(pool, out_dim, in_dim, layout::Q8, |r, put| {
            for (b, codes) in row(r).chunks(BLOCK).enumerate() {
                let mut q = [0; BLOCK];
                for (q, c) in q.iter_mut().zip(codes) {
                    // -128 has no counterpart; the kernels take no such weight.
                    *q = (*c as i8).max(-127);
                }
                put(b, &eight_bits(scales[r * blocks + b], &q));
            }
        })
    }

    /// Bytes kept.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Do activations have one scale for 256 inputs (else for 32)?
    pub(crate) fn wide(&self) -> bool {
        self.layout.sub != 0
    }

    /// Bytes of a group.
    fn group(&self) -> usize {
        self.layout.records(self.in_dim) * self.layout.record()
    }

    /// One row as f32, in the reference's order of operations.
    pub(crate) fn row(&self, row: usize, into: &mut [f32]) {
        let layout = &self.layout;
        let (group, row) = (row / ROWS, row % ROWS);
        let data = &self.data[group * self.group()..(group + 1) * self.group()];
        let values = into.chunks_mut(layout.blocks * BLOCK);
        for (record, values) in data.chunks_exact(layout.record()).zip(values) {
            let scale = layout.form.get(record, row) * layout.factor;
            let min = if layout.min { layout.form.get(&record[layout.form.bytes()..], row) } else { 0.0 };
            let (floats, subs) = (layout.floats(), layout.subs());
            for (k, four) in values.chunks_mut(4).enumerate() {
                let block = &record[layout.header() + k / 8 * layout.code.bytes()..][..layout.code.bytes()];
                let codes = layout.code.get(block, row, k % 8);
                let at = (4 * k).checked_div(layout.sub).map_or(0, |s| s / 2 * 16 + row * 2 + s % 2);
                for (v, code) in four.iter_mut().zip(codes) {
                    let byte = if layout.code.looked_up() { layout.table[usize::from(code)] } else { code };
                    let q = (layout.value(byte) - layout.offset) as f32;
                    *v = if layout.sub == 0 {
                        if layout.min { scale * q + min } else { scale * q }
                    } else {
                        let value = scale * f32::from(record[floats + at] as i8) * q;
                        if layout.min { value - min * f32::from(record[floats + subs * ROWS + at]) } else { value }
                    };
                }
            }
        }
    }

    /// Groups `groups` times tokens, added to `sums`: `[group][token][8]`.
    fn products(&self, isa: Isa, groups: Range<usize>, acts: &Acts, tokens: Range<usize>, sums: &mut [f32]) {
        let group = self.group();
        if group == 0 {
            return;
        }
        let groups = &self.data[groups.start * group..groups.end * group];
        let n = tokens.len();
        let job = Job { layout: &self.layout, groups, group, acts, tokens };
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if vnni::available() => {
                let done = vnni::run(&job, sums);
                x86::run(&Job { groups: &groups[done * group..], ..job }, &mut sums[done * n * ROWS..]);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 if isa.available() => x86::run(&job, sums),
            _ => plain::run(&job, sums),
        }
    }
}

/// A block of [`layout::Q8`].
fn eight_bits(scale: f32, q: &[i8; BLOCK]) -> Record {
    let mut record = Record { scale: Form::F32.bits(scale), ..Record::EMPTY };
    for (code, q) in record.codes.iter_mut().zip(q.as_chunks::<4>().0) {
        *code = u32::from_le_bytes(q.map(|q| q as u8));
    }
    record
}

/// Eight float scales as compact as they can be without loss.
fn form_of(all: &[&[f32]]) -> Form {
    let every = |f: fn(f32) -> f32| all.iter().all(|v| v.iter().all(|v| f(*v).to_bits() == v.to_bits()));
    if every(|v| half::bf16::from_f32(v).to_f32()) {
        Form::BF16
    } else if every(|v| half::f16::from_f32(v).to_f32()) {
        Form::F16
    } else {
        Form::F32
    }
}

impl Form {
    /// The bits of a value that this form holds exactly.
    fn bits(self, v: f32) -> u32 {
        match self {
            Self::F16 => u32::from(half::f16::from_f32(v).to_bits()),
            Self::BF16 => u32::from(half::bf16::from_f32(v).to_bits()),
            Self::F32 => v.to_bits(),
        }
    }
}
