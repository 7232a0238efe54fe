//! The weight of a linear layer in whatever format it is stored in.

use std::ops::Range;

use crate::buf::{Buf, Plain};
use crate::gemm::{Epilogue, Job};
use crate::isa::Isa;
use crate::lanes::{BF16, Elem, F16, N};
use crate::pool::{Parts, Pool};
use crate::q8::{Q8, Rows};
use crate::quant::BlockType;

/// How a matrix keeps its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// 32-bit floats.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// 8-bit integers in blocks of 32 with an f32 scale; activations are quantised too.
    Q8,
}

/// `[out, in]`: the weight of a linear layer, packed for the kernels.
pub struct Matrix {
    out_dim: usize,
    in_dim: usize,
    data: Data,
}

enum Data {
    F32(Buf<f32>),
    F16(Buf<F16>),
    BF16(Buf<BF16>),
    Q8(Q8),
}

/// Packs `[out, in]` values into panels `[out/16][in][16]`, the last padded with zeros.
fn pack<T: Elem + Plain>(pool: &Pool, out_dim: usize, in_dim: usize, value: impl Fn(usize) -> T + Sync) -> Buf<T> {
    let panels = out_dim.div_ceil(N);
    let mut packed = Buf::zeroed(panels * in_dim * N);
    let parts = Parts::new(&mut packed);
    pool.run(panels, |p| {
        // SAFETY: one panel a task.
        let panel = unsafe { parts.part(p * in_dim * N..(p + 1) * in_dim * N) };
        let rows = N.min(out_dim - p * N);
        // Eight inputs of every row at a time: whole cache lines on both sides.
        for start in (0..in_dim).step_by(8) {
            for lane in 0..rows {
                for k in start..(start + 8).min(in_dim) {
                    panel[k * N + lane] = value((p * N + lane) * in_dim + k);
                }
            }
        }
    });
    packed
}

impl Matrix {
    /// From row-major `[out, in]` f32 values, kept as `storage` (rounded to nearest even).
    ///
    /// # Panics
    /// When `values` is not `out_dim * in_dim` long.
    pub fn from_f32(out_dim: usize, in_dim: usize, values: &[f32], storage: Storage) -> Self {
        assert_eq!(values.len(), out_dim * in_dim, "a matrix [{out_dim}, {in_dim}]");
        Self::from_values(out_dim, in_dim, |i| values[i], storage)
    }

    /// From row-major IEEE halves, without a copy of the whole as f32.
    ///
    /// # Panics
    /// When `bits` is not `out_dim * in_dim` long.
    pub fn from_f16_bits(out_dim: usize, in_dim: usize, bits: &[u16], storage: Storage) -> Self {
        assert_eq!(bits.len(), out_dim * in_dim, "a matrix [{out_dim}, {in_dim}]");
        if storage == Storage::F16 {
            let data = Data::F16(pack(Pool::global(), out_dim, in_dim, |i| F16(bits[i])));
            return Self { out_dim, in_dim, data };
        }
        Self::from_values(out_dim, in_dim, |i| F16(bits[i]).to_f32(), storage)
    }

    /// From row-major bfloat16, without a copy of the whole as f32.
    ///
    /// # Panics
    /// When `bits` is not `out_dim * in_dim` long.
    pub fn from_bf16_bits(out_dim: usize, in_dim: usize, bits: &[u16], storage: Storage) -> Self {
        assert_eq!(bits.len(), out_dim * in_dim, "a matrix [{out_dim}, {in_dim}]");
        if storage == Storage::BF16 {
            let data = Data::BF16(pack(Pool::global(), out_dim, in_dim, |i| BF16(bits[i])));
            return Self { out_dim, in_dim, data };
        }
        Self::from_values(out_dim, in_dim, |i| BF16(bits[i]).to_f32(), storage)
    }

    /// From row-major quantised blocks as GGUF files hold them, `in_dim / block` blocks a row.
    ///
    /// # Panics
    /// When a row isn't whole blocks or `blocks` is not as long as `out_dim` rows.
    pub fn from_blocks(out_dim: usize, in_dim: usize, kind: BlockType, blocks: &[u8]) -> Self {
        let row = kind.row_bytes(in_dim).unwrap_or_else(|| panic!("rows of {in_dim} in blocks of {}", kind.block()));
        assert_eq!(blocks.len(), out_dim * row, "a matrix [{out_dim}, {in_dim}] of {}", kind.name());
        let mut values = vec![0.0; out_dim * in_dim];
        kind.dequantize(blocks, &mut values);
        Self::from_f32(out_dim, in_dim, &values, Storage::F32)
    }

    /// From any source of row-major values (`value(row * in_dim + column)`), asked once for each in
    /// any order from any thread: big-endian files, memory maps, permuted layouts.
    pub fn from_values(out_dim: usize, in_dim: usize, value: impl Fn(usize) -> f32 + Sync, storage: Storage) -> Self {
        let pool = Pool::global();
        let data = match storage {
            Storage::F32 => Data::F32(pack(pool, out_dim, in_dim, value)),
            Storage::F16 => Data::F16(pack(pool, out_dim, in_dim, |i| F16::from_f32(value(i)))),
            Storage::BF16 => Data::BF16(pack(pool, out_dim, in_dim, |i| BF16::from_f32(value(i)))),
            Storage::Q8 => Data::Q8(Q8::pack(pool, out_dim, in_dim, |row, into| {
                for (k, v) in into.iter_mut().enumerate() {
                    *v = value(row * in_dim + k);
                }
            })),
        };
        Self { out_dim, in_dim, data }
    }

    /// Output features.
    pub fn out_dim(&self) -> usize {
        self.out_dim
    }

    /// Input features.
    pub fn in_dim(&self) -> usize {
        self.in_dim
    }

    /// How the weights are kept.
    pub fn storage(&self) -> Storage {
        match self.data {
            Data::F32(_) => Storage::F32,
            Data::F16(_) => Storage::F16,
            Data::BF16(_) => Storage::BF16,
            Data::Q8(_) => Storage::Q8,
        }
    }

    /// Bytes of weights kept.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(d) => d.len() * 4,
            Data::F16(d) => d.len() * 2,
            Data::BF16(d) => d.len() * 2,
            Data::Q8(d) => d.values.len() + d.scales.len() * 4,
        }
    }

    /// One row as f32 (an embedding lookup).
    ///
    /// # Panics
    /// When there is no such row or `into` is not `in_dim` long.
    pub fn row(&self, row: usize, into: &mut [f32]) {
        assert!(row < self.out_dim, "row {row} of {}", self.out_dim);
        assert_eq!(into.len(), self.in_dim, "a row");
        fn gather<T: Elem>(panels: &[T], row: usize, into: &mut [f32]) {
            let start = row / N * into.len() * N + row % N;
            for (k, v) in into.iter_mut().enumerate() {
                *v = panels[start + k * N].to_f32();
            }
        }
        match &self.data {
            Data::F32(d) => gather(d, row, into),
            Data::F16(d) => gather(d, row, into),
            Data::BF16(d) => gather(d, row, into),
            Data::Q8(d) => d.row(row, into),
        }
    }

    /// `y[t] = x[t] W^T + bias` for every token row `t`. `x` is `[tokens, in]`, `y` `[tokens, out]`.
    ///
    /// # Panics
    /// When the lengths do not belong together.
    pub fn matmul(&self, pool: &Pool, x: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
        self.matmul_with(pool, x, bias, Epilogue::None, y);
    }

    /// The same with something done to each result while it is in a register.
    ///
    /// # Panics
    /// When the lengths do not belong together.
    pub fn matmul_with(&self, pool: &Pool, x: &[f32], bias: Option<&[f32]>, epilogue: Epilogue, y: &mut [f32]) {
        if self.out_dim == 0 {
            return;
        }
        let tokens = y.len() / self.out_dim;
        assert_eq!(y.len(), tokens * self.out_dim, "whole output rows");
        assert_eq!(x.len(), tokens * self.in_dim, "as many input rows as output rows");
        self.matmul_strided(pool, x, self.in_dim, bias, epilogue, y);
    }

    /// The same where input row `t` starts at `x[t * stride]`: rows may overlap (a convolution) or
    /// lie inside wider rows.
    ///
    /// # Panics
    /// When the lengths do not belong together.
    pub fn matmul_strided(
        &self,
        pool: &Pool,
        x: &[f32],
        stride: usize,
        bias: Option<&[f32]>,
        epilogue: Epilogue,
        y: &mut [f32],
    ) {
        if self.out_dim == 0 || y.is_empty() {
            return;
        }
        let tokens = y.len() / self.out_dim;
        assert_eq!(y.len(), tokens * self.out_dim, "whole output rows");
        assert!(x.len() >= (tokens - 1) * stride + self.in_dim, "as many input rows as output rows");
        if let Some(bias) = bias {
            assert_eq!(bias.len(), self.out_dim, "one bias an output");
        }
        let panels = 0..self.out_dim.div_ceil(N);
        self.product(pool, &self.input(pool, x, stride, tokens), panels, bias, epilogue, y, self.out_dim);
    }

    /// The same for chosen output rows only (`y` is `[tokens, rows.len()]`): constrained decoding.
    ///
    /// # Panics
    /// When a row does not exist or the lengths do not belong together.
    pub fn matmul_rows(&self, pool: &Pool, x: &[f32], rows: &[u32], y: &mut [f32]) {
        if rows.is_empty() {
            return;
        }
        let tokens = y.len() / rows.len();
        assert_eq!(y.len(), tokens * rows.len(), "whole output rows");
        assert_eq!(x.len(), tokens * self.in_dim, "as many input rows as output rows");
        if let Some(row) = rows.iter().find(|&&r| r as usize >= self.out_dim) {
            panic!("row {row} of {}", self.out_dim);
        }
        let input = self.input(pool, x, self.in_dim, tokens);
        let parts = Parts::new(y);
        let min = (16 * 1024_usize).div_ceil((tokens * self.in_dim * N).max(1));
        pool.run_chunks(rows.len(), min, |range| {
            let mut panel = vec![0.0; tokens * N];
            let mut computed = usize::MAX;
            for i in range {
                let (p, lane) = (rows[i] as usize / N, rows[i] as usize % N);
                if p != computed {
                    self.product(pool, &input, p..p + 1, None, Epilogue::None, &mut panel, N);
                    computed = p;
                }
                for t in 0..tokens {
                    let at = t * rows.len() + i;
                    // SAFETY: output `i` of every token is this chunk's.
                    unsafe { parts.part(at..at + 1)[0] = panel[t * N + lane] };
                }
            }
        });
    }

    fn input<'a>(&self, pool: &Pool, x: &'a [f32], stride: usize, tokens: usize) -> Input<'a> {
        match self.data {
            Data::Q8(_) => Input::Q8(Rows::quantise(pool, Isa::current(), x, stride, tokens, self.in_dim)),
            _ => Input::F32 { x, stride, tokens },
        }
    }

    /// Panels `panels` for every row of the input; row `t` of the result starts at `y[t * y_stride]`.
    #[allow(clippy::too_many_arguments)]
    fn product(
        &self,
        pool: &Pool,
        input: &Input<'_>,
        panels: Range<usize>,
        bias: Option<&[f32]>,
        epilogue: Epilogue,
        y: &mut [f32],
        y_stride: usize,
    ) {
        let isa = Isa::current();
        macro_rules! float {
            ($data:expr) => {
                if let Input::F32 { x, stride, tokens } = *input {
                    let size = self.in_dim * N;
                    Job {
                        x: x.as_ptr(),
                        x_stride: stride,
                        tokens,
                        k: self.in_dim,
                        panels: &$data[panels.start * size..panels.end * size],
                        panel_stride: size,
                        out_dim: (panels.len() * N).min(self.out_dim - panels.start * N),
                        bias,
                        y: y.as_mut_ptr(),
                        y_stride,
                        epilogue,
                    }
                    .run(pool, isa)
                }
            };
        }
        match &self.data {
            Data::F32(d) => float!(d),
            Data::F16(d) => float!(d),
            Data::BF16(d) => float!(d),
            Data::Q8(d) => {
                if let Input::Q8(rows) = input {
                    d.matmul(pool, isa, rows, panels, bias, epilogue, y, y_stride);
                }
            }
        }
    }
}

/// Activations as the storage wants them.
enum Input<'a> {
    F32 { x: &'a [f32], stride: usize, tokens: usize },
    Q8(Rows),
}
