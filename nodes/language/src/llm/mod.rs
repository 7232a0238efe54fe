//! The LLM as a model actor: sessions, batches, prefix cache; and its nodes.

mod actor;
mod answer;
mod core;
mod node;
mod options;
mod prefix;
mod session;
#[cfg(test)]
pub(crate) mod tests;

pub use actor::{LlmModel, tokenizer};
pub use node::{LlmChat, LlmGenerate};
pub use options::{Evict, KvKind, KvOptions, LlmOptions, Size};
