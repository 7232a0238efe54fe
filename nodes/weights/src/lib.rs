//! Checkpoints: safetensors, GGUF and torch archives, tokenizers, the hub.
//!
//! Nothing in a model file is trusted: every length, offset and count is checked before it is
//! used, nothing is executed, and every failure is an [`Error`] whose message is one sentence.
#![deny(unsafe_code)]

mod blob;
mod checkpoint;
pub mod convert;
mod dtype;
mod error;
pub mod gguf;
pub mod hub;
mod matrix;
mod parts;
mod safetensors;
mod sniff;
mod tokenizer;
mod torch;

pub use blob::Mode;
pub use checkpoint::{Checkpoint, Keep, MatrixRequest, TensorInfo};
pub use dtype::Dtype;
pub use error::{Error, ErrorKind, Result};
pub use tokenizer::{DecodeStream, Encoded, Special, Tokenizer};
