//! Published models against the reference's tokens and logits, where they are at hand: `OXILINE_MODELS` names
//! a folder with a folder for each, and the goldens lie in `shared/models/golden` beside the checkout.

mod common;

use std::path::{Path, PathBuf};

use common::{EXACT, argmax, load, logits};
use oxiline_language::decoder::{CausalLm, Want};
use serde_json::Value;

fn golden(key: &str) -> Option<(PathBuf, Value)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = |a: &Path| Some(a.join(format!("shared/models/golden/{key}.json"))).filter(|p| p.is_file());
    let found = here.ancestors().find_map(file);
    let models = std::env::var_os("OXILINE_MODELS").map(PathBuf::from).filter(|p| p.join(key).is_dir());
    let (Some(found), Some(models)) = (found, models) else {
        eprintln!("notice: {key} or its golden is not here: skipped");
        return None;
    };
    let golden: Value = serde_json::from_slice(&std::fs::read(found).unwrap()).expect("a golden");
    Some((models.join(key).join(golden["file"].as_str().expect("a file")), golden))
}

fn check(key: &str) {
    let Some((file, golden)) = golden(key) else { return };
    let model = load(&file, EXACT);
    for prompt in golden["prompts"].as_array().expect("prompts") {
        let ids = |name: &str| -> Vec<u32> {
            prompt[name].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
        };
        let mut state = model.new_state();
        let mut row = logits(&model, &mut state, &ids("prompt_ids"), Want::Last);
        let mut off = 0.0_f32;
        for pair in prompt["top10_logits"].as_array().unwrap() {
            let (id, logit) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap() as f32);
            off = off.max((row[id] - logit).abs());
        }
        assert!(off < 2e-3, "{key}, {}: logits are {off} off", prompt["text"]);
        let (want, gaps) = (ids("token_ids"), prompt["gap"].as_array().unwrap());
        let mut compared = 0;
        for (token, gap) in want.iter().zip(gaps) {
            if gap.as_f64().unwrap() < 5e-3 {
                break;
            }
            assert_eq!(argmax(&row), *token, "{key}, {}: token {compared}", prompt["text"]);
            compared += 1;
            row = logits(&model, &mut state, &[*token], Want::Last);
        }
        println!("{key}, {}: logits {off:e} off, {compared} of {} tokens", prompt["text"], want.len());
    }
}

#[test]
fn smollm2() {
    check("smollm2-135m-instruct-q4_1");
}

#[test]
fn gemma_3_270m() {
    check("gemma-3-270m-q4_k_m");
}

#[test]
fn qwen25_coder() {
    check("qwen2.5-coder-0.5b-instruct-q4_k_m");
}
