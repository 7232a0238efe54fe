//! The built-in graphs, and plans from files or text.

use std::path::Path;

use oxiline_graph::load::{self, LoadOptions, Message, Severity};
use oxiline_graph::plan::Plan;
use oxiline_graph::{Error, Registry, Result};

/// `graphs/transcribe.toml`: what `oxiline transcribe` runs.
pub const TRANSCRIBE: &str = include_str!("../graphs/transcribe.toml");

/// `graphs/chat.toml`: a conversation with a language model.
pub const CHAT: &str = include_str!("../graphs/chat.toml");

/// `graphs/captions-live.toml`: what `oxiline listen` runs.
pub const CAPTIONS_LIVE: &str = include_str!("../graphs/captions-live.toml");

/// `graphs/captions-file-paced.toml`: what `oxiline listen --file` runs.
pub const CAPTIONS_FILE_PACED: &str = include_str!("../graphs/captions-file-paced.toml");

/// Checks a graph file and makes its plan. `sets` are `key, value` as after `--set`.
///
/// # Errors
/// The sentences of everything that is wrong, a line each.
pub fn plan_file(path: &Path, registry: &Registry, sets: &[(String, String)]) -> Result<Plan> {
    load::check_file(path, registry, sets).map_err(|messages| error(&messages))
}

/// The same for looking at a graph: a model that is not on this machine is a note, not an error.
///
/// # Errors
/// As [`plan_file`].
pub fn inspect_file(path: &Path, registry: &Registry, sets: &[(String, String)]) -> Result<Plan> {
    let options = LoadOptions { allow_missing_models: true, ..LoadOptions::with_sets(sets) };
    load::plan_file(path, registry, &options).map_err(|messages| error(&messages))
}

/// The same for a graph in memory; `name` is what messages call it.
pub fn plan_text(name: &str, text: &str, registry: &Registry, sets: &[(String, String)]) -> Result<Plan> {
    load::check_text(name, text, registry, sets).map_err(|messages| error(&messages))
}

fn error(messages: &[Message]) -> Error {
    let lines: Vec<String> =
        messages.iter().filter(|m| m.severity == Severity::Error).map(ToString::to_string).collect();
    Error::msg(lines.join("\n"))
}
