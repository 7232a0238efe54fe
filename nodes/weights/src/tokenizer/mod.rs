//! Text to token ids and back, behind a type of our own.

mod gguf;
mod gguf_encoders;
mod limit;
mod plain;
mod pretokenize;
mod special;
mod stream;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use crate::blob::read_small;
use crate::error::{Error, Result, shown};

/// Largest tokenizer file read.
const MAX_FILE: u64 = 256 << 20;

pub use limit::Encoded;
pub use special::Special;
pub use stream::DecodeStream;

/// A tokenizer. Cheap to clone; shared by every stream.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    special: Special,
    max_id: u32,
    /// What a token's text stands for.
    spelling: Spelling,
    /// Made when first asked for.
    plain: OnceLock<plain::Plain>,
}

/// How tokens are written in the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// Every byte as a printable character.
    ByteLevel,
    /// Spaces as U+2581, bytes that are no character as `<0xNN>`.
    SentencePiece,
    /// Another way, which only the decoder knows.
    Other,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_size())
    }
}

impl Tokenizer {
    /// From a folder with `tokenizer.json`, or with `vocab.json` and `merges.txt` (byte-level
    /// BPE, with `added_tokens.json` when it is there); or from a `tokenizer.json` itself. The files
    /// beside it tell the special tokens.
    ///
    /// # Errors
    /// Missing or broken files.
    pub fn load(path: &Path) -> Result<Self> {
        let (folder, file) = if path.is_dir() {
            (path, path.join("tokenizer.json"))
        } else {
            (path.parent().unwrap_or(path), path.into())
        };
        if file.is_file() || !path.is_dir() {
            return Self::build(&read_small(&file, MAX_FILE)?, Some(folder)).map_err(|e| e.at(&file));
        }
        if path.join("vocab.json").is_file() && path.join("merges.txt").is_file() {
            return Self::build(assemble(path)?.to_string().as_bytes(), Some(folder)).map_err(|e| e.at(path));
        }
        Err(Error::missing(format!(
            "{}: no tokenizer.json and no vocab.json with merges.txt in this folder; download the whole model",
            path.display()
        )))
    }

    /// From the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// Bytes that aren't a tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::build(bytes, None)
    }

    fn build(bytes: &[u8], folder: Option<&Path>) -> Result<Self> {
        let loaded = guard(|| tokenizers::Tokenizer::from_bytes(bytes));
        let mut inner = loaded.map_err(|e| Error::malformed(format!("not a usable tokenizer: {e}")))?;
        // Cutting and padding are the caller's decision, not a file's.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::malformed(format!("not a usable tokenizer: {e}")))?;
        let special = guard(|| Ok(Special::from_folder(folder, &inner))).unwrap_or_default();
        let max_id = inner.get_vocab(false).into_values().max().unwrap_or(0);
        Ok(Self::new(inner, special, max_id))
    }

    fn new(tokenizer: tokenizers::Tokenizer, special: Special, max_id: u32) -> Self {
        let decoder = tokenizer.get_decoder().and_then(|d| serde_json::to_string(d).ok()).unwrap_or_default();
        let spelling = match () {
            () if decoder.contains("ByteLevel") => Spelling::ByteLevel,
            () if decoder.contains("ByteFallback") || decoder.contains("Metaspace") => Spelling::SentencePiece,
            () => Spelling::Other,
        };
        Self(Arc::new(Inner { tokenizer, special, max_id, spelling, plain: OnceLock::new() }))
    }

    fn inner(&self) -> &tokenizers::Tokenizer {
        &self.0.tokenizer
    }

    fn plain(&self) -> &plain::Plain {
        self.0.plain.get_or_init(|| plain::Plain::new(&self.0.tokenizer))
    }

    /// This tokenizer as a `tokenizer.json`.
    ///
    /// # Errors
    /// It can't be written as one.
    pub fn to_json(&self) -> Result<String> {
        guard(|| self.inner().to_string(false))
            .map_err(|e| Error::malformed(format!("cannot write the tokenizer: {e}")))
    }

    /// Ids with a meaning of their own.
    pub fn special(&self) -> &Special {
        &self.0.special
    }

    /// The beginning-of-text token.
    pub fn bos(&self) -> Option<u32> {
        self.0.special.bos
    }

    /// The end-of-text token. An answer may end with others too: see [`Tokenizer::is_end`].
    pub fn eos(&self) -> Option<u32> {
        self.0.special.eos
    }

    /// Every id that ends an answer, in order.
    pub fn ends(&self) -> &[u32] {
        &self.0.special.ends
    }

    /// Does this id end an answer?
    pub fn is_end(&self, id: u32) -> bool {
        self.0.special.ends.binary_search(&id).is_ok()
    }

    /// The largest id of the vocabulary without added tokens: some models (Gemma 3) ship with added tokens for other
    /// sizes of the family, for which their own table has no row.
    pub fn max_id(&self) -> u32 {
        self.0.max_id
    }

    /// Bytes a token stands for in the middle of a text: those of its literal for an added token, none
    /// for an id the vocabulary doesn't have.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let added = self.inner().get_added_vocabulary().get_added_tokens_decoder();
        if let Some(token) = added.get(&id) {
            return token.content.clone().into_bytes();
        }
        let Some(token) = self.id_to_token(id) else { return Vec::new() };
        match self.0.spelling {
            Spelling::ByteLevel => token.chars().flat_map(byte_of).collect(),
            Spelling::SentencePiece => match byte_token(&token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
            Spelling::Other => self.decode(&[id], false).unwrap_or_default().into_bytes(),
        }
    }

    /// Ids of `text`; `add_special` surrounds them as the file's post-processor says.
    ///
    /// # Errors
    /// Text the tokenizer can't represent.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        guard(|| self.inner().encode_fast(text, add_special))
            .map(|e| e.get_ids().to_vec())
            .map_err(|e| Error::malformed(format!("cannot tokenize {:?}: {e}", shown(text))))
    }

    /// Text of `ids`; ids the vocabulary doesn't have give no text.
    ///
    /// # Errors
    /// The file's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        guard(|| self.inner().decode(ids, skip_special))
            .map_err(|e| Error::malformed(format!("cannot turn {} tokens into text: {e}", ids.len())))
    }

    /// Id of a token written as in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner().token_to_id(token)
    }

    /// The token of an id, written as in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner().id_to_token(id)
    }

    /// Is this a special (control) token?
    pub fn is_special(&self, id: u32) -> bool {
        self.inner().get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|t| t.special)
    }

    /// Tokens of the vocabulary, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner().get_vocab_size(true)
    }

    /// Text piece by piece as ids come.
    pub fn decode_stream(&self, skip_special: bool) -> DecodeStream {
        DecodeStream::new(self.clone(), skip_special)
    }
}

/// Runs the crate's code on data from outside: its panics become errors.
fn guard<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err("its rules are inconsistent".into()),
    }
}

/// The byte a character stands for in a byte-level vocabulary; characters that stand for none are
/// themselves.
fn byte_of(c: char) -> Vec<u8> {
    let code = u32::from(c);
    let byte = match code {
        33..=126 | 161..=172 | 174..=255 => Some(code),
        // The others in order: 0 to 32, 127 to 160, 173.
        256..=288 => Some(code - 256),
        289..=322 => Some(code - 289 + 127),
        323 => Some(173),
        _ => None,
    };
    match byte {
        Some(byte) => vec![byte as u8],
        None => c.to_string().into_bytes(),
    }
}

/// The byte of a `<0xNN>` token.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// A `tokenizer.json` of byte-level BPE out of the older files.
fn assemble(folder: &Path) -> Result<Value> {
    let object = |name: &str| -> Result<Map<String, Value>> {
        let path = folder.join(name);
        serde_json::from_slice(&read_small(&path, MAX_FILE)?)
            .map_err(|e| Error::malformed(format!("not an object of tokens: {e}")).at(&path))
    };
    let vocab = object("vocab.json")?;
    let path = folder.join("merges.txt");
    let merges = String::from_utf8(read_small(&path, MAX_FILE)?)
        .map_err(|e| Error::malformed(format!("not UTF-8 at byte {}", e.utf8_error().valid_up_to())).at(&path))?;
    let merges: Vec<&str> = merges.lines().filter(|l| !l.starts_with("#version") && !l.is_empty()).collect();
    let mut added: Vec<(String, u64)> = Vec::new();
    if folder.join("added_tokens.json").is_file() {
        added = object("added_tokens.json")?.into_iter().filter_map(|(t, i)| Some((t, i.as_u64()?))).collect();
    } else {
        // Files without that list keep their control tokens in the vocabulary, between bars.
        let control = |t: &str| t.starts_with("<|") && t.ends_with("|>");
        added.extend(vocab.iter().filter(|(t, _)| control(t)).filter_map(|(t, i)| Some((t.clone(), i.as_u64()?))));
    }
    added.sort_by_key(|(_, id)| *id);
    let token = |(content, id): &(String, u64)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    Ok(json!({
        "version": "1.0",
        "added_tokens": added.iter().map(token).collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": false, "vocab": vocab, "merges": merges},
    }))
}
