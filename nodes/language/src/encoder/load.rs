//! From named tensors to layers: names, shapes, formats.

use std::sync::Arc;

use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::ragged::Relative;
use oxiline_kernels::{BlockType, Matrix, Storage};
use oxiline_weights::{Checkpoint, Dtype, Keep, MatrixRequest};

use super::names::{Names, Part};
use super::relative;
use super::spec::{Layer, Placement, Spec};

/// A linear layer.
pub(crate) struct Linear {
    pub weight: Matrix,
    pub bias: Option<Vec<f32>>,
}

/// A norm's weight and bias; the bias is there for layer norms only.
pub(super) struct NormWeights {
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
}

/// The weights of one layer.
pub(super) struct LayerWeights {
    pub attention_norm: Option<NormWeights>,
    pub post_attention_norm: Option<NormWeights>,
    pub mlp_norm: NormWeights,
    pub post_mlp_norm: Option<NormWeights>,
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub out: Linear,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
}

/// Rows of a table that are looked up: where they lie in the file, or packed.
pub(super) enum Table {
    /// f32, f16 or bf16 in the (mapped) file: nothing is copied but the rows looked up.
    Stored {
        checkpoint: Arc<Checkpoint>,
        name: String,
        kind: BlockType,
    },
    Packed(Matrix),
}

/// All weights.
pub(super) struct Weights {
    pub words: Table,
    pub positions: Vec<f32>,
    pub types: Vec<f32>,
    pub embedding_norm: Option<NormWeights>,
    pub final_norm: Option<NormWeights>,
    pub relative: Option<Relative>,
    pub layers: Vec<LayerWeights>,
}

/// How weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// How the matrices are kept; None: as the file stores them.
    pub keep: Option<Storage>,
}

pub(super) struct Loader<'a> {
    pub checkpoint: &'a Arc<Checkpoint>,
    pub spec: &'a Spec,
    pub names: &'a Names,
    pub options: &'a LoadOptions,
    /// Bytes of weights kept so far.
    pub bytes: u64,
}

impl Loader<'_> {
    pub(super) fn weights(&mut self, progress: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<Weights> {
        let (spec, steps) = (self.spec, self.spec.layers.len() as u64 + 1);
        progress(0, steps)?;
        let words = self.table(&self.name(Part::Words, 0).0, spec.vocab, spec.hidden)?;
        let positions = match spec.learned {
            Some(learned) => self.values(&self.name(Part::Positions, 0).0, &[learned.rows, spec.hidden])?,
            None => Vec::new(),
        };
        let types = match spec.token_types {
            0 => Vec::new(),
            count => self.values(&self.name(Part::Types, 0).0, &[count, spec.hidden])?,
        };
        let embedding_norm = spec.embedding_norm.then(|| self.norm(Part::EmbeddingNorm, 0)).transpose()?;
        let final_norm = spec.final_norm.then(|| self.norm(Part::FinalNorm, 0)).transpose()?;
        let relative = match (spec.relative, spec.layers.first()) {
            (Some(buckets), Some(layer)) => {
                let table = self.values(&self.name(Part::Relative, 0).0, &[buckets.count, layer.heads])?;
                Some(relative::values(buckets, layer.heads, &table, spec.context - 1))
            }
            _ => None,
        };
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, layer) in spec.layers.iter().enumerate() {
            progress(i as u64 + 1, steps)?;
            layers.push(self.layer(i, layer)?);
        }
        progress(steps, steps)?;
        Ok(Weights { words, positions, types, embedding_norm, final_norm, relative, layers })
    }

    fn layer(&mut self, i: usize, l: &Layer) -> Result<LayerWeights> {
        let hidden = self.spec.hidden;
        let (q, kv) = (l.heads * l.head_dim, l.kv_heads * l.head_dim);
        let around = self.spec.placement == Placement::Around;
        Ok(LayerWeights {
            attention_norm: l.first_norm.then(|| self.norm(Part::AttentionNorm, i)).transpose()?,
            post_attention_norm: around.then(|| self.norm(Part::PostAttentionNorm, i)).transpose()?,
            mlp_norm: self.norm(Part::MlpNorm, i)?,
            post_mlp_norm: around.then(|| self.norm(Part::PostMlpNorm, i)).transpose()?,
            q: self.linear(Part::Query, i, q, hidden, l.qkv_bias)?,
            k: self.linear(Part::Key, i, kv, hidden, l.qkv_bias)?,
            v: self.linear(Part::Value, i, kv, hidden, l.qkv_bias)?,
            out: self.linear(Part::Out, i, hidden, q, l.out_bias)?,
            q_norm: l.qk_norm.then(|| self.head_norm(Part::QueryNorm, i, l.head_dim)).transpose()?,
            k_norm: l.qk_norm.then(|| self.head_norm(Part::KeyNorm, i, l.head_dim)).transpose()?,
            gate: l.gated.then(|| self.linear(Part::Gate, i, l.inner, hidden, l.mlp_bias)).transpose()?,
            up: self.linear(Part::Up, i, l.inner, hidden, l.mlp_bias)?,
            down: self.linear(Part::Down, i, hidden, l.inner, l.mlp_bias)?,
        })
    }

    /// The tensor's name with `.weight`, and its share.
    fn name(&self, part: Part, i: usize) -> (String, Option<(usize, usize)>) {
        let (name, share) = self.names.of(part, i);
        (format!("{name}.weight"), share)
    }

    fn table(&mut self, name: &str, rows: usize, width: usize) -> Result<Table> {
        self.checkpoint.expect_shape(name, &[rows, width]).map_err(Error::msg)?;
        let kind = match self.checkpoint.info(name).map_err(Error::msg)?.dtype {
            Dtype::F32 => Some(BlockType::F32),
            Dtype::F16 => Some(BlockType::F16),
            Dtype::BF16 => Some(BlockType::BF16),
            _ => None,
        };
        if let Some(kind) = kind {
            self.bytes += (rows * width * kind.bytes()) as u64;
            return Ok(Table::Stored { checkpoint: self.checkpoint.clone(), name: name.into(), kind });
        }
        Ok(Table::Packed(self.matrix(&MatrixRequest::whole(name, rows, width), Keep::Stored)?))
    }

    fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let values = self.checkpoint.f32_shaped(name, shape).map_err(Error::msg)?;
        self.bytes += 4 * values.len() as u64;
        Ok(values)
    }

    fn matrix(&mut self, request: &MatrixRequest<'_>, keep: Keep) -> Result<Matrix> {
        let matrix = self.checkpoint.load_matrix(request, keep).map_err(Error::msg)?;
        self.bytes += matrix.bytes() as u64;
        Ok(matrix)
    }

    fn norm(&mut self, part: Part, i: usize) -> Result<NormWeights> {
        let (spec, (name, _)) = (self.spec, self.name(part, i));
        let mut weight = self.values(&name, &[spec.hidden])?;
        weight.iter_mut().for_each(|w| *w += spec.norm.offset);
        let bias = match spec.norm.bias {
            true => self.values(&bias_of(&name), &[spec.hidden])?,
            false => vec![0.0; spec.hidden],
        };
        Ok(NormWeights { weight, bias })
    }

    fn head_norm(&mut self, part: Part, i: usize, width: usize) -> Result<Vec<f32>> {
        let mut weight = self.values(&self.name(part, i).0, &[width])?;
        weight.iter_mut().for_each(|w| *w += self.spec.norm.offset);
        Ok(weight)
    }

    fn linear(&mut self, part: Part, i: usize, out_dim: usize, in_dim: usize, bias: bool) -> Result<Linear> {
        let (name, share) = self.name(part, i);
        let rows = share.map(|(index, of)| (index * out_dim, of * out_dim));
        let keep = match self.options.keep {
            // A block never crosses a row.
            Some(Storage::Q8 | Storage::Q4) if !in_dim.is_multiple_of(32) => Keep::Stored,
            Some(storage) => Keep::As(storage),
            None => Keep::Stored,
        };
        let request = MatrixRequest { rows, ..MatrixRequest::whole(&name, out_dim, in_dim) };
        let weight = self.matrix(&request, keep)?;
        let bias = match (bias, rows) {
            (false, _) => None,
            (true, None) => Some(self.values(&bias_of(&name), &[out_dim])?),
            (true, Some((first, all))) => Some(self.values(&bias_of(&name), &[all])?[first..first + out_dim].to_vec()),
        };
        Ok(Linear { weight, bias })
    }
}

fn bias_of(name: &str) -> String {
    format!("{}.bias", name.trim_end_matches(".weight"))
}

/// A linear layer of a head or module, its sizes as the file has them.
///
/// # Errors
/// There is no such tensor, or it is no matrix of rows of `in_dim`.
pub(crate) fn head(checkpoint: &Checkpoint, name: &str, in_dim: usize) -> Result<Linear> {
    let weight = format!("{name}.weight");
    let info = checkpoint.info(&weight).map_err(Error::msg)?;
    let [out_dim, columns] = info.shape[..] else {
        bail!("{}: tensor `{weight}` has shape {:?}; a matrix is expected", info.file.display(), info.shape);
    };
    if columns != in_dim || out_dim == 0 {
        bail!(
            "{}: tensor `{weight}` has shape {:?}, but rows of {in_dim} are expected",
            info.file.display(),
            info.shape
        );
    }
    let bias = format!("{name}.bias");
    let bias = checkpoint.contains(&bias).then(|| checkpoint.f32_shaped(&bias, &[out_dim])).transpose();
    Ok(Linear {
        weight: checkpoint.matrix(&weight, out_dim, in_dim, Storage::F32).map_err(Error::msg)?,
        bias: bias.map_err(Error::msg)?,
    })
}

impl Table {
    /// Adds row `id` of each id to a row of `x`, scaled.
    pub(super) fn gather(&self, ids: impl Iterator<Item = u32>, width: usize, x: &mut [f32]) -> Result<()> {
        match self {
            Self::Packed(matrix) => {
                for (id, row) in ids.zip(x.chunks_exact_mut(width)) {
                    matrix.row(id as usize, row);
                }
            }
            Self::Stored { checkpoint, name, kind } => {
                let bytes = checkpoint.bytes(name).map_err(Error::msg)?;
                let size = width * kind.bytes();
                for (id, row) in ids.zip(x.chunks_exact_mut(width)) {
                    kind.dequantize(&bytes[id as usize * size..][..size], row);
                }
            }
        }
        Ok(())
    }
}
