//! Language models: one decoder skeleton for every family, chat templates, sampling, and the LLM
//! model actor with its nodes.
#![deny(unsafe_code)]

pub mod chat;
pub mod decoder;
pub mod families;
pub mod llm;
pub mod sample;
