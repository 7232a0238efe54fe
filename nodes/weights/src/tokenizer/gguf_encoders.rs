//! Tokenizers of encoders out of a GGUF file's metadata: WordPiece and SentencePiece's unigrams.

use ahash::AHashMap;
use serde_json::json;
use tokenizers::decoders::metaspace::Metaspace as MetaspaceDecoder;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::utils::Sequence as Normalizers;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{NormalizerWrapper, Tokenizer};

use super::gguf::{Vocabulary, normalizer};
use super::guard;
use super::special::Special;
use crate::error::{Error, Result};
use crate::gguf::{Metadata, Value};

/// What GGUF puts before pieces that begin a word.
const WORD: char = '\u{2581}';
/// Longest word that is looked up, as the reference has it.
const LONGEST: usize = 100;

/// `bert`: pieces inside a word lost their `##`, those that begin one got a `▁`. The file does not say whether
/// letters keep their case: like its author's own program, this takes them for lower-case ones.
pub(super) fn word_piece(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Tokenizer> {
    let mut ids = AHashMap::with_capacity(vocabulary.tokens.len());
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        let piece = match token.strip_prefix(WORD) {
            Some(word) => word.to_string(),
            None if token.starts_with('[') && token.ends_with(']') => token.clone(),
            None => format!("##{token}"),
        };
        ids.entry(piece).or_insert(id as u32);
    }
    let unknown = special(metadata, vocabulary, "unknown", "[UNK]")?;
    let builder = WordPiece::builder().vocab(ids).unk_token(unknown.0).max_input_chars_per_word(LONGEST);
    let model = builder.build().map_err(|e| Error::malformed(format!("its tokens make no WordPiece: {e}")))?;
    let mut inner = Tokenizer::new(model);
    normalizer(&mut inner, BertNormalizer::new(true, true, None, true))?;
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    inner.with_decoder(Some(WordPieceDecoder::default()));
    Ok(inner)
}

/// `t5`: a unigram model, with SentencePiece's own table of normalisation.
pub(super) fn unigram(metadata: &Metadata, vocabulary: &Vocabulary<'_>) -> Result<Tokenizer> {
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
    if let Some(at) = scores.iter().position(|score| !score.is_finite()) {
        return Err(Error::malformed(format!("tokenizer.ggml.scores, entry {at}, is not a number")));
    }
    let pieces = vocabulary.tokens.iter().zip(scores).map(|(token, score)| (token.clone(), f64::from(*score)));
    let unknown = special(metadata, vocabulary, "unknown", "<unk>")?.1;
    let model = guard(|| Unigram::from(pieces.collect(), Some(unknown as usize), false))
        .map_err(|e| Error::malformed(format!("its tokens make no unigram model: {e}")))?;
    let mut inner = Tokenizer::new(model);
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if let Some(map) = charsmap(metadata)? {
        let table = guard(|| Precompiled::from(&map).map_err(|e| e.to_string().into()))
            .map_err(|e| Error::malformed(format!("tokenizer.ggml.precompiled_charsmap is refused: {e}")))?;
        steps.push(table.into());
    }
    if metadata.bool("tokenizer.ggml.remove_extra_whitespaces").unwrap_or(true) {
        let pattern = ReplacePattern::Regex(" {2,}".into());
        let once = Replace::new(pattern, " ").map_err(|e| Error::malformed(format!("its normalisation: {e}")))?;
        steps.push(once.into());
    }
    normalizer(&mut inner, Normalizers::new(steps))?;
    let prepend = match metadata.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true) {
        true => PrependScheme::Always,
        false => PrependScheme::Never,
    };
    inner.with_pre_tokenizer(Some(Metaspace::new(WORD, prepend, true)));
    inner.with_decoder(Some(MetaspaceDecoder::new(WORD, prepend, true)));
    Ok(inner)
}

/// SentencePiece's table, bytes in whatever integers the file keeps them.
fn charsmap(metadata: &Metadata) -> Result<Option<Vec<u8>>> {
    let refused = || Error::malformed("tokenizer.ggml.precompiled_charsmap is no list of bytes");
    let bytes = match metadata.get("tokenizer.ggml.precompiled_charsmap") {
        None => return Ok(None),
        Some(Value::U64s(list)) => list.iter().map(|v| u8::try_from(*v)).collect::<std::result::Result<Vec<u8>, _>>(),
        Some(Value::I64s(list)) => {
            // Signed bytes come as negative numbers.
            list.iter().map(|v| i8::try_from(*v).map(|v| v as u8).or_else(|_| u8::try_from(*v))).collect()
        }
        Some(_) => return Err(refused()),
    };
    let bytes = bytes.map_err(|_| refused())?;
    Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
}

/// Text and id of a special token: the one the file names, else the one that is always called so.
fn special(metadata: &Metadata, vocabulary: &Vocabulary<'_>, key: &str, name: &str) -> Result<(String, u32)> {
    let key = format!("tokenizer.ggml.{key}_token_id");
    let named = metadata.u64(&key).and_then(|id| usize::try_from(id).ok()).filter(|id| *id < vocabulary.tokens.len());
    let id = named.or_else(|| vocabulary.tokens.iter().position(|token| token == name));
    let id =
        id.ok_or_else(|| Error::malformed(format!("the vocabulary has no `{name}`, and `{key}` names no token")))?;
    Ok((vocabulary.tokens[id].clone(), id as u32))
}

/// Ids that stand around a text and a pair of texts: `[CLS] A [SEP] B [SEP]`, `<s> A </s></s> B </s>`.
pub(super) fn surround(
    inner: &mut Tokenizer,
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
    special_ids: &mut Special,
) -> Result<()> {
    let pieces = metadata.str("tokenizer.ggml.model") == Some("bert");
    let (first, last) = match pieces {
        true => (
            special(metadata, vocabulary, "cls", "[CLS]").or_else(|_| special(metadata, vocabulary, "bos", "[CLS]"))?,
            // The key is spelled so in the format.
            special(metadata, vocabulary, "seperator", "[SEP]")?,
        ),
        false => (special(metadata, vocabulary, "bos", "<s>")?, special(metadata, vocabulary, "eos", "</s>")?),
    };
    let token = |(text, _): &(String, u32), kind: u32| json!({"SpecialToken": {"id": text, "type_id": kind}});
    let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    let second = u32::from(pieces);
    let single = json!([token(&first, 0), text("A", 0), token(&last, 0)]);
    let pair = match pieces {
        true => json!([token(&first, 0), text("A", 0), token(&last, 0), text("B", second), token(&last, second)]),
        false => {
            json!([token(&first, 0), text("A", 0), token(&last, 0), token(&last, 0), text("B", 0), token(&last, 0)])
        }
    };
    let ids: serde_json::Map<_, _> = [&first, &last]
        .map(|(text, id)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .into_iter()
        .collect();
    let form = json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": ids});
    let template: TemplateProcessing = serde_json::from_value(form)
        .map_err(|e| Error::malformed(format!("its beginning and end tokens are refused: {e}")))?;
    inner.with_post_processor(Some(template));
    *special_ids = Special {
        bos: Some(first.1),
        eos: Some(last.1),
        add_bos: true,
        add_eos: true,
        ends: vec![last.1],
        ..std::mem::take(special_ids)
    };
    Ok(())
}
