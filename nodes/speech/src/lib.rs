//! Speech on our kernels: voice activity (Silero) and Whisper, as model actors and nodes.

// Helpers of the tests outside are used inside too.
#[cfg(test)]
extern crate self as oxiline_speech;

pub mod live;
mod parallel;
pub mod vad;
pub mod whisper;

/// Adds the models and nodes of this crate.
pub fn register(registry: &mut oxiline_graph::Registry) {
    registry.model::<vad::SileroModel>();
    registry.model::<whisper::WhisperModel>();
    registry.node::<vad::AudioVad>();
    registry.node::<whisper::AsrTranscribe>();
    registry.node::<live::AsrStream>();
}
