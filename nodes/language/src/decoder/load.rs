//! From named tensors to layers: names, shapes, formats.

use oxiline_graph::{Error, Result};
use oxiline_kernels::{Matrix, Storage};
use oxiline_weights::{Checkpoint, Keep, MatrixRequest};

use super::names::{Names, Part};
use super::spec::{Attention, Dense, Experts, Mixer, Mlp, QkNorm, Spec};
use super::{LoadOptions, Quant};

/// A linear layer.
pub(super) struct Linear {
    pub weight: Matrix,
    pub bias: Option<Vec<f32>>,
}

/// The weights of an attention layer.
pub(super) struct AttentionWeights {
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub out: Linear,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
}

/// The weights of one MLP.
pub(super) struct DenseWeights {
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
}

/// The weights of a mixture.
pub(super) struct ExpertWeights {
    pub router: Matrix,
    pub experts: Vec<Expert>,
}

/// The weights of one expert.
pub(super) struct Expert {
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
}

// One a layer: a box would save nothing.
#[allow(clippy::large_enum_variant)]
pub(super) enum MlpWeights {
    Dense(DenseWeights),
    Experts(ExpertWeights),
}

/// The weights of one layer.
pub(super) struct LayerWeights {
    pub mixer_norm: Vec<f32>,
    pub post_mixer_norm: Option<Vec<f32>>,
    pub mlp_norm: Vec<f32>,
    pub post_mlp_norm: Option<Vec<f32>>,
    pub attention: AttentionWeights,
    pub mlp: MlpWeights,
}

/// All weights.
pub(super) struct Weights {
    pub embedding: Matrix,
    /// None: the embedding is the head.
    pub head: Option<Matrix>,
    pub norm: Vec<f32>,
    pub layers: Vec<LayerWeights>,
}

pub(super) struct Loader<'a> {
    pub checkpoint: &'a Checkpoint,
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
        let name = self.name(Part::Embedding, 0);
        // A table that is only looked up needs no other form than the file's.
        let keep = if spec.tied { self.keep(spec.hidden) } else { Keep::Stored };
        let request = MatrixRequest::whole(&name, spec.vocab, spec.hidden);
        let embedding = self.matrix(&request, keep)?;
        let head = match spec.tied {
            true => None,
            false => {
                let name = self.name(Part::Head, 0);
                let request = MatrixRequest::whole(&name, spec.vocab, spec.hidden);
                Some(self.matrix(&request, self.keep(spec.hidden))?)
            }
        };
        let norm = self.norm(Part::FinalNorm, 0, spec.hidden)?;
        progress(1, steps)?;
        let mut layers = Vec::new();
        for i in 0..spec.layers.len() {
            layers.push(self.layer(i)?);
            progress(i as u64 + 2, steps)?;
        }
        Ok(Weights { embedding, head, norm, layers })
    }

    fn layer(&mut self, i: usize) -> Result<LayerWeights> {
        let (layer, hidden) = (&self.spec.layers[i], self.spec.hidden);
        let Mixer::Attention(attention) = &layer.mixer;
        let post = |this: &mut Self, part| layer.post_norms.then(|| this.norm(part, i, hidden)).transpose();
        Ok(LayerWeights {
            mixer_norm: self.norm(Part::MixerNorm, i, hidden)?,
            post_mixer_norm: post(self, Part::PostMixerNorm)?,
            mlp_norm: self.norm(Part::MlpNorm, i, hidden)?,
            post_mlp_norm: post(self, Part::PostMlpNorm)?,
            attention: self.attention(i, attention)?,
            mlp: match &layer.mlp {
                Mlp::Dense(dense) => MlpWeights::Dense(self.dense(i, dense)?),
                Mlp::Experts(experts) => MlpWeights::Experts(self.experts(i, experts)?),
            },
        })
    }

    fn attention(&mut self, i: usize, a: &Attention) -> Result<AttentionWeights> {
        let hidden = self.spec.hidden;
        let interleaved =
            |heads| matches!(self.names, Names::Gguf { permuted: true }).then(|| uninterleave(heads, a.head_dim));
        let (q_order, k_order) = (interleaved(a.heads), interleaved(a.kv_heads));
        let normed = a.qk_norm == QkNorm::Head;
        Ok(AttentionWeights {
            q: self.linear(Part::Query, i, a.q_width(), hidden, a.bias.qkv, q_order.as_deref())?,
            k: self.linear(Part::Key, i, a.kv_width(), hidden, a.bias.qkv, k_order.as_deref())?,
            v: self.linear(Part::Value, i, a.kv_width(), hidden, a.bias.qkv, None)?,
            out: self.linear(Part::Out, i, hidden, a.q_width(), a.bias.out, None)?,
            q_norm: normed.then(|| self.norm(Part::QueryNorm, i, a.head_dim)).transpose()?,
            k_norm: normed.then(|| self.norm(Part::KeyNorm, i, a.head_dim)).transpose()?,
        })
    }

    fn dense(&mut self, i: usize, d: &Dense) -> Result<DenseWeights> {
        let hidden = self.spec.hidden;
        let gate = d.gated.then(|| self.linear(Part::Gate, i, d.inner, hidden, d.bias, None)).transpose()?;
        Ok(DenseWeights {
            gate,
            up: self.linear(Part::Up, i, d.inner, hidden, d.bias, None)?,
            down: self.linear(Part::Down, i, hidden, d.inner, d.bias, None)?,
        })
    }

    fn experts(&mut self, i: usize, e: &Experts) -> Result<ExpertWeights> {
        let hidden = self.spec.hidden;
        let router = self.name(Part::Router, i);
        // Which experts are chosen must not depend on how weights are kept.
        let router = self.matrix(&MatrixRequest::whole(&router, e.count, hidden), Keep::As(Storage::F32))?;
        let mut experts = Vec::new();
        for x in 0..e.count {
            experts.push(Expert {
                gate: self.expert(Part::Gate, i, x, e)?,
                up: self.expert(Part::Up, i, x, e)?,
                down: self.expert(Part::Down, i, x, e)?,
            });
        }
        Ok(ExpertWeights { router, experts })
    }

    /// One expert's matrix, from whichever of the layouts the file has.
    fn expert(&mut self, part: Part, i: usize, x: usize, e: &Experts) -> Result<Matrix> {
        let hidden = self.spec.hidden;
        let (out_dim, in_dim) = if part == Part::Down { (hidden, e.inner) } else { (e.inner, hidden) };
        let keep = self.keep(in_dim);
        let stacked = self.names.stacked(part, i).into_iter().find(|n| self.checkpoint.contains(n));
        let fused = self.names.fused_gate_up(i).filter(|n| part != Part::Down && self.checkpoint.contains(n));
        let own = self.names.expert(part, i, x);
        let request = if let Some(name) = &stacked {
            MatrixRequest { part: Some((x, e.count)), ..MatrixRequest::whole(name, out_dim, in_dim) }
        } else if let Some(name) = &fused {
            let first = if part == Part::Gate { 0 } else { e.inner };
            let whole = MatrixRequest::whole(name, out_dim, in_dim);
            MatrixRequest { part: Some((x, e.count)), rows: Some((first, 2 * e.inner)), ..whole }
        } else {
            MatrixRequest::whole(&own, out_dim, in_dim)
        };
        self.matrix(&request, keep)
    }

    fn name(&self, part: Part, i: usize) -> String {
        let post_norms = self.spec.layers.get(i).is_some_and(|l| l.post_norms);
        format!("{}.weight", self.names.of(part, i, post_norms))
    }

    /// How a matrix of rows of `in_dim` is kept.
    fn keep(&self, in_dim: usize) -> Keep {
        match self.options {
            LoadOptions { exact: true, .. } => Keep::As(Storage::F32),
            // A block never crosses a row.
            LoadOptions { quant: Some(Quant::Q8), .. } if in_dim.is_multiple_of(32) => Keep::As(Storage::Q8),
            LoadOptions { quant: Some(Quant::Q4), .. } if in_dim.is_multiple_of(32) => Keep::As(Storage::Q4),
            _ => Keep::Stored,
        }
    }

    fn matrix(&mut self, request: &MatrixRequest<'_>, keep: Keep) -> Result<Matrix> {
        let matrix = self.checkpoint.load_matrix(request, keep).map_err(Error::msg)?;
        self.bytes += matrix.bytes() as u64;
        Ok(matrix)
    }

    fn values(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let values = self.checkpoint.f32_shaped(name, &[len]).map_err(Error::msg)?;
        self.bytes += 4 * len as u64;
        Ok(values)
    }

    fn norm(&mut self, part: Part, i: usize, len: usize) -> Result<Vec<f32>> {
        let name = self.name(part, i);
        let mut weight = self.values(&name, len)?;
        let offset = self.spec.norm_offset;
        weight.iter_mut().for_each(|w| *w += offset);
        Ok(weight)
    }

    fn linear(
        &mut self,
        part: Part,
        i: usize,
        out_dim: usize,
        in_dim: usize,
        bias: bool,
        order: Option<&[u32]>,
    ) -> Result<Linear> {
        let name = self.name(part, i);
        let request = MatrixRequest { order, ..MatrixRequest::whole(&name, out_dim, in_dim) };
        let weight = self.matrix(&request, self.keep(in_dim))?;
        let bias = match bias {
            false => None,
            true => {
                let stored = self.values(&format!("{}.bias", name.trim_end_matches(".weight")), out_dim)?;
                Some(match order {
                    Some(order) => order.iter().map(|&row| stored[row as usize]).collect(),
                    None => stored,
                })
            }
        };
        Ok(Linear { weight, bias })
    }
}

/// Rows of heads whose two halves a conversion interleaved, in their own order again.
fn uninterleave(heads: usize, head_dim: usize) -> Vec<u32> {
    let half = head_dim / 2;
    let row = |r: usize| r / head_dim * head_dim + 2 * (r % head_dim % half) + r % head_dim / half;
    (0..heads * head_dim).map(|r| row(r) as u32).collect()
}
