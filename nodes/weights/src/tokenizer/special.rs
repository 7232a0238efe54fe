//! The tokens with a meaning of their own: where a text begins and ends, where an answer ends.

use std::path::Path;

use serde_json::{Map, Value};

use crate::blob::read_small;
use crate::error::{Error, Result};
use crate::gguf::Metadata;

/// Largest configuration file read.
const MAX_FILE: u64 = 64 << 20;
/// Control tokens that end an answer in the families' formats, whatever a file names as its end token.
const ENDS: [&str; 14] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<eos>",
    "</s>",
    "<EOT>",
    "<|EOT|>",
];

/// Ids with a meaning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Special {
    /// Beginning of a text.
    pub bos: Option<u32>,
    /// End of a text.
    pub eos: Option<u32>,
    /// Filling.
    pub pad: Option<u32>,
    /// What stands for a character the vocabulary doesn't have.
    pub unknown: Option<u32>,
    /// [`super::Tokenizer::encode`] with `add_special` puts the beginning token first.
    pub add_bos: bool,
    /// [`super::Tokenizer::encode`] with `add_special` puts the end token last.
    pub add_eos: bool,
    /// Every id that ends an answer, in order.
    pub ends: Vec<u32>,
}

impl Special {
    /// From a GGUF file; `add_bos` holds where the file doesn't say.
    pub(super) fn from_gguf(metadata: &Metadata, tokens: &[String], types: &[i64], add_bos: bool) -> Result<Self> {
        let id = |key: &str| match metadata.u64(&format!("tokenizer.ggml.{key}_token_id")) {
            // Files without such a token say so with all bits set.
            None => Ok(None),
            Some(id) if id == u64::from(u32::MAX) => Ok(None),
            Some(id) if id < tokens.len() as u64 => Ok(Some(id as u32)),
            Some(id) => Err(Error::malformed(format!(
                "tokenizer.ggml.{key}_token_id is {id}, but there are {} tokens",
                tokens.len()
            ))),
        };
        let flag = |key: &str, otherwise| metadata.bool(&format!("tokenizer.ggml.{key}")).unwrap_or(otherwise);
        let mut special = Self {
            bos: id("bos")?,
            eos: id("eos")?,
            pad: id("padding")?,
            unknown: id("unknown")?,
            add_bos: flag("add_bos_token", add_bos),
            add_eos: flag("add_eos_token", false),
            ends: Vec::new(),
        };
        // Only control tokens end an answer: the same text as an ordinary token is text.
        let named =
            tokens.iter().zip(types).enumerate().filter(|(_, (t, kind))| **kind == 3 && ENDS.contains(&t.as_str()));
        special.ends.extend(named.map(|(id, _)| id as u32));
        special.ends.extend([id("eos")?, id("eot")?, id("eom")?].into_iter().flatten());
        special.sort();
        Ok(special)
    }

    /// From the files beside a `tokenizer.json`.
    pub(super) fn from_folder(folder: &Path, inner: &tokenizers::Tokenizer) -> Self {
        // These files only add to the tokenizer: one that can't be read says nothing.
        let object = |name: &str| -> Map<String, Value> {
            let bytes = read_small(&folder.join(name), MAX_FILE).unwrap_or_default();
            serde_json::from_slice(&bytes).unwrap_or_default()
        };
        let (config, older) = (object("tokenizer_config.json"), object("special_tokens_map.json"));
        let (generation, model) = (object("generation_config.json"), object("config.json"));
        let named = |key: &str| {
            let value = config.get(key).filter(|v| !v.is_null()).or_else(|| older.get(key))?;
            inner.token_to_id(value.as_str().or_else(|| value.get("content")?.as_str())?)
        };
        let mut special = Self {
            bos: named("bos_token"),
            eos: named("eos_token"),
            pad: named("pad_token"),
            unknown: named("unk_token"),
            ..Self::default()
        };
        let added = inner.encode_fast("", true).map(|e| e.get_ids().to_vec()).unwrap_or_default();
        special.add_bos = special.bos.is_some_and(|id| added.first() == Some(&id));
        special.add_eos =
            special.eos.is_some_and(|id| added.last() == Some(&id) && added.len() > usize::from(special.add_bos));
        for listed in [&generation, &model].into_iter().chain(model.get("text_config").and_then(Value::as_object)) {
            match listed.get("eos_token_id") {
                Some(Value::Array(ids)) => special.ends.extend(ids.iter().filter_map(id_of)),
                Some(one) => special.ends.extend(id_of(one)),
                None => {}
            }
        }
        let vocabulary = inner.get_added_vocabulary().get_added_tokens_decoder();
        let control = vocabulary.iter().filter(|(_, t)| t.special && ENDS.contains(&t.content.as_str()));
        special.ends.extend(control.map(|(id, _)| *id));
        special.ends.extend(special.eos);
        special.sort();
        special
    }

    fn sort(&mut self) {
        self.ends.sort_unstable();
        self.ends.dedup();
    }
}

fn id_of(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}
