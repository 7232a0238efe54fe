//! The program as a person uses it, on the tiny fixture checkpoints.

mod common;

use std::path::Path;

use common::{clip, json, recipe, root, run, sentence, speech, stdout, write_wav};
use serde_json::Value;

fn path(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

fn model() -> String {
    path(&speech("whisper_en")).to_string()
}

#[test]
fn verb_and_graph_give_the_same_transcript() {
    let dir = tempfile::tempdir().expect("folder");
    let wav = dir.path().join("clip.wav");
    write_wav(&wav, &clip("en_a"));
    let model = model();
    let verb = stdout(&run(["transcribe", path(&wav), "--model", &model, "--format", "json", "--keep-all"]));
    let graph = stdout(&run([
        "run",
        path(&root().join("graphs/transcribe.toml")),
        "--set",
        &format!("input={}", path(&wav)),
        "--set",
        "output=-",
        "--set",
        "format=json",
        "--set",
        &format!("model={model}"),
        "--set",
        "nodes.asr.skip_silence=false",
    ]));
    assert_eq!(verb, graph);
    let verb: Value = serde_json::from_str(&verb).expect("JSON");
    let tokens: Vec<i64> = verb["segments"]
        .as_array()
        .expect("segments")
        .iter()
        .flat_map(|s| s["tokens"].as_array().expect("tokens").iter().map(|t| t.as_i64().expect("id")))
        .collect();
    let golden = json(&speech("whisper_en/case.json"))["runs"]["plain"]["sequence"].take();
    let golden: Vec<i64> = golden.as_array().expect("sequence").iter().map(|t| t.as_i64().expect("id")).collect();
    assert_eq!(tokens, golden);
}

#[test]
fn every_format_is_written_whole_under_its_own_name() {
    let dir = tempfile::tempdir().expect("folder");
    let wav = dir.path().join("clip.wav");
    write_wav(&wav, &recipe("long"));
    for (extension, opening) in
        [("txt", ""), ("srt", "1\n00:00:"), ("vtt", "WEBVTT"), ("json", "{"), ("tsv", "start\tend\ttext"), ("lrc", "[")]
    {
        let out = dir.path().join(format!("out.{extension}"));
        stdout(&run(["transcribe", path(&wav), "--model", &model(), "-o", path(&out)]));
        let text = std::fs::read_to_string(&out).expect("the output is there");
        assert!(text.starts_with(opening), "{extension}: {text}");
        assert!(!text.trim().is_empty(), "{extension}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("folder").map(|e| e.expect("entry").file_name()).collect();
    assert_eq!(left.len(), 7, "nothing but the clip and six outputs: {left:?}");
}

#[test]
fn several_files_go_to_a_folder() {
    let dir = tempfile::tempdir().expect("folder");
    let (a, b, out) = (dir.path().join("a.wav"), dir.path().join("b.wav"), dir.path().join("out"));
    write_wav(&a, &clip("en_a"));
    write_wav(&b, &clip("en_b"));
    stdout(&run(["transcribe", path(&a), path(&b), "--model", &model(), "--format", "srt", "-o", path(&out)]));
    assert!(out.join("a.srt").is_file() && out.join("b.srt").is_file());
    let together = dir.path().join("together");
    let args = ["--model", &model(), "--format", "srt", "-o", path(&together), "--jobs", "2"];
    stdout(&run(["transcribe", path(&a), path(&b)].iter().chain(&args)));
    for name in ["a.srt", "b.srt"] {
        let read = |folder: &Path| std::fs::read_to_string(folder.join(name)).expect("captions");
        assert_eq!(read(&out), read(&together), "{name} does not depend on what runs beside it");
    }
}

#[test]
fn statistics_end_with_times_and_memory() {
    let dir = tempfile::tempdir().expect("folder");
    let wav = dir.path().join("clip.wav");
    write_wav(&wav, &clip("en_a"));
    let output = run(["transcribe", path(&wav), "--model", &model(), "--stats", "json"]);
    stdout(&output);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    let last: Value = serde_json::from_str(errors.lines().last().expect("a line")).expect("JSON");
    for key in ["load_s", "encode_s", "decode_s", "total_s"] {
        assert!(last[key].as_f64().is_some_and(|v| v > 0.0), "{key} in {last}");
    }
    assert_eq!(last["event"], "end");
    assert_eq!(last["conserved"], true);
    assert!(last["audio_s"].as_f64().is_some_and(|v| (v - 5.24).abs() < 0.1), "{last}");
    if cfg!(target_os = "linux") {
        assert!(last["peak_memory_bytes"].as_u64().is_some_and(|v| v > 1_000_000));
    }
}

/// A prompt without a task made whisper-base repeat one word for ever.
#[test]
fn a_detected_language_decodes_like_the_same_language_given() {
    let dir = tempfile::tempdir().expect("folder");
    let wav = dir.path().join("clip.wav");
    write_wav(&wav, &clip("en_a"));
    // Of the layout whose files force no task.
    let model = speech("whisper_v3");
    let transcript = |language: &[&str]| -> Value {
        let args = ["transcribe", path(&wav), "--model", path(&model), "--format", "json", "--keep-all"];
        serde_json::from_str(&stdout(&run(args.iter().chain(language)))).expect("JSON")
    };
    let detected = transcript(&[]);
    let code = detected["language"].as_str().expect("a language");
    assert_eq!(detected["segments"], transcript(&["--language", code])["segments"]);
}

#[test]
fn silence_gives_no_text() {
    let dir = tempfile::tempdir().expect("folder");
    let wav = dir.path().join("silence.wav");
    write_wav(&wav, &vec![0.0; 16_000 * 40]);
    assert_eq!(stdout(&run(["transcribe", path(&wav), "--model", &model()])).trim(), "");
}

#[test]
fn noise_and_tones_give_no_text() {
    let dir = tempfile::tempdir().expect("folder");
    let wav = dir.path().join("noise.wav");
    let mut state = 1u32;
    let noise = std::iter::from_fn(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((f64::from(state) / f64::from(u32::MAX) - 0.5) as f32 * 0.1)
    });
    let chord = (0..16_000 * 20).map(|i| {
        let t = i as f32 / 16_000.0;
        [220.0, 277.2, 329.6].iter().map(|f: &f32| (f * t * std::f32::consts::TAU).sin() * 0.1).sum()
    });
    let samples: Vec<f32> = noise.take(16_000 * 20).chain(chord).collect();
    write_wav(&wav, &samples);
    assert_eq!(stdout(&run(["transcribe", path(&wav), "--model", &model()])).trim(), "");
}

#[test]
fn bad_input_is_one_sentence_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("folder");
    let out = dir.path().join("out.srt");
    let transcribe = |input: &Path, model: &str| run(["transcribe", path(input), "--model", model, "-o", path(&out)]);
    let (missing, empty, text) =
        (dir.path().join("missing.mp3"), dir.path().join("empty.wav"), dir.path().join("a.txt"));
    std::fs::write(&empty, b"").expect("written");
    std::fs::write(&text, b"just some text, not sound at all\n".repeat(50)).expect("written");
    for input in [missing.as_path(), &empty, &text, dir.path()] {
        let said = sentence(&transcribe(input, &model()));
        let name = input.file_name().expect("name").to_string_lossy();
        assert!(said.contains(&*name), "`{said}` names {name}");
        assert_eq!(said.lines().count(), 1, "one sentence: {said}");
    }
    let wav = dir.path().join("clip.wav");
    write_wav(&wav, &clip("en_a"));
    let said = sentence(&transcribe(&wav, "no-such-org/no-such-model"));
    assert!(said.contains("no-such-org/no-such-model"), "{said}");
    let said = sentence(&transcribe(&wav, path(dir.path())));
    assert!(said.contains("config.json"), "{said}");
    let said = sentence(&run(["transcribe", path(&wav), "--model", &model(), "--language", "klingon"]));
    assert!(said.contains("klingon"), "{said}");
    assert!(!out.exists());
}

#[test]
fn an_unwritable_place_is_said_before_the_work() {
    let dir = tempfile::tempdir().expect("folder");
    let wav = dir.path().join("clip.wav");
    write_wav(&wav, &clip("en_a"));
    let said = sentence(&run(["transcribe", path(&wav), "--model", &model(), "-o", "talk.docx"]));
    assert!(said.contains("talk.docx") && said.contains(".srt"), "{said}");
    let said = sentence(&run(["transcribe", path(&wav), "--model", &model(), "-o", "/no/such/folder/out.srt"]));
    assert!(said.contains("/no/such/folder"), "{said}");
}

#[test]
fn graphs_are_checked_shown_and_drawn() {
    let file = root().join("graphs/transcribe.toml");
    for what in ["check", "show", "dot", "mermaid"] {
        let text = stdout(&run(["graph", what, path(&file)]));
        assert!(text.contains("asr"), "{what}: {text}");
    }
    let shown = stdout(&run(["graph", "check", path(&file)]));
    assert!(shown.contains("64 kB a second of sound"), "{shown}");
    let schema: Value = serde_json::from_str(&stdout(&run(["schema"]))).expect("JSON");
    assert!(schema.to_string().contains("media.read"));
    let said = sentence(&run(["graph", "check", path(&file), "--set", "nodes.asr.langauge=en"]));
    assert!(said.contains("langauge") && said.contains("language"), "{said}");
}

#[test]
fn a_model_that_is_not_here_is_told_with_the_command_that_fetches_it() {
    let file = root().join("graphs/transcribe.toml");
    let set = |model: &str| format!("model={model}");
    let shown = stdout(&run(["graph", "check", path(&file), "--set", &set("no-such-org/no-such-model")]));
    assert!(shown.contains("`oxiline models pull no-such-org/no-such-model`"), "{shown}");
    let said = sentence(&run(["run", path(&file), "--set", &set("no-such-org/no-such-model")]));
    assert!(said.contains("transcribe.toml:") && said.contains("`oxiline models pull no-such-org/"), "{said}");
    let said = sentence(&run(["graph", "check", path(&file), "--set", &set("nothing")]));
    assert!(said.contains("transcribe.toml:") && said.contains("known name"), "{said}");
}

#[test]
fn the_node_reference_is_up_to_date() {
    let written = std::fs::read_to_string(root().join("docs/nodes.md")).expect("docs/nodes.md");
    let now = stdout(&run(["schema", "--markdown"]));
    assert_eq!(written.trim(), now.trim(), "write it again: oxiline schema --markdown > docs/nodes.md");
}

#[test]
fn every_graph_in_the_repository_checks() {
    fn files(folder: &Path, into: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                files(&path, into);
            } else if path.extension().is_some_and(|e| e == "toml") {
                into.push(path);
            }
        }
    }
    let mut graphs = Vec::new();
    files(&root().join("graphs"), &mut graphs);
    let dir = tempfile::tempdir().expect("folder");
    for (i, doc) in ["README.md", "docs/graphs.md"].iter().enumerate() {
        let text = std::fs::read_to_string(root().join(doc)).expect("document");
        for (j, block) in text.split("```toml\n").skip(1).enumerate() {
            let file = dir.path().join(format!("doc{i}-{j}.toml"));
            std::fs::write(&file, block.split("```").next().expect("block")).expect("written");
            graphs.push(file);
        }
    }
    assert!(graphs.len() >= 2);
    let model = format!("model={}", model());
    for graph in graphs {
        // A part of other graphs has ports of its own and no variables to set.
        let mut args = vec!["graph", "check", path(&graph)];
        if std::fs::read_to_string(&graph).expect("graph").contains("${model}") {
            args.extend(["--set", &model]);
        }
        stdout(&run(args));
    }
}

#[test]
fn known_models_and_devices_are_listed() {
    assert!(stdout(&run(["models", "list", "--known"])).contains("openai/whisper-base"));
    let devices: Value = serde_json::from_str(&stdout(&run(["devices", "--json"]))).expect("JSON");
    assert!(devices["compute"][0]["cores"].as_u64().is_some_and(|n| n > 0));
}
