//! Rules of the house that the compiler does not know, checked on every source file.

use std::path::{Path, PathBuf};

/// Longest source file, lines. A file is one idea.
const LONGEST: usize = 650;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files somebody wrote: no build output, no fixtures, no lock file.
fn written(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), ".git" | "target" | "models" | "shared" | "fixtures") {
                written(&path, into);
            }
        } else if matches!(path.extension().and_then(|e| e.to_str()), Some("rs" | "toml" | "md" | "py" | "sh" | "yml"))
        {
            into.push(path);
        }
    }
}

/// Every written file with its text, its path told from the root.
fn files() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    written(root(), &mut paths);
    assert!(paths.len() > 100, "only {} files were found", paths.len());
    let text = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let short = |path: &PathBuf| {
        path.strip_prefix(root()).expect("inside").to_string_lossy().replace(std::path::MAIN_SEPARATOR, "/")
    };
    paths.iter().map(|path| (short(path), text(path))).collect()
}

/// Lines of files that `wanted` picks in which one of `words` stands.
fn lines_with(words: &[String], wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let files = files();
    let lines = files.iter().filter(|(path, _)| wanted(path)).flat_map(|(path, text)| {
        text.lines().enumerate().map(move |(i, line)| (format!("{path}:{}: {}", i + 1, line.trim()), line))
    });
    lines.filter(|(_, line)| words.iter().any(|word| line.contains(word))).map(|(place, _)| place).collect()
}

/// Words in two parts, so that this file does not hold them itself.
fn words(parts: &[(&str, &str)]) -> Vec<String> {
    parts.iter().map(|(a, b)| format!("{a}{b}")).collect()
}

#[test]
fn no_channel_is_unbounded() {
    // Tests may wait on one; nothing that runs for a user may.
    let product = |path: &str| path.ends_with(".rs") && !path.contains("tests") && !path.contains("benches/");
    let found = lines_with(
        &words(&[("mpsc::", "channel("), ("mpsc::", "channel::<"), ("unbounded", "("), ("unbounded_", "channel")]),
        product,
    );
    assert!(found.is_empty(), "queues need a bound:\n{}", found.join("\n"));
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    let found = lines_with(&words(&[("/wo", "rk/"), ("/ro", "ot/"), ("/home", "/ubuntu")]), |_| true);
    assert!(found.is_empty(), "paths of one machine:\n{}", found.join("\n"));
}

#[test]
fn registries_are_asked_by_their_own_clients() {
    let hosts = words(&[
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("npm", "js.org"),
        ("static.", concat!("crates", ".io")),
        ("conda", ".org"),
    ]);
    let found = lines_with(&hosts, |_| true);
    assert!(found.is_empty(), "hosts of registries:\n{}", found.join("\n"));
    let hub = lines_with(&words(&[("https://hugging", "face.co")]), |path| path != "nodes/weights/src/hub/mod.rs");
    assert!(hub.is_empty(), "the hub's address has one place:\n{}", hub.join("\n"));
}

#[test]
fn files_stay_short() {
    let long: Vec<String> = files()
        .iter()
        .filter(|(path, text)| path.ends_with(".rs") && text.lines().count() > LONGEST)
        .map(|(path, text)| format!("{path}: {} lines", text.lines().count()))
        .collect();
    assert!(long.is_empty(), "more than {LONGEST} lines:\n{}", long.join("\n"));
}
