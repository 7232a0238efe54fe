//! Configurations that are wrong: one clear sentence each, before anything is allocated.

mod common;

use common::tiny::{self, Random};
use oxiline_language::decoder::{Decoder, LoadOptions};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

fn refused(family: &str, change: impl Fn(&mut Value)) -> String {
    let mut random = Random(3);
    let mut config = tiny::config(family, &mut random);
    config["rope_scaling"] = json!(null);
    let folder = tempfile::tempdir().unwrap();
    tiny::write(folder.path(), &config, Dtype::F32, &mut random);
    change(&mut config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    match Decoder::load(folder.path(), &LoadOptions::default(), &mut |_, _| Ok(())) {
        Ok(_) => panic!("{config} was loaded"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn wrong_keys_are_named() {
    let cases: Vec<(&str, &str, Value, &[&str])> = vec![
        ("llama", "hidden_size", json!(null), &["hidden_size", "missing"]),
        ("llama", "hidden_size", json!("64"), &["hidden_size", "not a number"]),
        ("llama", "hidden_size", json!(-1), &["hidden_size", "-1"]),
        ("llama", "hidden_size", json!(1e18), &["hidden_size"]),
        ("llama", "hidden_size", json!(64.5), &["hidden_size", "64.5"]),
        ("llama", "num_hidden_layers", json!(0), &["num_hidden_layers"]),
        ("llama", "num_hidden_layers", json!(9), &["layers."]),
        ("llama", "num_hidden_layers", json!(1_000_000_000), &["num_hidden_layers"]),
        ("llama", "vocab_size", json!(4_000_000), &["embed_tokens", "shape"]),
        ("llama", "intermediate_size", json!(1_000_000), &["mlp", "shape"]),
        ("llama", "num_key_value_heads", json!(5), &["num_key_value_heads", "does not divide"]),
        ("llama", "head_dim", json!(7), &["head_dim", "odd"]),
        ("llama", "rms_norm_eps", json!(0), &["rms_norm_eps"]),
        ("llama", "rms_norm_eps", json!(-1e-6), &["rms_norm_eps"]),
        ("llama", "rope_theta", json!(0), &["rope_theta"]),
        ("llama", "hidden_act", json!("relu"), &["hidden_act", "relu", "silu"]),
        ("llama", "attention_bias", json!(3), &["attention_bias"]),
        ("llama", "rope_scaling", json!({"rope_type": "spiral"}), &["rope_type", "spiral", "yarn"]),
        ("llama", "rope_scaling", json!({"type": "linear"}), &["factor", "missing"]),
        ("llama", "rope_scaling", json!({"type": "linear", "factor": 0}), &["factor"]),
        ("llama", "rope_scaling", json!([1]), &["rope_scaling", "object"]),
        (
            "llama",
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}),
            &["low_freq_factor"],
        ),
        ("llama", "partial_rotary_factor", json!(1.5), &["partial_rotary_factor"]),
        ("llama", "model_type", json!("mamba"), &["mamba", "supported", "llama", "qwen3_moe", "gemma3"]),
        ("llama", "model_type", json!(null), &["model_type", "missing"]),
        ("mistral", "sliding_window", json!(0), &["sliding_window"]),
        ("qwen3", "layer_types", json!(["full_attention"]), &["layer_types", "1 entries"]),
        ("qwen3", "layer_types", json!("full"), &["layer_types"]),
        ("qwen3_moe", "num_experts_per_tok", json!(6), &["num_experts_per_tok", "5 experts"]),
        ("qwen3_moe", "num_experts", json!(0), &["num_experts"]),
        ("qwen3_moe", "decoder_sparse_step", json!(0), &["decoder_sparse_step"]),
        ("gemma3_text", "final_logit_softcapping", json!(-1), &["final_logit_softcapping"]),
        ("gemma3_text", "query_pre_attn_scalar", json!(0), &["query_pre_attn_scalar"]),
        ("gemma3_text", "sliding_window_pattern", json!(0), &["sliding_window_pattern"]),
    ];
    for (family, key, value, words) in cases {
        let error = refused(family, |config| config[key] = value.clone());
        for word in words {
            assert!(error.contains(word), "{key} = {value}: {error}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn files_that_are_no_configuration() {
    for text in ["", "[]", "{", "3", "{}"] {
        let mut random = Random(3);
        let config = tiny::config("llama", &mut random);
        let folder = tempfile::tempdir().unwrap();
        tiny::write(folder.path(), &config, Dtype::F32, &mut random);
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let error = Decoder::load(folder.path(), &LoadOptions::default(), &mut |_, _| Ok(())).err().expect("refused");
        assert!(error.to_string().contains("config.json"), "{text}: {error}");
        std::fs::remove_file(folder.path().join("config.json")).unwrap();
        let error = Decoder::load(folder.path(), &LoadOptions::default(), &mut |_, _| Ok(())).err().expect("refused");
        assert!(error.to_string().contains("config.json is missing"), "{error}");
    }
}

#[test]
fn a_load_can_be_cancelled() {
    let folder = common::case("qwen3").expect("a fixture");
    let mut seen = Vec::new();
    let result = Decoder::load(&folder, &LoadOptions::default(), &mut |done, total| {
        seen.push((done, total));
        if done == 2 { Err(oxiline_graph::Error::Cancelled) } else { Ok(()) }
    });
    assert!(result.err().expect("cancelled").is_cancelled());
    assert_eq!(seen, [(0, 5), (1, 5), (2, 5)]);
}
