//! Embeddings and rerankings without a graph: thin clients of the same model actors that graphs use.

use std::sync::Arc;

use oxiline_graph::plan::Class;
use oxiline_graph::protocol::embed::{
    EmbedAbout, EmbedOptions, EmbedReply, EmbedRequest, EmbedText, EmbedTexts, Embedded, Rerank, RerankRequest, Scored,
};
use oxiline_graph::{ActorHandle, Error, Result, Session};
use oxiline_language::embed::{EmbedderModel, EmbedderOptions, Precision, RerankerModel};

use crate::CancelHandle;

/// A loaded embedding model with one stream of its own.
///
/// ```no_run
/// let mut embedder = oxiline::Embedder::load("all-minilm-l6-v2")?;
/// let vectors = embedder.embed(&["a kettle", "a pot"], &Default::default())?;
/// println!("{:.4}", oxiline::cosine(&vectors[0].dense, &vectors[1].dense));
/// # Ok::<(), oxiline::Error>(())
/// ```
pub struct Embedder {
    handle: ActorHandle<EmbedText>,
    session: Session<EmbedText>,
    about: EmbedAbout,
    cancel: CancelHandle,
}

fn options(model: &str, precision: Option<Precision>) -> Result<EmbedderOptions> {
    let place = crate::models::resolve(model)?;
    Ok(EmbedderOptions { weights: place.to_string_lossy().into_owned(), precision })
}

fn owned<T: AsRef<str>>(texts: &[T]) -> Arc<[String]> {
    texts.iter().map(|t| t.as_ref().to_string()).collect()
}

impl Embedder {
    /// Loads a model: a sentence-transformers folder, a GGUF file, `org/name`, or a known name.
    ///
    /// # Errors
    /// The model can't be had, or is not an embedding model that is supported.
    pub fn load(model: &str) -> Result<Self> {
        Self::load_with(model, None)
    }

    /// The same, saying how the matrices are kept.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with(model: &str, precision: Option<Precision>) -> Result<Self> {
        Self::on(ActorHandle::load::<EmbedderModel>(options(model, precision)?, Class::Batch)?)
    }

    fn on(handle: ActorHandle<EmbedText>) -> Result<Self> {
        let mut session = handle.open(())?;
        let replies = session.ask(EmbedRequest::About)?;
        let about = replies.into_iter().find_map(|reply| match reply {
            EmbedReply::About(about) => Some(about),
            EmbedReply::Vectors(_) => None,
        });
        Ok(Self { handle, session, about: about.unwrap_or_default(), cancel: CancelHandle::default() })
    }

    /// One more stream on the same loaded weights, for another thread.
    ///
    /// # Errors
    /// The model has as many sessions as it may have.
    pub fn another(&self) -> Result<Self> {
        Self::on(self.handle.clone())
    }

    /// What the model is: dimensions, most tokens of a text, prompts.
    pub fn about(&self) -> &EmbedAbout {
        &self.about
    }

    /// What cancels from another thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// The vectors of texts, in their order. A text's result does not depend on the others.
    ///
    /// # Errors
    /// Options that the model can't do, a text without any token; [`Error::Cancelled`] after a cancel.
    pub fn embed<T: AsRef<str>>(&mut self, texts: &[T], options: &EmbedOptions) -> Result<Vec<Embedded>> {
        let mut out = Vec::with_capacity(texts.len());
        self.embed_each(owned(texts), options, |one| out.push(one))?;
        Ok(out)
    }

    /// The same, each result as soon as it is there.
    ///
    /// # Errors
    /// As [`Self::embed`].
    pub fn embed_each(
        &mut self,
        texts: Arc<[String]>,
        options: &EmbedOptions,
        mut each: impl FnMut(Embedded),
    ) -> Result<()> {
        let cancel = self.cancel.clone();
        let call = self.session.call(EmbedRequest::Texts(EmbedTexts { texts, options: options.clone() }))?;
        cancel.begin(&call);
        let mut outcome = Ok(());
        for reply in call {
            match reply {
                Ok(EmbedReply::Vectors(vectors)) => vectors.into_iter().for_each(&mut each),
                Ok(EmbedReply::About(_)) => {}
                Err(error) => outcome = Err(error),
            }
        }
        cancel.end();
        cancel.clear();
        outcome
    }
}

/// A loaded cross-encoder with one stream of its own.
pub struct Reranker {
    session: Session<Rerank>,
}

impl Reranker {
    /// Loads a model: a folder, `org/name`, or a known name.
    ///
    /// # Errors
    /// The model can't be had, or is not a cross-encoder that is supported.
    pub fn load(model: &str) -> Result<Self> {
        Self::load_with(model, None)
    }

    /// The same, saying how the matrices are kept.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with(model: &str, precision: Option<Precision>) -> Result<Self> {
        let handle = ActorHandle::load::<RerankerModel>(options(model, precision)?, Class::Batch)?;
        Ok(Self { session: handle.open(())? })
    }

    /// The scores of texts against a query, in the order of the texts: one each, or one a label.
    ///
    /// # Errors
    /// A text the tokenizer can't represent.
    pub fn score<T: AsRef<str>>(&mut self, query: &str, texts: &[T]) -> Result<Vec<Scored>> {
        let replies = self.session.ask(RerankRequest { query: query.into(), texts: owned(texts) })?;
        Ok(replies.into_iter().flatten().collect())
    }

    /// Places of texts with their first scores, the best first.
    ///
    /// # Errors
    /// As [`Self::score`].
    pub fn rank<T: AsRef<str>>(&mut self, query: &str, texts: &[T]) -> Result<Vec<(usize, f32)>> {
        let scored = self.score(query, texts)?;
        let first = |one: Scored| {
            one.scores.first().copied().ok_or_else(|| Error::msg("the reranker gave a text no score at all"))
        };
        let scores = scored.into_iter().map(first).collect::<Result<Vec<f32>>>()?;
        let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(ranked)
    }
}

/// The cosine of the angle between two vectors; 0 when one has no length.
///
/// # Panics
/// When they differ in length.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "vectors of one length");
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
}
