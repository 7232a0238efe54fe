//! Cross-encoders: a query and a text read together, one score or one a label.

use std::path::Path;
use std::sync::Arc;

use oxiline_graph::protocol::embed::Scored;
use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::{Pool, ops};
use oxiline_weights::{Checkpoint, Mode as Open, Tokenizer};

use super::embedder::{ended, fits, known};
use super::pooling::{Mode, Pooling};
use crate::encoder::{Encoder, Linear, LoadOptions, Tokens, describe, head, project};
use crate::families::keys::{Json, Keys};

/// What is between the encoder and the labels.
enum Inner {
    /// A dense layer and tanh on the first token (BERT's pooler, RoBERTa's head).
    Tanh(Linear),
    /// A dense layer, GELU and a norm on the pooled tokens (ModernBERT).
    Norm(Linear, Vec<f32>, f32, Pooling),
    /// Nothing.
    None,
}

/// A loaded cross-encoder.
pub struct TextReranker {
    encoder: Encoder,
    tokenizer: Tokenizer,
    inner: Inner,
    labels: Linear,
    sigmoid: bool,
    most: usize,
}

/// A pair ready for the encoder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pair {
    /// Query and text.
    pub tokens: Tokens,
    /// Tokens that were cut off.
    pub cut: usize,
}

impl TextReranker {
    /// Loads the folder of a model for the classification of sequences.
    ///
    /// # Errors
    /// Files are missing, break their format, contradict one another or name what is not supported.
    pub fn load(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<Self> {
        let checkpoint = Arc::new(Checkpoint::open(path, Open::Mmap).map_err(Error::msg)?);
        let (spec, names) = describe(path, &checkpoint)?;
        let folder = checkpoint.folder();
        let config = Json::new(folder.join("config.json"), checkpoint.config("config.json").map_err(Error::msg)?)?;
        let tokenizer = crate::llm::tokenizer(&checkpoint)?;
        fits(&tokenizer, spec.vocab, &checkpoint)?;
        let has = |name: &str| checkpoint.contains(name);
        let (inner, label) = if has("classifier.out_proj.weight") {
            (Inner::Tanh(head(&checkpoint, "classifier.dense", spec.hidden)?), "classifier.out_proj")
        } else if has("head.dense.weight") && has("classifier.weight") {
            let mode = match config.text("classifier_pooling")?.as_deref() {
                Some("mean") => Mode::Mean,
                _ => Mode::Cls,
            };
            let weight = checkpoint.f32_shaped("head.norm.weight", &[spec.hidden]).map_err(Error::msg)?;
            let dense = head(&checkpoint, "head.dense", spec.hidden)?;
            (Inner::Norm(dense, weight, spec.norm.eps, Pooling::new(mode)), "classifier")
        } else if has("classifier.weight") {
            let pooler = ["bert.pooler.dense", "pooler.dense"].into_iter().find(|n| has(&format!("{n}.weight")));
            let inner = pooler.map(|name| head(&checkpoint, name, spec.hidden)).transpose()?;
            (inner.map_or(Inner::None, Inner::Tanh), "classifier")
        } else {
            bail!(
                "{}: there is no `classifier.weight`: this is not a reranker (a cross-encoder); to embed texts use \
                 `oxiline embed`",
                folder.display()
            );
        };
        let labels = head(&checkpoint, label, spec.hidden)?;
        let most = length(folder)?.map_or(spec.context, |most| most.min(spec.context));
        let sigmoid = labels.weight.out_dim() == 1 && !identity(&config)?;
        let encoder = Encoder::load(&checkpoint, spec, &names, options, progress)?;
        Ok(Self { encoder, tokenizer, inner, labels, sigmoid, most })
    }

    /// Bytes of weights.
    pub fn bytes(&self) -> u64 {
        self.encoder.bytes()
    }

    /// A query and a text as tokens.
    ///
    /// # Errors
    /// A text the tokenizer can't represent.
    pub fn prepare(&self, query: &str, text: &str) -> Result<Pair> {
        let ended = |text| ended(self.encoder.spec().family, text);
        let pair = self.tokenizer.encode_pair(ended(query), ended(text), self.most).map_err(Error::msg)?;
        known(&pair.ids, self.encoder.spec().vocab)?;
        Ok(Pair { tokens: Tokens { ids: pair.ids, types: pair.types }, cut: pair.cut })
    }

    /// The labels' values `[pairs, labels]`, before any function.
    ///
    /// # Errors
    /// Tokens outside the model's vocabulary.
    pub fn logits(&self, pool: &Pool, pairs: &[&Pair]) -> Result<Vec<f32>> {
        let texts: Vec<&Tokens> = pairs.iter().map(|p| &p.tokens).collect();
        let hidden = self.encoder.forward(pool, &texts)?;
        let width = self.encoder.spec().hidden;
        let cls = Pooling::new(Mode::Cls);
        let pooling = if let Inner::Norm(.., pooling) = &self.inner { pooling } else { &cls };
        let (mut rest, mut pooled) = (&hidden[..], Vec::new());
        for text in texts {
            let (own, after) = rest.split_at(text.ids.len() * width);
            rest = after;
            pooled.extend(pooling.pool(own, width, 0));
        }
        let features = match &self.inner {
            Inner::None => pooled,
            Inner::Tanh(dense) => {
                let mut x = project(pool, dense, &pooled);
                x.iter_mut().for_each(|v| *v = v.tanh());
                x
            }
            Inner::Norm(dense, weight, eps, _) => {
                let mut x = project(pool, dense, &pooled);
                ops::gelu(pool, &mut x);
                let mut normed = vec![0.0; x.len()];
                ops::layer_norm(pool, &x, weight.len(), weight, &vec![0.0; weight.len()], *eps, &mut normed);
                normed
            }
        };
        Ok(project(pool, &self.labels, &features))
    }

    /// The scores of pairs, computed as one batch. A pair's result does not depend on the others.
    ///
    /// # Errors
    /// As [`Self::logits`].
    pub fn run(&self, pool: &Pool, pairs: &[&Pair]) -> Result<Vec<Scored>> {
        let mut logits = self.logits(pool, pairs)?;
        if self.sigmoid {
            logits.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp()));
        }
        let scores = logits.chunks_exact(self.labels.weight.out_dim());
        let one = |(scores, pair): (&[f32], &&Pair)| Scored {
            scores: scores.to_vec(),
            tokens: pair.tokens.ids.len(),
            cut: pair.cut,
        };
        Ok(scores.zip(pairs).map(one).collect())
    }
}

/// Most tokens of a pair, when the tokenizer's files say so.
fn length(folder: &Path) -> Result<Option<usize>> {
    let path = folder.join("tokenizer_config.json");
    let Ok(bytes) = std::fs::read(&path) else { return Ok(None) };
    let value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::msg(format_args!("{}: not JSON: {e}; download it again", path.display())))?;
    let most = Json::new(path, value)?.number("model_max_length")?;
    Ok(most.filter(|n| (8.0..1e9).contains(n)).map(|n| n as usize))
}

/// Does the configuration say that a single score is left as it is?
fn identity(config: &Json) -> Result<bool> {
    let newer = config.object("sentence_transformers")?.map(|own| own.text("activation_fn")).transpose()?.flatten();
    let older = config.text("sbert_ce_default_activation_function")?;
    Ok(newer.or(older).is_some_and(|name| name.ends_with("Identity")))
}
