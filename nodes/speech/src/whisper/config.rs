//! What a Whisper checkpoint says about itself: `config.json`, `generation_config.json`,
//! `preprocessor_config.json` and the added tokens of `tokenizer.json`, validated, with the
//! derived facts computed once.

/// A language a checkpoint knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Language {
    /// Code as in the token: `en` of `<|en|>`.
    pub code: String,
    /// Token id.
    pub id: u32,
}

/// Ids of the tokens that steer the decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecialIds {
    /// `<|endoftext|>`; every id below is text.
    pub end_of_text: u32,
    /// `<|startoftranscript|>`.
    pub start: u32,
    /// `<|translate|>` (None in English-only checkpoints that lack it).
    pub translate: Option<u32>,
    /// `<|transcribe|>`.
    pub transcribe: Option<u32>,
    /// `<|startofprev|>`.
    pub start_of_prev: Option<u32>,
    /// `<|nospeech|>` (`<|nocaptions|>` in older tokenizers).
    pub no_speech: Option<u32>,
    /// `<|notimestamps|>`.
    pub no_timestamps: u32,
    /// `<|0.00|>`; every id from here on is a timestamp of `(id - this) * 0.02` s.
    pub timestamp_begin: u32,
}

/// Sizes, ids and rules of one checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Model width.
    pub width: usize,
    /// Encoder layers.
    pub encoder_layers: usize,
    /// Encoder attention heads.
    pub encoder_heads: usize,
    /// Encoder feed-forward width.
    pub encoder_ffn: usize,
    /// Decoder layers (fewer than the encoder's in distilled checkpoints).
    pub decoder_layers: usize,
    /// Decoder attention heads.
    pub decoder_heads: usize,
    /// Decoder feed-forward width.
    pub decoder_ffn: usize,
    /// Rows of the token embedding.
    pub vocab: usize,
    /// Mel bins of the features: 80 or 128.
    pub mel_bins: usize,
    /// Encoder positions: 1500.
    pub source_positions: usize,
    /// Decoder positions: 448.
    pub target_positions: usize,
    /// Token embeddings are multiplied by sqrt(width).
    pub scale_embedding: bool,
    /// Ids of the tokens that steer the decoder.
    pub ids: SpecialIds,
    /// More than English.
    pub multilingual: bool,
    /// Languages in the order of `lang_to_id`; empty in English-only checkpoints.
    pub languages: Vec<Language>,
    /// Ids never generated.
    pub suppress: Vec<u32>,
    /// Ids never generated first.
    pub begin_suppress: Vec<u32>,
    /// `forced_decoder_ids`: position and id (None: detect the language). Empty in newer checkpoints.
    pub forced: Vec<(usize, Option<u32>)>,
    /// `[layer, head]` of the cross-attention that follows the words.
    pub alignment_heads: Vec<(usize, usize)>,
    /// Width of the median filter of word timestamps: 7.
    pub median_filter_width: usize,
    /// The first timestamp of a window is at most this many steps of 0.02 s.
    pub max_initial_timestamp: usize,
}
