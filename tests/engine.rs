//! [`oxiline::Engine`] as a program uses it, on a model actor of our own that repeats what it is told.

mod common;

use std::path::Path;

use common::echo::{Echo, EchoOptions};
use oxiline::graph::plan::Class;
use oxiline::graph::protocol::llm::Finish;
use oxiline::graph::{ActorHandle, Error, Load};
use oxiline::{Engine, EngineOptions, Event, Flow};

fn engine(options: EngineOptions) -> Engine {
    let handle = ActorHandle::load::<Echo>(EchoOptions::default(), Class::Interactive).expect("the actor starts");
    Engine::on(handle, options).expect("a session")
}

fn quiet(_: Event<'_>) -> Flow {
    Flow::Continue
}

#[test]
fn a_conversation_is_streamed_kept_and_counted() {
    let mut engine = engine(EngineOptions::new().with("system", "Be brief.").unwrap());
    let mut told = String::new();
    let turn = engine
        .send("one two three", |event| {
            if let Event::Text(text) = event {
                told.push_str(text);
            }
            Flow::Continue
        })
        .unwrap();
    assert_eq!((turn.text.as_str(), told.as_str()), ("one two three", "one two three"));
    assert_eq!((turn.finish, turn.stats.tokens), (Finish::End, 3));
    assert!(turn.stats.decode_tok_s() > 0.0 && turn.stats.prefill_tok_s() > 0.0);
    engine.send("four", quiet).unwrap();
    let roles: Vec<&str> = engine.conversation().messages().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(engine.conversation().messages()[4]["content"], "four");

    let (text, ids) = engine.render("five").unwrap();
    assert!(text.contains("Be brief.") && text.contains("five") && !ids.is_empty());
    assert_eq!(engine.conversation().messages().len(), 5, "rendering changes nothing");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("talk.json");
    engine.save(&path).unwrap();
    let kept = engine.conversation().clone();
    engine.reset().unwrap();
    assert_eq!(engine.conversation().messages().len(), 1);
    engine.restore(&path).unwrap();
    assert_eq!(*engine.conversation(), kept);
    assert!(engine.restore(dir.path().join("none")).is_err());
    assert_eq!(*engine.conversation(), kept);
}

#[test]
fn a_stop_keeps_what_was_told() {
    let mut engine = engine(EngineOptions::new());
    let mut told = String::new();
    let turn = engine
        .send("a b c d e f g h", |event| match event {
            Event::Text(text) => {
                told.push_str(text);
                if told.ends_with('c') { Flow::Stop } else { Flow::Continue }
            }
            _ => Flow::Continue,
        })
        .unwrap();
    assert!(turn.stopped());
    assert_eq!(turn.text, "a b c");
    assert_eq!(engine.conversation().messages()[1]["content"], "a b c");
    assert_eq!(engine.send("next", quiet).unwrap().text, "next", "the session stays usable");
}

#[test]
fn a_cancel_from_another_thread_keeps_the_part() {
    let mut engine = engine(EngineOptions::new());
    let handle = engine.cancel_handle();
    let mut told = 0;
    let long = "word ".repeat(2000);
    let turn = engine
        .send(&long, |event| {
            if let Event::Text(_) = event {
                told += 1;
                if told == 3 {
                    let handle = handle.clone();
                    std::thread::spawn(move || handle.cancel()).join().unwrap();
                }
            }
            Flow::Continue
        })
        .unwrap();
    assert!(turn.stopped() && turn.text.starts_with("word word word") && turn.text.len() < long.len());
    assert_eq!(engine.conversation().messages()[1]["content"], turn.text);
    assert!(!handle.is_asked(), "the cancel is used up");
    assert_eq!(engine.send("next", quiet).unwrap().text, "next");

    handle.cancel();
    let turn = engine.send("x y z", quiet).unwrap();
    assert!(turn.stopped(), "cancelled before it began");
}

#[test]
fn thinking_is_apart_and_a_failure_leaves_the_conversation_as_it_was() {
    let mut engine = engine(EngineOptions::new());
    let mut thought = String::new();
    let turn = engine
        .send("<think>hm</think> yes", |event| {
            if let Event::Thinking(text) = event {
                thought.push_str(text);
            }
            Flow::Continue
        })
        .unwrap();
    assert_eq!((turn.thinking.as_str(), turn.text.trim(), thought.as_str()), ("hm", "yes", "hm"));
    let before = engine.conversation().clone();
    let Err(Error::Message(error)) = engine.send("fail", quiet) else { panic!("no error") };
    assert!(error.contains("asked to"), "{error}");
    assert_eq!(*engine.conversation(), before);
    assert_eq!(engine.send("on", quiet).unwrap().text, "on");
}

#[test]
fn tools_are_called_and_their_results_answered() {
    let engine = engine(EngineOptions::new());
    let mut engine = engine.with_tools(oxiline::tools::builtin(), oxiline::tools::call);
    let mut seen = Vec::new();
    let turn = engine
        .send("call calculate 1234.5*6789-2^20", |event| {
            match event {
                Event::ToolCall(call) => seen.push(call.name.clone()),
                Event::ToolResult(_, result) => seen.push(result.to_string()),
                _ => {}
            }
            Flow::Continue
        })
        .unwrap();
    assert_eq!(seen, ["calculate", "7332444.5"]);
    assert_eq!(turn.text, "7332444.5", "the answer to the tool's result");
    let roles: Vec<String> =
        engine.conversation().messages().iter().map(|m| m["role"].as_str().unwrap().into()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(engine.conversation().messages()[1]["tool_calls"][0]["function"]["name"], "calculate");
    // A tool that fails tells the model, not the user.
    let turn = engine.send("call calculate 1/0", quiet).unwrap();
    assert!(turn.text.contains("division by zero"), "{}", turn.text);
    let Err(error) = engine.send("call-for-ever", quiet) else { panic!("no error") };
    assert!(error.to_string().contains("8 times"), "{error}");
}

#[test]
fn raw_text_has_no_roles_and_engines_share_a_model() {
    let mut raw = engine(EngineOptions::new().with("raw", "true").unwrap());
    raw.send("once upon", quiet).unwrap();
    assert_eq!(raw.conversation().raw_text(), Some("once upononce upon"));
    let mut other = raw.another().unwrap();
    assert!(other.conversation().is_empty());
    let beside = std::thread::spawn(move || other.send("a b", quiet).unwrap().text);
    assert_eq!(raw.send(" a", quiet).unwrap().stats.cached_tokens, 0);
    assert_eq!(beside.join().unwrap(), "a b");
}

#[test]
fn a_model_kind_gets_its_options() {
    let load = |options: EngineOptions| Engine::load_as::<Echo>(Path::new("some.gguf"), options, &Load::quiet());
    let mut engine = load(EngineOptions::new().with("quant", "q8").unwrap()).unwrap();
    assert_eq!(engine.send("yes", quiet).unwrap().text, "yes");
    let mut wrong = EngineOptions::new();
    wrong.set_model("quand", "q8");
    let Err(error) = load(wrong) else { panic!("no error") };
    assert!(error.to_string().contains("quand") && error.to_string().contains("quant"), "{error}");
}
