//! A loaded encoder and its forward pass over texts of any lengths.

use std::sync::Arc;

use oxiline_graph::{Result, bail};
use oxiline_kernels::ragged::{self, Ragged};
use oxiline_kernels::{Epilogue, Pool, Rope as Rotation, ops};
use oxiline_weights::Checkpoint;

use super::load::{LayerWeights, Linear, LoadOptions, Loader, NormWeights, Weights};
use super::names::Names;
use super::spec::{Activation, Layer, Placement, Spec};
use crate::decoder::rope::{Rope, Scaling};

/// A text as the model takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Token ids with the special ones.
    pub ids: Vec<u32>,
    /// Token types; empty: all 0.
    pub types: Vec<u32>,
}

/// A loaded encoder. A text's result depends on its own tokens only, bit for bit: not on what is
/// computed beside it, nor on threads.
pub struct Encoder {
    spec: Spec,
    weights: Weights,
    rotations: Vec<Rotation>,
    bytes: u64,
}

/// Room for the rows of a pass, kept from layer to layer.
struct Scratch {
    x: Vec<f32>,
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    seen: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl Encoder {
    /// Loads a model that was described. `progress(done, total)` counts layers; an error from it, such
    /// as a cancel, ends the load.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn load(
        checkpoint: &Arc<Checkpoint>,
        spec: Spec,
        names: &Names,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Self> {
        let mut loader = Loader { checkpoint, spec: &spec, names, options, bytes: 0 };
        let weights = loader.weights(progress)?;
        let bytes = loader.bytes;
        let rotations = spec.ropes.iter().map(|rope| rotation(rope, 0)).collect();
        Ok(Self { spec, weights, rotations, bytes })
    }

    /// What the model is.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Bytes of weights.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self, texts: &[&Tokens]) -> Result<()> {
        for text in texts {
            if let Some(id) = text.ids.iter().find(|&&id| id as usize >= self.spec.vocab) {
                bail!(
                    "token {id} is outside the model's vocabulary of {}; do tokenizer and model belong together?",
                    self.spec.vocab
                );
            }
            if let Some(kind) = text.types.iter().find(|&&t| t as usize >= self.spec.token_types.max(1)) {
                bail!("token type {kind} is outside the model's {}", self.spec.token_types);
            }
            if text.ids.len() > self.spec.context {
                bail!("{} tokens are more than the model's {}", text.ids.len(), self.spec.context);
            }
        }
        Ok(())
    }

    /// The last hidden states of all texts, one text's rows after another's: `[tokens, hidden]`.
    ///
    /// # Errors
    /// A token outside the vocabulary, a text longer than the context.
    pub fn forward(&self, pool: &Pool, texts: &[&Tokens]) -> Result<Vec<f32>> {
        self.forward_observed(pool, texts, &mut |_, _| {})
    }

    /// The same, showing the residual stream as it enters each layer.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_observed(
        &self,
        pool: &Pool,
        texts: &[&Tokens],
        observer: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Vec<f32>> {
        self.check(texts)?;
        let mut starts = vec![0];
        starts.extend(texts.iter().scan(0, |at, text| {
            *at += text.ids.len();
            Some(*at)
        }));
        let mut s = Scratch {
            x: Vec::new(),
            normed: Vec::new(),
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            seen: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
        };
        self.embed(pool, texts, &mut s)?;
        for (i, (layer, weights)) in self.spec.layers.iter().zip(&self.weights.layers).enumerate() {
            observer(i, &s.x);
            self.layer(pool, layer, weights, &starts, &mut s);
        }
        if let Some(norm) = &self.weights.final_norm {
            self.norm(pool, norm, &s.x, &mut s.normed);
            return Ok(s.normed);
        }
        Ok(s.x)
    }

    fn embed(&self, pool: &Pool, texts: &[&Tokens], s: &mut Scratch) -> Result<()> {
        let hidden = self.spec.hidden;
        let rows = texts.iter().map(|t| t.ids.len()).sum::<usize>();
        s.x.resize(rows * hidden, 0.0);
        self.weights.words.gather(texts.iter().flat_map(|t| t.ids.iter().copied()), hidden, &mut s.x)?;
        if self.spec.embedding_scale != 1.0 {
            ops::scale(pool, &mut s.x, self.spec.embedding_scale);
        }
        let mut rest = &mut *s.x;
        for text in texts {
            let (own, after) = rest.split_at_mut(text.ids.len() * hidden);
            rest = after;
            if !self.weights.types.is_empty() {
                for (i, row) in own.chunks_exact_mut(hidden).enumerate() {
                    let kind = text.types.get(i).map_or(0, |t| *t as usize);
                    let from = &self.weights.types[kind * hidden..][..hidden];
                    row.iter_mut().zip(from).for_each(|(x, v)| *x += v);
                }
            }
            if let Some(learned) = self.spec.learned {
                let from = &self.weights.positions[learned.first * hidden..][..own.len()];
                own.iter_mut().zip(from).for_each(|(x, v)| *x += v);
            }
        }
        if let Some(norm) = &self.weights.embedding_norm {
            self.norm(pool, norm, &s.x, &mut s.normed);
            std::mem::swap(&mut s.x, &mut s.normed);
        }
        Ok(())
    }

    fn layer(&self, pool: &Pool, l: &Layer, w: &LayerWeights, starts: &[usize], s: &mut Scratch) {
        let after = self.spec.placement == Placement::After;
        let normed = match &w.attention_norm {
            Some(norm) if !after => {
                self.norm(pool, norm, &s.x, &mut s.normed);
                &s.normed
            }
            _ => &s.x,
        };
        linear(pool, &w.q, normed, Epilogue::None, &mut s.q);
        linear(pool, &w.k, normed, Epilogue::None, &mut s.k);
        linear(pool, &w.v, normed, Epilogue::None, &mut s.v);
        for (x, norm) in [(&mut s.q, &w.q_norm), (&mut s.k, &w.k_norm)] {
            if let Some(norm) = norm {
                ops::rms_norm_in_place(pool, x, l.head_dim, Some(norm), self.spec.norm.eps);
            }
            if let Some(rope) = l.rope {
                self.rotate(pool, rope, x, l.head_dim, starts);
            }
        }
        s.seen.resize(s.q.len(), 0.0);
        let ragged = Ragged {
            q: &s.q,
            k: &s.k,
            v: &s.v,
            starts,
            heads: l.heads,
            kv_heads: l.kv_heads,
            head_dim: l.head_dim,
            scale: l.scale,
            back: l.back,
            ahead: l.ahead,
            relative: self.weights.relative.as_ref(),
        };
        ragged::attend(pool, &ragged, &mut s.seen);
        self.join(pool, &w.out, &s.seen, w.post_attention_norm.as_ref(), &mut s.x, &mut s.q, &mut s.k);
        if let (true, Some(norm)) = (after, &w.attention_norm) {
            self.norm(pool, norm, &s.x, &mut s.normed);
            std::mem::swap(&mut s.x, &mut s.normed);
        }
        let normed = match after {
            false => {
                self.norm(pool, &w.mlp_norm, &s.x, &mut s.normed);
                &s.normed
            }
            true => &s.x,
        };
        mlp(pool, l, w, normed, &mut s.gate, &mut s.up);
        self.join(pool, &w.down, &s.up, w.post_mlp_norm.as_ref(), &mut s.x, &mut s.q, &mut s.k);
        if after {
            self.norm(pool, &w.mlp_norm, &s.x, &mut s.normed);
            std::mem::swap(&mut s.x, &mut s.normed);
        }
    }

    /// A projection back to the residual stream, normed on the way where the family does.
    #[allow(clippy::too_many_arguments)]
    fn join(
        &self,
        pool: &Pool,
        to: &Linear,
        from: &[f32],
        norm: Option<&NormWeights>,
        x: &mut [f32],
        y: &mut Vec<f32>,
        normed: &mut Vec<f32>,
    ) {
        match norm {
            None => to.weight.matmul_with(pool, from, to.bias.as_deref(), Epilogue::AddTo, x),
            Some(norm) => {
                linear(pool, to, from, Epilogue::None, y);
                self.norm(pool, norm, y, normed);
                ops::add(pool, x, normed);
            }
        }
    }

    fn norm(&self, pool: &Pool, w: &NormWeights, x: &[f32], out: &mut Vec<f32>) {
        out.resize(x.len(), 0.0);
        let (hidden, eps) = (self.spec.hidden, self.spec.norm.eps);
        match self.spec.norm.rms {
            true => ops::rms_norm(pool, x, hidden, Some(&w.weight), eps, out),
            false => ops::layer_norm(pool, x, hidden, &w.weight, &w.bias, eps, out),
        }
    }

    /// Rotates the heads of all rows by their positions. Past the trained positions a dynamic rotation
    /// depends on the length of the text.
    fn rotate(&self, pool: &Pool, rope: usize, x: &mut [f32], head_dim: usize, starts: &[usize]) {
        let spec = &self.spec.ropes[rope];
        let rows = starts.last().copied().unwrap_or(0);
        let trained = match spec.scaling {
            Scaling::Dynamic { original, .. } => original as usize,
            _ => usize::MAX,
        };
        if starts.windows(2).all(|s| s[1] - s[0] <= trained) {
            let positions: Vec<usize> = starts.windows(2).flat_map(|s| 0..s[1] - s[0]).collect();
            self.rotations[rope].apply(pool, x, head_dim, &positions);
            return;
        }
        let width = x.len() / rows;
        for s in starts.windows(2).filter(|s| s[1] > s[0]) {
            let len = s[1] - s[0];
            let positions: Vec<usize> = (0..len).collect();
            let own = &mut x[s[0] * width..s[1] * width];
            match len > trained {
                true => rotation(spec, len).apply(pool, own, head_dim, &positions),
                false => self.rotations[rope].apply(pool, own, head_dim, &positions),
            }
        }
    }
}

/// The rotation of a text of `len` tokens.
fn rotation(rope: &Rope, len: usize) -> Rotation {
    let grown = match rope.scaling {
        Scaling::Dynamic { factor, original } => {
            let (len, dims) = ((len as f64).max(original), rope.dims as f64);
            let by =
                if rope.dims > 2 { (factor * len / original - (factor - 1.0)).powf(dims / (dims - 2.0)) } else { 1.0 };
            &Rope::plain(rope.theta * by, rope.dims)
        }
        _ => rope,
    };
    let frequencies = grown.frequencies();
    Rotation::new(frequencies.inverse().to_vec(), frequencies.attention())
}

fn linear(pool: &Pool, w: &Linear, x: &[f32], epilogue: Epilogue, y: &mut Vec<f32>) {
    y.resize(x.len() / w.weight.in_dim() * w.weight.out_dim(), 0.0);
    w.weight.matmul_with(pool, x, w.bias.as_deref(), epilogue, y);
}

/// The inside of an MLP, before `down`, into `up`.
fn mlp(pool: &Pool, l: &Layer, w: &LayerWeights, x: &[f32], gate: &mut Vec<f32>, up: &mut Vec<f32>) {
    let exact = if l.activation == Activation::Gelu { Epilogue::Gelu } else { Epilogue::None };
    let Some(gate_weights) = &w.gate else {
        linear(pool, &w.up, x, exact, up);
        match l.activation {
            Activation::Gelu => {}
            Activation::GeluTanh => ops::gelu_tanh(pool, up),
            Activation::Silu => ops::silu(pool, up),
        }
        return;
    };
    linear(pool, gate_weights, x, exact, gate);
    linear(pool, &w.up, x, Epilogue::None, up);
    match l.activation {
        Activation::Gelu => ops::mul(pool, up, gate),
        Activation::GeluTanh => {
            ops::gelu_tanh_mul(pool, gate, up);
            std::mem::swap(gate, up);
        }
        Activation::Silu => {
            ops::silu_mul(pool, gate, up);
            std::mem::swap(gate, up);
        }
    }
}

/// A linear layer of a head.
pub(crate) fn project(pool: &Pool, w: &Linear, x: &[f32]) -> Vec<f32> {
    let mut y = Vec::new();
    linear(pool, w, x, Epilogue::None, &mut y);
    y
}
