//! Whole transcriptions against the reference, token for token, on the four tiny checkpoints.

mod common;

use std::sync::Arc;

use common::{clip, fixture};
use oxiline_graph::protocol::speech::{Segment, Task, TranscribeOptions, TranscribeReply, TranscribeStats};
use oxiline_speech::whisper::actor::codec;
use oxiline_speech::whisper::align;
use oxiline_speech::whisper::{Codec, Features, LoadOptions, Model, Need, Rows, Transcription, Whisper};
use serde_json::Value;

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
        Self { model, codec: codec(&dir).unwrap(), runs: case["runs"].clone(), english: name == "whisper_en" }
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
                TranscribeReply::Languages(_) => panic!("nobody asked"),
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

/// Times of the tokens of the first window, against the reference's.
fn words(name: &str) {
    let case = Case::open(name);
    let samples = clip("en_a");
    for (label, timestamps) in [("words", false), ("words, timestamps", true)] {
        let run = &case.runs[label];
        let options = TranscribeOptions { timestamps, words: true, ..case.english() };
        let mut transcription = case.begin(&samples, options, None);
        let mut first = None;
        while first.is_none() {
            match transcription.need().unwrap() {
                Need::Encode => {
                    let windows = transcription.windows();
                    let windows: Vec<&[f32]> = windows.iter().map(Vec::as_slice).collect();
                    transcription.encoded(Model::encode(&case.model, &windows, &|| false).unwrap()).unwrap();
                }
                Need::Feed => {
                    let logits = case.model.feed(transcription.asks()).unwrap();
                    let before = transcription.partial().map(|p| (p.tokens.to_vec(), p.attention.cloned()));
                    transcription.advance(logits).unwrap();
                    // The window ended with this token.
                    if transcription
                        .partial()
                        .is_some_and(|p| p.tokens.last() == Some(&case.model.config.ids.end_of_text))
                    {
                        first = before;
                    }
                }
                Need::Done => panic!("no window"),
            }
        }
        let (tokens, attention) = first.unwrap();
        let attention = attention.unwrap();
        assert_eq!(attention.columns, run["num_frames"].as_u64().unwrap() as usize / 2);
        let times = align::token_times(&attention, tokens.len(), case.model.config.median_filter_width);
        let want: Vec<f64> = run["token_timestamps"].as_array().unwrap().iter().map(|t| t.as_f64().unwrap()).collect();
        let all = ids(&run["tokens"]);
        let same = tokens.iter().zip(&all).take_while(|(a, b)| a == b).count();
        assert!(same > 0);
        let off: Vec<f64> =
            times.iter().zip(&want).take(same).map(|(a, b)| (a - b).abs()).filter(|d| *d > 0.005).collect();
        assert!(off.len() <= 2 && off.iter().all(|d| *d < 0.025), "{name}, {label}: {times:?} for {want:?}");
    }
}

#[test]
fn words_of_all_kinds() {
    for name in ["whisper_multi", "whisper_en", "whisper_v3", "whisper_distil"] {
        words(name);
    }
}

#[test]
fn speech_all_over_changes_nothing_and_none_says_nothing() {
    let case = Case::open("whisper_multi");
    let samples = clip("long");
    let options = TranscribeOptions { timestamps: true, ..case.english() };
    let seconds = samples.len() as f64 / 16_000.0;
    let guarded = case.run(&samples, options.clone(), Some(&[(0.0, seconds)]));
    let exact = TranscribeOptions { skip_silence: false, ..options.clone() };
    let mut exact = case.run(&samples, exact, Some(&[]));
    compare("exact", &case.runs["long"], &exact);
    // The tiny checkpoint goes on past the end of the clip, as the reference lets it.
    assert!(exact.segments.pop_if(|last| last.start > seconds).is_some());
    assert_eq!(guarded.segments, exact.segments);
    let silent = case.run(&samples, options, Some(&[]));
    assert!(silent.segments.is_empty() && silent.stats.windows == 0);
    assert!((silent.stats.skipped_s - seconds).abs() < 1e-6);
}

#[test]
fn windows_side_by_side_on_a_real_checkpoint() {
    let case = Case::open("whisper_distil");
    let samples = clip("long");
    let speech = [(0.0, 5.2), (5.8, 12.3), (13.2, 17.5), (18.9, 23.8), (24.2, 29.4), (29.9, 36.4), (38.0, 60.0)];
    let of = |batch| TranscribeOptions { batch, words: true, ..case.english() };
    let one = case.run(&samples, of(1), Some(&speech));
    let many = case.run(&samples, of(4), Some(&speech));
    assert_eq!(one.segments, many.segments);
    assert!(!one.segments.is_empty());
}

#[test]
fn a_beam_on_a_real_checkpoint_is_lawful() {
    let case = Case::open("whisper_v3");
    let options = TranscribeOptions { beam: 3, timestamps: true, words: true, ..case.english() };
    let got = case.run(&clip("en_a"), options, None);
    let begin = case.model.config.ids.timestamp_begin;
    assert!(!got.segments.is_empty());
    assert!(got.segments[0].tokens[0] >= begin && got.segments[0].tokens[0] <= begin + 50);
    assert!(got.tokens().iter().all(|t| !case.model.config.suppress.contains(t)));
}
