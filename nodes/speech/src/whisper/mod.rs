//! Whisper: features, encoder, decoder.
//!
//! [`config`] is what a checkpoint says about itself, [`features`] turns samples into log-mel
//! frames, [`model`] is the mathematics. Everything here is plain synchronous code without graph
//! types, testable alone.

pub mod config;
pub mod decoder;
pub mod encoder;
pub mod features;
pub mod load;
pub mod model;

pub use config::{Config, Language, SpecialIds};
pub use decoder::{CrossAttention, Feed, Rows, Stream};
pub use encoder::Encoding;
pub use features::{Features, Mel};
pub use model::{LoadOptions, Precision, Quant, Whisper};
