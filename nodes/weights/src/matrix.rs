//! Linear layers' weights out of whatever format a checkpoint has.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use oxiline_kernels::quant::Affine;
use oxiline_kernels::{BlockType, Matrix, Pool, Storage};

use crate::checkpoint::{Checkpoint, Entry, Keep, MatrixRequest};
use crate::dtype::Dtype;
use crate::error::{Error, Result, shown};

/// Weights handled by one task.
const PIECE: usize = 1 << 18;

/// Which rows of a tensor make up a matrix.
struct Rows<'a> {
    out_dim: usize,
    in_dim: usize,
    /// First row of the tensor.
    first: usize,
    order: Option<&'a [u32]>,
}

impl Rows<'_> {
    /// The tensor's row that is row `i` of the matrix.
    fn of(&self, i: usize) -> usize {
        self.first + self.order.map_or(i, |order| order[i] as usize)
    }

    /// The bytes of the rows one after the other, `size` bytes each.
    fn bytes<'b>(&self, all: &'b [u8], size: usize) -> Cow<'b, [u8]> {
        if self.order.is_none() {
            return Cow::Borrowed(&all[self.first * size..(self.first + self.out_dim) * size]);
        }
        let mut out = vec![0; self.out_dim * size];
        each_row(&mut out, size, |i, into| {
            let from = self.of(i) * size;
            into.copy_from_slice(&all[from..from + size]);
        });
        Cow::Owned(out)
    }
}

/// Fills rows of `size` items in parallel.
pub(crate) fn each_row<T: Send>(out: &mut [T], size: usize, fill: impl Fn(usize, &mut [T]) + Sync) {
    if size == 0 {
        return;
    }
    let rows = PIECE.div_ceil(size);
    let pieces: Vec<Mutex<&mut [T]>> = out.chunks_mut(rows * size).map(Mutex::new).collect();
    Pool::global().run(pieces.len(), |p| {
        let mut piece = pieces[p].lock().unwrap_or_else(PoisonError::into_inner);
        for (i, row) in piece.chunks_exact_mut(size).enumerate() {
            fill(p * rows + i, row);
        }
    });
}

/// Little-endian 16-bit numbers.
fn halves(bytes: &[u8]) -> Vec<u16> {
    let mut out = vec![0; bytes.len() / 2];
    let pairs = bytes.as_chunks::<2>().0;
    let size = out.len().clamp(1, PIECE);
    let pieces: Vec<_> = out.chunks_mut(size).map(Mutex::new).collect();
    Pool::global().run(pieces.len(), |p| {
        let mut piece = pieces[p].lock().unwrap_or_else(PoisonError::into_inner);
        for (to, from) in piece.iter_mut().zip(&pairs[p * size..]) {
            *to = u16::from_le_bytes(*from);
        }
    });
    out
}

impl Checkpoint {
    /// A linear layer's weight out of whatever format the file has.
    ///
    /// A tensor with other dimensions is accepted when their products agree.
    ///
    /// # Errors
    /// There is no such tensor, its shape differs, or its elements aren't real numbers.
    pub fn load_matrix(&self, request: &MatrixRequest<'_>, keep: Keep) -> Result<Matrix> {
        let MatrixRequest { name, out_dim, in_dim, part, rows, order } = *request;
        let (index, count) = part.unwrap_or((0, 1));
        let (start, all) = rows.unwrap_or((0, out_dim));
        let e = self.entry(name)?;
        let wanted = count.checked_mul(all).and_then(|n| n.checked_mul(in_dim));
        let inside = index < count && start.checked_add(out_dim).is_some_and(|end| end <= all);
        // Of a tensor without elements the file bounds no dimension: nothing may count its rows.
        let empty = out_dim == 0 || in_dim == 0;
        if empty || wanted != Some(e.shape.iter().product::<usize>()) || !inside {
            return Err(self.wrong_shape(name, e, &[count, all, in_dim]));
        }
        if order.is_some_and(|o| o.len() != out_dim || o.iter().any(|r| *r as usize >= out_dim)) {
            return Err(Error::malformed(format!(
                "tensor {}: an order that is not one of its {out_dim} rows was asked for",
                shown(name)
            )));
        }
        let rows = Rows { out_dim, in_dim, first: index * all + start, order };
        let matrix = self.rows_of(name, e, &rows, keep)?;
        self.release(e);
        Ok(matrix)
    }

    fn rows_of(&self, name: &str, e: &Entry, rows: &Rows<'_>, keep: Keep) -> Result<Matrix> {
        let &Rows { out_dim, in_dim, .. } = rows;
        let bytes = self.entry_bytes(e);
        let storage = match (keep, e.dtype) {
            (Keep::As(storage), _) => storage,
            (Keep::Stored, Dtype::F16) => Storage::F16,
            (Keep::Stored, Dtype::BF16) => Storage::BF16,
            (Keep::Stored, _) => Storage::F32,
        };
        if e.dtype.is_quantised() {
            // Blocks and groups don't cross rows; of tensors in parts the rows are the file's own.
            let cut = match e.dtype {
                Dtype::Block(kind) => in_dim.is_multiple_of(kind.block()),
                _ => e.shape.last() == Some(&in_dim),
            };
            if !cut {
                return Err(self.wrong_shape(name, e, &[out_dim, in_dim]));
            }
            let stored = match keep {
                Keep::Stored => self.as_stored(e, rows, &bytes),
                Keep::As(Storage::Q8) if e.dtype == Dtype::Q8 => self.as_stored(e, rows, &bytes),
                Keep::As(_) => None,
            };
            return stored.map_or_else(
                || {
                    let mut values = vec![0.0; out_dim * in_dim];
                    self.dequantise_rows(e, in_dim, &|i| rows.of(i), &mut values)
                        .ok_or_else(|| self.wrong_type(name, e, "real numbers"))?;
                    Ok(Matrix::from_f32(out_dim, in_dim, &values, storage))
                },
                Ok,
            );
        }
        Ok(match e.dtype {
            Dtype::F16 => Matrix::from_f16_bits(out_dim, in_dim, &halves(&rows.bytes(&bytes, in_dim * 2)), storage),
            Dtype::BF16 => Matrix::from_bf16_bits(out_dim, in_dim, &halves(&rows.bytes(&bytes, in_dim * 2)), storage),
            Dtype::F32 => {
                let values = bytes.as_chunks::<4>().0;
                let value = |i: usize| f32::from_le_bytes(values[rows.of(i / in_dim) * in_dim + i % in_dim]);
                Matrix::from_values(out_dim, in_dim, value, storage)
            }
            _ => {
                let part = rows.bytes(&bytes, in_dim * e.dtype.size());
                let values = e.dtype.to_f32(&part).ok_or_else(|| self.wrong_type(name, e, "real numbers"))?;
                Matrix::from_f32(out_dim, in_dim, &values, storage)
            }
        })
    }

    /// A quantised tensor in its own form; None when there are no kernels for it.
    fn as_stored(&self, e: &Entry, rows: &Rows<'_>, bytes: &[u8]) -> Option<Matrix> {
        let &Rows { out_dim, in_dim, .. } = rows;
        let row = |size: usize| {
            move |i: usize| {
                let from = rows.of(i) * size;
                &bytes[from..from + size]
            }
        };
        match e.dtype {
            Dtype::Block(kind) => {
                let size = kind.row_bytes(in_dim)?;
                Some(Matrix::from_blocks_with(out_dim, in_dim, kind, row(size)))
            }
            Dtype::Affine { bits, group } => {
                let (bits, group) = (usize::from(bits), group as usize);
                if !Matrix::affine_supported(bits, group) {
                    return None;
                }
                let parts = e.parts.as_ref()?;
                let side = |e: &Entry| -> Option<Vec<f32>> {
                    let size = in_dim / group * e.dtype.size();
                    e.dtype.to_f32(&rows.bytes(&self.entry_bytes(e), size))
                };
                let (scales, biases) = (side(&parts.scales)?, side(parts.biases.as_ref()?)?);
                let row = row(in_dim * bits / 8);
                Some(Matrix::from_affine_with(out_dim, in_dim, bits, group, row, &scales, &biases))
            }
            Dtype::Q8 => {
                let scales = self.entry_bytes(&e.parts.as_ref()?.scales);
                let scales = Dtype::F32.to_f32(&rows.bytes(&scales, in_dim / 32 * 4))?;
                Some(Matrix::from_q8_with(out_dim, in_dim, row(in_dim), &scales))
            }
            Dtype::Q4 => {
                // Blocks hold their scale in front of their integers.
                let scales = self.entry_bytes(&e.parts.as_ref()?.scales);
                let kind = BlockType::Q4_0;
                let size = kind.row_bytes(in_dim)?;
                let mut blocks = vec![0; out_dim * size];
                each_row(&mut blocks, size, |i, into| {
                    let from = rows.of(i);
                    let codes = bytes[from * in_dim / 2..].as_chunks::<16>().0;
                    let scales = scales[from * in_dim / 16..].as_chunks::<2>().0;
                    for ((block, codes), scale) in into.chunks_exact_mut(18).zip(codes).zip(scales) {
                        block[..2].copy_from_slice(scale);
                        block[2..].copy_from_slice(codes);
                    }
                });
                Some(Matrix::from_blocks(out_dim, in_dim, kind, &blocks))
            }
            _ => None,
        }
    }

    /// The elements of a tensor as f32, up to `count` of its rows (its last dimension) at a time.
    pub(crate) fn f32_rows(&self, name: &str, count: usize, sink: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let e = self.entry(name)?;
        let wrong = || self.wrong_type(name, e, "real numbers");
        let row = e.shape.last().copied().filter(|d| *d > 0).ok_or_else(wrong)?;
        let all = e.shape.iter().product::<usize>() / row;
        for first in (0..all).step_by(count.max(1)) {
            let n = count.min(all - first);
            if e.dtype.is_quantised() {
                let mut values = vec![0.0; n * row];
                self.dequantise_rows(e, row, &|i| first + i, &mut values).ok_or_else(wrong)?;
                sink(&values)?;
            } else {
                let size = row * e.dtype.size();
                let bytes = self.entry_bytes(e);
                sink(&e.dtype.to_f32(&bytes[first * size..(first + n) * size]).ok_or_else(wrong)?)?;
            }
        }
        self.release(e);
        Ok(())
    }

    /// All weights of a quantised tensor.
    pub(crate) fn dequantised(&self, e: &Entry) -> Option<Vec<f32>> {
        let in_dim = *e.shape.last()?;
        let mut values = vec![0.0; e.shape.iter().product()];
        self.dequantise_rows(e, in_dim, &|i| i, &mut values)?;
        Some(values)
    }

    /// Weights of a quantised tensor, row `i` of `values` being the tensor's row `of(i)`.
    pub(crate) fn dequantise_rows(
        &self,
        e: &Entry,
        in_dim: usize,
        of: &(dyn Fn(usize) -> usize + Sync),
        values: &mut [f32],
    ) -> Option<()> {
        let bytes = self.entry_bytes(e);
        let scales = e.parts.as_ref().map(|p| self.entry_bytes(&p.scales));
        match e.dtype {
            Dtype::Block(kind) => {
                let size = kind.row_bytes(in_dim)?;
                each_row(values, in_dim, |i, into| {
                    let from = of(i) * size;
                    kind.dequantize(&bytes[from..from + size], into);
                });
            }
            Dtype::Affine { bits, group } => {
                let affine = Affine::new(bits.into(), group as usize)?;
                let (parts, scales) = (e.parts.as_ref()?, scales?);
                let (kind, biases_entry) = (parts.scales.dtype, parts.biases.as_ref()?);
                let biases = self.entry_bytes(biases_entry);
                let (size, groups) = (affine.row_bytes(in_dim)?, in_dim / group as usize);
                each_row(values, in_dim, |i, into| {
                    let from = of(i);
                    let side = |kind: Dtype, all: &[u8]| {
                        kind.to_f32(&all[from * groups * kind.size()..(from + 1) * groups * kind.size()])
                    };
                    if let (Some(scales), Some(biases)) = (side(kind, &scales), side(biases_entry.dtype, &biases)) {
                        affine.dequantize(&bytes[from * size..(from + 1) * size], &scales, &biases, into);
                    }
                });
            }
            Dtype::Q8 => {
                let scales = scales?;
                each_row(values, in_dim, |i, into| {
                    let from = of(i);
                    let scales = scales[from * in_dim / 8..].as_chunks::<4>().0;
                    let codes = &bytes[from * in_dim..(from + 1) * in_dim];
                    for ((into, codes), scale) in into.chunks_exact_mut(32).zip(codes.chunks_exact(32)).zip(scales) {
                        let scale = f32::from_le_bytes(*scale);
                        for (v, q) in into.iter_mut().zip(codes) {
                            *v = f32::from(*q as i8) * scale;
                        }
                    }
                });
            }
            Dtype::Q4 => {
                let scales = scales?;
                each_row(values, in_dim, |i, into| {
                    let from = of(i);
                    let scales = scales[from * in_dim / 16..].as_chunks::<2>().0;
                    let codes = bytes[from * in_dim / 2..].as_chunks::<16>().0;
                    for ((into, codes), scale) in into.chunks_exact_mut(32).zip(codes).zip(scales) {
                        let mut block = [0; 18];
                        block[..2].copy_from_slice(scale);
                        block[2..].copy_from_slice(codes);
                        BlockType::Q4_0.dequantize(&block, into);
                    }
                });
            }
            _ => return None,
        }
        Some(())
    }
}
