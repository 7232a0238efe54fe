//! Speech on our kernels: voice activity (Silero) and Whisper, as model actors and nodes.

mod parallel;
pub mod vad;
pub mod whisper;
