//! `oxiline chat`, `bench MODEL` and `models show` as a person runs them, on a tiny seeded checkpoint.

mod common;

use std::path::Path;

use common::{fed, root, run, sentence, stdout};
use serde_json::{Value, json};

fn model() -> String {
    root().join("tests/fixtures/chat").display().to_string()
}

fn file(dir: &Path, name: &str, value: &Value) -> String {
    let path = dir.join(name);
    std::fs::write(&path, value.to_string()).expect("written");
    path.display().to_string()
}

#[test]
fn the_prompt_is_the_templates_to_the_byte() {
    let dir = tempfile::tempdir().expect("folder");
    let messages = file(
        dir.path(),
        "m.json",
        &json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"}]),
    );
    let model = model();
    let ask = |more: &[&str]| {
        let mut args = vec!["chat", "--model", &model, "--print-prompt", "--messages", &messages];
        args.extend(more);
        stdout(&run(args))
    };
    let body = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi \n<|im_end|>\n";
    assert_eq!(ask(&[]), format!("{body}<|im_start|>assistant\n"), "no line end is added");
    assert_eq!(ask(&["--no-think"]), format!("{body}<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert_eq!(ask(&["--think"]), ask(&[]));
    assert_eq!(ask(&["--no-generation-prompt"]), body);
    let tools = file(dir.path(), "t.json", &json!([{"type": "function", "function": {"name": "f"}}]));
    let with = ask(&["--tools", &tools]);
    assert!(with.starts_with("<|im_start|>system\nTools: [{\"type\": \"function\""), "{with}");
    assert!(ask(&["--tools"]).contains("get_current_datetime"));

    // Without a file: the flags' own conversation.
    let own = stdout(&run(["chat", "-m", &model, "--print-prompt", "-p", "Hello", "--no-system"]));
    assert_eq!(own, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    let own = stdout(&run(["chat", "-m", &model, "--print-prompt", "-p", "Hello"]));
    assert!(own.starts_with("<|im_start|>system\nYou are a helpful assistant. It is "), "{own}");
    let raw = stdout(&run(["chat", "-m", &model, "--print-prompt", "-p", "Once", "--raw"]));
    assert_eq!(raw, "Once");
}

#[test]
fn what_is_wrong_is_one_sentence() {
    let dir = tempfile::tempdir().expect("folder");
    let model = model();
    let not = file(dir.path(), "not.json", &json!({"a": 1}));
    let cases: &[(&[&str], &str)] = &[
        (&["-p", "x", "--temp", "hot"], "--temp cannot be `hot`"),
        (&["-p", "x", "--top-p", "2"], "--top-p cannot be `2`"),
        (&["-p", "x", "--kv", "f8"], "--kv cannot be `f8`"),
        (&["-p", "x", "--logit-bias", "a"], "ID=BIAS"),
        (&["-p", "x", "--resume", &not], "is no conversation"),
        (&["--print-prompt", "--messages", &not], "is no conversation"),
        (&["-p", "x", "--tools", &not], "nobody to run them"),
        (&["-p", "x", "--lines"], "leave --prompt and"),
    ];
    for (flags, want) in cases {
        let mut args = vec!["chat", "--model", &model];
        args.extend(*flags);
        let said = sentence(&run(args));
        assert!(said.contains(want), "{flags:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let said = sentence(&run(["chat", "--model", "no-such-org/nothing", "-p", "x"]));
    assert!(said.contains("no-such-org/nothing"), "{said}");
}

#[test]
fn the_graph_is_printed_as_it_is() {
    let graph = stdout(&run(["chat", "--print-graph"]));
    assert_eq!(graph, std::fs::read_to_string(root().join("graphs/chat.toml")).expect("graph"));
}

#[test]
fn a_model_is_shown() {
    let shown: Value = serde_json::from_str(&stdout(&run(["models", "show", &model()]))).expect("JSON");
    assert_eq!(shown["architecture"], "Qwen3ForCausalLM");
    assert_eq!((shown["family"].as_str(), shown["context"].as_u64()), (Some("qwen3"), Some(40960)));
    assert_eq!(shown["chat_template"], true);
    assert!(shown["types"]["BF16"].as_u64().is_some_and(|n| n > 10), "{shown}");
    // Embedding 384x64, four layers of attention 64x(128+64+64+128) and MLP 3x64x192.
    assert_eq!(shown["parameters"], 384 * 64 + 4 * (64 * 384 + 3 * 64 * 192));
    assert!(sentence(&run(["models", "show", "no/such/model.gguf"])).contains("no/such"));
}

#[test]
fn a_model_is_measured_beside_its_limits() {
    let model = model();
    let args = ["bench", &model, "--prompt", "24", "--generate", "4", "--repeat", "2", "--decode-batch", "2"];
    let shown: Value = serde_json::from_str(&stdout(&run(args.iter().chain(&["--json"])))).expect("JSON");
    for what in ["pp", "tg"] {
        let [min, median, max] = ["min", "median", "max"].map(|k| shown[what][k].as_f64().expect("a rate"));
        assert!(0.0 < min && min <= median && median <= max, "{shown}");
    }
    assert!(shown["limits"]["read_gbytes_s"].as_f64().is_some_and(|r| r > 0.0));
    assert_eq!(shown["decode_batch"], 2);
    let text = stdout(&run(args));
    assert!(text.contains("pp24") && text.contains("tg4x2") && text.contains("of"), "{text}");
    let said = sentence(&run(["bench", &model, "--prompt", "50000"]));
    assert!(said.contains("context of 40960"), "{said}");
    assert!(sentence(&run(["bench", &model, "--repeat", "0"])).contains("1 or more"));
}

#[test]
fn logits_are_written() {
    let dir = tempfile::tempdir().expect("folder");
    let out = dir.path().join("l.safetensors");
    let path = out.to_str().expect("UTF-8");
    stdout(&run(["chat", "-m", &model(), "-p", "Hello", "--no-system", "--exact", "--dump-logits", path]));
    let tensors = common::Tensors::read(&out);
    assert_eq!(tensors.shape("logits"), [384]);
    assert!(tensors.f32("logits").iter().all(|v| v.is_finite()));
    assert_eq!(tensors.i64("ids")[0], 341, "the prompt begins with <|im_start|>");
}

#[test]
fn prompts_of_a_pipe_are_printed_too() {
    let text = stdout(&fed(&["chat", "-m", &model(), "--print-prompt", "--no-system"], "a\nb"));
    assert_eq!(text, "<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n");
}
