//! Language models: one decoder skeleton for every family, chat templates, sampling, and the LLM
//! model actor with its nodes.
#![deny(unsafe_code)]

pub mod chat;
pub mod decoder;
pub mod embed;
pub mod encoder;
pub mod families;
pub mod grammar;
pub mod llm;
pub mod sample;
pub mod tools;

/// Adds the models and nodes of this crate.
pub fn register(registry: &mut oxiline_graph::Registry) {
    registry.model::<llm::LlmModel>();
    registry.node::<llm::LlmGenerate>();
    registry.node::<llm::LlmChat>();
    registry.model::<embed::EmbedderModel>();
    registry.model::<embed::RerankerModel>();
    registry.node::<embed::TextEmbed>();
    registry.node::<embed::TextRerank>();
}
