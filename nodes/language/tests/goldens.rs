//! The decoder against the reference implementation's numbers, in exact mode.

mod common;

use std::path::Path;

use common::{EXACT, Layers, Tensors, argmax, furthest, greedy, load};
use oxiline_language::decoder::{CausalLm, Span, Want};

fn tolerance(folder: &Path, key: &str) -> f32 {
    let case: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).expect("a case");
    case["tolerance"][key].as_f64().unwrap_or(1e-4) as f32
}

/// `weights` run on the goldens of `goldens`.
fn check(weights: &str, goldens: &str) {
    let (Some(folder), Some(golden)) = (common::case(weights), common::case(goldens)) else { return };
    let file = Tensors::open(&golden.join("golden.safetensors"));
    let model = load(&folder, EXACT);
    let ids = file.ids("prompt_ids");
    let hidden = model.spec().hidden;

    let (mut state, mut seen) = (model.new_state(), Layers::default());
    let mut batch = [Span { keep_hidden: true, ..Span::new(&mut state, &ids, Want::All) }];
    model.forward_observed(&mut batch, &mut seen).unwrap();
    let logits = std::mem::take(&mut batch[0].logits);
    assert_eq!(batch[0].hidden.len(), ids.len() * hidden);

    let off = furthest(&logits, &file.f32("logits"));
    println!("{weights}: logits are {off:e} off");
    assert!(off <= tolerance(&folder, "logits_abs"), "{weights}: logits are {off} off");
    let layer_abs = tolerance(&golden, "layer_abs");
    let off = furthest(&seen.embeddings[..8 * hidden], &file.f32("embeddings_head"));
    assert!(off <= layer_abs, "{weights}: embeddings are {off} off");
    let off = furthest(&seen.layers[0], &file.f32("layer0_all"));
    assert!(off <= layer_abs, "{weights}: layer 0 is {off} off");
    let last: Vec<f32> = seen.layers.iter().flat_map(|x| x[x.len() - hidden..].to_vec()).collect();
    let off = furthest(&last, &file.f32("layer_last"));
    assert!(off <= layer_abs, "{weights}: layers are {off} off");

    let vocab = model.vocab();
    let want = file.ids("greedy_ids");
    let last = &logits[logits.len() - vocab..];
    assert_eq!(greedy(&model, &mut state, last, want.len()), want, "{weights}: greedy tokens");
    assert_eq!(argmax(last), want[0]);
}

#[test]
fn llama() {
    check("llama3-tied", "llama3-tied");
    check("llama3-untied", "llama3-untied");
}

#[test]
fn qwen2() {
    check("qwen2", "qwen2");
    check("qwen2-f32", "qwen2");
}

#[test]
fn qwen3() {
    check("qwen3", "qwen3");
    check("qwen3-untied", "qwen3-untied");
}

#[test]
fn qwen3_in_other_containers() {
    for weights in ["qwen3-bin", "qwen3-bin-sharded", "qwen3-sharded"] {
        check(weights, "qwen3");
    }
}

#[test]
fn qwen3_moe() {
    check("qwen3_moe", "qwen3_moe");
}

#[test]
fn gemma3() {
    check("gemma3", "gemma3");
    check("gemma3-vlm", "gemma3-vlm");
}

/// A GGUF file of each type of a case: the logits of the last positions, greedy tokens.
fn check_gguf(name: &str) {
    let Some(folder) = common::case(name) else { return };
    let case: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).expect("a case");
    let file = Tensors::open(&folder.join("golden.safetensors"));
    let ids = file.ids("prompt_ids");
    for (kind, weights) in case["files"].as_object().expect("files") {
        let model = load(&folder.join(weights.as_str().unwrap()), EXACT);
        let (vocab, hidden) = (model.vocab(), model.spec().hidden);
        let (mut state, mut seen) = (model.new_state(), Layers::default());
        let mut batch = [Span::new(&mut state, &ids, Want::All)];
        model.forward_observed(&mut batch, &mut seen).unwrap();
        let logits = std::mem::take(&mut batch[0].logits);
        let tail = file.f32(&format!("{kind}.logits_tail"));
        let off = furthest(&logits[logits.len() - tail.len()..], &tail);
        println!("{name} {kind}: logits are {off:e} off");
        assert!(off <= tolerance(&folder, "logits_abs"), "{name} {kind}: logits are {off} off");
        let last: Vec<f32> = seen.layers.iter().flat_map(|x| x[x.len() - hidden..].to_vec()).collect();
        let off = furthest(&last, &file.f32(&format!("{kind}.layer_last")));
        assert!(off <= 3e-4, "{name} {kind}: layers are {off} off");
        let want = file.ids(&format!("{kind}.greedy_ids"));
        let got = greedy(&model, &mut state, &logits[logits.len() - vocab..], want.len());
        assert_eq!(got, want, "{name} {kind}: greedy tokens");
    }
}

#[test]
fn gguf() {
    for name in ["gguf-llama", "gguf-qwen2", "gguf-qwen3", "gguf-gemma3"] {
        check_gguf(name);
    }
}

#[test]
fn mlx() {
    for name in ["mlx4-qwen3", "mlx6-qwen3", "mlx8-qwen3", "mlx4-gemma3"] {
        check(name, name);
    }
}
