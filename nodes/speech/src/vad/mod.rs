//! Voice activity detection with Silero's 16 kHz network.
//!
//! [`Silero`] gives the probability of speech for every 512 samples, [`Segmenter`] turns
//! probabilities into stretches of speech, the same however the audio arrives in pieces.

pub mod segments;
pub mod silero;

pub use segments::{Boundary, SegmentSettings, Segmenter};
pub use silero::{CHUNK, Silero, State};
