//! `oxiline dump` against the reference implementations' numbers, through the command line.

mod common;

use common::{Tensors, clip, json, max_diff, recipe, run, sentence, speech, stdout, write_samples};
use serde_json::Value;

fn dump_whisper(case: &str, samples: &[f32], flags: &[&str]) -> Tensors {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (input, output) = (dir.path().join("in.safetensors"), dir.path().join("out.safetensors"));
    write_samples(&input, samples);
    let model = speech(case);
    let mut args: Vec<&std::ffi::OsStr> = vec!["dump".as_ref(), "whisper".as_ref(), "--model".as_ref(), model.as_ref()];
    args.extend(["--input".as_ref(), input.as_os_str(), "--output".as_ref(), output.as_os_str()]);
    args.extend(flags.iter().map(|f| f.as_ref() as &std::ffi::OsStr));
    stdout(&run(args));
    Tensors::read(&output)
}

fn tokens_of(run: &Value) -> Vec<i64> {
    run["sequence"].as_array().expect("sequence").iter().map(|v| v.as_i64().expect("id")).collect()
}

/// The flags that give the named run of case.json.
fn flags_of(name: &str, language: Option<&str>) -> Vec<String> {
    let mut flags: Vec<&str> = Vec::new();
    match name {
        "plain" | "timestamps" | "exact30 timestamps" | "long" => {
            if let Some(language) = language {
                flags.extend(["--language", language, "--task", "transcribe"]);
            }
        }
        "detect, plain" => {}
        "translate" => flags.extend(["--language", "fr", "--task", "translate"]),
        "german, timestamps" => flags.extend(["--language", "de", "--task", "transcribe"]),
        other => panic!("no flags known for {other}"),
    }
    if name.contains("timestamps") || name == "long" {
        flags.push("--timestamps");
    }
    flags.into_iter().map(String::from).collect()
}

fn check_runs(case: &str, language: Option<&str>, names: &[&str]) {
    let runs = json(&speech(case).join("case.json"))["runs"].take();
    for name in names {
        let golden = &runs[name];
        let samples = recipe(golden["clip"].as_str().expect("clip"));
        let flags = flags_of(name, language);
        let got = dump_whisper(case, &samples, &flags.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(got.i64("tokens"), tokens_of(golden), "{case}: {name}");
    }
}

#[test]
fn whisper_multilingual_runs_token_for_token() {
    let names =
        ["plain", "timestamps", "exact30 timestamps", "detect, plain", "translate", "german, timestamps", "long"];
    check_runs("whisper_multi", Some("en"), &names);
}

#[test]
fn whisper_english_runs_token_for_token() {
    check_runs("whisper_en", None, &["plain", "timestamps", "exact30 timestamps", "long"]);
}

#[test]
fn whisper_large_v3_layout_token_for_token() {
    check_runs("whisper_v3", Some("en"), &["plain", "timestamps", "detect, plain", "translate"]);
}

#[test]
fn distil_whisper_layout_token_for_token() {
    check_runs("whisper_distil", Some("en"), &["plain", "detect, plain", "long"]);
}

#[test]
fn whisper_intermediates_are_the_references() {
    let golden = Tensors::read(&speech("whisper_multi/golden.safetensors"));
    let got = dump_whisper("whisper_multi", &clip("en_a"), &["--language", "en", "--task", "transcribe"]);

    assert_eq!(got.shape("mel"), [80, 3000]);
    assert_eq!(got.shape("encoder"), [1500, 64]);
    let encoder = got.f32("encoder");
    let rows: Vec<f32> = golden
        .i32("encoder.rows")
        .iter()
        .flat_map(|&row| encoder[row as usize * 64..(row as usize + 1) * 64].to_vec())
        .collect();
    let diff = max_diff(&rows, &golden.f32("en_a.encoder"));
    assert!(diff < 1e-4, "encoder differs by {diff}");

    assert_eq!(got.i64("prompt_ids"), golden.i32("en_a.prompt_ids"));
    let logits = golden.f32("en_a.prompt_logits");
    let last = &logits[logits.len() - got.f32("first_logits").len()..];
    let diff = max_diff(&got.f32("first_logits"), last);
    assert!(diff < 2e-4, "logits differ by {diff}");
    let diff = max_diff(&got.f32("language_probs"), &golden.f32("en_a.language_probs"));
    assert!(diff < 1e-4, "language probabilities differ by {diff}");
}

#[test]
fn threads_do_not_change_a_bit() {
    let one = dump_whisper("whisper_multi", &clip("fr_a"), &["--threads", "1"]);
    let three = dump_whisper("whisper_multi", &clip("fr_a"), &["--threads", "3"]);
    for name in ["mel", "encoder", "first_logits"] {
        assert_eq!(one.f32(name), three.f32(name), "{name}");
    }
    assert_eq!(one.i64("tokens"), three.i64("tokens"));
}

#[test]
fn voice_activity_is_the_references() {
    let golden = Tensors::read(&speech("silero/golden.safetensors"));
    let dir = tempfile::tempdir().expect("temporary folder");
    let (input, output) = (dir.path().join("in.safetensors"), dir.path().join("out.safetensors"));
    for name in ["en_a", "exact30"] {
        write_samples(&input, &recipe(name));
        let args =
            ["dump", "vad", "--input", input.to_str().expect("path"), "--output", output.to_str().expect("path")];
        stdout(&run(args));
        let diff = max_diff(&Tensors::read(&output).f32("probabilities"), &golden.f32(&format!("{name}.probs")));
        assert!(diff < 1e-4, "{name} differs by {diff}");
    }
}

#[test]
fn resampling_keeps_a_tone_and_its_length() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let (input, output) = (dir.path().join("in.safetensors"), dir.path().join("out.safetensors"));
    let tone = |rate: f32, n: usize| -> Vec<f32> {
        (0..n).map(|i| (i as f32 / rate * 1000.0 * std::f32::consts::TAU).sin() * 0.5).collect()
    };
    write_samples(&input, &tone(44_100.0, 44_100));
    stdout(&run([
        "dump",
        "resample",
        "--rate-in",
        "44100",
        "--rate-out",
        "16000",
        "--input",
        input.to_str().expect("path"),
        "--output",
        output.to_str().expect("path"),
    ]));
    let got = Tensors::read(&output).f32("samples");
    let diff = max_diff(&got[200..15_800], &tone(16_000.0, 16_000)[200..15_800]);
    assert!(diff < 3e-4, "differs by {diff}");
}

#[test]
fn tensors_are_listed_and_handed_out() {
    let model = speech("whisper_en");
    let model = model.to_str().expect("path");
    let list: Value = serde_json::from_str(&stdout(&run(["dump", "tensors", "--model", model]))).expect("JSON");
    let entry = |name: &str| list.as_array().expect("array").iter().find(|t| t["name"] == name).cloned();
    let embed = entry("model.decoder.embed_tokens.weight").expect("the embedding is listed");
    assert_eq!(embed["dtype"], "F32");
    let names: Vec<&str> = list.as_array().expect("array").iter().map(|t| t["name"].as_str().expect("name")).collect();
    assert!(names.is_sorted());

    let dir = tempfile::tempdir().expect("temporary folder");
    let output = dir.path().join("out.safetensors");
    let name = "model.encoder.layer_norm.weight";
    stdout(&run(["dump", "tensors", "--model", model, "--tensor", name, "--output", output.to_str().expect("path")]));
    let stored = Tensors::read(&speech("whisper_en/model.safetensors"));
    assert_eq!(Tensors::read(&output).f32(name), stored.f32(name));

    let missing = run(["dump", "tensors", "--model", model, "--tensor", "no.such", "--output", "x.safetensors"]);
    assert!(sentence(&missing).contains("no.such"));
}

#[test]
fn bad_inputs_are_one_sentence() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let output = dir.path().join("out.safetensors");
    let bad = dir.path().join("bad.safetensors");
    let vad = |input: &std::path::Path| {
        run(["dump", "vad", "--input", input.to_str().expect("path"), "--output", output.to_str().expect("path")])
    };
    std::fs::write(&bad, b"not a checkpoint").expect("written");
    assert!(sentence(&vad(&bad)).contains("bad.safetensors"));
    write_samples(&bad, &[0.0, f32::NAN]);
    assert!(sentence(&vad(&bad)).contains("sample 1"));
    assert!(sentence(&vad(&dir.path().join("missing.safetensors"))).contains("missing.safetensors"));
    assert!(!output.exists(), "a failed dump leaves nothing behind");
}
