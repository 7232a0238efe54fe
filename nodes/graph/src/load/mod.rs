//! Graph files to checked plans.
//!
//! [`plan_file`] and [`plan_text`] read TOML; [`crate::GraphBuilder`] makes the same from code.
//! Every mistake is a [`Message`]: one sentence with file, line, column and what to do.

mod document;
pub(crate) mod draft;
mod flatten;
pub(crate) mod keys;
pub(crate) mod message;
pub(crate) mod nodekeys;
mod options;
pub(crate) mod value;
mod vars;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use message::{Message, Severity};

use crate::check;
use crate::plan::Plan;
use crate::registry::Registry;
use document::{Files, Reader};
use draft::Draft;
use flatten::Flattener;
use message::{Reports, Spot};
use value::Table;
use vars::Sets;

pub(crate) use options::{check as check_options, properties as option_names};

/// Names of the port types.
pub(crate) fn port_types() -> &'static [&'static str] {
    &keys::PORT_TYPES
}

/// Looks an environment variable up.
pub type EnvLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// How to load a graph.
#[derive(Clone)]
pub struct LoadOptions {
    /// `--set KEY=VALUE`: variables, or keys such as `nodes.asr.step`. Values are TOML, else text.
    pub sets: Vec<(String, String)>,
    /// A model that is not on this machine is a warning: for checking graphs without weights.
    pub allow_missing_models: bool,
    /// Files that are not on the disk, by path: parts of built-in graphs.
    pub files: BTreeMap<PathBuf, String>,
    /// Where `${env:NAME}` looks.
    pub env: EnvLookup,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            sets: Vec::new(),
            allow_missing_models: false,
            files: BTreeMap::new(),
            env: Arc::new(|name| std::env::var(name).ok()),
        }
    }
}

impl LoadOptions {
    /// Options with these `--set`.
    pub fn with_sets(sets: &[(String, String)]) -> Self {
        Self { sets: sets.to_vec(), ..Self::default() }
    }
}

/// Loads and checks the graph file `path`. On failure the errors come first, then warnings.
pub fn plan_file(path: &Path, registry: &Registry, options: &LoadOptions) -> Result<Plan, Vec<Message>> {
    let name = path.to_string_lossy();
    match (Files { memory: &options.files }).read(path) {
        Ok(text) => plan_text(&name, &text, registry, options),
        Err(why) => {
            let mut reports = Reports::default();
            reports.file_error(&name, why);
            Err(reports.into_messages())
        }
    }
}

/// Loads and checks a graph from memory. `name` stands in messages, and the folder it names is
/// where `import` and `graph:` look.
pub fn plan_text(name: &str, text: &str, registry: &Registry, options: &LoadOptions) -> Result<Plan, Vec<Message>> {
    let mut reports = Reports::default();
    let Some((tree, spot)) = document::parse_text(name, text, &mut reports) else {
        return Err(reports.into_messages());
    };
    plan_tree(tree, spot, Path::new(name), registry, options, reports)
}

/// [`plan_file`] with `--set` pairs and nothing else.
pub fn check_file(path: &Path, registry: &Registry, sets: &[(String, String)]) -> Result<Plan, Vec<Message>> {
    plan_file(path, registry, &LoadOptions::with_sets(sets))
}

/// [`plan_text`] with `--set` pairs and nothing else.
pub fn check_text(
    name: &str,
    text: &str,
    registry: &Registry,
    sets: &[(String, String)],
) -> Result<Plan, Vec<Message>> {
    plan_text(name, text, registry, &LoadOptions::with_sets(sets))
}

/// The rest of the way, from a tree.
pub(crate) fn plan_tree(
    tree: Table,
    spot: Spot,
    path: &Path,
    registry: &Registry,
    options: &LoadOptions,
    mut reports: Reports,
) -> Result<Plan, Vec<Message>> {
    let Some(draft) = flatten(tree, spot, path, options, &mut reports) else {
        return Err(reports.into_messages());
    };
    if reports.failed() {
        // Kinds and options are checked all the same: one run shows as many mistakes as it can.
        check::kinds(draft, registry, options, &mut reports);
        return Err(reports.into_messages());
    }
    check::plan(draft, registry, options, reports)
}

fn flatten(tree: Table, spot: Spot, path: &Path, options: &LoadOptions, reports: &mut Reports) -> Option<Draft> {
    let files = Files { memory: &options.files };
    let env = &*options.env;
    let mut reader = Reader { files: &files, env: &|name| env(name), reports };
    let sets = Sets::new(&options.sets);
    let document = reader.document(tree, spot, path, &sets, &[])?;
    Some(Flattener::run(reader, document, path, sets))
}
