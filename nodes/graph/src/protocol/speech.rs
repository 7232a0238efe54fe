//! Protocols of speech models: voice activity and transcription.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Protocol;

/// A word with its place in the media. Times in seconds from the start of the audio.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Word {
    /// The word with its leading space, as the tokenizer spells it.
    pub text: String,
    /// Start, seconds.
    pub start: f64,
    /// End, seconds.
    pub end: f64,
    /// Mean probability of its tokens.
    pub probability: f32,
}

/// One finished stretch of transcribed speech. Times in seconds from the start of the audio.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Segment {
    /// Running number from 0.
    pub id: usize,
    /// Start, seconds.
    pub start: f64,
    /// End, seconds.
    pub end: f64,
    /// The text, without special tokens.
    pub text: String,
    /// Text and timestamp tokens.
    pub tokens: Vec<u32>,
    /// Words, when asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
    /// Temperature the window was decoded at.
    pub temperature: f32,
    /// Mean log-probability over the window's tokens.
    pub avg_logprob: f32,
    /// Compression ratio of the window's tokens.
    pub compression_ratio: f32,
    /// Probability of no speech at the start of the transcript.
    pub no_speech_prob: f32,
}

/// Transcribe or translate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Text in the language spoken.
    #[default]
    Transcribe,
    /// Text in English.
    Translate,
}

/// How to transcribe: the options of the CLI, the node and the library, one set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TranscribeOptions {
    /// Language code ("de") or name ("german"); "auto" detects it on the first 30 s.
    pub language: String,
    /// Transcribe, or translate to English.
    pub task: Task,
    /// Segment times from timestamp tokens (always on past 30 s).
    pub timestamps: bool,
    /// Word times by dynamic time warping over the cross-attention.
    pub words: bool,
    /// Text the model believes was said before.
    pub initial_prompt: Option<String>,
    /// Text every window's transcript starts with.
    pub prefix: Option<String>,
    /// Give each window the text of the ones before (last 223 tokens).
    pub condition_on_prev: bool,
    /// Decode again at higher temperature when a window looks wrong.
    pub fallback: bool,
    /// Temperatures of the fallback, in order.
    pub temperatures: Vec<f32>,
    /// A window that compresses better than this looks wrong.
    pub compression_ratio_threshold: f32,
    /// A window less probable than this looks wrong.
    pub logprob_threshold: f32,
    /// A window with at least this probability of no speech (and a low log-probability) is skipped.
    pub no_speech_threshold: f32,
    /// Beams (1: greedy).
    pub beam: usize,
    /// At most this many tokens a window (0: what the model allows).
    pub max_tokens: usize,
    /// Windows cut at silences and decoded so many at a time (0: the sequential algorithm).
    pub batch: usize,
    /// Leave out text where no voice activity was found.
    pub skip_silence: bool,
    /// Seed of the sampling at temperatures above 0.
    pub seed: u64,
    /// Seconds without sound that the encoder sees after the clip's end; none: up to 30 s of clip and padding,
    /// what models are trained on. Less is faster and for hypotheses that are replaced anyway.
    #[serde(skip)]
    pub padding: Option<f64>,
    /// Only tell the languages' probabilities.
    #[serde(skip)]
    pub detect_only: bool,
}

impl Default for TranscribeOptions {
    fn default() -> Self {
        Self {
            language: "auto".into(),
            task: Task::Transcribe,
            timestamps: false,
            words: false,
            initial_prompt: None,
            prefix: None,
            condition_on_prev: false,
            fallback: false,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            compression_ratio_threshold: 2.4,
            logprob_threshold: -1.0,
            no_speech_threshold: 0.6,
            beam: 1,
            max_tokens: 0,
            batch: 0,
            skip_silence: true,
            seed: 0,
            padding: None,
            detect_only: false,
        }
    }
}

/// Whole-clip transcription: one call a clip, segments streamed back as they are finished.
pub struct Transcribe;

/// A clip to transcribe.
#[derive(Debug, Clone)]
pub struct TranscribeRequest {
    /// 16 kHz mono samples of the whole clip.
    pub samples: Arc<[f32]>,
    /// Spans with speech in seconds, from a voice-activity node; None: nobody looked.
    pub speech: Option<Vec<(f64, f64)>>,
    /// How.
    pub options: TranscribeOptions,
}

/// What comes back, in order.
#[derive(Debug, Clone)]
pub enum TranscribeReply {
    /// The language that will be used, with its probability when it was detected.
    Language {
        /// Code.
        code: String,
        /// Probability, 1 when given.
        probability: f32,
    },
    /// Probability of each language on the first window, in the checkpoint's order (`detect_only`).
    Languages(Vec<(String, f32)>),
    /// A finished segment.
    Segment(Segment),
    /// How far the audio is done, in seconds.
    Progress {
        /// Seconds done.
        done: f64,
        /// Seconds in all.
        total: f64,
    },
    /// The end, with what was measured.
    Done(TranscribeStats),
}

/// What one transcription cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TranscribeStats {
    /// Seconds of audio.
    pub audio_s: f64,
    /// Feature extraction, seconds.
    pub features_s: f64,
    /// Encoder, seconds.
    pub encode_s: f64,
    /// Decoder, seconds.
    pub decode_s: f64,
    /// Windows decoded.
    pub windows: usize,
    /// Windows decoded again at a higher temperature.
    pub fallbacks: usize,
    /// Windows skipped for want of speech.
    pub skipped: usize,
    /// Seconds of audio skipped for want of speech.
    pub skipped_s: f64,
    /// Tokens generated.
    pub tokens: usize,
    /// It was stopped before the end: the segments are a part.
    pub stopped: bool,
}

impl Protocol for Transcribe {
    const NAME: &'static str = "transcribe";
    type Open = ();
    type Request = TranscribeRequest;
    type Reply = TranscribeReply;
}

/// Voice activity: one call a run of samples, probabilities back; state lives in the session.
pub struct VoiceActivity;

/// Samples to judge.
#[derive(Debug, Clone)]
pub enum VoiceRequest {
    /// 16 kHz mono samples, any number; the session keeps what does not fill a frame.
    Samples(Arc<[f32]>),
    /// End of the stream: judge the zero-padded rest.
    Finish,
    /// Forget everything (seek, cancel).
    Reset,
}

/// Speech probabilities of the frames (512 samples each) that became complete.
#[derive(Debug, Clone, PartialEq)]
pub struct VoiceReply(pub Vec<f32>);

impl Protocol for VoiceActivity {
    const NAME: &'static str = "voice-activity";
    type Open = ();
    type Request = VoiceRequest;
    type Reply = VoiceReply;
}
