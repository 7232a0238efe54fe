//! Whisper: features, encoder, decoder.
//!
//! [`config`] is what a checkpoint says about itself, [`features`] turns samples into log-mel
//! frames, [`model`] is the mathematics. [`transcription`] is the procedure on top: a resumable state
//! machine that says what it wants from the model ([`decode`], [`beam`]: one window; [`longform`]: the
//! moving window; [`batch`]: windows side by side; [`words`]: word times). Everything here is plain
//! synchronous code without graph types, testable alone.

pub mod actor;
pub mod align;
pub mod batch;
pub mod beam;
pub mod config;
pub mod decode;
pub mod decoder;
pub mod encoder;
pub mod fallback;
pub mod features;
pub mod language;
pub mod load;
pub mod longform;
pub mod model;
pub mod node;
pub mod rules;
pub mod sample;
pub mod segments;
pub mod speech;
#[cfg(test)]
#[path = "../../tests/common/config.rs"]
mod testing;
pub mod tokens;
pub mod transcription;
pub mod words;
pub mod zlib;

pub use actor::{WhisperModel, WhisperOptions};
pub use config::{Config, Language, SpecialIds};
pub use decoder::{CrossAttention, Feed, Rows, Stream};
pub use encoder::Encoding;
pub use features::{Features, Mel};
pub use model::{LoadOptions, Precision, Quant, Whisper};
pub use node::AsrTranscribe;
pub use tokens::Codec;
pub use transcription::{Model, Need, Partial, Transcription, step};
