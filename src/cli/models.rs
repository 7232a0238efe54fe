//! `oxiline models`: pull, list, show, rm; and fetching for the other verbs.

use std::path::PathBuf;
use std::sync::Arc;

use oxiline::graph::{Error, Result};
use oxiline::models::{self, CachedModel, KNOWN};
use serde_json::{Value, json};

use super::args::{Common, Models, ModelsVerb};
use super::progress::Bar;
use super::{Outcome, print, quiet, say};

/// Runs the verb.
pub fn run(args: Models, common: &Common) -> Result<Outcome> {
    match args.what {
        ModelsVerb::Pull { model } => print(fetch(&model, common)?.display())?,
        ModelsVerb::List { known: true, json } => list_known(json)?,
        ModelsVerb::List { known: false, json } => list(json)?,
        ModelsVerb::Show { model } => print(pretty(&facts(&models::show(&model)?))?)?,
        ModelsVerb::Rm { model } => {
            let freed = models::remove(&model)?;
            print(format_args!("removed {model} ({:.1} MB)", freed as f64 / 1e6))?;
        }
    }
    Ok(Outcome::Done)
}

/// The folder of a model, downloaded with a progress bar when it is not there.
pub fn fetch(model: &str, common: &Common) -> Result<PathBuf> {
    let bar = Bar::new(!quiet(common));
    let drawn = bar.clone();
    let folder = models::resolve_with(
        model,
        Some(Arc::new(move |p| {
            drawn.download(p.file, p.done, Some(p.total));
            true
        })),
    );
    bar.finish();
    folder
}

fn facts(model: &CachedModel) -> Value {
    let files: Vec<_> = model.files.iter().map(|f| json!({"name": f.name, "bytes": f.bytes})).collect();
    json!({
        "name": model.name, "folder": model.folder, "revision": model.revision, "bytes": model.bytes,
        "complete": model.complete, "files": files,
    })
}

fn pretty(value: &Value) -> Result<String> {
    serde_json::to_string_pretty(value).map_err(Error::msg)
}

fn list(json: bool) -> Result<()> {
    let models = models::list()?;
    if json {
        return print(pretty(&Value::Array(models.iter().map(facts).collect()))?);
    }
    if models.is_empty() {
        say("no models here yet; `oxiline models pull whisper-base` fetches one");
    }
    for model in &models {
        let state = if model.complete { "" } else { "  (incomplete: pull it again)" };
        print(format_args!("{:<40} {:>9.1} MB{state}", model.name, model.bytes as f64 / 1e6))?;
    }
    Ok(())
}

fn list_known(json: bool) -> Result<()> {
    if json {
        let known: Vec<_> = KNOWN.iter().map(|(name, repo)| json!({"name": name, "repo": repo})).collect();
        return print(pretty(&Value::Array(known))?);
    }
    for (name, repo) in KNOWN {
        print(format_args!("{name:<24} {repo}"))?;
    }
    Ok(())
}
