//! Live captions on the virtual clock: what the graph and the policy cost, exactly repeatable, with real weights.

mod common;

use std::path::{Path, PathBuf};

use common::{root, run, sentence, speech, stdout};
use serde_json::Value;

/// whisper-tiny.en as `cargo check-all` fetched it; `None`: the tests were started without it.
fn tiny() -> Option<PathBuf> {
    let models = std::env::var_os("OXILINE_TEST_MODELS");
    if models.is_none() {
        eprintln!("left out: OXILINE_TEST_MODELS is not set (cargo check-all fetches the model and sets it)");
    }
    models.map(|models| PathBuf::from(models).join("whisper-tiny.en"))
}

/// The file's captions as `oxiline listen` makes them, in virtual time: lines, the report of `asr.stream`, and
/// the whole end of the run.
fn listen(file: &Path, model: &Path, sets: &[&str]) -> (Vec<String>, Value, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes.txt");
    let set = |key: &str, value: &Path| format!("{key}={}", value.display());
    let mut args = vec!["run".into(), root().join("graphs/captions-file-paced.toml").display().to_string()];
    args.extend(["--stats".into(), "json".into()]);
    let fixed = [set("input", file), set("model", model), set("output", &notes)];
    let sets = sets.iter().map(|s| (*s).to_string());
    for one in fixed.into_iter().chain(["graph.clock=virtual".into(), "nodes.notes.format=text".into()]).chain(sets) {
        args.extend(["--set".into(), one]);
    }
    let output = run(args);
    stdout(&output);
    let events = String::from_utf8(output.stderr).expect("UTF-8");
    let end = events.lines().rev().find(|line| line.starts_with("{\"event\":\"end\"")).expect("an end");
    let end: Value = serde_json::from_str(end).expect("JSON");
    let nodes = end["nodes"].as_array().expect("nodes");
    let asr = nodes.iter().find(|node| node["kind"] == "asr.stream").expect("asr.stream").clone();
    let text = std::fs::read_to_string(&notes).expect("captions");
    (text.lines().map(str::to_string).collect(), asr, end)
}

/// A 16 kHz mono WAV file of `seconds`.
fn wav(path: &Path, seconds: usize, mut sample: impl FnMut(usize) -> f64) {
    let count = seconds * 16_000;
    let mut bytes = Vec::with_capacity(44 + 2 * count);
    bytes.extend(b"RIFF");
    bytes.extend((36 + 2 * count as u32).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend(16_000_u32.to_le_bytes());
    bytes.extend(32_000_u32.to_le_bytes());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend((2 * count as u32).to_le_bytes());
    for i in 0..count {
        bytes.extend(((sample(i).clamp(-1.0, 1.0) * 32767.0) as i16).to_le_bytes());
    }
    std::fs::write(path, bytes).expect("written");
}

/// Noise as of a fan: low frequencies, a hum of the motor and its overtone.
fn fan() -> impl FnMut(usize) -> f64 {
    let (mut state, mut low) = (0x2545_f491_4f6c_dd1d_u64, 0.0);
    move |i| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let white = (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5;
        low += 0.02 * (white - low);
        let t = i as f64 / 16_000.0 * std::f64::consts::TAU;
        low * 1.5 + 0.02 * (100.0 * t).sin() + 0.01 * (200.0 * t).sin()
    }
}

#[test]
fn what_is_said_live_is_what_is_said_offline_and_nothing_is_taken_back() {
    let Some(model) = tiny() else { return };
    let sample = root().join("examples/sample.wav");
    let args = ["transcribe", sample.to_str().expect("a path"), "--model", model.to_str().expect("a path")];
    let words = |text: &str| -> Vec<String> {
        let plain = |word: &str| word.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
        text.split_whitespace().map(plain).collect()
    };
    let offline = words(&stdout(&run(args)));
    let (lines, asr, _) = listen(&sample, &model, &[]);
    let live = words(&lines.join(" "));
    assert_eq!((live.first(), live.last()), (offline.first(), offline.last()), "{lines:?}");
    let common = live.iter().filter(|word| offline.contains(word)).count();
    assert!(common * 10 >= offline.len() * 9 && live.len() <= offline.len() + 2, "{lines:?}");
    let report = &asr["reports"];
    assert_eq!(report["retractions"], 0);
    let seconds = |name: &str, of: &str| report[name][of].as_f64().expect("seconds");
    // Half a second is the shortest sound worth a pass; a first hypothesis that is doubtful waits for the second.
    assert!(seconds("time_to_first_partial_s", "mean") <= 1.1, "{report}");
    // Agreement takes a pass more than a word.
    assert!(seconds("commit_latency_s", "mean") <= 1.0, "{report}");
    // Speech is over when `min_silence` (0.5 s) has passed, of which `pad` (0.3 s) counts as speech.
    assert!(seconds("time_to_final_s", "mean") <= 0.3, "{report}");
    let again = listen(&sample, &model, &[]);
    assert_eq!((lines, report), (again.0, &again.1["reports"]), "virtual time gives the same every time");
}

/// An hour of silence and fan noise, at hundreds of times its speed.
#[test]
fn an_hour_without_speech_gives_no_text_and_takes_no_memory() {
    let Some(model) = tiny() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("noise.wav");
    let peak = |seconds: usize| {
        let mut noise = fan();
        wav(&file, seconds, |i| if i < seconds * 8000 { 0.0 } else { noise(i) });
        let (lines, asr, end) = listen(&file, &model, &[]);
        assert_eq!((lines.len(), &asr["counters"]["passes"], &end["conserved"]), (0, &0.into(), &true.into()));
        end["peak_memory_bytes"].as_u64().expect("bytes")
    };
    let (minute, hour) = (peak(60), peak(3600));
    assert!(hour < minute + (8 << 20), "{minute} bytes after a minute, {hour} after an hour");
}

#[test]
fn a_policy_that_is_none_is_one_sentence() {
    let clip = speech("clips/hello.wav");
    let said = run(["listen", "--file", clip.to_str().expect("a path"), "--policy", "hope"]);
    assert_eq!(said.status.code(), Some(2));
    let said = sentence(&run(["listen", "--file", "no-such-file.wav", "--model", "x"]));
    assert!(said.contains("no-such-file.wav") && !said.contains('\n'), "{said}");
}
