//! Real weights: whisper-tiny.en and SmolLM2 135M always (`cargo check-all` fetches it), whisper-base with `--real`.
//!
//! The expected tokens were computed by the reference implementation (transformers 5.24, float32).

mod common;

use std::path::PathBuf;

use common::{root, run, stdout};
use serde_json::Value;

/// Folder of a model that `cargo check-all` fetched; `None`: the tests were started without it.
fn model(name: &str) -> Option<PathBuf> {
    let Some(models) = std::env::var_os("OXILINE_TEST_MODELS") else {
        eprintln!("left out: OXILINE_TEST_MODELS is not set (cargo check-all fetches the model and sets it)");
        return None;
    };
    let folder = PathBuf::from(models).join(name);
    assert!(folder.join("model.safetensors").is_file(), "{} is not there; run cargo check-all", folder.display());
    Some(folder)
}

fn transcript(model: &std::path::Path, flags: &[&str]) -> Value {
    let sample = root().join("examples/sample.wav");
    let mut args = vec!["transcribe", sample.to_str().expect("path"), "--model", model.to_str().expect("path")];
    args.extend(["--format", "json"]);
    args.extend(flags);
    serde_json::from_str(&stdout(&run(args))).expect("JSON")
}

fn tokens(transcript: &Value) -> Vec<i64> {
    let segments = transcript["segments"].as_array().expect("segments");
    segments
        .iter()
        .flat_map(|s| s["tokens"].as_array().expect("tokens").iter().map(|t| t.as_i64().expect("id")))
        .collect()
}

const TINY_PLAIN: [i64; 24] = [
    843, 523, 616, 5891, 3399, 1265, 407, 644, 534, 1499, 460, 466, 329, 345, 11, 1265, 644, 345, 460, 466, 329, 534,
    1499, 13,
];

const TINY_TIMES: [i64; 27] = [
    50363, 843, 523, 616, 5891, 3399, 1265, 407, 644, 534, 1499, 460, 466, 329, 345, 50763, 50763, 1265, 644, 345, 460,
    466, 329, 534, 1499, 13, 50913,
];

#[test]
fn tiny_en_says_what_the_reference_says() {
    let Some(model) = model("whisper-tiny.en") else { return };
    assert_eq!(tokens(&transcript(&model, &[])), TINY_PLAIN);
    let timed = transcript(&model, &["--timestamps", "--word-timestamps"]);
    assert_eq!(tokens(&timed), TINY_TIMES);
    let segments = timed["segments"].as_array().expect("segments");
    let times: Vec<(f64, f64)> =
        segments.iter().map(|s| (s["start"].as_f64().expect("start"), s["end"].as_f64().expect("end"))).collect();
    assert_eq!(times, [(0.0, 8.0), (8.0, 11.0)]);
    let words: Vec<&Value> = segments.iter().flat_map(|s| s["words"].as_array().expect("words")).collect();
    assert_eq!(words.len(), 22);
    let starts: Vec<f64> = words.iter().map(|w| w["start"].as_f64().expect("start")).collect();
    assert!(starts.is_sorted() && starts[0] < 1.0 && starts[21] > 9.0, "{starts:?}");
}

#[test]
fn tiny_en_does_not_depend_on_threads() {
    let Some(model) = model("whisper-tiny.en") else { return };
    assert_eq!(transcript(&model, &["--threads", "1"]), transcript(&model, &["--threads", "3"]));
}

const BASE_TIMES: [i64; 27] = [
    50364, 400, 370, 452, 7177, 6280, 11, 1029, 406, 437, 428, 1941, 393, 360, 337, 291, 11, 1029, 437, 291, 393, 360,
    337, 428, 1941, 13, 50914,
];

#[test]
#[ignore = "whisper-base: cargo check-all --real"]
fn base_detects_the_language_and_agrees() {
    let Some(model) = model("whisper-base") else { return };
    let timed = transcript(&model, &["--timestamps"]);
    assert_eq!(timed["language"], "en");
    assert_eq!(tokens(&timed), BASE_TIMES);
}

/// The file of a language model that `cargo check-all` fetched.
fn gguf(name: &str, file: &str) -> Option<String> {
    let Some(models) = std::env::var_os("OXILINE_TEST_MODELS") else {
        eprintln!("left out: OXILINE_TEST_MODELS is not set (cargo check-all fetches the model and sets it)");
        return None;
    };
    let file = PathBuf::from(models).join(name).join(file);
    assert!(file.is_file(), "{} is not there; run cargo check-all", file.display());
    Some(file.display().to_string())
}

fn smollm2() -> Option<String> {
    gguf("smollm2-135m-instruct", "SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Greedy ids after a raw prompt; dequantised to float32, as the reference computes.
fn raw_ids(model: &str, prompt: &str, count: &str) -> Vec<i64> {
    let flags = ["--raw", "--exact", "--json", "--max-tokens", count];
    let out = run(["chat", "--model", model, "-p", prompt].iter().copied().chain(flags));
    let answer: Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    answer["ids"].as_array().expect("ids").iter().map(|id| id.as_i64().expect("id")).collect()
}

#[test]
fn smollm2_answers_as_the_reference_does() {
    let Some(model) = smollm2() else { return };
    // Up to the first place where two tokens are nearly as probable.
    assert_eq!(raw_ids(&model, "The capital of France is", "5"), [7042, 30, 198, 198, 504]);
    assert_eq!(raw_ids(&model, "def fibonacci(n):\n", "10")[1..], [1604, 3987, 46477, 24, 94, 727, 472, 585, 304]);
    let chat = ["chat", "--model", &model, "--no-system", "--exact", "-p", "What is the capital of France?"];
    assert_eq!(stdout(&run(chat)), "The capital of France is Paris.\n");
}

#[test]
fn smollm2_is_known_by_its_name() {
    let Some(model) = smollm2() else { return };
    let shown: Value = serde_json::from_str(&stdout(&run(["models", "show", &model]))).expect("JSON");
    assert_eq!((shown["architecture"].as_str(), shown["chat_template"].as_bool()), (Some("llama"), Some(true)));
    assert_eq!(shown["parameters"].as_u64().map(|n| n / 1_000_000), Some(134));
    assert_eq!(shown["context"], 8192);
}

#[test]
fn minilm_gives_the_reference_vectors() {
    let Some(model) = model("all-minilm-l6-v2") else { return };
    let mut embedder = oxiline::Embedder::load(model.to_str().expect("path")).expect("a model");
    let texts = [
        "The quick brown fox jumps over the lazy dog.",
        "Der schnelle braune Fuchs springt über den faulen Hund.",
        "机器学习是人工智能的一个分支。",
    ];
    let vectors = embedder.embed(&texts, &oxiline::EmbedOptions::default()).expect("vectors");
    let first = [0.043934, 0.058934, 0.048178, 0.077548, 0.026744, -0.03763];
    for (got, want) in vectors[0].dense.iter().zip(first) {
        assert!((got - want).abs() < 2e-6, "{got} for {want}");
    }
    let cosines =
        [oxiline::cosine(&vectors[0].dense, &vectors[1].dense), oxiline::cosine(&vectors[0].dense, &vectors[2].dense)];
    assert!((cosines[0] - 0.1354).abs() < 1e-4 && (cosines[1] + 0.0198).abs() < 1e-4, "{cosines:?}");
}
