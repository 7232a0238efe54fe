//! Protocols of embedding models and rerankers.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Protocol;

/// Texts to vectors.
pub struct EmbedText;

impl Protocol for EmbedText {
    const NAME: &'static str = "embed-text";
    type Open = ();
    type Request = EmbedRequest;
    type Reply = EmbedReply;
}

/// A request.
#[derive(Debug, Clone)]
pub enum EmbedRequest {
    /// Embed texts; the replies together have one result a text, in order.
    Texts(EmbedTexts),
    /// Answered by [`EmbedReply::About`].
    About,
}

/// Texts with what is wanted of them.
#[derive(Debug, Clone, Default)]
pub struct EmbedTexts {
    /// The texts.
    pub texts: Arc<[String]>,
    /// How.
    pub options: EmbedOptions,
}

/// How to embed: the options of the CLI, the node and the library, one set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EmbedOptions {
    /// Name of the prompt put before every text; the model's default when left out, "" for none.
    pub prompt_name: Option<String>,
    /// So many first dimensions only, normalised again where the model normalises.
    pub dim: Option<usize>,
    /// Weights of tokens too (BGE-M3).
    pub sparse: bool,
    /// A vector a token too (BGE-M3).
    pub colbert: bool,
    /// A text too long for the model is embedded in pieces, whose mean is the result; else it is cut.
    pub chunk: bool,
}

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub enum EmbedReply {
    /// Results of the next texts.
    Vectors(Vec<Embedded>),
    /// What the model is.
    About(EmbedAbout),
}

/// What an embedding model is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EmbedAbout {
    /// Family.
    pub family: String,
    /// Dimensions of a vector.
    pub dim: usize,
    /// Most tokens of a text.
    pub max_tokens: usize,
    /// Prompts by name.
    pub prompts: Vec<(String, String)>,
    /// It gives weights and vectors of tokens too.
    pub multi: bool,
}

/// The result of one text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embedded {
    /// The vector.
    pub dense: Vec<f32>,
    /// Token ids, rising, with their weights; when asked for.
    pub sparse: Vec<(u32, f32)>,
    /// A vector a token; when asked for.
    pub colbert: Vec<Vec<f32>>,
    /// Tokens that were computed.
    pub tokens: usize,
    /// Tokens that were cut off.
    pub cut: usize,
}

/// Scores of texts against a query.
pub struct Rerank;

impl Protocol for Rerank {
    const NAME: &'static str = "rerank";
    type Open = ();
    type Request = RerankRequest;
    type Reply = Vec<Scored>;
}

/// A request. The replies together have one result a text, in order.
#[derive(Debug, Clone, Default)]
pub struct RerankRequest {
    /// The query.
    pub query: String,
    /// The texts.
    pub texts: Arc<[String]>,
}

/// The result of one text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scored {
    /// One score, or one a label.
    pub scores: Vec<f32>,
    /// Tokens that were computed.
    pub tokens: usize,
    /// Tokens that were cut off.
    pub cut: usize,
}
