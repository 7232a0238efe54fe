//! GGUF files: metadata, tensors in block formats.

mod metadata;

pub use metadata::{Metadata, Value};
