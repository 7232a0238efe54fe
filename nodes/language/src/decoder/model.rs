//! A loaded model and its forward pass over spans of many sequences.

use std::path::Path;

use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::{Epilogue, Pool};
use oxiline_weights::{Checkpoint, Mode};

use super::load::{DenseWeights, Linear, Loader, MlpWeights, Weights};
use super::local::{self, Heads, Query};
use super::names::Names;
use super::rope::Frequencies;
use super::spec::{Attention, Dense, Mixer, Mlp, Spec};
use super::state::State;
use super::{CausalLm, LoadOptions, Observer, Span, Want, experts};

/// Rows computed together at most: what bounds the scratch. Results don't depend on it.
const ROWS: usize = 512;
/// Rows of logits computed together at most when they must be copied.
const HEAD_ROWS: usize = 32;

/// A loaded language model.
pub struct Decoder {
    spec: Spec,
    weights: Weights,
    frequencies: Vec<Frequencies>,
    bytes: u64,
}

/// A piece of a span that is in a pass.
struct Piece {
    span: usize,
    from: usize,
    to: usize,
    /// Position of its first token.
    start: usize,
}

/// Cosines and sines of every row of a pass, by rope.
type Angles = Vec<(Vec<f32>, Vec<f32>)>;

impl Decoder {
    /// Loads the model at `path` (a folder or a file). `progress(done, total)` counts layers; an
    /// error from it, such as a cancel, ends the load.
    ///
    /// # Errors
    /// The files are not there, break their format, contradict themselves, or describe a model of
    /// an unknown family.
    pub fn load(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<Self> {
        let checkpoint = Checkpoint::open(path, Mode::Mmap).map_err(Error::msg)?;
        Self::from_checkpoint(&checkpoint, options, progress)
    }

    /// The same from an open checkpoint.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Self> {
        let (spec, names) = crate::families::describe(checkpoint)?;
        Self::from_spec(checkpoint, spec, &names, options, progress)
    }

    /// The same of a model described by the caller.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn from_spec(
        checkpoint: &Checkpoint,
        spec: Spec,
        names: &Names,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Self> {
        let mut loader = Loader { checkpoint, spec: &spec, names, options, bytes: 0 };
        let weights = loader.weights(progress)?;
        let bytes = loader.bytes;
        let frequencies = spec.ropes.iter().map(super::rope::Rope::frequencies).collect();
        Ok(Self { spec, weights, frequencies, bytes })
    }

    /// What the model is.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Like [`CausalLm::forward`], showing `observer` the residual stream on its way.
    ///
    /// # Errors
    /// As [`CausalLm::forward`].
    pub fn forward_observed(&self, batch: &mut [Span<'_, State>], observer: &mut dyn Observer) -> Result<()> {
        self.run(Pool::global(), batch, Some(observer))
    }

    /// Like [`CausalLm::forward`], on another pool of threads.
    ///
    /// # Errors
    /// As [`CausalLm::forward`].
    pub fn forward_on(&self, pool: &Pool, batch: &mut [Span<'_, State>]) -> Result<()> {
        self.run(pool, batch, None)
    }

    fn check(&self, batch: &[Span<'_, State>]) -> Result<()> {
        for span in batch {
            if let Some(id) = span.tokens.iter().find(|&&id| id as usize >= self.spec.vocab) {
                bail!("token {id} is outside the model's vocabulary of {}", self.spec.vocab);
            }
            let len = span.state.len + span.tokens.len();
            if len > self.spec.context {
                bail!("{len} positions are more than the model's context of {}", self.spec.context);
            }
        }
        Ok(())
    }

    fn run(&self, pool: &Pool, batch: &mut [Span<'_, State>], mut observer: Option<&mut dyn Observer>) -> Result<()> {
        self.check(batch)?;
        for span in batch.iter_mut() {
            span.logits.clear();
            span.hidden.clear();
        }
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rows = 0;
        for i in 0..batch.len() {
            let len = batch[i].tokens.len();
            let mut from = 0;
            while from < len {
                let to = len.min(from + ROWS - rows);
                pieces.push(Piece { span: i, from, to, start: batch[i].state.len + from });
                (rows, from) = (rows + to - from, to);
                if rows == ROWS {
                    self.pass(pool, batch, &pieces, &mut observer);
                    pieces.clear();
                    rows = 0;
                }
            }
        }
        if rows > 0 {
            self.pass(pool, batch, &pieces, &mut observer);
        }
        for span in batch {
            span.state.len += span.tokens.len();
        }
        Ok(())
    }

    /// One pass over the rows of `pieces`.
    fn pass(
        &self,
        pool: &Pool,
        batch: &mut [Span<'_, State>],
        pieces: &[Piece],
        observer: &mut Option<&mut dyn Observer>,
    ) {
        let hidden = self.spec.hidden;
        // (piece, position) of every row, and the rows whose results are wanted.
        let mut rows = Vec::new();
        let mut wanted = Vec::new();
        let mut x = Vec::new();
        for (p, piece) in pieces.iter().enumerate() {
            let span = &batch[piece.span];
            for t in piece.from..piece.to {
                let last = t + 1 == span.tokens.len();
                if span.want == Want::All || span.want == Want::Last && last {
                    wanted.push(rows.len());
                }
                rows.push((p, piece.start + t - piece.from));
                let at = x.len();
                x.resize(at + hidden, 0.0);
                self.weights.embedding.row(span.tokens[t] as usize, &mut x[at..]);
            }
        }
        if self.spec.embedding_scale != 1.0 {
            x.iter_mut().for_each(|v| *v *= self.spec.embedding_scale);
        }
        let mut angles = self.angles(&rows);
        if let Some(observer) = observer {
            observer.embeddings(&x);
        }
        for (i, (layer, weights)) in self.spec.layers.iter().zip(&self.weights.layers).enumerate() {
            let Mixer::Attention(attention) = &layer.mixer;
            let w = &weights.attention;
            let normed = self.normed(pool, &x, &weights.mixer_norm);
            let last = i + 1 == self.spec.layers.len();
            let q = if last && observer.is_none() && wanted.len() < rows.len() {
                // Nobody looks at the other rows any more: their keys and values are all that stays.
                let [k, v] = group(pool, [(&w.k, &normed), (&w.v, &normed)]);
                self.remember(pool, batch, pieces, i, k, &v, &angles);
                if wanted.is_empty() {
                    return;
                }
                x = gather(&x, hidden, &wanted);
                rows = wanted.iter().map(|&r| rows[r]).collect();
                angles = self.angles(&rows);
                let [q] = group(pool, [(&w.q, &gather(&normed, hidden, &wanted))]);
                wanted = (0..rows.len()).collect();
                q
            } else {
                let [q, k, v] = group(pool, [(&w.q, &normed), (&w.k, &normed), (&w.v, &normed)]);
                self.remember(pool, batch, pieces, i, k, &v, &angles);
                q
            };
            let seen = self.attend(pool, batch, pieces, &rows, i, attention, q, &angles);
            self.join(pool, &weights.attention.out, &seen, weights.post_mixer_norm.as_deref(), &mut x);
            let normed = self.normed(pool, &x, &weights.mlp_norm);
            match (&layer.mlp, &weights.mlp) {
                (Mlp::Dense(spec), MlpWeights::Dense(mlp)) => {
                    let inner = dense(pool, spec, mlp, &normed);
                    self.join(pool, &mlp.down, &inner, weights.post_mlp_norm.as_deref(), &mut x);
                }
                (Mlp::Experts(spec), MlpWeights::Experts(mlp)) => {
                    let mut mixed = vec![0.0; x.len()];
                    experts::run(pool, spec, mlp, &normed, hidden, &mut mixed);
                    if let Some(norm) = &weights.post_mlp_norm {
                        local::rms_norm(pool, &mut mixed, norm, self.spec.eps);
                    }
                    oxiline_kernels::ops::add(pool, &mut x, &mixed);
                }
                // The loader makes the weights from the same description.
                _ => {}
            }
            if let Some(observer) = observer {
                observer.layer(i, &x);
            }
        }
        let x = gather(&x, hidden, &wanted);
        let normed = self.normed(pool, &x, &self.weights.norm);
        let owners: Vec<usize> = wanted.iter().map(|&r| pieces[rows[r].0].span).collect();
        self.head(pool, batch, &owners, &normed);
    }

    fn angles(&self, rows: &[(usize, usize)]) -> Angles {
        let of = |f: &Frequencies| {
            let pairs = f.pairs();
            let (mut cos, mut sin) = (vec![0.0; rows.len() * pairs], vec![0.0; rows.len() * pairs]);
            for (r, (_, position)) in rows.iter().enumerate() {
                let at = r * pairs..(r + 1) * pairs;
                f.at(*position, &mut cos[at.clone()], &mut sin[at]);
            }
            (cos, sin)
        };
        self.frequencies.iter().map(of).collect()
    }

    fn normed(&self, pool: &Pool, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut normed = x.to_vec();
        local::rms_norm(pool, &mut normed, weight, self.spec.eps);
        normed
    }

    fn rotate(&self, pool: &Pool, a: &Attention, x: &mut [f32], width: usize, angles: &Angles) {
        if let Some((f, (cos, sin))) = a.rope.map(|r| (&self.frequencies[r], &angles[r])) {
            local::rotate(pool, x, width, a.head_dim, cos, sin, f.pairs());
        }
    }

    /// Keys and values of all rows go into the caches of their sequences.
    #[allow(clippy::too_many_arguments)]
    fn remember(
        &self,
        pool: &Pool,
        batch: &mut [Span<'_, State>],
        pieces: &[Piece],
        layer: usize,
        mut k: Vec<f32>,
        v: &[f32],
        angles: &Angles,
    ) {
        let Mixer::Attention(a) = &self.spec.layers[layer].mixer;
        let width = a.kv_width();
        if let Some(norm) = &self.weights.layers[layer].attention.k_norm {
            local::rms_norm(pool, &mut k, norm, self.spec.eps);
        }
        self.rotate(pool, a, &mut k, width, angles);
        let mut row = 0;
        for piece in pieces {
            let range = row * width..(row + piece.to - piece.from) * width;
            batch[piece.span].state.layers[layer].kv_mut().push(&k[range.clone()], &v[range]);
            row += piece.to - piece.from;
        }
    }

    /// What every row sees of its sequence, `[rows, heads * head_dim]`.
    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        pool: &Pool,
        batch: &[Span<'_, State>],
        pieces: &[Piece],
        rows: &[(usize, usize)],
        layer: usize,
        a: &Attention,
        mut q: Vec<f32>,
        angles: &Angles,
    ) -> Vec<f32> {
        if let Some(norm) = &self.weights.layers[layer].attention.q_norm {
            local::rms_norm(pool, &mut q, norm, self.spec.eps);
        }
        self.rotate(pool, a, &mut q, a.q_width(), angles);
        let query = |&(piece, position): &(usize, usize)| Query {
            cache: batch[pieces[piece].span].state.layers[layer].kv(),
            position,
        };
        let queries: Vec<Query<'_>> = rows.iter().map(query).collect();
        let how = Heads {
            heads: a.heads,
            kv_heads: a.kv_heads,
            dim: a.head_dim,
            window: a.window,
            scale: a.scale,
            softcap: a.softcap,
        };
        let mut seen = vec![0.0; q.len()];
        local::attend(pool, &q, &queries, how, &mut seen);
        seen
    }

    /// A projection back to the residual stream, normed on the way where the family does.
    fn join(&self, pool: &Pool, to: &Linear, from: &[f32], norm: Option<&[f32]>, x: &mut [f32]) {
        match norm {
            None => to.weight.matmul_with(pool, from, to.bias.as_deref(), Epilogue::AddTo, x),
            Some(norm) => {
                let [mut y] = group(pool, [(to, from)]);
                local::rms_norm(pool, &mut y, norm, self.spec.eps);
                oxiline_kernels::ops::add(pool, x, &y);
            }
        }
    }

    /// Logits (and hidden states) of normed rows, given to the spans that own them.
    fn head(&self, pool: &Pool, batch: &mut [Span<'_, State>], owners: &[usize], normed: &[f32]) {
        let (hidden, vocab) = (self.spec.hidden, self.spec.vocab);
        let head = self.weights.head.as_ref().unwrap_or(&self.weights.embedding);
        for (owner, row) in owners.iter().zip(normed.chunks_exact(hidden)) {
            if batch[*owner].keep_hidden {
                batch[*owner].hidden.extend_from_slice(row);
            }
        }
        let finish = |logits: &mut [f32]| {
            if let Some(cap) = self.spec.logit_softcap {
                local::softcap(pool, logits, cap);
            }
        };
        if owners.iter().all(|o| *o == owners[0]) {
            let Some(&owner) = owners.first() else { return };
            let logits = &mut batch[owner].logits;
            let at = logits.len();
            logits.resize(at + owners.len() * vocab, 0.0);
            head.matmul(pool, normed, None, &mut logits[at..]);
            finish(&mut logits[at..]);
            return;
        }
        for (owners, normed) in owners.chunks(HEAD_ROWS).zip(normed.chunks(HEAD_ROWS * hidden)) {
            let mut logits = vec![0.0; owners.len() * vocab];
            head.matmul(pool, normed, None, &mut logits);
            finish(&mut logits);
            for (owner, row) in owners.iter().zip(logits.chunks_exact(vocab)) {
                batch[*owner].logits.extend_from_slice(row);
            }
        }
    }
}

/// Linear layers computed together.
pub(super) fn group<const N: usize>(pool: &Pool, layers: [(&Linear, &[f32]); N]) -> [Vec<f32>; N] {
    layers.map(|(w, x)| {
        let mut y = vec![0.0; x.len() / w.weight.in_dim() * w.weight.out_dim()];
        w.weight.matmul(pool, x, w.bias.as_deref(), &mut y);
        y
    })
}

/// The inside of an MLP, before `down`.
fn dense(pool: &Pool, spec: &Dense, w: &DenseWeights, x: &[f32]) -> Vec<f32> {
    let Some(gate) = &w.gate else {
        let [mut up] = group(pool, [(&w.up, x)]);
        local::gate(pool, &mut up, None, spec.inner, spec.activation);
        return up;
    };
    let [mut gate, up] = group(pool, [(gate, x), (&w.up, x)]);
    local::gate(pool, &mut gate, Some(&up), spec.inner, spec.activation);
    gate
}

fn gather(x: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    rows.iter().flat_map(|&r| &x[r * width..(r + 1) * width]).copied().collect()
}

impl CausalLm for Decoder {
    type State = State;

    fn vocab(&self) -> usize {
        self.spec.vocab
    }

    fn context(&self) -> usize {
        self.spec.context
    }

    fn new_state(&self) -> State {
        State::new(&self.spec)
    }

    fn bytes_per_position(&self) -> usize {
        let of = |layer: &super::spec::Layer| {
            let Mixer::Attention(a) = &layer.mixer;
            2 * 4 * a.kv_width()
        };
        self.spec.layers.iter().map(of).sum()
    }

    fn forward(&self, batch: &mut [Span<'_, State>]) -> Result<()> {
        self.run(Pool::global(), batch, None)
    }

    fn memory(&self) -> u64 {
        let widest = |layer: &super::spec::Layer| {
            let Mixer::Attention(a) = &layer.mixer;
            let inner = match &layer.mlp {
                Mlp::Dense(d) => 2 * d.inner,
                Mlp::Experts(e) => e.chosen * (2 * e.inner + 2 * self.spec.hidden),
            };
            inner.max(2 * a.q_width() + 2 * a.kv_width())
        };
        let widest = self.spec.layers.iter().map(widest).max().unwrap_or(0);
        let scratch = 4 * (ROWS * (4 * self.spec.hidden + widest) + HEAD_ROWS * self.spec.vocab);
        self.bytes + scratch as u64
    }
}
