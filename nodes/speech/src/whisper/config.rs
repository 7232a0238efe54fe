//! What a Whisper checkpoint says about itself: `config.json`, `generation_config.json`,
//! `preprocessor_config.json` and the added tokens of `tokenizer.json`, validated, with the
//! derived facts computed once.
//!
//! Ids are read, never assumed: large-v3's extra language shifts all later ones, English-only
//! checkpoints start one earlier, fine-tuned ones may differ again.

use std::collections::HashMap;
use std::path::Path;

use oxiline_graph::{Error, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::features::{self, mel_bank};

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
    /// Languages in the order of `lang_to_id` (of their ids where the file does not list them);
    /// empty in English-only checkpoints.
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

/// `config.json`, as far as it is used.
#[derive(Deserialize)]
struct ModelFile {
    activation_function: Option<String>,
    d_model: u64,
    encoder_layers: u64,
    encoder_attention_heads: u64,
    encoder_ffn_dim: u64,
    decoder_layers: u64,
    decoder_attention_heads: u64,
    decoder_ffn_dim: u64,
    vocab_size: u64,
    num_mel_bins: u64,
    max_source_positions: u64,
    max_target_positions: u64,
    #[serde(default)]
    scale_embedding: bool,
    median_filter_width: Option<u64>,
    eos_token_id: Option<Value>,
    decoder_start_token_id: Option<u64>,
    suppress_tokens: Option<Vec<i64>>,
    begin_suppress_tokens: Option<Vec<i64>>,
    forced_decoder_ids: Option<Forced>,
}

/// `generation_config.json`, as far as it is used. Absent in very old conversions.
#[derive(Deserialize, Default)]
#[serde(default)]
struct GenerationFile {
    decoder_start_token_id: Option<u64>,
    no_timestamps_token_id: Option<u64>,
    prev_sot_token_id: Option<u64>,
    is_multilingual: Option<bool>,
    // serde_json keeps the order of the file (feature preserve_order).
    lang_to_id: Option<serde_json::Map<String, Value>>,
    task_to_id: Option<HashMap<String, u64>>,
    alignment_heads: Option<Vec<(u64, u64)>>,
    max_initial_timestamp_index: Option<u64>,
    #[serde(deserialize_with = "present")]
    suppress_tokens: Option<Option<Vec<i64>>>,
    #[serde(deserialize_with = "present")]
    begin_suppress_tokens: Option<Option<Vec<i64>>>,
    #[serde(deserialize_with = "present")]
    forced_decoder_ids: Option<Option<Forced>>,
}

/// Positions and ids (null: detect the language).
type Forced = Vec<(u64, Option<u64>)>;

/// Tells `null` from an absent key.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(de: D) -> Result<Option<T>, D::Error> {
    T::deserialize(de).map(Some)
}

/// `preprocessor_config.json`, as far as it is used.
#[derive(Deserialize, Default)]
#[serde(default)]
struct PreprocessorFile {
    feature_size: Option<u64>,
    n_fft: Option<u64>,
    hop_length: Option<u64>,
    sampling_rate: Option<u64>,
    mel_filters: Option<Vec<Vec<f64>>>,
}

/// `tokenizer.json`: the added tokens.
#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenizerFile {
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
}

/// Files larger than this are not what they should be.
const LARGEST: u64 = 64 << 20;

impl Config {
    /// Reads and checks the files of a checkpoint folder. Errors name the file and the key.
    pub fn load(dir: &Path) -> Result<Self> {
        if dir.is_file() {
            bail!(
                "{} is a file: Whisper is read from a folder with config.json, model.safetensors and tokenizer.json",
                dir.display()
            );
        }
        let model: ModelFile = match read::<Value>(&dir.join("config.json"))? {
            Some(value) => {
                let kind = value.get("model_type").and_then(Value::as_str).unwrap_or("whisper");
                if kind != "whisper" {
                    bail!(
                        "{} describes a `{kind}` model, not Whisper: name a folder with a Whisper checkpoint",
                        dir.join("config.json").display()
                    );
                }
                serde_json::from_value(value).map_err(|e| malformed(&dir.join("config.json"), &e))?
            }
            None => bail!(
                "{} is missing: a Whisper checkpoint folder holds config.json, model.safetensors and tokenizer.json",
                dir.join("config.json").display()
            ),
        };
        let generation: GenerationFile = read(&dir.join("generation_config.json"))?.unwrap_or_default();
        let preprocessor: PreprocessorFile = read(&dir.join("preprocessor_config.json"))?.unwrap_or_default();
        let added = added_tokens(dir)?;
        let config = Files { dir, model: &model, generation: &generation, added: &added }.config()?;
        check_preprocessor(&dir.join("preprocessor_config.json"), &preprocessor, config.mel_bins)?;
        Ok(config)
    }

    /// The language of a token id.
    pub fn language_of(&self, id: u32) -> Option<&Language> {
        self.languages.iter().find(|language| language.id == id)
    }

    /// The language with this code.
    pub fn language(&self, code: &str) -> Option<&Language> {
        self.languages.iter().find(|language| language.code == code)
    }
}

struct Files<'a> {
    dir: &'a Path,
    model: &'a ModelFile,
    generation: &'a GenerationFile,
    added: &'a HashMap<String, u64>,
}

impl Files<'_> {
    fn config(&self) -> Result<Config> {
        let model = self.model;
        if let Some(act) = model.activation_function.as_deref().filter(|a| *a != "gelu") {
            bail!("{}: activation_function `{act}` is not known to Whisper; expected `gelu`", self.file());
        }
        let width = self.size("d_model", model.d_model, 1..=16_384)?;
        let encoder_layers = self.size("encoder_layers", model.encoder_layers, 1..=256)?;
        let encoder_heads = self.size("encoder_attention_heads", model.encoder_attention_heads, 1..=1024)?;
        let encoder_ffn = self.size("encoder_ffn_dim", model.encoder_ffn_dim, 1..=131_072)?;
        let decoder_layers = self.size("decoder_layers", model.decoder_layers, 1..=256)?;
        let decoder_heads = self.size("decoder_attention_heads", model.decoder_attention_heads, 1..=1024)?;
        let decoder_ffn = self.size("decoder_ffn_dim", model.decoder_ffn_dim, 1..=131_072)?;
        let vocab = self.size("vocab_size", model.vocab_size, 2..=1 << 20)?;
        let mel_bins = self.size("num_mel_bins", model.num_mel_bins, 1..=201)?;
        let source_positions = self.size("max_source_positions", model.max_source_positions, 1500..=1500)?;
        let target_positions = self.size("max_target_positions", model.max_target_positions, 8..=65_536)?;
        let median_filter_width = self.size("median_filter_width", model.median_filter_width.unwrap_or(7), 1..=999)?;
        if median_filter_width % 2 == 0 {
            bail!("{}: median_filter_width {median_filter_width} must be odd", self.file());
        }
        for (key, heads) in [("encoder_attention_heads", encoder_heads), ("decoder_attention_heads", decoder_heads)] {
            if width % heads != 0 {
                bail!("{}: {key} {heads} does not divide d_model {width}", self.file());
            }
        }
        let ids = self.ids(vocab)?;
        let multilingual = self.generation.is_multilingual.unwrap_or_else(|| {
            // English-only checkpoints have one text token less, so everything starts one id earlier.
            self.generation.lang_to_id.is_some() || (ids.end_of_text != 50_256 && ids.transcribe.is_some())
        });
        let languages = if multilingual { self.languages(&ids, vocab)? } else { Vec::new() };
        let heads = self.generation.alignment_heads.as_deref();
        Ok(Config {
            width,
            encoder_layers,
            encoder_heads,
            encoder_ffn,
            decoder_layers,
            decoder_heads,
            decoder_ffn,
            vocab,
            mel_bins,
            source_positions,
            target_positions,
            scale_embedding: model.scale_embedding,
            multilingual,
            languages,
            suppress: self.list(
                "suppress_tokens",
                pick(&self.generation.suppress_tokens, &model.suppress_tokens),
                vocab,
            )?,
            begin_suppress: self.list(
                "begin_suppress_tokens",
                pick(&self.generation.begin_suppress_tokens, &model.begin_suppress_tokens),
                vocab,
            )?,
            forced: self.forced(vocab, target_positions)?,
            alignment_heads: self.alignment_heads(heads, decoder_layers, decoder_heads)?,
            median_filter_width,
            max_initial_timestamp: self.generation.max_initial_timestamp_index.unwrap_or(50).min(1500) as usize,
            ids,
        })
    }

    fn file(&self) -> String {
        self.dir.join("config.json").display().to_string()
    }

    fn generation_file(&self) -> String {
        self.dir.join("generation_config.json").display().to_string()
    }

    fn size(&self, key: &str, value: u64, allowed: std::ops::RangeInclusive<usize>) -> Result<usize> {
        match usize::try_from(value).ok().filter(|v| allowed.contains(v)) {
            Some(value) => Ok(value),
            None if allowed.start() == allowed.end() => {
                bail!("{}: {key} is {value}, but Whisper has {}", self.file(), allowed.start())
            }
            None => bail!("{}: {key} is {value}, outside of {} to {}", self.file(), allowed.start(), allowed.end()),
        }
    }

    fn id(&self, what: &str, value: u64, vocab: usize) -> Result<u32> {
        match u32::try_from(value).ok().filter(|id| (*id as usize) < vocab) {
            Some(id) => Ok(id),
            None => bail!("{}: id {value} of {what} is outside of the vocabulary of {vocab} ids", self.dir.display()),
        }
    }

    /// The id of an added token, from the first of its spellings that exists.
    fn token(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| self.added.get(*name).copied())
    }

    fn ids(&self, vocab: usize) -> Result<SpecialIds> {
        let (model, generation) = (self.model, self.generation);
        let need = |what: &str, id: Option<u64>| match id {
            Some(id) => self.id(what, id, vocab),
            None => bail!(
                "{}: neither generation_config.json nor tokenizer.json says which id {what} has; add tokenizer.json",
                self.dir.display()
            ),
        };
        let eos = model.eos_token_id.as_ref().and_then(Value::as_u64);
        let start = generation.decoder_start_token_id.or(model.decoder_start_token_id);
        let no_timestamps =
            need("<|notimestamps|>", generation.no_timestamps_token_id.or(self.token(&["<|notimestamps|>"])))?;
        let timestamp_begin = self.id("<|0.00|>", u64::from(no_timestamps) + 1, vocab)?;
        if let Some(listed) = self.token(&["<|0.00|>"]).filter(|id| *id != u64::from(timestamp_begin)) {
            bail!(
                "{}: tokenizer.json gives <|0.00|> the id {listed}, but <|notimestamps|> is {no_timestamps}, \
                 so {timestamp_begin} was expected: the files belong to different checkpoints",
                self.dir.display()
            );
        }
        let maybe = |what: &str, id: Option<u64>| id.map(|id| self.id(what, id, vocab)).transpose();
        let task = |name: &str| generation.task_to_id.as_ref().and_then(|tasks| tasks.get(name).copied());
        let ids = SpecialIds {
            end_of_text: need("<|endoftext|>", self.token(&["<|endoftext|>"]).or(eos))?,
            start: need("<|startoftranscript|>", start.or(self.token(&["<|startoftranscript|>"])))?,
            translate: maybe("<|translate|>", task("translate").or(self.token(&["<|translate|>"])))?,
            transcribe: maybe("<|transcribe|>", task("transcribe").or(self.token(&["<|transcribe|>"])))?,
            start_of_prev: maybe("<|startofprev|>", generation.prev_sot_token_id.or(self.token(&["<|startofprev|>"])))?,
            no_speech: maybe(
                "<|nospeech|>",
                self.token(&["<|nospeech|>", "<|nocaptions|>"]).or(u64::from(no_timestamps).checked_sub(1)),
            )?,
            no_timestamps,
            timestamp_begin,
        };
        if ids.end_of_text >= timestamp_begin || ids.start >= timestamp_begin {
            bail!(
                "{}: <|endoftext|> ({}) and <|startoftranscript|> ({}) must come before the timestamps ({timestamp_begin})",
                self.dir.display(),
                ids.end_of_text,
                ids.start
            );
        }
        Ok(ids)
    }

    fn languages(&self, ids: &SpecialIds, vocab: usize) -> Result<Vec<Language>> {
        let mut languages = Vec::new();
        match &self.generation.lang_to_id {
            Some(map) => {
                for (token, id) in map {
                    let (Some(code), Some(id)) = (code_of(token), id.as_u64()) else {
                        bail!("{}: lang_to_id has `{token}`: {id}, not a language and its id", self.generation_file());
                    };
                    languages.push(Language { code: code.into(), id: self.id(token, id, vocab)? });
                }
            }
            None => {
                let end = ids.translate.or(ids.transcribe).unwrap_or(ids.no_timestamps);
                for (token, id) in self.added {
                    if let Some(code) = code_of(token)
                        && (u64::from(ids.start) + 1..u64::from(end)).contains(id)
                    {
                        languages.push(Language { code: code.into(), id: self.id(token, *id, vocab)? });
                    }
                }
                languages.sort_by_key(|language| language.id);
            }
        }
        if languages.is_empty() {
            bail!(
                "{}: a multilingual checkpoint, but neither generation_config.json nor tokenizer.json lists languages",
                self.dir.display()
            );
        }
        Ok(languages)
    }

    fn list(&self, key: &str, list: Option<&Vec<i64>>, vocab: usize) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for id in list.into_iter().flatten() {
            match u64::try_from(*id) {
                Ok(id) => ids.push(self.id(key, id, vocab)?),
                Err(_) => bail!("{}: {key} has the id {id}", self.dir.display()),
            }
        }
        Ok(ids)
    }

    fn forced(&self, vocab: usize, positions: usize) -> Result<Vec<(usize, Option<u32>)>> {
        let list = pick(&self.generation.forced_decoder_ids, &self.model.forced_decoder_ids);
        let mut forced = Vec::new();
        for (position, id) in list.into_iter().flatten() {
            let id = id.map(|id| self.id("forced_decoder_ids", id, vocab)).transpose()?;
            match usize::try_from(*position).ok().filter(|p| (1..positions).contains(p)) {
                Some(position) => forced.push((position, id)),
                None => bail!(
                    "{}: forced_decoder_ids has position {position}, outside of 1 to {}",
                    self.dir.display(),
                    positions - 1
                ),
            }
        }
        Ok(forced)
    }

    fn alignment_heads(
        &self,
        listed: Option<&[(u64, u64)]>,
        layers: usize,
        heads: usize,
    ) -> Result<Vec<(usize, usize)>> {
        let Some(listed) = listed.filter(|listed| !listed.is_empty()) else {
            // Nobody measured them: the upper half of the layers follows the words best.
            return Ok((layers / 2..layers).flat_map(|l| (0..heads).map(move |h| (l, h))).collect());
        };
        let mut found: Vec<(usize, usize)> = Vec::new();
        for (layer, head) in listed {
            if *layer >= layers as u64 || *head >= heads as u64 {
                bail!(
                    "{}: alignment_heads has [{layer}, {head}], but the decoder has {layers} layers of {heads} heads",
                    self.generation_file()
                );
            }
            let pair = (*layer as usize, *head as usize);
            if !found.contains(&pair) {
                found.push(pair);
            }
        }
        Ok(found)
    }
}

/// What generation_config.json says wins, even when it says `null`.
fn pick<'a, T>(generation: &'a Option<Option<T>>, model: &'a Option<T>) -> Option<&'a T> {
    match generation {
        Some(value) => value.as_ref(),
        None => model.as_ref(),
    }
}

/// `en` of `<|en|>`: two or three lower-case letters.
fn code_of(token: &str) -> Option<&str> {
    let code = token.strip_prefix("<|")?.strip_suffix("|>")?;
    ((2..=3).contains(&code.len()) && code.bytes().all(|b| b.is_ascii_lowercase())).then_some(code)
}

fn malformed(path: &Path, error: &serde_json::Error) -> Error {
    Error::msg(format_args!("{} is not what Whisper checkpoints have there: {error}", path.display()))
}

/// Reads a JSON file; None when there is none.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let size = match std::fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => bail!("{}: {error}", path.display()),
    };
    if size > LARGEST {
        bail!("{} has {size} bytes: too large to be a configuration", path.display());
    }
    let text = std::fs::read(path).map_err(|e| Error::msg(format_args!("{}: {e}", path.display())))?;
    serde_json::from_slice(&text).map(Some).map_err(|e| malformed(path, &e))
}

/// Added tokens by their text, from tokenizer.json or the older added_tokens.json.
fn added_tokens(dir: &Path) -> Result<HashMap<String, u64>> {
    if let Some(file) = read::<TokenizerFile>(&dir.join("tokenizer.json"))? {
        return Ok(file.added_tokens.into_iter().map(|token| (token.content, token.id)).collect());
    }
    Ok(read(&dir.join("added_tokens.json"))?.unwrap_or_default())
}

fn check_preprocessor(path: &Path, file: &PreprocessorFile, bins: usize) -> Result<()> {
    let expected = [
        ("feature_size", file.feature_size, bins as u64),
        ("n_fft", file.n_fft, 400),
        ("hop_length", file.hop_length, features::HOP as u64),
        ("sampling_rate", file.sampling_rate, features::SAMPLE_RATE as u64),
    ];
    for (key, found, expected) in expected {
        if let Some(found) = found.filter(|found| *found != expected) {
            bail!("{}: {key} is {found}, but this checkpoint needs {expected}", path.display());
        }
    }
    let Some(listed) = &file.mel_filters else { return Ok(()) };
    // Old files list the bank as [bins, 201], printed in float32.
    let bank = mel_bank(bins);
    let same = listed.len() == bins
        && listed.iter().enumerate().all(|(bin, row)| {
            row.len() == bank.len() / bins
                && row.iter().enumerate().all(|(i, w)| (w - bank[i * bins + bin]).abs() < 1e-6)
        });
    if !same {
        bail!(
            "{}: mel_filters is not the Slaney bank of {bins} bins that Whisper uses; such features are not supported",
            path.display()
        );
    }
    Ok(())
}
