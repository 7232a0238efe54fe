//! What tests of the decoding procedures share: a small vocabulary and a model without weights.

use oxiline_speech::whisper::{Config, Language, SpecialIds};

/// Twenty text tokens, two languages and 1501 timestamps.
pub fn config() -> Config {
    Config {
        width: 8,
        encoder_layers: 1,
        encoder_heads: 1,
        encoder_ffn: 8,
        decoder_layers: 2,
        decoder_heads: 2,
        decoder_ffn: 8,
        vocab: 30 + 1501,
        mel_bins: 2,
        source_positions: 1500,
        target_positions: 448,
        scale_embedding: false,
        ids: SpecialIds {
            end_of_text: 20,
            start: 21,
            translate: Some(24),
            transcribe: Some(25),
            start_of_prev: Some(27),
            no_speech: Some(28),
            no_timestamps: 29,
            timestamp_begin: 30,
        },
        multilingual: true,
        languages: vec![Language { code: "en".into(), id: 22 }, Language { code: "de".into(), id: 23 }],
        suppress: vec![3, 21, 24, 25, 26, 27, 28],
        begin_suppress: vec![0, 20],
        forced: Vec::new(),
        alignment_heads: vec![(0, 1), (1, 0)],
        median_filter_width: 7,
        max_initial_timestamp: 50,
    }
}
