//! The tiny checkpoints as GGUF files, converted as llama.cpp's converter does.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;
use oxiline_kernels::BlockType;
use serde_json::{Value, json};

use super::reference::Tensors;
use super::tiny::{Random, config};

/// A configuration whose every rule GGUF metadata can carry.
pub fn expressible(family: &str, random: &mut Random) -> Value {
    let mut c = config(family, random);
    if c["rope_scaling"]["rope_type"] == "dynamic" {
        c["rope_scaling"] = json!(null);
    }
    let map = c.as_object_mut().unwrap();
    map.remove("partial_rotary_factor");
    map.remove("use_sliding_window");
    if family == "gemma3_text" {
        let dim = map["head_dim"].clone();
        map.insert("query_pre_attn_scalar".into(), dim);
    }
    c
}

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

struct Metadata {
    arch: String,
    bytes: Vec<u8>,
    count: u64,
}

impl Metadata {
    fn raw(&mut self, key: &str, kind: u32, value: &[u8]) {
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(value);
        self.count += 1;
    }
    fn string(&mut self, key: &str, value: &str) {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        self.raw(key, 8, &bytes);
    }
    fn size(&mut self, key: &str, value: &Value) {
        if let Some(v) = value.as_u64() {
            self.raw(&format!("{}.{key}", self.arch), 4, &(v as u32).to_le_bytes());
        }
    }
    fn number(&mut self, key: &str, value: &Value) {
        if let Some(v) = value.as_f64() {
            self.raw(&format!("{}.{key}", self.arch), 6, &(v as f32).to_le_bytes());
        }
    }
}

fn name(theirs: &str, gemma: bool) -> String {
    let short = match theirs {
        "model.embed_tokens.weight" => return "token_embd.weight".into(),
        "model.norm.weight" => return "output_norm.weight".into(),
        "lm_head.weight" => return "output.weight".into(),
        other => other.strip_prefix("model.layers.").expect("a layer's tensor"),
    };
    let (layer, part) = short.split_once('.').unwrap();
    let (part, end) = part.rsplit_once('.').unwrap();
    let part = match part {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" if gemma => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "mlp.gate" => "ffn_gate_inp",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{part}.{end}")
}

/// Rows as the converter interleaves them for llama.
fn interleave(values: &[f64], rows: usize, dim: usize) -> Vec<f64> {
    let width = values.len() / rows;
    let from = |r: usize| r / dim * dim + (r % 2) * (dim / 2) + r % dim / 2;
    (0..rows).flat_map(|r| &values[from(r) * width..(from(r) + 1) * width]).copied().collect()
}

/// Values as bytes of a type, and what those are: for types that are only read other values.
fn encode(values: &[f64], width: usize, kind: BlockType) -> (BlockType, Vec<u8>, Vec<f64>) {
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    let kind = if kind.row_bytes(width).is_some() { kind } else { BlockType::F32 };
    let bytes = match kind {
        BlockType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        BlockType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        // Types that are only read: any bytes below 0x30, as which every half in a block is small and finite.
        _ => kind.quantize(&values).unwrap_or_else(|| {
            let bytes = kind.row_bytes(width).expect("a width of whole blocks") * (values.len() / width);
            (0..bytes).map(|i| (values[i % values.len()].to_bits() >> 9) as u8 % 0x30).collect()
        }),
    };
    let mut kept = vec![0.0; values.len()];
    kind.dequantize(&bytes, &mut kept);
    (kind, bytes, kept.into_iter().map(f64::from).collect())
}

/// Its number, its bytes of a type, and the width of its rows.
type Expert = (usize, Vec<u8>, BlockType, usize);

/// Writes `tensors` as a GGUF file with matrices of type `kind`; what the values are after that.
pub fn write(path: &Path, c: &Value, tensors: &Tensors, kind: BlockType) -> Tensors {
    let family = c["model_type"].as_str().unwrap();
    let (gemma, llama) = (family == "gemma3_text", matches!(family, "llama" | "mistral"));
    let arch = match family {
        "mistral" => "llama",
        "qwen3_moe" => "qwen3moe",
        "gemma3_text" => "gemma3",
        other => other,
    };
    let hidden = c["hidden_size"].as_u64().unwrap() as usize;
    let heads = c["num_attention_heads"].as_u64().unwrap() as usize;
    let kv = c["num_key_value_heads"].as_u64().unwrap() as usize;
    let dim = c["head_dim"].as_u64().map_or(hidden / heads, |v| v as usize);
    let mut m = Metadata { arch: arch.into(), bytes: Vec::new(), count: 0 };
    m.string("general.architecture", arch);
    for (theirs, ours) in [
        ("hidden_size", "embedding_length"),
        ("num_hidden_layers", "block_count"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("head_dim", "attention.key_length"),
        ("head_dim", "attention.value_length"),
        ("intermediate_size", "feed_forward_length"),
        ("max_position_embeddings", "context_length"),
        ("num_experts", "expert_count"),
        ("num_experts_per_tok", "expert_used_count"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("sliding_window_pattern", "attention.sliding_window_pattern"),
    ] {
        m.size(ours, &c[theirs]);
    }
    if gemma || family == "mistral" {
        m.size("attention.sliding_window", &c["sliding_window"]);
    }
    m.number("attention.layer_norm_rms_epsilon", &c["rms_norm_eps"]);
    m.number("rope.freq_base", &c["rope_theta"]);
    m.number("rope.freq_base_swa", &c["rope_local_base_freq"]);
    m.number("final_logit_softcapping", &c["final_logit_softcapping"]);
    if let Some(renormalise) = c["norm_topk_prob"].as_bool() {
        m.raw(&format!("{arch}.expert_weights_norm"), 7, &[u8::from(renormalise)]);
    }
    let mut extra: Vec<(String, Vec<usize>, Vec<f64>)> = Vec::new();
    let scaling = &c["rope_scaling"];
    match scaling["rope_type"].as_str() {
        Some("llama3") => {
            let get = |key: &str| scaling[key].as_f64().unwrap();
            let theta = c["rope_theta"].as_f64().unwrap();
            let divisor = |i: usize| {
                let f = theta.powf(-2.0 * i as f64 / dim as f64);
                let turns = get("original_max_position_embeddings") * f / (2.0 * std::f64::consts::PI);
                let (low, high) = (get("low_freq_factor"), get("high_freq_factor"));
                let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                1.0 / (keep + (1.0 - keep) / get("factor"))
            };
            extra.push(("rope_freqs.weight".into(), vec![dim / 2], (0..dim / 2).map(divisor).collect()));
        }
        Some(kind) => {
            m.string(&format!("{arch}.rope.scaling.type"), kind);
            m.number("rope.scaling.factor", &scaling["factor"]);
            m.size("rope.scaling.original_context_length", &scaling["original_max_position_embeddings"]);
        }
        None => {}
    }

    let mut kept = Tensors::new();
    let mut names: Vec<&String> = tensors.keys().collect();
    names.sort();
    let mut stored = Vec::new();
    // Experts one after the other, as one tensor.
    let mut experts: BTreeMap<String, Vec<Expert>> = BTreeMap::new();
    for theirs in names {
        let mut values = tensors[theirs].clone();
        let matrix = theirs.ends_with("_proj.weight") || theirs.contains("embed") || theirs.contains("lm_head");
        let width = match theirs {
            n if n.contains("o_proj.weight") => heads * dim,
            n if n.contains("experts") && n.contains("down_proj.weight") => {
                c["moe_intermediate_size"].as_u64().unwrap() as usize
            }
            n if n.contains("down_proj.weight") => c["intermediate_size"].as_u64().unwrap() as usize,
            n if matrix || n.ends_with("mlp.gate.weight") => hidden,
            _ => values.len(),
        };
        let rows = values.len() / width;
        let turned = llama && (theirs.contains("q_proj") || theirs.contains("k_proj"));
        let turn_rows = if theirs.contains("q_proj") { heads * dim } else { kv * dim };
        if turned {
            values = interleave(&values, turn_rows, dim);
        }
        if gemma && theirs.contains("norm") {
            values.iter_mut().for_each(|v| *v = f64::from(*v as f32 + 1.0));
        }
        let (kind, bytes, mut now) = encode(&values, width, if matrix { kind } else { BlockType::F32 });
        if turned {
            // Back again, for the reference: interleaving is undone by its inverse.
            let w = now.len() / turn_rows;
            let mut back = vec![0.0; now.len()];
            for r in 0..turn_rows {
                let to = r / dim * dim + (r % 2) * (dim / 2) + r % dim / 2;
                back[to * w..(to + 1) * w].copy_from_slice(&now[r * w..(r + 1) * w]);
            }
            now = back;
        }
        if gemma && theirs.contains("norm") {
            now.iter_mut().for_each(|v| *v -= 1.0);
        }
        kept.insert(theirs.clone(), now);
        if let Some((layer, rest)) = theirs.strip_prefix("model.layers.").and_then(|n| n.split_once(".mlp.experts.")) {
            let (expert, part) = rest.split_once('.').unwrap();
            let part = part.strip_suffix("_proj.weight").unwrap();
            let list = experts.entry(format!("blk.{layer}.ffn_{part}_exps.weight")).or_default();
            list.push((expert.parse().unwrap(), bytes, kind, width));
            continue;
        }
        let shape = if rows == 1 && !matrix { vec![width] } else { vec![rows, width] };
        stored.push((name(theirs, gemma), shape, kind, bytes));
    }
    for (name, mut list) in experts {
        list.sort_by_key(|e| e.0);
        let (_, bytes, kind, width) = &list[0];
        let rows = bytes.len() / kind.row_bytes(*width).unwrap();
        let shape = vec![list.len(), rows, *width];
        stored.push((name, shape, *kind, list.iter().flat_map(|e| e.1.clone()).collect()));
    }
    for (name, shape, values) in extra {
        let (kind, bytes, _) = encode(&values, values.len(), BlockType::F32);
        stored.push((name, shape, kind, bytes));
    }

    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((stored.len() as u64).to_le_bytes());
    out.extend(m.count.to_le_bytes());
    out.extend(&m.bytes);
    let mut data: Vec<u8> = Vec::new();
    for (name, shape, kind, bytes) in &stored {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|d| out.extend((*d as u64).to_le_bytes()));
        out.extend(kind.ggml().to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    std::fs::write(path, out).unwrap();
    kept
}
