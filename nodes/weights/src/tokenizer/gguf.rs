//! Tokenizers out of a GGUF file's metadata.

use std::collections::{HashMap, HashSet};

use ahash::AHashMap;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::utils::Sequence as Normalizers;
use tokenizers::normalizers::{NFC, Prepend};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper};

use super::gguf_encoders;
use super::plain::steers;
use super::pretokenize::Kind;
use super::special::Special;
use super::{Tokenizer, guard};
use crate::error::{Error, Result, shown};
use crate::gguf::{Metadata, Value};

/// Most tokens of a vocabulary.
const MAX_TOKENS: usize = 4 << 20;
/// Longest token, in bytes: the pairs a token may be merged from grow with it.
const MAX_TOKEN: usize = 4096;

/// Types of tokens, as GGUF numbers them.
mod kind {
    pub const NORMAL: i64 = 1;
    pub const UNKNOWN: i64 = 2;
    pub const CONTROL: i64 = 3;
    pub const USER_DEFINED: i64 = 4;
    pub const UNUSED: i64 = 5;
    pub const BYTE: i64 = 6;
}

type Pairs = Vec<(String, String)>;

/// What the metadata says of the vocabulary.
pub(super) struct Vocabulary<'a> {
    pub(super) tokens: &'a [String],
    types: Vec<i64>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let Some(Value::Strings(tokens)) = metadata.get("tokenizer.ggml.tokens") else {
            return Err(Error::malformed("the file has no list of tokens (tokenizer.ggml.tokens)"));
        };
        if tokens.is_empty() || tokens.len() > MAX_TOKENS {
            return Err(Error::malformed(format!(
                "tokenizer.ggml.tokens has {} tokens; a vocabulary has 1 to {MAX_TOKENS}",
                tokens.len()
            )));
        }
        if let Some(at) = tokens.iter().position(|t| t.len() > MAX_TOKEN) {
            return Err(Error::malformed(format!(
                "token {at} has {} bytes, more than the {MAX_TOKEN} a token may have",
                tokens[at].len()
            )));
        }
        let types = match metadata.get("tokenizer.ggml.token_type") {
            Some(Value::I64s(types)) => types.clone(),
            Some(Value::U64s(types)) => types.iter().map(|&t| i64::try_from(t).unwrap_or(1)).collect(),
            _ => vec![1; tokens.len()],
        };
        if types.len() != tokens.len() {
            return Err(Error::malformed(format!(
                "tokenizer.ggml.token_type has {} entries for {} tokens",
                types.len(),
                tokens.len()
            )));
        }
        Ok(Self { tokens, types })
    }

    /// Ids by text. Rows that only fill the table are left out: they must never be met in a text.
    /// Of equal texts the first counts.
    fn ids(&self) -> AHashMap<String, u32> {
        let mut ids = AHashMap::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            if self.types[id] != kind::UNUSED && !token.is_empty() {
                ids.entry(token.clone()).or_insert(id as u32);
            }
        }
        ids
    }

    /// Some converters write the turn markers of a SentencePiece vocabulary as ordinary pieces. A piece
    /// between angle brackets that no merge makes could never be met otherwise: it is a marker.
    fn lift_markup(&mut self, merges: &[(String, String)]) {
        let made: HashSet<String, ahash::RandomState> =
            merges.iter().map(|(left, right)| format!("{left}{right}")).collect();
        for (token, is) in self.tokens.iter().zip(&mut self.types) {
            let bracketed = token.len() > 2 && token.starts_with('<') && token.ends_with('>');
            if *is == kind::NORMAL && bracketed && !made.contains(token) {
                *is = if steers(token) { kind::CONTROL } else { kind::USER_DEFINED };
            }
        }
    }

    /// Tokens matched in the text before anything else.
    fn added(&self) -> Vec<AddedToken> {
        let rows = self.tokens.iter().zip(&self.types).filter(|(token, _)| !token.is_empty());
        rows.filter_map(|(token, &is)| match is {
            kind::CONTROL | kind::UNKNOWN => Some(AddedToken::from(token.clone(), true).normalized(false)),
            kind::USER_DEFINED => Some(AddedToken::from(token.clone(), false).normalized(false)),
            _ => None,
        })
        .collect()
    }
}

impl Tokenizer {
    /// The tokenizer in a GGUF file's metadata: byte-level BPE (`gpt2`, by its kind of splitting),
    /// SentencePiece BPE by scores (`llama`), its form with merges (`gemma4`) and unigrams (`t5`), WordPiece (`bert`).
    ///
    /// # Errors
    /// Missing or inconsistent lists, kinds that aren't known.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self> {
        let model = metadata.str("tokenizer.ggml.model").ok_or_else(|| {
            Error::malformed(
                "the file has no tokenizer (tokenizer.ggml.model); it is not a language model, or only a part of one",
            )
        })?;
        let mut vocabulary = Vocabulary::read(metadata)?;
        let (inner, add_bos) = match model {
            "gpt2" => byte_level(metadata, &vocabulary)?,
            "llama" => {
                let merges = merges_by_score(metadata, &vocabulary)?;
                vocabulary.lift_markup(&merges);
                (sentence_piece(metadata, &vocabulary, merges)?, true)
            }
            "gemma4" => (sentence_piece(metadata, &vocabulary, listed_merges(metadata)?)?, true),
            "bert" => (gguf_encoders::word_piece(metadata, &vocabulary)?, true),
            "t5" => (gguf_encoders::unigram(metadata, &vocabulary)?, true),
            other => {
                return Err(Error::unsupported(format!(
                    "tokenizer.ggml.model is `{}`; read are gpt2, llama, gemma4, bert and t5",
                    shown(other)
                )));
            }
        };
        let mut inner = inner;
        inner
            .add_tokens(vocabulary.added())
            .map_err(|e| Error::malformed(format!("its added tokens are refused: {e}")))?;
        let mut special = Special::from_gguf(metadata, vocabulary.tokens, &vocabulary.types, add_bos)?;
        match model {
            "bert" | "t5" => gguf_encoders::surround(&mut inner, metadata, &vocabulary, &mut special)?,
            _ => surround(&mut inner, &special, vocabulary.tokens)?,
        }
        Ok(Self::new(inner, special, vocabulary.tokens.len() as u32 - 1))
    }
}

/// Puts the beginning and end tokens the file asks for around a text.
fn surround(inner: &mut tokenizers::Tokenizer, special: &Special, tokens: &[String]) -> Result<()> {
    let named = |wanted: bool, id: Option<u32>| id.filter(|_| wanted).map(|id| (tokens[id as usize].clone(), id));
    let (first, last) = (named(special.add_bos, special.bos), named(special.add_eos, special.eos));
    if first.is_none() && last.is_none() {
        return Ok(());
    }
    let piece = |token: &Option<(String, u32)>| {
        token.iter().map(|(t, _)| serde_json::json!({"SpecialToken": {"id": t, "type_id": 0}})).collect::<Vec<_>>()
    };
    let mut single = piece(&first);
    single.push(serde_json::json!({"Sequence": {"id": "A", "type_id": 0}}));
    single.extend(piece(&last));
    let ids: serde_json::Map<_, _> = first
        .iter()
        .chain(&last)
        .map(|(t, id)| (t.clone(), serde_json::json!({"id": t, "ids": [id], "tokens": [t]})))
        .collect();
    // Built from its file form: its own builder splits texts at `:` and `$`, which tokens may hold.
    let form =
        serde_json::json!({"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": ids});
    let template: TemplateProcessing = serde_json::from_value(form)
        .map_err(|e| Error::malformed(format!("its beginning and end tokens are refused: {e}")))?;
    inner.with_post_processor(Some(template));
    Ok(())
}

/// `tokenizer.ggml.merges`: two pieces and a space between them.
fn listed_merges(metadata: &Metadata) -> Result<Pairs> {
    let Some(Value::Strings(merges)) = metadata.get("tokenizer.ggml.merges") else {
        return Err(Error::malformed("the file has no list of merges (tokenizer.ggml.merges)"));
    };
    merges
        .iter()
        .enumerate()
        .map(|(i, merge)| {
            // The first piece may itself begin with a space in no known vocabulary, but be one.
            let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
            let (left, right) = at
                .map(|at| (&merge[..at], &merge[at + 1..]))
                .filter(|(_, right)| !right.is_empty())
                .ok_or_else(|| {
                    Error::malformed(format!("tokenizer.ggml.merges, entry {i}: `{}` is not two pieces", shown(merge)))
                })?;
            Ok((left.to_string(), right.to_string()))
        })
        .collect()
}

fn byte_level(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<(tokenizers::Tokenizer, bool)> {
    let kind = Kind::named(metadata.str("tokenizer.ggml.pre"), metadata.str("general.architecture"))?;
    let merges = listed_merges(metadata)?;
    let builder = BPE::builder().vocab_and_merges(vocabulary.ids(), merges).ignore_merges(kind.ignore_merges);
    let mut inner = tokenizers::Tokenizer::new(build(builder)?);
    if kind.nfc {
        normalizer(&mut inner, NFC)?;
    }
    inner.with_pre_tokenizer(Some(kind.splitter()?));
    inner.with_decoder(Some(ByteLevel::default()));
    Ok((inner, kind.add_bos))
}

fn build(builder: tokenizers::models::bpe::BpeBuilder) -> Result<BPE> {
    guard(|| builder.build()).map_err(|e| Error::malformed(format!("its tokens and merges do not fit together: {e}")))
}

pub(super) fn normalizer(inner: &mut tokenizers::Tokenizer, by: impl Into<NormalizerWrapper>) -> Result<()> {
    inner
        .with_normalizer(Some(by))
        .map(drop)
        .map_err(|e| Error::malformed(format!("its normalisation is refused: {e}")))
}

fn sentence_piece(metadata: &Metadata, vocabulary: &Vocabulary<'_>, merges: Pairs) -> Result<tokenizers::Tokenizer> {
    let mut builder = BPE::builder().vocab_and_merges(vocabulary.ids(), merges).byte_fallback(true).fuse_unk(true);
    let unknown = metadata.u64("tokenizer.ggml.unknown_token_id").and_then(|id| usize::try_from(id).ok());
    if let Some(token) = unknown.and_then(|id| vocabulary.tokens.get(id)) {
        builder = builder.unk_token(token.clone());
    }
    let mut inner = tokenizers::Tokenizer::new(build(builder)?);
    let prefix = metadata.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let failed = |e| Error::malformed(format!("its normalisation is refused: {e}"));
    let spaces = Replace::new(" ", "\u{2581}").map_err(failed)?;
    if prefix {
        let both = vec![NormalizerWrapper::from(Prepend::new("\u{2581}".into())), spaces.into()];
        normalizer(&mut inner, Normalizers::new(both))?;
    } else {
        normalizer(&mut inner, spaces)?;
    }
    let mut decoders: Vec<DecoderWrapper> = vec![
        Replace::new("\u{2581}", " ").map_err(failed)?.into(),
        ByteFallback::default().into(),
        Fuse::default().into(),
    ];
    if prefix {
        decoders.push(Strip::new(' ', 1, 0).into());
    }
    inner.with_decoder(Some(Decoders::new(decoders)));
    Ok(inner)
}

/// Merges of a SentencePiece vocabulary, which has only scores: any two neighbours that are a token
/// together merge, the best score first.
fn merges_by_score(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Pairs> {
    let Some(Value::F32s(scores)) = metadata.get("tokenizer.ggml.scores") else {
        return Err(Error::malformed("the file has no scores of its tokens (tokenizer.ggml.scores)"));
    };
    if scores.len() != vocabulary.tokens.len() {
        return Err(Error::malformed(format!(
            "tokenizer.ggml.scores has {} entries for {} tokens",
            scores.len(),
            vocabulary.tokens.len()
        )));
    }
    let pieces: HashMap<&str, usize, ahash::RandomState> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| !matches!(vocabulary.types[*id], kind::CONTROL | kind::UNUSED | kind::UNKNOWN | kind::BYTE))
        .map(|(id, token)| (token.as_str(), id))
        .collect();
    let mut merges: Vec<(f32, usize, &str, usize)> = Vec::new();
    for (&token, &id) in &pieces {
        for (at, _) in token.char_indices().skip(1) {
            if pieces.contains_key(&token[..at]) && pieces.contains_key(&token[at..]) {
                merges.push((scores[id], id, token, at));
            }
        }
    }
    // Ways to the same token: the longer left piece first, as the reference's conversion does.
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(b.3.cmp(&a.3)));
    Ok(merges.into_iter().map(|(_, _, token, at)| (token[..at].to_string(), token[at..].to_string())).collect())
}
