//! `oxiline listen`: live captions of a microphone, or of a file at the speed of speech.

use oxiline::graph::Result;
use oxiline::graphs::{self, CAPTIONS_FILE_PACED, CAPTIONS_LIVE};
use oxiline::media::Source;

use super::args::{Common, Listen};
use super::execute::Session;
use super::transcribe::{format_of, text as text_of};
use super::{Outcome, models, print, say};

/// Runs the verb.
pub fn run(args: &Listen, common: &Common) -> Result<Outcome> {
    let (name, text) = match args.file {
        Some(_) => ("graphs/captions-file-paced.toml", CAPTIONS_FILE_PACED),
        None => ("graphs/captions-live.toml", CAPTIONS_LIVE),
    };
    if args.print_graph {
        print(text.trim_end())?;
        return Ok(Outcome::Done);
    }
    if let Some(language) = args.language.as_deref().filter(|language| *language != "auto") {
        oxiline::speech::whisper::language::code(language)?;
    }
    let format = args.output.as_deref().map(format_of).transpose()?;
    if let Some(file) = &args.file {
        Source::exists(file)?;
    }
    let folder = models::fetch(&args.model, common)?;
    let mut sets = vec![text_of("model", &folder.to_string_lossy()), text_of("policy", &args.policy)];
    match &args.file {
        Some(file) => sets.push(text_of("input", file)),
        None => sets.push(text_of("device", &args.device)),
    }
    if let Some(language) = &args.language {
        sets.push(text_of("language", language));
    }
    let text = match (&args.output, format) {
        (Some(output), Some(format)) => {
            sets.push(text_of("output", output));
            sets.push(text_of("nodes.notes.format", format.name()));
            text.to_string()
        }
        // Without a file the graph has no writer: its table is the last one.
        _ => text.split("\n[nodes.notes]").next().unwrap_or(text).to_string(),
    };
    let mut plan = graphs::plan_text(name, &text, &oxiline::registry(), &sets)?;
    if !super::quiet(common) {
        std::mem::take(&mut plan.notes).iter().for_each(say);
    }
    Session::new(common, false, |_| false).run(vec![plan], false)
}
