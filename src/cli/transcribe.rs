//! `oxiline transcribe`: the built-in graph, one instance a file, on one loaded model.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use oxiline::graph::plan::Plan;
use oxiline::graph::{Error, Registry, Result};
use oxiline::media::Source;
use oxiline::media::caption::Format;

use super::args::{Common, Decode, LoadArgs, PrecisionArg, QuantArg, Transcribe};
use super::execute::Session;
use super::{Outcome, models, print, say};

/// Runs the verb.
pub fn run(args: Transcribe, common: &Common) -> Result<Outcome> {
    if args.print_graph {
        print(oxiline::graphs::TRANSCRIBE)?;
        return Ok(Outcome::Done);
    }
    if let Some(language) = args.language.as_deref().filter(|language| *language != "auto") {
        oxiline::speech::whisper::language::code(language)?;
    }
    let jobs = jobs(&args)?;
    // Before a model is fetched and loaded.
    jobs.iter().try_for_each(|job| Source::exists(&job.input))?;
    let folder = models::fetch(&args.model, common)?;
    if args.download_only {
        print(folder.display())?;
        return Ok(Outcome::Done);
    }
    fits(&args, &folder)?;
    let registry = oxiline::registry();
    let to_terminal = std::io::stdout().is_terminal() && jobs.iter().any(|job| job.output == "-");
    // Standard output takes one file at a time, so that texts do not mix.
    let together = if args.output == "-" { 1 } else { args.jobs.max(1) };
    let mut worst = Outcome::Done;
    for some in jobs.chunks(together) {
        let mut plans = Vec::new();
        for job in some {
            if jobs.len() > 1 && job.output == "-" && job.format == Format::Text {
                print(format_args!("==> {} <==", job.input))?;
            }
            let mut plan = plan(&registry, &args, &folder, job)?;
            if jobs.len() > 1 {
                plan.name = job.input.as_str().into();
            }
            plans.push(plan);
        }
        let session = Session::new(common, !to_terminal, |node| node == "asr").naming(jobs.len() > 1);
        match session.run(plans, false)? {
            Outcome::Done => {}
            Outcome::Stopped => return Ok(Outcome::Stopped),
            Outcome::Failed => {
                if jobs.len() > together {
                    let names: Vec<&str> = some.iter().map(|job| job.input.as_str()).collect();
                    say(format_args!("oxiline: `{}` failed; going on with the other files", names.join("`, `")));
                }
                worst = Outcome::Failed;
            }
        }
    }
    Ok(worst)
}

/// What the model cannot do is said before its weights are read.
fn fits(args: &Transcribe, folder: &Path) -> Result<()> {
    use oxiline::graph::protocol::speech::Task;
    use oxiline::speech::whisper::{Config, language};
    let wanted = args.language.as_deref().unwrap_or_default();
    if args.translate || !wanted.is_empty() {
        let config = Config::load(folder)?;
        language::wanted(&config, wanted)?;
        language::can(&config, if args.translate { Task::Translate } else { Task::Transcribe })?;
    }
    Ok(())
}

struct Job {
    input: String,
    output: String,
    format: Format,
}

/// The format that a file's name says.
pub fn format_of(path: &str) -> Result<Format> {
    Format::of_path(path).ok_or_else(|| {
        let endings: Vec<String> = Format::ALL.iter().map(|(_, format)| format!(".{}", format.extension())).collect();
        Error::msg(format_args!("`{path}` does not say a format of captions: end it in {}", endings.join(", ")))
    })
}

/// Decides where each input's captions go, before anything is loaded.
fn jobs(args: &Transcribe) -> Result<Vec<Job>> {
    let asked = if args.json { Some(Format::Json) } else { args.format };
    let out = &args.output;
    let many = args.files.len() > 1;
    let folder = out != "-" && (many || Path::new(out).is_dir());
    if folder && Path::new(out).exists() && !Path::new(out).is_dir() {
        return Err(Error::msg(format_args!("`{out}` is a file; with several inputs, -o names a folder")));
    }
    if folder {
        std::fs::create_dir_all(out).map_err(|e| Error::msg(format_args!("cannot make the folder `{out}`: {e}")))?;
    }
    let format = match asked {
        Some(format) => format,
        // A name without an ending, a device or a folder says nothing; one with another ending meant something.
        None if folder || Path::new(out).extension().is_none() => Format::Text,
        None => format_of(out)?,
    };
    let mut taken = HashSet::new();
    args.files
        .iter()
        .map(|input| {
            let mut output = out.clone();
            if folder {
                let stem = Path::new(input).file_stem().map_or("stdin".into(), |s| s.to_string_lossy());
                let path = PathBuf::from(out).join(format!("{stem}.{}", format.extension()));
                output = path.to_string_lossy().into_owned();
                if !taken.insert(output.clone()) {
                    return Err(Error::msg(format_args!(
                        "two inputs would both be written to `{output}`; rename one or transcribe them apart"
                    )));
                }
            }
            Ok(Job { input: input.clone(), output, format })
        })
        .collect()
}

fn plan(registry: &Registry, args: &Transcribe, folder: &Path, job: &Job) -> Result<Plan> {
    let mut sets = vec![
        text("input", &job.input),
        text("output", &job.output),
        text("format", job.format.name()),
        text("model", &folder.to_string_lossy()),
        raw("nodes.captions.max_line", args.max_line),
    ];
    if let Some(language) = &args.language {
        sets.push(text("nodes.asr.language", language));
    }
    if args.translate {
        sets.push(text("nodes.asr.task", "translate"));
    }
    let captions = !matches!(job.format, Format::Text | Format::Json);
    sets.push(raw("nodes.asr.timestamps", args.timestamps || captions));
    sets.push(raw("nodes.asr.words", args.word_timestamps));
    decode_sets(&args.decode, &mut sets);
    load_sets(&args.load, &mut sets);
    oxiline::graphs::plan_text("graphs/transcribe.toml", oxiline::graphs::TRANSCRIBE, registry, &sets)
}

fn decode_sets(d: &Decode, sets: &mut Vec<(String, String)>) {
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            sets.push((format!("nodes.asr.{key}"), value));
        }
    };
    add("initial_prompt", d.initial_prompt.as_deref().map(quote));
    add("prefix", d.prefix.as_deref().map(quote));
    add("fallback", d.fallback.then(|| "true".into()));
    add("temperatures", d.temperatures.as_ref().map(|t| format!("{t:?}")));
    add("compression_ratio_threshold", d.compression_ratio_threshold.map(|v| format!("{v:?}")));
    add("logprob_threshold", d.logprob_threshold.map(|v| format!("{v:?}")));
    add("no_speech_threshold", d.no_speech_threshold.map(|v| format!("{v:?}")));
    add("condition_on_prev", d.condition_on_prev.then(|| "true".into()));
    add("beam", d.beam.map(|v| v.to_string()));
    add("max_tokens", d.max_tokens.map(|v| v.to_string()));
    add("batch", d.batch.map(|v| v.to_string()));
    add("skip_silence", d.keep_all.then(|| "false".into()));
    add("seed", d.seed.map(|v| v.to_string()));
}

fn load_sets(load: &LoadArgs, sets: &mut Vec<(String, String)>) {
    if let Some(precision) = load.precision {
        let word = match precision {
            PrecisionArg::F32 => "f32",
            PrecisionArg::F16 => "f16",
            PrecisionArg::Bf16 => "bf16",
        };
        sets.push(text("models.asr.precision", word));
    }
    if let Some(QuantArg::Q8) = load.quant {
        sets.push(text("models.asr.quant", "q8"));
    }
}

/// A setting whose value is a string, whatever it looks like.
pub(super) fn text(key: &str, value: &str) -> (String, String) {
    (key.into(), quote(value))
}

/// A setting whose value is written as TOML.
fn raw(key: &str, value: impl ToString) -> (String, String) {
    (key.into(), value.to_string())
}

fn quote(value: &str) -> String {
    toml::Value::String(value.into()).to_string()
}
