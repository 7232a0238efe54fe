//! Linear layers' weights out of whatever format a checkpoint has.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

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
        if wanted != Some(e.shape.iter().product::<usize>()) || !inside {
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
        if let Dtype::Block(kind) = e.dtype {
            let size = kind.row_bytes(in_dim).ok_or_else(|| self.wrong_shape(name, e, &[out_dim, in_dim]))?;
            return Ok(match keep {
                Keep::Stored => Matrix::from_blocks(out_dim, in_dim, kind, &rows.bytes(&bytes, size)),
                Keep::As(storage) => from_blocks(rows, kind, &bytes, size, storage),
            });
        }
        let storage = match (keep, e.dtype) {
            (Keep::As(storage), _) => storage,
            (Keep::Stored, Dtype::F16) => Storage::F16,
            (Keep::Stored, Dtype::BF16) => Storage::BF16,
            (Keep::Stored, _) => Storage::F32,
        };
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
}

/// Blocks made floats, row by row.
fn from_blocks(rows: &Rows<'_>, kind: BlockType, bytes: &[u8], size: usize, storage: Storage) -> Matrix {
    let mut values = vec![0.0; rows.out_dim * rows.in_dim];
    each_row(&mut values, rows.in_dim, |i, into| {
        let from = rows.of(i) * size;
        kind.dequantize(&bytes[from..from + size], into);
    });
    Matrix::from_f32(rows.out_dim, rows.in_dim, &values, storage)
}
