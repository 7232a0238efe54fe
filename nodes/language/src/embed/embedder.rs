//! Texts to vectors: tokens, the encoder, and the modules after it.

use std::path::Path;
use std::sync::Arc;

use oxiline_graph::protocol::embed::{EmbedAbout, EmbedOptions, Embedded};
use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::Pool;
use oxiline_weights::{Checkpoint, Mode as Open, Tokenizer};

use super::m3::M3;
use super::modules::Modules;
use super::pooling::{Mode, normalise};
use crate::encoder::{Encoder, LoadOptions, Tokens, describe};

/// Rows computed together at most: what bounds the scratch. Results don't depend on it.
pub const ROWS: usize = 384;

/// A loaded embedding model.
pub struct TextEmbedder {
    encoder: Encoder,
    tokenizer: Tokenizer,
    modules: Modules,
    m3: Option<M3>,
    most: usize,
}

/// A text ready for the encoder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Its pieces; one unless it is long and pieces were asked for.
    pub pieces: Vec<Tokens>,
    /// Tokens of the prompt, the special ones before it included.
    pub prompt: usize,
    /// Tokens that were cut off.
    pub cut: usize,
}

impl Prepared {
    /// Tokens of all pieces.
    pub fn tokens(&self) -> usize {
        self.pieces.iter().map(|p| p.ids.len()).sum()
    }
}

impl TextEmbedder {
    /// Loads a sentence-transformers folder or a GGUF file.
    ///
    /// # Errors
    /// Files are missing, break their format, contradict one another or name what is not supported.
    pub fn load(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<Self> {
        let checkpoint = Arc::new(Checkpoint::open(path, Open::Mmap).map_err(Error::msg)?);
        let (spec, names) = describe(path, &checkpoint)?;
        let tokenizer = crate::llm::tokenizer(&checkpoint)?;
        fits(&tokenizer, spec.vocab, &checkpoint)?;
        let folder = checkpoint.folder();
        let modules = match checkpoint.gguf() {
            None => Modules::load(folder, spec.hidden)?,
            Some(meta) => {
                let arch = meta.str("general.architecture").unwrap_or_default();
                let mode = match meta.u64(&format!("{arch}.pooling_type")) {
                    Some(1) => Mode::Mean,
                    Some(2) => Mode::Cls,
                    Some(3) => Mode::Last,
                    other => bail!(
                        "{}: metadata key `{arch}.pooling_type` is {}, where 1 (mean), 2 (CLS) or 3 (last token) is \
                         expected; is this an embedding model?",
                        path.display(),
                        other.map_or("missing".into(), |value| value.to_string())
                    ),
                };
                Modules::plain(mode, spec.hidden)
            }
        };
        let m3 = M3::load(folder, spec.hidden, &tokenizer)?;
        let most = modules.most.map_or(spec.context, |most| most.min(spec.context));
        let encoder = Encoder::load(&checkpoint, spec, &names, options, progress)?;
        Ok(Self { encoder, tokenizer, modules, m3, most })
    }

    /// The encoder alone.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// What the model is.
    pub fn about(&self) -> EmbedAbout {
        EmbedAbout {
            family: self.encoder.spec().family.into(),
            dim: self.modules.dim,
            max_tokens: self.most,
            prompts: self.modules.prompts.clone(),
            multi: self.m3.is_some(),
        }
    }

    /// Are the options ones this model can do?
    ///
    /// # Errors
    /// An unknown prompt, too many dimensions, results that the model does not give.
    pub fn check(&self, options: &EmbedOptions) -> Result<()> {
        self.prompt(options)?;
        if let Some(dim) = options.dim.filter(|dim| !(1..=self.modules.dim).contains(dim)) {
            bail!("{dim} dimensions were asked for; this model's vectors have {}", self.modules.dim);
        }
        if (options.sparse || options.colbert) && self.m3.is_none() {
            bail!(
                "this model gives no weights or vectors of tokens: sparse_linear.pt and colbert_linear.pt are not there"
            );
        }
        Ok(())
    }

    /// The prompt put before texts.
    fn prompt(&self, options: &EmbedOptions) -> Result<&str> {
        let name = match &options.prompt_name {
            Some(name) if name.is_empty() => return Ok(""),
            Some(name) => name,
            None => match &self.modules.default_prompt {
                Some(name) => name,
                None => return Ok(""),
            },
        };
        match self.modules.prompts.iter().find(|(known, _)| known == name) {
            Some((_, text)) => Ok(text),
            None => {
                let known: Vec<&str> = self.modules.prompts.iter().map(|(name, _)| name.as_str()).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                bail!("there is no prompt `{}`; this model's prompts: {known}", name.escape_debug())
            }
        }
    }

    /// A text as tokens, with the prompt before it.
    ///
    /// # Errors
    /// An unknown prompt, or a text the tokenizer can't represent.
    pub fn prepare(&self, text: &str, options: &EmbedOptions) -> Result<Prepared> {
        let prompt = self.prompt(options)?;
        let joined;
        let mut text = text;
        if !prompt.is_empty() {
            joined = format!("{prompt}{text}");
            text = &joined;
        }
        let lower;
        if self.modules.lower {
            lower = text.to_lowercase();
            text = &lower;
        }
        text = ended(self.encoder.spec().family, text);
        let skipped = match self.modules.pooling.include_prompt || prompt.is_empty() {
            true => 0,
            // Its closing special token stands after the text.
            false => self.tokenizer.encode_within(prompt, self.most).map_err(Error::msg)?.ids.len().saturating_sub(1),
        };
        let pieces = match options.chunk {
            true => self.tokenizer.encode_pieces(text, self.most),
            false => self.tokenizer.encode_within(text, self.most).map(|one| vec![one]),
        }
        .map_err(Error::msg)?;
        pieces.iter().try_for_each(|piece| known(&piece.ids, self.encoder.spec().vocab))?;
        let cut = pieces.iter().map(|p| p.cut).sum();
        let pieces = pieces.into_iter().map(|p| Tokens { ids: p.ids, types: p.types }).collect();
        Ok(Prepared { pieces, prompt: skipped, cut })
    }

    /// The results of prepared texts, computed as one batch. A text's result does not depend on the others.
    ///
    /// # Errors
    /// Tokens outside the model's vocabulary, or a text without any token.
    pub fn run(&self, pool: &Pool, texts: &[&Prepared], options: &EmbedOptions) -> Result<Vec<Embedded>> {
        let pieces: Vec<&Tokens> = texts.iter().flat_map(|t| &t.pieces).collect();
        if pieces.iter().any(|p| p.ids.is_empty()) {
            bail!("an empty text has no token with this model's tokenizer: it has no vector");
        }
        let hidden = self.encoder.forward(pool, &pieces)?;
        let width = self.encoder.spec().hidden;
        let (mut rest, mut pooled) = (&hidden[..], Vec::new());
        let mut out: Vec<Embedded> = Vec::with_capacity(texts.len());
        for text in texts {
            let mut one = Embedded { tokens: text.tokens(), cut: text.cut, ..Embedded::default() };
            for (i, piece) in text.pieces.iter().enumerate() {
                let (own, after) = rest.split_at(piece.ids.len() * width);
                rest = after;
                pooled.extend(self.modules.pooling.pool(own, width, if i == 0 { text.prompt } else { 0 }));
                let Some(m3) = &self.m3 else { continue };
                if options.sparse {
                    one.sparse.extend(m3.sparse(pool, &piece.ids, own));
                }
                if options.colbert {
                    one.colbert.extend(m3.colbert(pool, own, width));
                }
            }
            if text.pieces.len() > 1 {
                one.sparse.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
                one.sparse.dedup_by_key(|(id, _)| *id);
            }
            out.push(one);
        }
        let vectors = self.modules.run(pool, pooled);
        let mut vectors = vectors.chunks_exact(self.modules.dim);
        for (text, one) in texts.iter().zip(&mut out) {
            one.dense = self.joined(text, vectors.by_ref().take(text.pieces.len()), options.dim);
        }
        Ok(out)
    }

    /// The mean of the pieces' vectors by their tokens, cut to `dim`.
    fn joined<'a>(&self, text: &Prepared, vectors: impl Iterator<Item = &'a [f32]>, dim: Option<usize>) -> Vec<f32> {
        let (all, dim) = (text.tokens() as f32, dim.unwrap_or(self.modules.dim));
        let mut sum = vec![0.0; dim];
        for (piece, vector) in text.pieces.iter().zip(vectors) {
            if text.pieces.len() == 1 {
                sum.copy_from_slice(&vector[..dim]);
                break;
            }
            let share = piece.ids.len() as f32 / all;
            sum.iter_mut().zip(vector).for_each(|(s, v)| *s += share * v);
        }
        if self.modules.normalised() && (dim < self.modules.dim || text.pieces.len() > 1) {
            normalise(&mut sum);
        }
        sum
    }
}

/// SentencePiece drops white space at a text's end; the files of XLM-RoBERTa's tokenizers don't say so.
pub(super) fn ended<'a>(family: &str, text: &'a str) -> &'a str {
    if family == "xlm-roberta" { text.trim_end() } else { text }
}

/// Tokens that a text names, such as `<image_soft_token>`, may be none of this model's.
pub(super) fn known(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => bail!("the text has the special token {id}, but the model's table has {vocab} rows"),
        None => Ok(()),
    }
}

/// Do tokenizer and weights belong together?
pub(super) fn fits(tokenizer: &Tokenizer, vocab: usize, checkpoint: &Checkpoint) -> Result<()> {
    let largest = tokenizer.max_id() as usize;
    if largest >= vocab {
        bail!(
            "{}: the tokenizer has ids up to {largest}, but the model's table has {vocab} rows; they do not belong together",
            checkpoint.folder().display()
        );
    }
    Ok(())
}
