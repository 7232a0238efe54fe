//! The families, each a short file: from a checkpoint's configuration to a [`crate::decoder::Spec`].
//!
//! To add one: a file with a `Family` that reads the keys of its `config.json` and of GGUF metadata
//! into layers, and a line in `ALL`.

mod common;
mod gemma3;
pub(crate) mod keys;
mod llama;
mod qwen;
mod qwen2;
mod qwen3;
mod qwen3_moe;

use oxiline_graph::{Error, Result, bail};
use oxiline_weights::Checkpoint;

use crate::decoder::names::Names;
use crate::decoder::spec::Spec;
use keys::{Json, Keys, Meta};

/// What a family says of a checkpoint: the model and where its tensors are.
type Described = (Spec, Names);

/// A checkpoint with a `config.json`.
struct Config<'a> {
    model_type: String,
    /// The text model's part.
    json: Json,
    /// The whole file.
    outer: Json,
    checkpoint: &'a Checkpoint,
}

/// A checkpoint with GGUF metadata.
struct Gguf<'a> {
    meta: Meta<'a>,
    checkpoint: &'a Checkpoint,
}

/// A family of models.
struct Family {
    name: &'static str,
    /// `model_type` of `config.json`.
    model_types: &'static [&'static str],
    /// Class names, for files without a `model_type`.
    architectures: &'static [&'static str],
    /// `general.architecture` of GGUF.
    gguf: &'static [&'static str],
    config: fn(&Config<'_>) -> Result<Described>,
    from_gguf: fn(&Gguf<'_>) -> Result<Described>,
}

const ALL: [Family; 5] = [llama::FAMILY, qwen2::FAMILY, qwen3::FAMILY, qwen3_moe::FAMILY, gemma3::FAMILY];

/// Names of the families.
pub fn supported() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|f| f.name)
}

fn unknown(place: &str, what: &str) -> Error {
    let known: Vec<&str> = ALL.iter().flat_map(|f| f.model_types).copied().collect();
    let what: String = what.chars().take(80).flat_map(char::escape_debug).collect();
    Error::msg(format_args!(
        "{place} is `{what}`, a model family that is not supported; supported: {}",
        known.join(", ")
    ))
}

/// What the model of a checkpoint is, every value checked.
///
/// # Errors
/// Keys are missing, contradict one another or are absurd, or the family is unknown.
pub fn describe(checkpoint: &Checkpoint) -> Result<(Spec, Names)> {
    if let Some(meta) = checkpoint.gguf() {
        let name = checkpoint.names().next().unwrap_or_default();
        let file = checkpoint.info(name).map_or_else(|_| checkpoint.folder().to_path_buf(), |info| info.file);
        let Some(arch) = meta.str("general.architecture") else {
            bail!("{}: metadata key `general.architecture` is missing", file.display());
        };
        let Some(family) = ALL.iter().find(|f| f.gguf.contains(&arch)) else {
            return Err(unknown(&format!("{}: metadata key `general.architecture`", file.display()), arch));
        };
        return (family.from_gguf)(&Gguf { meta: Meta { file, arch: arch.into(), meta }, checkpoint });
    }
    let file = checkpoint.folder().join("config.json");
    if !file.is_file() {
        bail!("{} is missing; a folder with config.json, weights and tokenizer.json is needed", file.display());
    }
    let value = checkpoint.config("config.json").map_err(Error::msg)?;
    let outer = Json::new(file.clone(), value.clone())?;
    let classes = outer.texts("architectures")?.unwrap_or_default();
    let model_type = outer.text("model_type")?;
    let family = ALL.iter().find(|f| match &model_type {
        Some(kind) => f.model_types.contains(&kind.as_str()),
        None => classes.iter().any(|class| f.architectures.contains(&class.as_str())),
    });
    let Some(family) = family else {
        return match model_type.as_ref().or(classes.first()) {
            Some(kind) => Err(unknown(&outer.place("model_type"), kind)),
            None => bail!("{} is missing; is this the configuration of a language model?", outer.place("model_type")),
        };
    };
    // A model that also sees keeps its text part's keys apart.
    let json = match outer.object("text_config")? {
        Some(text) => text,
        None => Json::new(file, value)?,
    };
    (family.config)(&Config { model_type: model_type.unwrap_or_default(), json, outer, checkpoint })
}
