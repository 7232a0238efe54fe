//! What checkpoints say about themselves, and what hostile ones get told.

mod common;

use std::path::Path;

use common::fixture;
use oxiline_speech::whisper::{Config, LoadOptions, Whisper};
use serde_json::{Value, json};

fn edit(dir: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = dir.join(file);
    let mut value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

/// A copy of a case's small files.
fn copy(case: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"] {
        std::fs::copy(fixture(case).join(file), dir.path().join(file)).unwrap();
    }
    dir
}

#[test]
fn the_four_kinds_of_checkpoints() {
    let multi = Config::load(&fixture("whisper_multi")).unwrap();
    assert!(multi.multilingual);
    assert_eq!((multi.languages.len(), multi.languages[2].code.as_str()), (99, "de"));
    assert_eq!(multi.forced, [(1, None), (2, Some(598))]);
    assert_eq!(multi.alignment_heads, [(0, 1), (1, 0), (1, 3)]);
    let ids = &multi.ids;
    assert_eq!((ids.end_of_text, ids.start, ids.translate, ids.transcribe), (496, 497, Some(597), Some(598)));
    assert_eq!((ids.start_of_prev, ids.no_speech, ids.no_timestamps), (Some(600), Some(601), 602));
    assert_eq!((ids.timestamp_begin, multi.begin_suppress.as_slice()), (603, &[220, 496][..]));
    assert_eq!(multi.suppress.len(), 28);

    let en = Config::load(&fixture("whisper_en")).unwrap();
    assert!(!en.multilingual && en.languages.is_empty());
    assert_eq!(en.forced, [(1, Some(602))]);

    let v3 = Config::load(&fixture("whisper_v3")).unwrap();
    assert_eq!((v3.mel_bins, v3.languages.len(), v3.languages[99].code.as_str()), (128, 100, "yue"));
    assert_eq!((v3.ids.timestamp_begin, v3.forced.len()), (604, 0));

    let distil = Config::load(&fixture("whisper_distil")).unwrap();
    assert_eq!((distil.encoder_layers, distil.decoder_layers), (3, 1));
}

#[test]
fn old_checkpoints_without_a_generation_config_are_understood() {
    let dir = copy("whisper_multi");
    std::fs::remove_file(dir.path().join("generation_config.json")).unwrap();
    let old = Config::load(dir.path()).unwrap();
    let new = Config::load(&fixture("whisper_multi")).unwrap();
    assert_eq!(old.ids, new.ids);
    assert_eq!(old.languages, new.languages);
    assert_eq!((old.suppress, old.max_initial_timestamp), (new.suppress, 50));
    // The upper half of two layers.
    assert_eq!(old.alignment_heads, [(1, 0), (1, 1), (1, 2), (1, 3)]);
}

#[test]
fn null_in_the_generation_config_wins() {
    let dir = copy("whisper_multi");
    edit(dir.path(), "generation_config.json", |v| v["suppress_tokens"] = Value::Null);
    assert!(Config::load(dir.path()).unwrap().suppress.is_empty());
    edit(dir.path(), "generation_config.json", |v| {
        v.as_object_mut().unwrap().remove("suppress_tokens");
    });
    assert_eq!(Config::load(dir.path()).unwrap().suppress.len(), 28);
}

#[test]
fn a_listed_mel_bank_must_be_the_usual_one() {
    let dir = copy("whisper_multi");
    let bank = oxiline_speech::whisper::features::mel_bank(80);
    let listed: Vec<Vec<f32>> =
        (0..80).map(|bin| bank.iter().skip(bin).step_by(80).map(|w| *w as f32).collect()).collect();
    edit(dir.path(), "preprocessor_config.json", |v| v["mel_filters"] = json!(listed));
    Config::load(dir.path()).unwrap();
    edit(dir.path(), "preprocessor_config.json", |v| v["mel_filters"][7][20] = json!(0.5));
    let error = Config::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("preprocessor_config.json") && error.contains("mel_filters"), "{error}");
}

#[test]
fn hostile_values_get_a_sentence() {
    type Case<'a> = (&'a str, &'a str, Value, &'a str);
    let cases: [Case<'_>; 20] = [
        ("config.json", "d_model", json!(0), "d_model"),
        ("config.json", "d_model", json!(66), "does not divide"),
        ("config.json", "d_model", json!(u64::MAX), "d_model"),
        ("config.json", "d_model", json!(-1), "config.json"),
        ("config.json", "encoder_layers", json!(1_000_000), "encoder_layers"),
        ("config.json", "decoder_attention_heads", json!(0), "decoder_attention_heads"),
        ("config.json", "decoder_attention_heads", json!(3), "does not divide"),
        ("config.json", "vocab_size", json!(1u64 << 40), "vocab_size"),
        ("config.json", "vocab_size", json!(500), "outside of the vocabulary"),
        ("config.json", "num_mel_bins", json!(0), "num_mel_bins"),
        ("config.json", "max_source_positions", json!(1499), "1500"),
        ("config.json", "median_filter_width", json!(4), "odd"),
        ("config.json", "activation_function", json!("relu"), "relu"),
        ("config.json", "model_type", json!("llama"), "llama"),
        ("generation_config.json", "alignment_heads", json!([[2, 0]]), "[2, 0]"),
        ("generation_config.json", "suppress_tokens", json!([-1]), "-1"),
        ("generation_config.json", "lang_to_id", json!({"<|en|>": "x"}), "lang_to_id"),
        ("generation_config.json", "no_timestamps_token_id", json!(700), "different checkpoints"),
        ("generation_config.json", "forced_decoder_ids", json!([[448, 5]]), "448"),
        ("preprocessor_config.json", "hop_length", json!(128), "hop_length"),
    ];
    for (file, key, value, message) in cases {
        let dir = copy("whisper_multi");
        edit(dir.path(), file, |v| v[key] = value.clone());
        let error = match Config::load(dir.path()) {
            Ok(_) => panic!("{key} = {value} was accepted"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(message), "{key} = {value}: {error}");
        assert!(error.contains(&dir.path().display().to_string()), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let error = Config::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("config.json is missing"), "{error}");
    std::fs::write(dir.path().join("config.json"), "{ \"d_model\": ").unwrap();
    assert!(Config::load(dir.path()).unwrap_err().to_string().contains("line 1"));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let dir = copy("whisper_multi");
    std::fs::copy(fixture("whisper_multi").join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    edit(dir.path(), "config.json", |v| v["encoder_ffn_dim"] = json!(256));
    let error = Whisper::load(dir.path(), &LoadOptions::default()).err().unwrap().to_string();
    assert!(error.contains("encoder.layers.0.fc1.weight"), "{error}");
    assert!(error.contains("[128, 64]") && error.contains("[256, 64]"), "{error}");
    edit(dir.path(), "config.json", |v| {
        v["encoder_ffn_dim"] = json!(128);
        v["decoder_layers"] = json!(3);
    });
    let error = Whisper::load(dir.path(), &LoadOptions::default()).err().unwrap().to_string();
    assert!(error.contains("decoder.layers.2") && error.contains("missing"), "{error}");
}
