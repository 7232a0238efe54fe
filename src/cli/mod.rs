//! The command line: a verb a file, each of them a thin client of the library.

use std::any::Any;
use std::fmt::Display;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use oxiline::graph::{Error, Result};

mod args;
mod bench;
mod bench_model;
mod chat;
mod devices;
mod dump;
mod embed;
mod execute;
mod graph;
mod interrupt;
mod listen;
mod memory;
mod models;
mod progress;
mod run;
mod search;
mod transcribe;

use args::{Cli, Common, Verb};

/// What is logged unless `OXILINE_LOG` says otherwise: libraries below us log what we say better ourselves.
const LOG: &str = "off,oxiline=error";
/// Exit code of bad input and failures.
const FAILED: u8 = 1;
/// Exit code after Ctrl-C: what was written is a part.
const STOPPED: u8 = 130;

/// How a verb ended.
enum Outcome {
    /// All is done.
    Done,
    /// It was stopped before the end.
    Stopped,
    /// It ran to the end, and something went wrong on the way that was already said.
    Failed,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("OXILINE_LOG").unwrap_or_else(|_| LOG.into()))
        .init();
    quiet_libraries();
    let done = catch_unwind(AssertUnwindSafe(|| dispatch(cli)));
    match done.unwrap_or_else(|panic| Err(bug(&*panic))) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Stopped) => ExitCode::from(STOPPED),
        Ok(Outcome::Failed) => ExitCode::from(FAILED),
        Err(error) => {
            say(format_args!("oxiline: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

/// What nobody caught.
fn bug(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Error::msg(format_args!("this is a bug in oxiline or a library of its: {text}"))
}

/// A panic inside a library that reads hostile data (tokenizers, codecs) is caught and told as an error: its own
/// line on the screen says no more. It is logged at `debug`. Panics of ours are shown as always.
fn quiet_libraries() {
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let registry = ["registry", "src"].iter().collect::<PathBuf>().display().to_string();
        match panic.location() {
            Some(at) if at.file().contains(&registry) => tracing::debug!("{panic}"),
            _ => show(panic),
        }
    }));
}

fn dispatch(cli: Cli) -> Result<Outcome> {
    let common = cli.common;
    if let Some(threads) = common.threads {
        oxiline::set_threads(threads.into());
    }
    oxiline::models::set_defaults(common.cache_dir.as_deref(), common.offline);
    match cli.verb {
        Verb::Transcribe(args) => transcribe::run(*args, &common),
        Verb::Listen(args) => listen::run(&args, &common),
        Verb::Chat(args) => chat::run(*args, &common),
        Verb::Embed(args) => embed::run(*args, &common),
        Verb::Rerank(args) => embed::rerank::run(*args, &common),
        Verb::Index(args) => search::index(args, &common),
        Verb::Search(args) => search::search(args, &common),
        Verb::Run(args) => run::run(args, &common),
        Verb::Graph(args) => graph::run(args),
        Verb::Schema(args) => graph::schema(args),
        Verb::Models(args) => models::run(args, &common),
        Verb::Devices(args) => devices::run(args),
        Verb::Bench(args) => match args.model.clone() {
            Some(model) => bench_model::run(&model, &args, &common),
            None => bench::run(args),
        },
        Verb::Dump(args) => dump::run(args),
    }
}

/// A line on standard error; a closed standard error is nobody's problem.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Text on standard output. A reader that went away ends the program quietly, as in a shell pipe.
fn print(text: impl Display) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Error::msg(format_args!("cannot write to standard output: {error}"))),
    }
}

/// The common options are part of every verb's signature only where they are used.
fn quiet(common: &Common) -> bool {
    common.quiet || common.stats == Some(args::Stats::Json)
}
