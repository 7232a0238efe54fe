//! `oxiline models`: pull, list, show, rm; and fetching for the other verbs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxiline::graph::{Error, Result};
use oxiline::models::{self, CachedModel, KNOWN};
use oxiline::weights::convert::{ConvertOptions, Quant};
use oxiline::weights::{Checkpoint, Mode};
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
        ModelsVerb::Show { model } => print(pretty(&show(&model)?)?)?,
        ModelsVerb::Convert { model, quant, output } => {
            let source = fetch(&model, common)?;
            convert(&source, &quant, &output, common)?;
        }
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

/// Writes a quantised copy; `OXILINE_TABLE_QUANT` (`q8`, `q4`, `stored`) is for embeddings and heads.
fn convert(source: &Path, quant: &str, output: &Path, common: &Common) -> Result<()> {
    let named = |name: &str| match name {
        "q8" => Some(Quant::Q8),
        "q4" => Some(Quant::Q4),
        _ => None,
    };
    let quant = named(quant).ok_or_else(|| Error::msg("`--quant` is q8 or q4"))?;
    let mut options = ConvertOptions::new(quant);
    match std::env::var("OXILINE_TABLE_QUANT").as_deref() {
        Err(_) | Ok("") => {}
        Ok("stored") => options.tables = None,
        Ok(other) => {
            let tables = named(other).ok_or_else(|| {
                Error::msg(format_args!("OXILINE_TABLE_QUANT is {other}; it can be q8, q4 or stored"))
            })?;
            options.tables = Some(tables);
        }
    }
    let bar = Bar::new(!quiet(common));
    let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let made = oxiline::weights::convert::convert(source, output, options, &mut |done, total| {
        bar.download(&name, done, Some(total));
        true
    });
    bar.finish();
    let made = made.map_err(Error::msg)?;
    print(format_args!(
        "{}: {} matrices in {}, {} tensors as they were, {:.1} MB in {} files",
        output.display(),
        made.quantised,
        quant.name(),
        made.kept,
        made.bytes as f64 / 1e6,
        made.files
    ))
}

/// What is known of a model: of a path, or of one in the cache.
fn show(model: &str) -> Result<Value> {
    let path = Path::new(model);
    if path.exists() {
        let mut out = json!({"name": model, "path": path});
        describe(path, &mut out)?;
        return Ok(out);
    }
    let cached = models::show(model)?;
    let mut out = facts(&cached);
    // A model that is not complete, or of a kind without tensors we read, is still in the cache.
    if let Err(error) = describe(&cached.folder, &mut out) {
        out["note"] = error.to_string().into();
    }
    Ok(out)
}

/// Architecture, parameters, types, context and whether there is a chat template. No weights are read.
fn describe(path: &Path, out: &mut Value) -> Result<()> {
    let checkpoint = Checkpoint::open(path, Mode::Mmap).map_err(Error::msg)?;
    let (mut elements, mut bytes, mut types) = (0u64, 0u64, BTreeMap::<String, u64>::new());
    for name in checkpoint.names() {
        let info = checkpoint.info(name).map_err(Error::msg)?;
        elements += info.shape.iter().map(|&n| n as u64).product::<u64>();
        bytes += info.bytes as u64;
        *types.entry(info.dtype.name().to_string()).or_default() += 1;
    }
    let (architecture, context) = match checkpoint.gguf() {
        Some(metadata) => {
            let architecture = metadata.str("general.architecture").map(String::from);
            let key = format!("{}.context_length", architecture.as_deref().unwrap_or_default());
            (architecture, metadata.u64(&key))
        }
        None => {
            let config = checkpoint.config("config.json").unwrap_or_default();
            let text = config.get("text_config").unwrap_or(&config);
            let name = config["architectures"][0].as_str().or(config["model_type"].as_str()).map(String::from);
            (name, text["max_position_embeddings"].as_u64())
        }
    };
    out["format"] = if checkpoint.gguf().is_some() { "gguf" } else { "tensors" }.into();
    out["architecture"] = architecture.into();
    out["context"] = context.into();
    match oxiline::language::families::describe(&checkpoint) {
        Ok((spec, _)) => {
            let parameters = oxiline::engine::parameters(&spec);
            out["family"] = spec.family.into();
            out["context"] = spec.context.into();
            out["parameters"] = parameters.total.into();
            out["active_parameters"] = parameters.active.into();
        }
        // Packed elements are not parameters, but there is no other number.
        Err(_) => out["parameters"] = elements.into(),
    }
    out["tensors"] = checkpoint.names().len().into();
    out["weights_bytes"] = bytes.into();
    out["types"] = json!(types);
    out["chat_template"] = match oxiline::engine::chat_template(path) {
        Ok(template) => template.is_some().into(),
        Err(error) => error.to_string().into(),
    };
    Ok(())
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
