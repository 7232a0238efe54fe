//! What is known of a language model without its weights.

use std::path::Path;

use oxiline_graph::{Error, Result};
use oxiline_language::chat::ChatTemplate;
use oxiline_language::decoder::spec::{Mixer, Mlp};
use oxiline_language::decoder::{KvFormat, LoadOptions, Quant, Spec};
use oxiline_weights::{Checkpoint, Mode, Tokenizer};

use super::EngineOptions;

/// The chat template of a checkpoint; no weights are read. `None`: it has none.
///
/// # Errors
/// Files that cannot be read, a template that does not compile.
pub fn chat_template(weights: &Path) -> Result<Option<ChatTemplate>> {
    if weights.is_dir()
        && let Some(template) = ChatTemplate::load(weights)?
    {
        return Ok(Some(template));
    }
    let checkpoint = match Checkpoint::open(weights, Mode::Mmap) {
        Ok(checkpoint) => checkpoint,
        // A folder with a tokenizer and no weights has a template or not; that it has no weights is
        // nothing to complain of here.
        Err(_) if weights.is_dir() => return Ok(None),
        Err(error) => return Err(Error::msg(error)),
    };
    match checkpoint.gguf() {
        Some(metadata) => ChatTemplate::from_gguf(metadata),
        None => ChatTemplate::load(checkpoint.folder()),
    }
}

/// The tokenizer of a checkpoint; no weights are read.
///
/// # Errors
/// It has none, or one that cannot be used.
pub fn tokenizer(weights: &Path) -> Result<Tokenizer> {
    // A folder without weights may have a tokenizer all the same.
    match Checkpoint::open(weights, Mode::Mmap) {
        Ok(checkpoint) => oxiline_language::llm::tokenizer(&checkpoint),
        Err(_) if weights.is_dir() => Tokenizer::load(weights).map_err(Error::msg),
        Err(error) => Err(Error::msg(error)),
    }
}

/// The options as the decoder below takes them, for [`oxiline_language::decoder::Decoder::load`].
///
/// # Errors
/// A value set with [`EngineOptions::set_model`] that is none.
pub fn load_options(options: &EngineOptions) -> Result<LoadOptions> {
    let model = options.model_options();
    let word = |key: &str| model.get(key).and_then(|v| v.as_str());
    let bad = |key: &str, value: &str| Error::msg(format_args!("`{key}` cannot be `{value}`"));
    Ok(LoadOptions {
        exact: model.get("exact").and_then(serde_json::Value::as_bool).unwrap_or(false),
        quant: match word("quant") {
            None => None,
            Some("q8") => Some(Quant::Q8),
            Some("q4") => Some(Quant::Q4),
            Some(other) => return Err(bad("quant", other)),
        },
        kv: match word("kv") {
            None => None,
            Some("f32") => Some(KvFormat::F32),
            Some("f16") => Some(KvFormat::F16),
            Some("int8") => Some(KvFormat::Int8),
            Some(other) => return Err(bad("kv", other)),
        },
    })
}

/// Parameters of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parameters {
    /// All of them.
    pub total: u64,
    /// Those that one token is multiplied with: the chosen experts, the output layer, no embedding.
    pub active: u64,
}

/// Counts the parameters of the matrices; norms and biases are less than a thousandth.
pub fn parameters(spec: &Spec) -> Parameters {
    let hidden = spec.hidden as u64;
    let head = spec.vocab as u64 * hidden;
    let mut out = Parameters { total: if spec.tied { head } else { 2 * head }, active: head };
    for layer in &spec.layers {
        let mut both = |total: u64, active: u64| {
            out.total += total;
            out.active += active;
        };
        // Another mixer's weights are not counted.
        if let Mixer::Attention(a) = &layer.mixer {
            let all = hidden * (2 * a.q_width() + 2 * a.kv_width()) as u64;
            both(all, all);
        }
        match &layer.mlp {
            Mlp::Dense(d) => {
                let all = hidden * d.inner as u64 * if d.gated { 3 } else { 2 };
                both(all, all);
            }
            Mlp::Experts(e) => {
                let one = 3 * hidden * e.inner as u64;
                let router = hidden * e.count as u64;
                both(one * e.count as u64 + router, one * e.chosen as u64 + router);
            }
        }
    }
    out
}
