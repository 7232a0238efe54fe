//! A loaded model and its forward pass over spans of many sequences.

use std::path::Path;

use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::causal::{self, Attend};
use oxiline_kernels::{Epilogue, KvFormat, Matrix, Pool, Product, ops};
use oxiline_weights::{Checkpoint, Mode};

use super::load::{DenseWeights, Linear, Loader, MlpWeights, Weights};
use super::local::{self, Rotation};
use super::names::Names;
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
    rotations: Vec<Rotation>,
    kv: KvFormat,
    bytes: u64,
}

/// Rows of a pass that continue one sequence.
#[derive(Clone, Copy)]
struct Run {
    span: usize,
    /// The first of its tokens, and how many.
    from: usize,
    count: usize,
    /// Position of the first.
    start: usize,
}

impl Run {
    fn positions(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.count
    }
}

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
        if spec.bidirectional {
            bail!(
                "{}: this model sees in both directions: it is an embedding model, not one that generates",
                checkpoint.folder().display()
            );
        }
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
        let rotations = spec.ropes.iter().map(Rotation::new).collect();
        let kv = options.kv.unwrap_or(if options.exact { KvFormat::F32 } else { KvFormat::F16 });
        Ok(Self { spec, weights, rotations, kv, bytes })
    }

    /// What the model is.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Bytes of the weights as they are kept.
    pub fn weight_bytes(&self) -> u64 {
        self.bytes
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
        let mut runs: Vec<Run> = Vec::new();
        let mut rows = 0;
        for i in 0..batch.len() {
            let (len, start) = (batch[i].tokens.len(), batch[i].state.len);
            let mut from = 0;
            while from < len {
                let count = (len - from).min(ROWS - rows);
                runs.push(Run { span: i, from, count, start: start + from });
                (rows, from) = (rows + count, from + count);
                if rows == ROWS {
                    self.pass(pool, batch, &runs, &mut observer);
                    runs.clear();
                    rows = 0;
                }
            }
        }
        if rows > 0 {
            self.pass(pool, batch, &runs, &mut observer);
        }
        for span in batch {
            span.state.len += span.tokens.len();
        }
        Ok(())
    }

    /// One pass over the rows of `runs`.
    fn pass(&self, pool: &Pool, batch: &mut [Span<'_, State>], runs: &[Run], observer: &mut Option<&mut dyn Observer>) {
        let hidden = self.spec.hidden;
        // The rows whose results are wanted: of every run all, the last one, or none.
        let mut wanted: Vec<Run> = Vec::new();
        let mut wanted_rows = Vec::new();
        let mut x = Vec::new();
        for run in runs {
            let span = &batch[run.span];
            let first = x.len() / hidden;
            for token in &span.tokens[run.from..run.from + run.count] {
                let at = x.len();
                x.resize(at + hidden, 0.0);
                self.weights.embedding.row(*token as usize, &mut x[at..]);
            }
            let last = run.from + run.count == span.tokens.len();
            let skipped = match span.want {
                Want::All => 0,
                Want::Last if last => run.count - 1,
                Want::Last | Want::Nothing => continue,
            };
            wanted.push(Run { count: run.count - skipped, start: run.start + skipped, ..*run });
            wanted_rows.extend(first + skipped..first + run.count);
        }
        if self.spec.embedding_scale != 1.0 {
            x.iter_mut().for_each(|v| *v *= self.spec.embedding_scale);
        }
        let mut positions: Vec<usize> = runs.iter().flat_map(Run::positions).collect();
        if let Some(observer) = observer {
            observer.embeddings(&x);
        }
        let mut asking = runs;
        for (i, (layer, weights)) in self.spec.layers.iter().zip(&self.weights.layers).enumerate() {
            let w = &weights.attention;
            let normed = self.normed(pool, &x, &weights.mixer_norm);
            let last = i + 1 == self.spec.layers.len();
            let q = if last && observer.is_none() && wanted_rows.len() < positions.len() {
                // Nobody looks at the other rows any more: their keys and values are all that stays.
                let [k, v] = group(pool, [(&w.k, &normed), (&w.v, &normed)]);
                self.remember(pool, batch, runs, i, k, &v, &positions);
                if wanted.is_empty() {
                    return;
                }
                x = gather(&x, hidden, &wanted_rows);
                let [q] = group(pool, [(&w.q, &gather(&normed, hidden, &wanted_rows))]);
                asking = &wanted;
                positions = wanted.iter().flat_map(Run::positions).collect();
                wanted_rows = (0..positions.len()).collect();
                q
            } else {
                let [q, k, v] = group(pool, [(&w.q, &normed), (&w.k, &normed), (&w.v, &normed)]);
                self.remember(pool, batch, runs, i, k, &v, &positions);
                q
            };
            let seen = self.attend(pool, batch, asking, i, q, &positions);
            self.join(pool, &w.out, &seen, weights.post_mixer_norm.as_deref(), &mut x);
            let normed = self.normed(pool, &x, &weights.mlp_norm);
            match (&layer.mlp, &weights.mlp) {
                (Mlp::Dense(spec), MlpWeights::Dense(mlp)) => {
                    let inner = dense(pool, spec, mlp, &normed);
                    self.join(pool, &mlp.down, &inner, weights.post_mlp_norm.as_deref(), &mut x);
                }
                (Mlp::Experts(spec), MlpWeights::Experts(mlp)) => {
                    let mut mixed = vec![0.0; x.len()];
                    experts::run(pool, spec, mlp, &normed, hidden, &mut mixed);
                    self.add(pool, &mut mixed, weights.post_mlp_norm.as_deref(), &mut x);
                }
                // The loader makes the weights from the same description.
                _ => {}
            }
            if let Some(observer) = observer {
                observer.layer(i, &x);
            }
        }
        let x = gather(&x, hidden, &wanted_rows);
        let normed = self.normed(pool, &x, &self.weights.norm);
        let owners: Vec<usize> = wanted.iter().flat_map(|run| std::iter::repeat_n(run.span, run.count)).collect();
        self.head(pool, batch, &owners, &normed);
    }

    fn normed(&self, pool: &Pool, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut normed = vec![0.0; x.len()];
        ops::rms_norm(pool, x, weight.len(), Some(weight), self.spec.eps, &mut normed);
        normed
    }

    fn norm(&self, pool: &Pool, x: &mut [f32], weight: Option<&[f32]>) {
        if let Some(weight) = weight {
            ops::rms_norm_in_place(pool, x, weight.len(), Some(weight), self.spec.eps);
        }
    }

    /// Keys and values of all rows go into the caches of their sequences.
    #[allow(clippy::too_many_arguments)]
    fn remember(
        &self,
        pool: &Pool,
        batch: &mut [Span<'_, State>],
        runs: &[Run],
        layer: usize,
        mut k: Vec<f32>,
        v: &[f32],
        positions: &[usize],
    ) {
        let Mixer::Attention(a) = &self.spec.layers[layer].mixer;
        self.norm(pool, &mut k, self.weights.layers[layer].attention.k_norm.as_deref());
        self.rotate(pool, a, &mut k, positions);
        let mut at = 0;
        for run in runs {
            let range = at..at + run.count * a.kv_width();
            at = range.end;
            batch[run.span].state.layers[layer].kv_mut().push(pool, &k[range.clone()], &v[range]);
        }
    }

    /// What every row sees of its sequence, `[rows, heads * head_dim]`.
    fn attend(
        &self,
        pool: &Pool,
        batch: &[Span<'_, State>],
        runs: &[Run],
        layer: usize,
        mut q: Vec<f32>,
        positions: &[usize],
    ) -> Vec<f32> {
        let Mixer::Attention(a) = &self.spec.layers[layer].mixer;
        self.norm(pool, &mut q, self.weights.layers[layer].attention.q_norm.as_deref());
        self.rotate(pool, a, &mut q, positions);
        let mut seen = vec![0.0; q.len()];
        let (mut q, mut out) = (&*q, &mut *seen);
        let mut spans = Vec::with_capacity(runs.len());
        for run in runs {
            let (own, rest) = q.split_at(run.count * a.q_width());
            let (own_out, rest_out) = out.split_at_mut(own.len());
            (q, out) = (rest, rest_out);
            let kv = batch[run.span].state.layers[layer].kv();
            let (scale, softcap) = (a.scale, a.softcap);
            spans.push(Attend { scale, softcap, ..Attend::new(own, kv, run.start, a.heads, own_out) });
        }
        causal::attend(pool, &mut spans);
        seen
    }

    fn rotate(&self, pool: &Pool, a: &Attention, x: &mut [f32], positions: &[usize]) {
        if let Some(rope) = a.rope {
            self.rotations[rope].apply(pool, x, a.head_dim, positions);
        }
    }

    /// A projection back to the residual stream, normed on the way where the family does.
    fn join(&self, pool: &Pool, to: &Linear, from: &[f32], norm: Option<&[f32]>, x: &mut [f32]) {
        match norm {
            None => to.weight.matmul_with(pool, from, to.bias.as_deref(), Epilogue::AddTo, x),
            Some(norm) => {
                let [mut y] = group(pool, [(to, from)]);
                self.add(pool, &mut y, Some(norm), x);
            }
        }
    }

    /// A part's result joins the residual stream.
    fn add(&self, pool: &Pool, y: &mut [f32], norm: Option<&[f32]>, x: &mut [f32]) {
        self.norm(pool, y, norm);
        ops::add(pool, x, y);
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
                ops::softcap(pool, logits, cap);
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
    let mut results = layers.map(|(w, x)| vec![0.0; x.len() / w.weight.in_dim() * w.weight.out_dim()]);
    let mut products = Vec::with_capacity(N);
    for ((w, x), y) in layers.iter().zip(&mut results) {
        products.push(Product { bias: w.bias.as_deref(), ..Product::new(&w.weight, x, y) });
    }
    Matrix::matmul_group(pool, &mut products);
    results
}

/// The inside of an MLP, before `down`.
fn dense(pool: &Pool, spec: &Dense, w: &DenseWeights, x: &[f32]) -> Vec<f32> {
    let Some(gate) = &w.gate else {
        let [mut up] = group(pool, [(&w.up, x)]);
        local::gate(pool, &mut up, None, spec.activation);
        return up;
    };
    let [mut gate, up] = group(pool, [(gate, x), (&w.up, x)]);
    local::gate(pool, &mut gate, Some(&up), spec.activation);
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
        State::new(&self.spec, self.kv)
    }

    fn bytes_per_position(&self) -> usize {
        self.new_state().layers.iter().map(|cache| cache.kv().bytes_per_position()).sum()
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
