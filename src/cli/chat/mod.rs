//! `oxiline chat`: a conversation in a terminal, one answer, or a batch from a pipe.

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;

use oxiline::engine::Conversation;
use oxiline::graph::{Error, Load, Result};
use oxiline::{Engine, EngineOptions};

pub mod args;
mod batch;
mod prompt;
mod repl;
mod show;

use super::args::Common;
use super::progress::Bar;
use super::{Outcome, models, print, quiet};
use args::Chat;

/// Largest text read from standard input or a file.
const MAX_TEXT: u64 = 64 << 20;

/// Runs the verb.
pub fn run(args: Chat, common: &Common) -> Result<Outcome> {
    if args.print_graph {
        print(oxiline::graphs::CHAT.trim_end())?;
        return Ok(Outcome::Done);
    }
    let model = args.model.as_deref().ok_or_else(|| Error::msg("name a model with --model"))?;
    // Everything wrong with the flags is said before anything is fetched or read.
    let options = options(&args, common)?;
    if args.print_prompt {
        return prompt::print(&args, &models::fetch(model, common)?);
    }
    if args.tools.as_deref().is_some_and(|file| !file.is_empty()) {
        return Err(Error::msg(
            "tools of a file have nobody to run them: use them with --print-prompt, or --tools alone for the built-in ones",
        ));
    }
    if args.lines && (args.prompt.is_some() || args.chat) {
        return Err(Error::msg("--lines takes its prompts from standard input; leave --prompt and --chat out"));
    }
    let interactive = args.prompt.is_none() && std::io::stdin().is_terminal() && !args.lines;
    if args.json && (interactive || args.chat) {
        return Err(Error::msg("--json is for one answer or a pipe: give --prompt, or text on standard input"));
    }
    let resume = args.resume.as_deref().map(Conversation::load).transpose()?;
    let weights = models::fetch(model, common)?;
    if let Some(out) = &args.dump_logits {
        return prompt::dump_logits(&args, &options, &weights, out);
    }
    let mut engine = load(&weights, options, common)?;
    if let Some(conversation) = resume {
        engine.set_conversation(conversation);
    }
    if args.tools.is_some() {
        engine = engine.with_tools(oxiline::tools::builtin(), oxiline::tools::call);
    }
    let outcome = if interactive || args.chat {
        repl::run(&mut engine, &args, common)
    } else {
        batch::run(&mut engine, &args, common)
    }?;
    if let Some(path) = &args.save {
        engine.save(path)?;
    }
    Ok(outcome)
}

/// The engine, with a bar while its weights are read. Ctrl-C gives up.
fn load(weights: &Path, options: EngineOptions, common: &Common) -> Result<Engine> {
    let bar = Bar::new(!quiet(common));
    let drawn = bar.clone();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asked = stop.clone();
    let guard = super::interrupt::on_interrupt(move |_| asked.store(true, std::sync::atomic::Ordering::SeqCst));
    let name = weights.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let watched = Load::watched(
        move |done, total| drawn.download(&name, done, Some(total)),
        move || stop.load(std::sync::atomic::Ordering::SeqCst),
    );
    let engine = Engine::load_path(weights, options, &watched);
    bar.finish();
    drop(guard);
    super::interrupt::reset();
    engine
}

/// The flags as options.
fn options(args: &Chat, common: &Common) -> Result<EngineOptions> {
    let mut options = EngineOptions::new();
    let mut set = |key: &str, value: &Option<String>| match value {
        Some(value) => options.set(key, value).map(|_| ()).map_err(|e| flag(key, &e)),
        None => Ok(()),
    };
    let (a, w) = (&args.answer, &args.weights);
    set("max-tokens", &a.max_tokens)?;
    for (key, value) in a.choose.settings() {
        // Flags are written with hyphens.
        set(&key.replace('_', "-"), &Some(value.to_string()))?;
    }
    set("logprobs", &a.logprobs)?;
    set("json-schema", &a.json_schema)?;
    set("regex", &a.regex)?;
    set("context", &w.context)?;
    set("context-full", &w.context_full)?;
    set("kv", &w.kv)?;
    set("quant", &w.quant)?;
    set("prefill-chunk", &w.prefill_chunk)?;
    set("threads", &common.threads.map(|n| n.to_string()))?;
    for (key, on) in
        [("exact", w.exact), ("ignore-end", a.ignore_end), ("show-tokens", args.show_tokens), ("raw", args.raw)]
    {
        if on {
            options.set(key, "true")?;
        }
    }
    for stop in a.stop.iter().filter(|stop| !stop.is_empty()) {
        options.set("stop", stop)?;
    }
    // Thinking that nobody asked to see only costs time.
    options.set("think", if args.think { "true" } else { "false" })?;
    match &args.system {
        Some(text) => options.set("system", text)?,
        None if !args.no_system && !args.raw => options.set("system", &oxiline::tools::default_system())?,
        None => &mut options,
    };
    Ok(options)
}

/// The sentence with the flag as it was written.
fn flag(key: &str, error: &Error) -> Error {
    let sentence = error.to_string();
    let rest = sentence.strip_prefix('`').and_then(|s| s.split_once('`')).map_or(sentence.as_str(), |(_, rest)| rest);
    Error::msg(format_args!("--{key}{rest}"))
}

/// A text file, whole.
fn read_text(path: &Path) -> Result<String> {
    let shown = path.display();
    let cannot = |e: std::io::Error| Error::msg(format_args!("`{shown}` cannot be read: {e}"));
    text_of(std::fs::File::open(path).map_err(cannot)?, &format!("`{shown}`"))
}

/// All of standard input.
fn read_stdin() -> Result<String> {
    text_of(std::io::stdin().lock(), "standard input")
}

fn text_of(source: impl Read, name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let read = source.take(MAX_TEXT + 1).read_to_end(&mut bytes);
    read.map_err(|e| Error::msg(format_args!("{name} cannot be read: {e}")))?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(Error::msg(format_args!("{name} is longer than {} MiB", MAX_TEXT >> 20)));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::msg(format_args!("{name} is not UTF-8 at byte {at}; convert it to UTF-8 first"))
    })
}
