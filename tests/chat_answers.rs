//! Answers of `oxiline chat` on a tiny seeded checkpoint: nonsense, but always the same.

mod common;

use std::io::Read;
use std::process::{Output, Stdio};

use common::{fed, oxiline, root, run, stdout};
use serde_json::Value;

fn model() -> String {
    root().join("tests/fixtures/chat").display().to_string()
}

fn object(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).expect("one JSON object")
}

#[test]
fn an_answer_is_the_same_for_flag_pipe_and_threads() {
    let model = model();
    let base = ["chat", "-m", &model, "--no-system", "--max-tokens", "12", "--ignore-end", "--exact"];
    let with = |more: &[&'static str]| -> Vec<String> { base.iter().chain(more).map(ToString::to_string).collect() };
    let flag = stdout(&run(with(&["-p", "Hello"])));
    assert!(flag.ends_with('\n') && !flag.contains('\u{1b}'), "{flag:?}");
    assert_eq!(flag, stdout(&fed(&with(&[]), "Hello\n")));
    assert_eq!(flag, stdout(&run(with(&["-p", "Hello", "--threads", "1"]))));
    assert_eq!(flag, stdout(&run(with(&["-p", "Hello", "--prefill-chunk", "3"]))));
    let json = object(&run(with(&["-p", "Hello", "--json", "--logprobs", "2"])));
    assert_eq!(json["text"].as_str().expect("text").trim_end_matches('\n'), flag.trim_end_matches('\n'));
    assert_eq!((json["finish"].as_str(), json["stats"]["tokens"].as_u64()), (Some("length"), Some(12)));
    assert_eq!(json["ids"].as_array().map(Vec::len), Some(12));
    let first = &json["logprobs"][0];
    assert_eq!(first["top"][0]["id"], json["ids"][0]);
    assert!(first["logprob"].as_f64().is_some_and(|p| p < 0.0), "{first}");
}

#[test]
fn lines_are_conversations_of_their_own() {
    let model = model();
    let flags = ["chat", "-m", &model, "--no-system", "--max-tokens", "6", "--json", "--lines"];
    let out = stdout(&fed(&flags, "one\n\ntwo\none\n"));
    let lines: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(lines.iter().map(|l| l["prompt"].as_str().expect("prompt")).collect::<Vec<_>>(), ["one", "two", "one"]);
    assert_eq!(lines[0]["ids"], lines[2]["ids"], "what came before changes nothing");
}

#[test]
fn draws_repeat_with_their_seed() {
    let model = model();
    let draw = |seed: &str| {
        let flags = ["--temp", "1.5", "--top-k", "50", "--seed", seed, "--max-tokens", "16"];
        stdout(&run(["chat", "-m", &model, "--no-system", "-p", "Hello"].iter().copied().chain(flags)))
    };
    assert_eq!(draw("7"), draw("7"));
    let many: std::collections::HashSet<String> = (1..5).map(|n| draw(&n.to_string())).collect();
    assert!(many.len() > 1, "every seed draws the same: {many:?}");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let model = model();
    let flags = ["chat", "-m", &model, "--raw", "-p", "Once", "--max-tokens", "20000", "--ignore-end"];
    let mut child =
        oxiline().args(flags).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut some = [0; 4];
    child.stdout.take().expect("stdout").read_exact(&mut some).expect("some text");
    let end = child.wait_with_output().expect("it ends");
    assert!(end.status.success(), "{:?}: {}", end.status, String::from_utf8_lossy(&end.stderr));
    assert!(end.stderr.is_empty(), "{}", String::from_utf8_lossy(&end.stderr));
}

#[test]
fn the_graph_holds_the_same_conversation() {
    let model = model();
    let graph = root().join("graphs/chat.toml");
    let set = format!("model={model}");
    let args = ["run", graph.to_str().expect("UTF-8"), "--set", &set, "--set", "max_tokens=8"];
    let turns = stdout(&fed(&args, "Hello\n"));
    let verb = stdout(&run(["chat", "-m", &model, "--no-system", "-p", "Hello", "--max-tokens", "8"]));
    assert!(!verb.trim().is_empty());
    assert_eq!(turns, verb);
}
