//! The weight of a linear layer in whatever format it is stored in.

use std::ops::Range;

use crate::buf::{Buf, Plain};
use crate::gemm::{Epilogue, Job};
use crate::isa::Isa;
use crate::lanes::{BF16, Elem, F16, N};
use crate::packed::acts::Acts;
use crate::packed::{self, Packed};
use crate::pool::{Parts, Pool};
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
    /// 4-bit integers in blocks of 32 with a half scale (GGUF's Q4_0); activations are quantised too.
    Q4,
    /// GGUF's blocks of a quantised type, in their own number of bits; activations are quantised too.
    /// Matrices become so from a file's blocks only: f32 values asked to are kept as [`Storage::Q4`] for
    /// Q4_0, as [`Storage::Q8`] for Q8_0, as the same floats for float types, and as f32 for others.
    Blocks(BlockType),
    /// MLX's affine groups; activations are quantised too. Matrices become so from a file's groups
    /// only: f32 values asked to are kept as f32.
    Affine {
        /// Bits of a weight.
        bits: u8,
        /// Weights that share scale and bias.
        group: u16,
    },
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
    Packed(Packed, Storage),
}

/// One of several products computed together: see [`Matrix::matmul_group`].
pub struct Product<'a> {
    /// The weight.
    pub matrix: &'a Matrix,
    /// `[tokens, in]`. Products with the very same slice share its quantised form.
    pub x: &'a [f32],
    /// One an output.
    pub bias: Option<&'a [f32]>,
    /// What happens to results.
    pub epilogue: Epilogue,
    /// `[tokens, out]`.
    pub y: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// `y = x W^T`.
    pub fn new(matrix: &'a Matrix, x: &'a [f32], y: &'a mut [f32]) -> Self {
        Self { matrix, x, bias: None, epilogue: Epilogue::None, y }
    }
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
        Self::from_blocks_with(out_dim, in_dim, kind, |r| &blocks[r * row..(r + 1) * row])
    }

    /// The same from a source of rows, each asked for once from any thread: permuted rows, parts of a
    /// memory map. Floats go to the storage of their kind.
    ///
    /// # Panics
    /// When a row isn't whole blocks, or `row` gives one of another length.
    pub fn from_blocks_with<'a>(
        out_dim: usize,
        in_dim: usize,
        kind: BlockType,
        row: impl Fn(usize) -> &'a [u8] + Sync,
    ) -> Self {
        let bytes = kind.row_bytes(in_dim).unwrap_or_else(|| panic!("rows of {in_dim} in blocks of {}", kind.block()));
        let row = |r: usize| {
            let row = row(r);
            assert_eq!(row.len(), bytes, "a row of {in_dim} weights of {}", kind.name());
            row
        };
        let pool = Pool::global();
        if let Some(packed) = Packed::from_blocks(pool, out_dim, in_dim, kind, row) {
            return Self { out_dim, in_dim, data: Data::Packed(packed, Storage::Blocks(kind)) };
        }
        if kind == BlockType::NVFP4 {
            let mut values = vec![0.0; out_dim * in_dim];
            for (r, values) in values.chunks_exact_mut(in_dim.max(1)).enumerate() {
                kind.dequantize(row(r), values);
            }
            return Self::from_f32(out_dim, in_dim, &values, Storage::F32);
        }
        let two = |i: usize| {
            let b = &row(i / in_dim)[i % in_dim * 2..][..2];
            u16::from_le_bytes([b[0], b[1]])
        };
        let data = match kind {
            BlockType::F16 => Data::F16(pack(pool, out_dim, in_dim, |i| F16(two(i)))),
            BlockType::BF16 => Data::BF16(pack(pool, out_dim, in_dim, |i| BF16(two(i)))),
            _ => Data::F32(pack(pool, out_dim, in_dim, |i| {
                let b = &row(i / in_dim)[i % in_dim * 4..][..4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            })),
        };
        Self { out_dim, in_dim, data }
    }

    /// Can [`Matrix::from_affine`] hold such groups?
    pub fn affine_supported(bits: usize, group: usize) -> bool {
        packed::affine_supported(bits, group)
    }

    /// From MLX's affine groups: weight `scale * q + bias`, `q` unsigned, a row's as a little-endian
    /// stream of `bits` bits in `packed` (`in_dim * bits / 8` bytes a row), `scales` and `biases`
    /// `[out, in / group]`, kept as bfloat16 or half where those hold them exactly.
    ///
    /// # Panics
    /// When [`Matrix::affine_supported`] says no, `in_dim` isn't whole groups, or a length is wrong.
    pub fn from_affine(
        out_dim: usize,
        in_dim: usize,
        bits: usize,
        group: usize,
        packed: &[u8],
        scales: &[f32],
        biases: &[f32],
    ) -> Self {
        let row = in_dim * bits / 8;
        assert_eq!(packed.len(), out_dim * row, "a matrix [{out_dim}, {in_dim}] of {bits} bits");
        Self::from_affine_with(out_dim, in_dim, bits, group, |r| &packed[r * row..(r + 1) * row], scales, biases)
    }

    /// The same from a source of rows' bytes, each asked for once from any thread.
    ///
    /// # Panics
    /// As [`Matrix::from_affine`].
    pub fn from_affine_with<'a>(
        out_dim: usize,
        in_dim: usize,
        bits: usize,
        group: usize,
        row: impl Fn(usize) -> &'a [u8] + Sync,
        scales: &[f32],
        biases: &[f32],
    ) -> Self {
        assert!(Self::affine_supported(bits, group), "groups of {group} weights of {bits} bits");
        assert!(in_dim.is_multiple_of(group), "rows of {in_dim} in groups of {group}");
        assert_eq!(scales.len(), out_dim * (in_dim / group), "a scale a group");
        assert_eq!(biases.len(), scales.len(), "a bias a group");
        let row = |r: usize| {
            let row = row(r);
            assert_eq!(row.len(), in_dim * bits / 8, "a row of {in_dim} weights of {bits} bits");
            row
        };
        let packed = Packed::from_affine(Pool::global(), (out_dim, in_dim), (bits, group), row, scales, biases);
        let storage = Storage::Affine { bits: bits as u8, group: group as u16 };
        Self { out_dim, in_dim, data: Data::Packed(packed, storage) }
    }

    /// From 8-bit integers as [`Storage::Q8`] has them: rows of `in_dim` signed bytes, and a scale for
    /// each block of 32 (the last may be shorter), `[out, blocks]`.
    ///
    /// # Panics
    /// When `row` gives one of another length, or `scales` isn't one a block.
    pub fn from_q8_with<'a>(
        out_dim: usize,
        in_dim: usize,
        row: impl Fn(usize) -> &'a [u8] + Sync,
        scales: &[f32],
    ) -> Self {
        assert_eq!(scales.len(), out_dim * in_dim.div_ceil(32), "a scale a block");
        let row = |r: usize| {
            let row = row(r);
            assert_eq!(row.len(), in_dim, "a row of {in_dim} weights");
            row
        };
        let packed = Packed::from_q8(Pool::global(), out_dim, in_dim, row, scales);
        Self { out_dim, in_dim, data: Data::Packed(packed, Storage::Q8) }
    }

    /// From any source of row-major values (`value(row * in_dim + column)`), asked once for each in
    /// any order from any thread: big-endian files, memory maps, permuted layouts.
    pub fn from_values(out_dim: usize, in_dim: usize, value: impl Fn(usize) -> f32 + Sync, storage: Storage) -> Self {
        let pool = Pool::global();
        let row = |row: usize, into: &mut [f32]| {
            for (k, v) in into.iter_mut().enumerate() {
                *v = value(row * in_dim + k);
            }
        };
        let data = match storage {
            Storage::F16 | Storage::Blocks(BlockType::F16) => {
                Data::F16(pack(pool, out_dim, in_dim, |i| F16::from_f32(value(i))))
            }
            Storage::BF16 | Storage::Blocks(BlockType::BF16) => {
                Data::BF16(pack(pool, out_dim, in_dim, |i| BF16::from_f32(value(i))))
            }
            Storage::Q8 | Storage::Blocks(BlockType::Q8_0) => {
                Data::Packed(Packed::quantise_q8(pool, out_dim, in_dim, row), Storage::Q8)
            }
            Storage::Q4 | Storage::Blocks(BlockType::Q4_0) => {
                Data::Packed(Packed::quantise_q4(pool, out_dim, in_dim, row), Storage::Q4)
            }
            Storage::F32 | Storage::Blocks(_) | Storage::Affine { .. } => Data::F32(pack(pool, out_dim, in_dim, value)),
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
            Data::Packed(_, storage) => storage,
        }
    }

    /// Bytes of weights kept.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(d) => d.len() * 4,
            Data::F16(d) => d.len() * 2,
            Data::BF16(d) => d.len() * 2,
            Data::Packed(d, _) => d.bytes(),
        }
    }

    /// One row as f32 (an embedding lookup); of quantised types exactly as [`BlockType::dequantize`]
    /// gives it.
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
            Data::Packed(d, _) => d.row(row, into),
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
        let panels = 0..self.out_dim.div_ceil(self.panel());
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
        let width = self.panel();
        let min = (16 * 1024_usize).div_ceil((tokens * self.in_dim * width).max(1));
        pool.run_chunks(rows.len(), min, |range| {
            let mut panel = vec![0.0; tokens * width];
            let mut computed = usize::MAX;
            for i in range {
                let (p, lane) = (rows[i] as usize / width, rows[i] as usize % width);
                if p != computed {
                    self.product(pool, &input, p..p + 1, None, Epilogue::None, &mut panel, width);
                    computed = p;
                }
                for t in 0..tokens {
                    let at = t * rows.len() + i;
                    // SAFETY: output `i` of every token is this chunk's.
                    unsafe { parts.part(at..at + 1)[0] = panel[t * width + lane] };
                }
            }
        });
    }

    /// Several products as one parallel region: layers of one input, or a layer's chosen experts. Each
    /// result is what [`Matrix::matmul_with`] gives for it alone. Products of matrices that aren't
    /// packed blocks or groups run one after another.
    ///
    /// # Panics
    /// When the lengths of a product do not belong together.
    pub fn matmul_group(pool: &Pool, products: &mut [Product<'_>]) {
        let isa = Isa::current();
        // Quantised activations by slice and kind.
        let mut acts: Vec<(*const f32, usize, bool, Acts)> = Vec::new();
        let mut jobs = Vec::new();
        for p in products.iter_mut() {
            let m = p.matrix;
            let Data::Packed(packed, _) = &m.data else {
                m.matmul_with(pool, p.x, p.bias, p.epilogue, p.y);
                continue;
            };
            if m.out_dim == 0 || p.y.is_empty() {
                continue;
            }
            let tokens = p.y.len() / m.out_dim;
            assert_eq!(p.y.len(), tokens * m.out_dim, "whole output rows");
            assert_eq!(p.x.len(), tokens * m.in_dim, "as many input rows as output rows");
            assert!(p.bias.is_none_or(|b| b.len() == m.out_dim), "one bias an output");
            let (start, wide) = (p.x.as_ptr(), packed.wide());
            // The same slice seen as rows of another length would be other rows.
            let known =
                acts.iter().position(|a| a.0 == start && a.1 == m.in_dim && a.2 == wide && a.3.tokens == tokens);
            let index = known.unwrap_or_else(|| {
                acts.push((start, m.in_dim, wide, Acts::new(pool, isa, p.x, m.in_dim, tokens, m.in_dim, wide)));
                acts.len() - 1
            });
            jobs.push((packed, index, p.bias, p.epilogue, Parts::new(p.y), m.out_dim));
        }
        let products: Vec<packed::Product<'_>> = jobs
            .into_iter()
            .map(|(matrix, index, bias, epilogue, y, y_stride)| packed::Product {
                matrix,
                acts: &acts[index].3,
                groups: 0..matrix.out_dim.div_ceil(packed::ROWS),
                bias,
                epilogue,
                y,
                y_stride,
            })
            .collect();
        packed::run_all(pool, isa, &products);
    }

    /// Outputs of a panel.
    fn panel(&self) -> usize {
        if matches!(self.data, Data::Packed(..)) { packed::ROWS } else { N }
    }

    fn input<'a>(&self, pool: &Pool, x: &'a [f32], stride: usize, tokens: usize) -> Input<'a> {
        match self.data {
            Data::Packed(ref d, _) => {
                Input::Acts(Acts::new(pool, Isa::current(), x, stride, tokens, self.in_dim, d.wide()))
            }
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
            Data::Packed(matrix, _) => {
                if let Input::Acts(acts) = input {
                    let y = Parts::new(y);
                    let product = packed::Product { matrix, acts, groups: panels, bias, epilogue, y, y_stride };
                    packed::run_all(pool, isa, &[product]);
                }
            }
        }
    }
}

/// Activations as the storage wants them.
enum Input<'a> {
    F32 { x: &'a [f32], stride: usize, tokens: usize },
    Acts(Acts),
}
