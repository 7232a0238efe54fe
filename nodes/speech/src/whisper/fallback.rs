//! Does a decoded window look right? Compression ratio, mean log-probability, no speech.

use oxiline_graph::protocol::speech::TranscribeOptions;

use super::zlib;

/// Length of the ids over the length of their zlib compression; each id is written in as many
/// little-endian bytes as the vocabulary needs. Repetition makes it large. 0 for no tokens.
pub fn compression_ratio(tokens: &[u32], vocabulary: usize) -> f32 {
    if tokens.is_empty() {
        return 0.0;
    }
    let width = ((vocabulary.max(1) as f64).log2() / 8.0) as usize + 1;
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes().into_iter().take(width)).collect();
    (bytes.len() as f64 / zlib::compressed_len(&bytes) as f64) as f32
}

/// Mean of the log-probabilities of generated tokens, `<|endoftext|>` included.
pub fn mean_logprob(logprobs: &[f32]) -> f32 {
    if logprobs.is_empty() {
        return 0.0;
    }
    (logprobs.iter().map(|&l| f64::from(l)).sum::<f64>() / logprobs.len() as f64) as f32
}

/// What to do with a decoded window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Keep it.
    Keep,
    /// Decode again at the next temperature, if there is one.
    Again,
    /// There is no speech: leave the window out.
    Skip,
}

/// Judges a window by the reference's rules.
pub fn judge(options: &TranscribeOptions, ratio: f32, logprob: f32, no_speech: f32) -> Verdict {
    if !options.fallback {
        return Verdict::Keep;
    }
    let improbable = logprob < options.logprob_threshold;
    if improbable && no_speech > options.no_speech_threshold {
        Verdict::Skip
    } else if improbable || ratio > options.compression_ratio_threshold {
        Verdict::Again
    } else {
        Verdict::Keep
    }
}
