//! The decoder against a naive one in f64, on sizes the goldens don't have.

mod common;

use common::reference::{Reference, Tensors};
use common::tiny::{self, FAMILIES, Random};
use common::{EXACT, furthest, load, logits};
use oxiline_language::decoder::{CausalLm, Want};
use safetensors::tensor::Dtype;

/// The naive decoder itself is right: it meets the goldens.
#[test]
fn the_reference_meets_the_goldens() {
    for name in ["llama3-untied", "qwen2", "qwen3", "qwen3_moe", "gemma3"] {
        let folder = common::case(name).expect("a fixture");
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let checkpoint = oxiline_weights::Checkpoint::open(&folder, oxiline_weights::Mode::Read).unwrap();
        let values = |n: &str| checkpoint.f32(n).unwrap().into_iter().map(f64::from).collect();
        let tensors: Tensors = checkpoint.names().map(|n| (n.to_string(), values(n))).collect();
        let golden = common::Tensors::open(&folder.join("golden.safetensors"));
        let reference = Reference { config: &config, tensors: &tensors, prefix: "model." };
        let off = furthest(&reference.logits(&golden.ids("prompt_ids")), &golden.f32("logits"));
        assert!(off < 1e-4, "{name}: {off}");
    }
}

#[test]
fn random_sizes_of_every_family() {
    for family in FAMILIES {
        for seed in 0..8 {
            let mut random = Random(seed * 1000 + 7);
            let config = tiny::config(family, &mut random);
            let dtype = random.one(&[Dtype::F32, Dtype::BF16, Dtype::F16]);
            let folder = tempfile::tempdir().unwrap();
            let tensors = tiny::write(folder.path(), &config, dtype, &mut random);
            let model = load(folder.path(), EXACT);
            let len = 1 + random.below(model.context().min(45));
            let ids: Vec<u32> = (0..len).map(|_| random.below(model.vocab()) as u32).collect();
            let want = Reference { config: &config, tensors: &tensors, prefix: "model." }.logits(&ids);
            let got = logits(&model, &mut model.new_state(), &ids, Want::All);
            let largest = want.iter().fold(1.0_f32, |m, v| m.max(v.abs()));
            let off = furthest(&got, &want) / largest;
            assert!(off < 3e-5, "{family}, seed {seed}: {off} off of {largest}; {config}");
        }
    }
}

#[test]
fn gguf_files_of_every_family() {
    use oxiline_kernels::BlockType::{BF16, F32, Q4_0, Q8_0};
    for family in FAMILIES {
        for (seed, kind) in [F32, BF16, Q8_0, Q4_0, F32, Q8_0].into_iter().enumerate() {
            let mut random = Random(seed as u64 * 100 + 3);
            let config = common::gguf::expressible(family, &mut random);
            let folder = tempfile::tempdir().unwrap();
            let tensors = tiny::write(folder.path(), &config, Dtype::F32, &mut random);
            let file = folder.path().join("tiny.gguf");
            let tensors = common::gguf::write(&file, &config, &tensors, kind);
            let model = load(&file, EXACT);
            let len = 1 + random.below(model.context().min(45));
            let ids: Vec<u32> = (0..len).map(|_| random.below(model.vocab()) as u32).collect();
            let want = Reference { config: &config, tensors: &tensors, prefix: "model." }.logits(&ids);
            let got = logits(&model, &mut model.new_state(), &ids, Want::All);
            let largest = want.iter().fold(1.0_f32, |m, v| m.max(v.abs()));
            let off = furthest(&got, &want) / largest;
            assert!(off < 3e-5, "{family}, {}: {off} off of {largest}; {config}", kind.name());
        }
    }
}
