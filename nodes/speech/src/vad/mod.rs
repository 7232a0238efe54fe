//! Voice activity detection with Silero's 16 kHz network.
//!
//! [`Silero`] gives the probability of speech for every 512 samples, [`Segmenter`] turns
//! probabilities into stretches of speech, the same however the audio arrives in pieces.

pub mod actor;
pub mod node;
pub mod segments;
pub mod silero;

pub use actor::{SileroModel, SileroOptions};
pub use node::{AudioVad, AudioVadOptions, Gate};
pub use segments::{Boundary, SegmentSettings, Segmenter};
pub use silero::{CHUNK, Silero, State};
