//! Embedding models and rerankers: sentence-transformers folders around an encoder.

mod actor;
mod embedder;
mod m3;
mod modules;
mod node;
mod pooling;
mod reranker;

pub use actor::{EmbedderModel, EmbedderOptions, Precision, RerankerModel};
pub use embedder::{Prepared, ROWS, TextEmbedder};
pub use node::{TextEmbed, TextRerank};
pub use pooling::{Mode, Pooling};
pub use reranker::{Pair, TextReranker};
