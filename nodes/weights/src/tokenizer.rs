//! Text to token ids and back, behind a type of our own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::blob::read_small;
use crate::error::{Error, Result, shown};

/// Largest tokenizer file read.
const MAX_FILE: u64 = 256 << 20;
/// Tokens a character may be spread over before it is given up as broken. UTF-8 has at most four
/// bytes; the rest is slack for tokens that give no text.
const MAX_PENDING: usize = 8;

/// A tokenizer. Cheap to clone; shared by every stream.
#[derive(Clone)]
pub struct Tokenizer(Arc<tokenizers::Tokenizer>);

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.vocab_size())
    }
}

impl Tokenizer {
    /// From a folder with `tokenizer.json`, or with `vocab.json` and `merges.txt` (byte-level
    /// BPE, with `added_tokens.json` when it is there); or from a `tokenizer.json` itself.
    ///
    /// # Errors
    /// Missing or broken files.
    pub fn load(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Self::from_bytes(&read_small(path, MAX_FILE)?).map_err(|e| e.at(path));
        }
        let json = path.join("tokenizer.json");
        if json.is_file() {
            return Self::from_bytes(&read_small(&json, MAX_FILE)?).map_err(|e| e.at(&json));
        }
        if path.join("vocab.json").is_file() && path.join("merges.txt").is_file() {
            return Self::from_bytes(assemble(path)?.to_string().as_bytes()).map_err(|e| e.at(path));
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
        let loaded = guard(|| tokenizers::Tokenizer::from_bytes(bytes));
        let mut inner = loaded.map_err(|e| Error::malformed(format!("not a usable tokenizer: {e}")))?;
        // Cutting and padding are the caller's decision, not a file's.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::malformed(format!("not a usable tokenizer: {e}")))?;
        Ok(Self(Arc::new(inner)))
    }

    /// Ids of `text`; `add_special` surrounds them as the file's post-processor says.
    ///
    /// # Errors
    /// Text the tokenizer can't represent.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        guard(|| self.0.encode_fast(text, add_special))
            .map(|e| e.get_ids().to_vec())
            .map_err(|e| Error::malformed(format!("cannot tokenize {:?}: {e}", shown(text))))
    }

    /// Text of `ids`; ids the vocabulary doesn't have give no text.
    ///
    /// # Errors
    /// The file's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        guard(|| self.0.decode(ids, skip_special))
            .map_err(|e| Error::malformed(format!("cannot turn {} tokens into text: {e}", ids.len())))
    }

    /// Id of a token written as in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    /// The token of an id, written as in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    /// Is this a special (control) token?
    pub fn is_special(&self, id: u32) -> bool {
        self.0.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|t| t.special)
    }

    /// Tokens of the vocabulary, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.0.get_vocab_size(true)
    }

    /// Text piece by piece as ids come.
    pub fn decode_stream(&self, skip_special: bool) -> DecodeStream {
        DecodeStream { tokenizer: self.clone(), skip_special, ids: Vec::new(), shown: 0 }
    }
}

/// Turns ids into text as they come; never cuts a character. The pieces, with that of
/// [`DecodeStream::finish`], join to the text of all ids.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// The last piece shown and what came after it: decoders treat the first token of a text
    /// differently, so a piece is always decoded behind the one before it.
    ids: Vec<u32>,
    /// How many of `ids` have been shown.
    shown: usize,
}

impl DecodeStream {
    /// Adds an id; `Some` when there is new text.
    ///
    /// # Errors
    /// The file's decoder fails.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        self.ids.push(id);
        self.flush(false)
    }

    /// What is left at the end: the replacement character for a cut one.
    ///
    /// # Errors
    /// The file's decoder fails.
    pub fn finish(mut self) -> Result<Option<String>> {
        self.flush(true)
    }

    fn flush(&mut self, force: bool) -> Result<Option<String>> {
        let before = self.tokenizer.decode(&self.ids[..self.shown], self.skip_special)?;
        let now = self.tokenizer.decode(&self.ids, self.skip_special)?;
        let complete = !now.ends_with('\u{fffd}') || self.ids.len() - self.shown > MAX_PENDING;
        // `get`: a decoder that rewrites earlier text must not cut a character.
        let Some(new) = now.get(before.len()..).filter(|new| !new.is_empty() && (complete || force)) else {
            return Ok(None);
        };
        let new = new.to_string();
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        Ok(Some(new))
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
