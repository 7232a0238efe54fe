//! GGUF files: metadata, tensors in block formats.

mod metadata;
mod reader;
mod split;
mod write;

pub use metadata::{Metadata, Value};
pub(crate) use reader::{MAGIC, parse};
pub(crate) use split::{Parts, check, files};
pub(crate) use write::header;
