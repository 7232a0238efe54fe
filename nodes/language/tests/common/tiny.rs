//! Tiny random checkpoints of every family, written as a folder.

use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::reference::Tensors;

/// A generator of numbers (splitmix64): the same everywhere for a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
    /// From -1 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

pub const FAMILIES: [&str; 6] = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text"];

/// A configuration of a family with random sizes.
pub fn config(family: &str, random: &mut Random) -> Value {
    let (heads, kv) = random.one(&[(4, 1), (6, 2), (3, 3), (4, 4), (2, 1)]);
    let head_dim = random.one(&[6, 10, 16, 20, 24, 34]);
    let hidden = random.one(&[24, 32, 50, 64, 96]);
    let ropes = [
        json!(null),
        json!({"rope_type": "linear", "factor": 4.0}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16}),
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
        json!({"rope_type": "dynamic", "factor": 3.0}),
    ];
    let rope = if family == "gemma3_text" { random.below(2) } else { random.below(ropes.len()) };
    let mut config = json!({
        "model_type": family, "hidden_size": hidden, "num_hidden_layers": 2 + random.below(2),
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head_dim,
        "intermediate_size": random.one(&[32, 33, 70, 96]), "vocab_size": random.one(&[37, 97, 128, 131]),
        "max_position_embeddings": 30, "rms_norm_eps": random.one(&[1e-5, 1e-6]),
        "rope_theta": random.one(&[1e4, 5e5]), "rope_scaling": ropes[rope],
        "tie_word_embeddings": random.below(2) == 0,
    });
    let window = random.one(&[1, 3, 7, 16]);
    match family {
        "llama" => {
            config["attention_bias"] = json!(random.below(2) == 0);
            config["mlp_bias"] = json!(random.below(2) == 0);
            if random.below(3) == 0 && head_dim % 4 == 0 {
                config["partial_rotary_factor"] = json!(0.5);
            }
        }
        "mistral" => config["sliding_window"] = random.one(&[None, Some(window)]).into(),
        "qwen2" | "qwen3" => {
            config["use_sliding_window"] = json!(random.below(2) == 0);
            config["sliding_window"] = json!(window);
            config["max_window_layers"] = json!(1);
            if family == "qwen2" {
                config["hidden_size"] = json!(heads * head_dim);
                config.as_object_mut().unwrap().remove("head_dim");
            }
        }
        "qwen3_moe" => {
            config["num_experts"] = json!(5);
            config["num_experts_per_tok"] = json!(1 + random.below(3));
            config["moe_intermediate_size"] = json!(random.one(&[16, 22, 32]));
            config["norm_topk_prob"] = json!(random.below(2) == 0);
            config["mlp_only_layers"] = if random.below(2) == 0 { json!([]) } else { json!([1]) };
        }
        _ => {
            config["sliding_window"] = json!(window);
            config["sliding_window_pattern"] = json!(2);
            config["rope_local_base_freq"] = json!(1e4);
            config["query_pre_attn_scalar"] = json!(random.one(&[8, 24]));
            config["final_logit_softcapping"] = random.one(&[None, Some(3.0)]).into();
        }
    }
    config
}

/// Names and shapes of the tensors a configuration asks for.
pub fn shapes(c: &Value) -> Vec<(String, Vec<usize>)> {
    let size = |key: &str| c[key].as_u64().unwrap_or_else(|| panic!("{key}")) as usize;
    let flag = |key: &str| c[key].as_bool().unwrap_or(false);
    let family = c["model_type"].as_str().unwrap();
    let (hidden, heads, kv) = (size("hidden_size"), size("num_attention_heads"), size("num_key_value_heads"));
    let dim = c["head_dim"].as_u64().map_or(hidden / heads, |v| v as usize);
    let mut all = vec![("model.embed_tokens.weight".to_string(), vec![size("vocab_size"), hidden])];
    if !flag("tie_word_embeddings") {
        all.push(("lm_head.weight".into(), vec![size("vocab_size"), hidden]));
    }
    all.push(("model.norm.weight".into(), vec![hidden]));
    for i in 0..size("num_hidden_layers") {
        let mut add = |name: &str, shape: &[usize]| all.push((format!("model.layers.{i}.{name}"), shape.to_vec()));
        let qkv_bias = family == "qwen2" || flag("attention_bias");
        for (name, out, inside, bias) in [
            ("q", heads * dim, hidden, qkv_bias),
            ("k", kv * dim, hidden, qkv_bias),
            ("v", kv * dim, hidden, qkv_bias),
            ("o", hidden, heads * dim, flag("attention_bias")),
        ] {
            add(&format!("self_attn.{name}_proj.weight"), &[out, inside]);
            if bias {
                add(&format!("self_attn.{name}_proj.bias"), &[out]);
            }
        }
        let mut norms = vec!["input_layernorm", "post_attention_layernorm"];
        if family == "gemma3_text" {
            norms.extend(["pre_feedforward_layernorm", "post_feedforward_layernorm"]);
        }
        norms.iter().for_each(|n| add(&format!("{n}.weight"), &[hidden]));
        if family.starts_with("qwen3") || family == "gemma3_text" {
            add("self_attn.q_norm.weight", &[dim]);
            add("self_attn.k_norm.weight", &[dim]);
        }
        let mut mlp = |at: &str, inner: usize| {
            for (name, out, inside) in [("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)] {
                add(&format!("{at}.{name}_proj.weight"), &[out, inside]);
                if flag("mlp_bias") {
                    add(&format!("{at}.{name}_proj.bias"), &[out]);
                }
            }
        };
        let dense = c["mlp_only_layers"].as_array().is_some_and(|l| l.contains(&json!(i)));
        if family == "qwen3_moe" && !dense {
            (0..size("num_experts")).for_each(|e| mlp(&format!("mlp.experts.{e}"), size("moe_intermediate_size")));
            add("mlp.gate.weight", &[size("num_experts"), hidden]);
        } else {
            mlp("mlp", size("intermediate_size"));
        }
    }
    all
}

/// Writes a checkpoint of random weights; returns the values as they were stored.
pub fn write(folder: &Path, config: &Value, dtype: Dtype, random: &mut Random) -> Tensors {
    let offset = if config["model_type"] == "gemma3_text" { 0.0 } else { 1.0 };
    let mut stored = Vec::new();
    let mut tensors = Tensors::new();
    for (name, shape) in shapes(config) {
        let norm = name.contains("norm");
        let spread = if norm || shape.len() == 1 { 0.3 } else { 2.2 / (shape[1] as f64).sqrt() };
        let middle = if norm { offset } else { 0.0 };
        let mut bytes = Vec::new();
        let mut values = Vec::new();
        for _ in 0..shape.iter().product::<usize>() {
            let v = (middle + spread * random.unit()) as f32;
            match dtype {
                Dtype::F16 => {
                    bytes.extend(f16::from_f32(v).to_le_bytes());
                    values.push(f16::from_f32(v).to_f64());
                }
                Dtype::BF16 => {
                    bytes.extend(bf16::from_f32(v).to_le_bytes());
                    values.push(bf16::from_f32(v).to_f64());
                }
                _ => {
                    bytes.extend(v.to_le_bytes());
                    values.push(f64::from(v));
                }
            }
        }
        tensors.insert(name.clone(), values);
        stored.push((name, shape, bytes));
    }
    let views = stored
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(dtype, shape.clone(), bytes).expect("a tensor")));
    let file = safetensors::serialize(views, None).expect("a file");
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    tensors
}
