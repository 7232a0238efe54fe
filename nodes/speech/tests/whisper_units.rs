//! Alignment and decoding rules in isolation, against the reference's own functions.

mod common;

use common::{Golden, fixture};
use oxiline_speech::whisper::CrossAttention;
use oxiline_speech::whisper::align::{cost, median_filter, row_starts, token_times, warp};
use oxiline_speech::whisper::fallback::{compression_ratio, mean_logprob};
use oxiline_speech::whisper::rules::Rules;
use oxiline_speech::whisper::sample::{argmax, log_probability};
use oxiline_speech::whisper::zlib::compressed_len;
use serde_json::Value;

fn cases() -> Value {
    serde_json::from_slice(&std::fs::read(fixture("whisper_units/cases.json")).unwrap()).unwrap()
}

fn golden() -> Golden {
    Golden::open("whisper_units/golden.safetensors")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

#[test]
fn warping_takes_the_reference_path_through_ties() {
    let golden = golden();
    let mut seen = 0;
    for i in 0.. {
        let name = format!("dtw.{i}.cost");
        if !golden.names().contains(&name) {
            break;
        }
        let shape = golden.shape(&name);
        let path = warp(&golden.f32(&name), shape[0], shape[1]);
        let rows: Vec<u32> = path.iter().map(|p| p.0 as u32).collect();
        let columns: Vec<u32> = path.iter().map(|p| p.1 as u32).collect();
        assert_eq!(rows, golden.ids(&format!("dtw.{i}.text")), "matrix {i}");
        assert_eq!(columns, golden.ids(&format!("dtw.{i}.time")), "matrix {i}");
        let starts: Vec<u32> = row_starts(&path).into_iter().map(|c| c as u32).collect();
        assert_eq!(starts, golden.ids(&format!("dtw.{i}.jumps")), "matrix {i}");
        seen += 1;
    }
    assert_eq!(seen, 8);
}

#[test]
fn median_filters() {
    let golden = golden();
    let widths = cases()["median_widths"].as_array().unwrap().clone();
    for (i, width) in widths.iter().enumerate() {
        let columns = *golden.shape(&format!("median.{i}.in")).last().unwrap();
        let mut rows = golden.f32(&format!("median.{i}.in"));
        for row in rows.chunks_exact_mut(columns) {
            median_filter(row, width.as_u64().unwrap() as usize);
        }
        assert_eq!(rows, golden.f32(&format!("median.{i}.out")), "filter {i}");
    }
}

#[test]
fn timestamp_rules() {
    let golden = golden();
    let cases = &cases()["rules"];
    let number = |key: &str| cases[key].as_u64().unwrap() as u32;
    let vocabulary = number("vocab") as usize;
    let rules = Rules {
        suppress: Vec::new(),
        begin_suppress: Vec::new(),
        timestamps: true,
        end_of_text: number("eos_token_id"),
        no_timestamps: number("no_timestamps_token_id"),
        timestamp_begin: number("timestamp_begin"),
        max_initial_timestamp: Some(number("max_initial_timestamp_index") as usize),
    };
    let scores = golden.f32("rules.scores");
    let best = golden.ids("rules.argmax");
    let mask = golden.bytes("rules.mask");
    let histories = cases["histories_after_prompt"].as_array().unwrap();
    assert_eq!(histories.len() * vocabulary, scores.len());
    for (i, history) in histories.iter().enumerate() {
        let mut logits = scores[i * vocabulary..][..vocabulary].to_vec();
        rules.apply(&mut logits, &ids(history));
        let allowed: Vec<u8> = logits.iter().map(|l| u8::from(l.is_finite())).collect();
        assert_eq!(allowed, mask[i * vocabulary..][..vocabulary], "case {i}: {history}");
        assert_eq!(argmax(&logits), best[i], "case {i}");
    }
}

#[test]
fn compression_ratios_are_those_of_zlib() {
    let cases = cases();
    for case in cases["compression_ratio_of_tokens"].as_array().unwrap() {
        let vocabulary = case["vocab_size"].as_u64().unwrap() as usize;
        let (want, have) = (case["ratio"].as_f64().unwrap(), compression_ratio(&ids(&case["tokens"]), vocabulary));
        assert!((want - f64::from(have)).abs() <= 1e-6 * want, "{have} for {want}");
    }
    for case in cases["compression_ratio_of_text_openai"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let have = text.len() as f64 / compressed_len(text.as_bytes()) as f64;
        assert!((case["ratio"].as_f64().unwrap() - have).abs() < 1e-9, "{text}");
    }
    assert_eq!(compression_ratio(&[], 51865), 0.0);
}

/// Sizes of zlib 1.2.13 at level 6 for texts a small generator makes, from a line of noise to many
/// blocks: its matches, its lazy evaluation and its trees decide every byte.
#[test]
fn compressed_sizes_are_those_of_zlib() {
    let text = |length: usize, letters: u64, period: usize| -> Vec<u8> {
        let mut state = 12345_u64;
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if period > 0 && bytes.len() > period && (state >> 60) < 6 {
                let from = bytes.len() - 1 - ((state >> 33) as usize % period);
                let count = 3 + (state >> 50) as usize % 14;
                for k in 0..count {
                    bytes.push(bytes[from + k]);
                }
            } else {
                bytes.push(((state >> 33) % letters) as u8);
            }
        }
        bytes.truncate(length);
        bytes
    };
    for (length, letters, period, want) in SIZES {
        assert_eq!(compressed_len(&text(length, letters, period)), want, "{length} {letters} {period}");
    }
}

const SIZES: [(usize, u64, usize, usize); 14] = [
    (0, 2, 0, 8),
    (1, 256, 0, 9),
    (5, 3, 0, 11),
    (40, 2, 0, 25),
    (64, 256, 0, 75),
    (300, 4, 9, 66),
    (300, 200, 40, 133),
    (900, 60, 200, 399),
    (1344, 30, 500, 577),
    (1344, 250, 900, 1167),
    (5000, 100, 4000, 3772),
    (20000, 256, 7000, 12115),
    (30000, 20, 12000, 13172),
    (60000, 250, 0, 59930),
];

#[test]
fn mean_log_probabilities() {
    for case in cases()["avg_logprob"].as_array().unwrap() {
        let temperature = case["temperature"].as_f64().unwrap();
        let rows = case["scores_after_processors"].as_array().unwrap();
        let logprobs: Vec<f32> = rows
            .iter()
            .zip(ids(&case["tokens"]))
            .map(|(row, token)| {
                // The reference divided the scores by the temperature before it wrote them down.
                let scale = if temperature > 0.0 { temperature } else { 1.0 };
                let logits: Vec<f32> = row
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|v| v.as_f64().map_or(f32::NEG_INFINITY, |v| (v * scale) as f32))
                    .collect();
                log_probability(&logits, token)
            })
            .collect();
        let (want, have) = (case["avg_logprob"].as_f64().unwrap(), f64::from(mean_logprob(&logprobs)));
        assert!((want - have).abs() <= 1e-6 * want.abs(), "{have} for {want}");
    }
}

#[test]
fn attention_of_nothing_is_no_failure() {
    let mut attention = CrossAttention::new(&[(0, 0), (1, 1)], 3);
    attention.data = vec![f32::NAN; 18];
    assert_eq!(cost(&attention, 7).len(), 9);
    let times = token_times(&attention, 4, 7);
    assert!(times.len() == 4 && times.iter().all(|t| (0.0..=0.06).contains(t)));
}
