//! Whole transcriptions against the reference, token for token, on the four tiny checkpoints.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{clip, fixture};
use oxiline_graph::Result;
use oxiline_graph::protocol::speech::{Segment, Task, TranscribeOptions, TranscribeReply, TranscribeStats};
use oxiline_speech::whisper::{Codec, Features, LoadOptions, Model, Need, Rows, Transcription, Whisper};
use serde_json::Value;

struct Tokens(tokenizers::Tokenizer);

impl Codec for Tokens {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.0.encode(text, false).unwrap().get_ids().to_vec())
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(self.0.decode(ids, false).unwrap())
    }
}

struct Case {
    model: Whisper,
    codec: Arc<dyn Codec>,
    runs: Value,
    english: bool,
}

impl Case {
    fn open(name: &str) -> Self {
        let dir = fixture(name);
        let model = Whisper::load(&dir, &LoadOptions::default()).unwrap();
        let case: Value = serde_json::from_slice(&std::fs::read(dir.join("case.json")).unwrap()).unwrap();
        Self { model, codec: tokens(&dir), runs: case["runs"].clone(), english: name == "whisper_en" }
    }

    fn begin(&self, samples: &[f32], options: TranscribeOptions, speech: Option<&[(f64, f64)]>) -> Transcription {
        let mel = Features::new(self.model.config.mel_bins).mel(samples);
        let config = Arc::new(self.model.config.clone());
        Transcription::new(config, self.codec.clone(), options, mel, samples.len(), speech).unwrap()
    }

    fn english(&self) -> TranscribeOptions {
        let language = if self.english { "auto" } else { "en" };
        TranscribeOptions { language: language.into(), ..TranscribeOptions::default() }
    }

    fn run(&self, samples: &[f32], options: TranscribeOptions, speech: Option<&[(f64, f64)]>) -> Outcome {
        drive(&self.model, self.begin(samples, options, speech))
    }
}

fn tokens(dir: &Path) -> Arc<dyn Codec> {
    Arc::new(Tokens(tokenizers::Tokenizer::from_file(dir.join("tokenizer.json")).unwrap()))
}

#[derive(Default)]
struct Outcome {
    segments: Vec<Segment>,
    prompts: Vec<Vec<u32>>,
    language: Option<(String, f32)>,
    stats: TranscribeStats,
}

impl Outcome {
    fn take(&mut self, replies: Vec<TranscribeReply>) {
        for reply in replies {
            match reply {
                TranscribeReply::Language { code, probability } => self.language = Some((code, probability)),
                TranscribeReply::Segment(segment) => {
                    assert_eq!(segment.id, self.segments.len());
                    self.segments.push(segment);
                }
                TranscribeReply::Progress { done, total } => assert!(done <= total),
                TranscribeReply::Done(stats) => self.stats = stats,
            }
        }
    }

    fn tokens(&self) -> Vec<u32> {
        self.segments.iter().flat_map(|s| s.tokens.clone()).collect()
    }
}

/// Drives one transcription to its end and writes down what it fed.
fn drive<M: Model>(model: &M, mut transcription: Transcription<M::Lane>) -> Outcome {
    let mut outcome = Outcome::default();
    loop {
        match transcription.need().unwrap() {
            Need::Encode => {
                let windows = transcription.windows();
                let windows: Vec<&[f32]> = windows.iter().map(Vec::as_slice).collect();
                transcription.encoded(model.encode(&windows, &|| false).unwrap()).unwrap();
            }
            Need::Feed => {
                let asks = transcription.asks();
                for ask in &asks {
                    if matches!(ask.rows, Rows::At(_)) {
                        outcome.prompts.push(ask.tokens.to_vec());
                    }
                }
                let logits = model.feed(asks).unwrap();
                transcription.advance(logits).unwrap();
            }
            Need::Done => {
                outcome.take(transcription.events());
                return outcome;
            }
        }
        outcome.take(transcription.events());
    }
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Compares segments, prompts and measures of one run.
fn compare(label: &str, run: &Value, got: &Outcome) {
    let windows = run["windows"].as_array().unwrap();
    let want: Vec<(f64, f64, Vec<u32>)> = run["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| (s["start"].as_f64().unwrap(), s["end"].as_f64().unwrap(), ids(&s["tokens"])))
        .collect();
    let have: Vec<(f64, f64, Vec<u32>)> = got.segments.iter().map(|s| (s.start, s.end, s.tokens.clone())).collect();
    for (i, (want, have)) in want.iter().zip(&have).enumerate() {
        assert_eq!(have, want, "{label}: segment {i}");
    }
    assert_eq!(have.len(), want.len(), "{label}: segments");
    assert_eq!(got.tokens(), ids(&run["sequence"]), "{label}");
    assert_eq!(got.stats.windows, windows.len(), "{label}: windows");
    let skipped = windows.iter().filter(|w| w["should_skip"] == true).count();
    assert_eq!(got.stats.skipped, skipped, "{label}: skipped");
    for (window, prompt) in windows.iter().zip(&got.prompts) {
        if window["prompt_tokens"].is_array() {
            assert_eq!(*prompt, ids(&window["prompt_tokens"]), "{label}: prompt");
        }
    }
    let offset = |w: &Value| w["time_offset"].as_f64();
    for segment in &got.segments {
        let window = windows.iter().rev().find(|w| offset(w).is_some_and(|t| t <= segment.start + 1e-6)).unwrap();
        let near = |key: &str, have: f32, tolerance: f64| {
            if let Some(want) = window[key].as_f64() {
                assert!((want - f64::from(have)).abs() <= tolerance, "{label}: {key} {have} for {want}");
            }
        };
        near("avg_logprob", segment.avg_logprob, 1e-4);
        near("compression_ratio", segment.compression_ratio, 1e-6);
        near("no_speech_prob", segment.no_speech_prob, 1e-4);
    }
}

/// Every run of a case.
fn agree(name: &str) {
    let case = Case::open(name);
    let plain = case.english();
    let stamps = TranscribeOptions { timestamps: true, ..plain.clone() };
    let conditioned = TranscribeOptions { condition_on_prev: true, ..stamps.clone() };
    let text = Some("Winter came early, 128 birds".to_string());
    let runs = case.runs.as_object().unwrap();
    let mut compared = 0;
    for (label, run) in runs {
        let Some(source) = run["clip"].as_str().filter(|_| run["windows"].is_array()) else { continue };
        let samples = clip(source);
        let mut prompt = None;
        let options = match label.as_str() {
            "plain" => plain.clone(),
            "timestamps" | "exact30 timestamps" | "long" => stamps.clone(),
            "detect, plain" => TranscribeOptions { language: "auto".into(), ..plain.clone() },
            "translate" => TranscribeOptions { language: "french".into(), task: Task::Translate, ..plain.clone() },
            "german, timestamps" => TranscribeOptions { language: "de".into(), ..stamps.clone() },
            "long, condition_on_prev_tokens" => conditioned.clone(),
            "en_a, prompt" => TranscribeOptions { initial_prompt: text.clone(), ..plain.clone() },
            "long, prompt" => TranscribeOptions { initial_prompt: text.clone(), ..stamps.clone() },
            "long, prompt, condition" => TranscribeOptions { initial_prompt: text.clone(), ..conditioned.clone() },
            "long, prompt all-segments, condition" => {
                prompt = Some((ids(&runs["prompt_ids"]), true));
                conditioned.clone()
            }
            "exact30, prompt of 300, condition" => {
                prompt = Some((ids(&runs["prompt_ids of 300"]), false));
                TranscribeOptions { max_tokens: 100, ..conditioned.clone() }
            }
            fallback if fallback.starts_with("fallback") => {
                let threshold = |key: &str| run["thresholds"][key].as_f64().unwrap() as f32;
                TranscribeOptions {
                    fallback: true,
                    temperatures: vec![0.0],
                    compression_ratio_threshold: threshold("compression_ratio_threshold"),
                    logprob_threshold: threshold("logprob_threshold"),
                    no_speech_threshold: threshold("no_speech_threshold"),
                    ..stamps.clone()
                }
            }
            other => panic!("nobody compares the run `{other}`"),
        };
        let mut transcription = case.begin(&samples, options, None);
        if let Some((prompt, everywhere)) = prompt {
            transcription.set_prompt(prompt, everywhere);
        }
        let got = drive(&case.model, transcription);
        compare(&format!("{name}: {label}"), run, &got);
        if label == "detect, plain" {
            let want = &runs["language fr_a"];
            let (code, probability) = got.language.unwrap();
            assert_eq!(code, want["detected"].as_str().unwrap());
            assert!((f64::from(probability) - want["probability"].as_f64().unwrap()).abs() < 1e-4);
        }
        compared += 1;
    }
    assert!(compared >= 7, "{compared}");
}

#[test]
fn multilingual_runs() {
    agree("whisper_multi");
}

#[test]
fn english_runs() {
    agree("whisper_en");
}

#[test]
fn large_v3_runs() {
    agree("whisper_v3");
}

#[test]
fn distilled_runs() {
    agree("whisper_distil");
}
