//! Row-exactness: the logits of a sequence are the same bits whatever is computed beside them.

mod common;

use std::sync::LazyLock;

use common::load;
use common::tiny::{self, FAMILIES, Random};
use oxiline_kernels::Pool;
use oxiline_language::decoder::{CausalLm, Decoder, KvFormat, LoadOptions, Quant, SequenceState, Span, State, Want};
use proptest::prelude::*;
use safetensors::tensor::Dtype;

static POOLS: LazyLock<[Pool; 3]> = LazyLock::new(|| [Pool::new(1), Pool::new(2), Pool::new(3)]);

/// Every position's logits, computed alone, token by token, on one thread.
fn alone(model: &Decoder, ids: &[u32]) -> Vec<Vec<u32>> {
    let mut state = model.new_state();
    let step = |id: &u32| {
        let token = [*id];
        let mut batch = [Span::new(&mut state, &token, Want::Last)];
        model.forward_on(&POOLS[0], &mut batch).unwrap();
        bits(&batch[0].logits)
    };
    ids.iter().map(step).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Sequences computed in batches, chunks, forks and returns drawn at random.
fn together(model: &Decoder, sequences: &[Vec<u32>], random: &mut Random) {
    let want: Vec<Vec<Vec<u32>>> = sequences.iter().map(|ids| alone(model, ids)).collect();
    let mut states: Vec<State> = sequences.iter().map(|_| model.new_state()).collect();
    while states.iter().zip(sequences).any(|(s, ids)| s.len() < ids.len()) {
        let pool = &POOLS[random.below(3)];
        let wants = random.one(&[Want::All, Want::Last, Want::All]);
        let longest = random.one(&[1, 3, 40]);
        let mut batch = Vec::new();
        let mut which = Vec::new();
        for (i, (state, ids)) in states.iter_mut().zip(sequences).enumerate() {
            let left = ids.len() - state.len();
            if left == 0 || random.below(4) == 0 {
                continue;
            }
            let n = 1 + random.below(left.min(longest));
            let at = state.len();
            which.push((i, at, n));
            batch.push(Span::new(state, &ids[at..at + n], wants));
        }
        model.forward_on(pool, &mut batch).unwrap();
        for (span, (i, at, n)) in batch.iter().zip(&which) {
            let rows: Vec<Vec<u32>> = span.logits.chunks(model.vocab()).map(bits).collect();
            let first = if wants == Want::All { *at } else { at + n - 1 };
            assert_eq!(rows.len(), at + n - first);
            for (p, row) in rows.iter().enumerate() {
                assert!(*row == want[*i][first + p], "sequence {i}, position {}", first + p);
            }
        }
        let i = random.below(states.len());
        match random.below(4) {
            0 => {
                // The fork goes on; what becomes of the original is no matter to it.
                let mut fork = states[i].fork();
                std::mem::swap(&mut states[i], &mut fork);
                let wrong = [0, 1, 2];
                if fork.len() + 3 <= model.context() {
                    model.forward(&mut [Span::new(&mut fork, &wrong, Want::Nothing)]).unwrap();
                }
            }
            1 => {
                let back = random.below(states[i].len() + 1);
                states[i].truncate(back);
                assert!(states[i].len() <= back);
            }
            _ => {}
        }
    }
}

fn options(random: &mut Random) -> LoadOptions {
    let kv = random.one(&[None, Some(KvFormat::F32), Some(KvFormat::F16), Some(KvFormat::Int8)]);
    match random.below(4) {
        0 => LoadOptions { kv, ..common::EXACT },
        1 => LoadOptions { quant: Some(Quant::Q8), kv, ..LoadOptions::default() },
        _ => LoadOptions { kv, ..LoadOptions::default() },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn logits_depend_on_their_own_sequence_only(seed in any::<u64>()) {
        let mut random = Random(seed);
        let family = random.one(&FAMILIES);
        let config = tiny::config(family, &mut random);
        let dtype = random.one(&[Dtype::F32, Dtype::BF16, Dtype::F16]);
        let folder = tempfile::tempdir().unwrap();
        tiny::write(folder.path(), &config, dtype, &mut random);
        let model = load(folder.path(), options(&mut random));
        let count = random.one(&[1, 2, 5, 32]);
        let longest = model.context().min(if count > 5 { 9 } else { 40 });
        let sequences: Vec<Vec<u32>> = (0..count)
            .map(|_| (0..1 + random.below(longest)).map(|_| random.below(model.vocab()) as u32).collect())
            .collect();
        together(&model, &sequences, &mut random);
    }
}

/// A configuration of this family whose matrices are whole blocks of every type, and that GGUF can carry.
fn whole_blocks(family: &str, random: &mut Random) -> serde_json::Value {
    let mut config = common::gguf::expressible(family, random);
    for (key, size) in [
        ("hidden_size", 256),
        ("intermediate_size", 256),
        ("moe_intermediate_size", 256),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 64),
        ("query_pre_attn_scalar", 64),
        ("vocab_size", 70),
    ] {
        if !config[key].is_null() || key == "head_dim" {
            config[key] = size.into();
        }
    }
    config
}

fn mixture(model: &Decoder, random: &mut Random) {
    let count = random.one(&[1, 3, 8]);
    let sequences: Vec<Vec<u32>> =
        (0..count).map(|_| (0..1 + random.below(12)).map(|_| random.below(model.vocab()) as u32).collect()).collect();
    together(model, &sequences, random);
}

/// Every block type of GGUF, in a family drawn at random, on the fast path.
#[test]
fn gguf_blocks_of_every_type() {
    for (i, kind) in oxiline_kernels::BlockType::all().enumerate() {
        let mut random = Random(i as u64 + 77);
        let family = FAMILIES[i % FAMILIES.len()];
        let config = whole_blocks(family, &mut random);
        let folder = tempfile::tempdir().unwrap();
        let tensors = tiny::write(folder.path(), &config, Dtype::F32, &mut random);
        let file = folder.path().join("tiny.gguf");
        common::gguf::write(&file, &config, &tensors, kind);
        let kv = random.one(&[None, Some(KvFormat::Int8)]);
        mixture(&load(&file, LoadOptions { kv, ..LoadOptions::default() }), &mut random);
    }
}

/// Every width and group of MLX.
#[test]
fn mlx_groups_of_every_width() {
    let families: Vec<&str> = FAMILIES.into_iter().filter(|family| *family != "qwen3_moe").collect();
    let widths = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group)));
    for (i, (bits, group)) in widths.enumerate() {
        let mut random = Random(i as u64 + 177);
        let config = whole_blocks(families[i % families.len()], &mut random);
        let folder = tempfile::tempdir().unwrap();
        common::mlx::write(folder.path(), &config, bits, group, &mut random);
        let kv = random.one(&[None, Some(KvFormat::Int8)]);
        mixture(&load(folder.path(), LoadOptions { kv, ..LoadOptions::default() }), &mut random);
    }
}

/// The same on wider layers, where all threads get work, and prompts of several passes.
#[test]
fn long_prompts_in_any_chunks() {
    let mut random = Random(5);
    let config = serde_json::json!({
        "model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "vocab_size": 300,
        "max_position_embeddings": 2048, "tie_word_embeddings": true,
    });
    let folder = tempfile::tempdir().unwrap();
    tiny::write(folder.path(), &config, Dtype::BF16, &mut random);
    for options in [LoadOptions::default(), common::EXACT] {
        let model = load(folder.path(), options);
        let ids: Vec<u32> = (0..700).map(|_| random.below(300) as u32).collect();
        let mut want: Option<Vec<u32>> = None;
        for (chunk, pool) in [(700, 1), (1, 0), (512, 2), (37, 1), (128, 0)] {
            let mut state = model.new_state();
            let mut got = Vec::new();
            for tokens in ids.chunks(chunk) {
                let mut batch = [Span::new(&mut state, tokens, Want::Last)];
                model.forward_on(&POOLS[pool], &mut batch).unwrap();
                got = bits(&batch[0].logits);
            }
            let want = want.get_or_insert_with(|| got.clone());
            assert!(*want == got, "chunks of {chunk}");
        }
    }
}

#[test]
fn a_bad_token_or_too_many_change_nothing() {
    let mut random = Random(9);
    let config = tiny::config("qwen2", &mut random);
    let folder = tempfile::tempdir().unwrap();
    tiny::write(folder.path(), &config, Dtype::F32, &mut random);
    let model = load(folder.path(), common::EXACT);
    let (mut a, mut b) = (model.new_state(), model.new_state());
    let bad = [1, model.vocab() as u32];
    let mut batch = [Span::new(&mut a, &[1, 2], Want::Last), Span::new(&mut b, &bad, Want::Last)];
    let error = model.forward(&mut batch).unwrap_err().to_string();
    assert!(error.contains("outside the model's vocabulary"), "{error}");
    assert_eq!((a.len(), b.len()), (0, 0));
    let long = vec![1; model.context() + 1];
    let error = model.forward(&mut [Span::new(&mut a, &long, Want::Last)]).unwrap_err().to_string();
    assert!(error.contains("context"), "{error}");
    assert_eq!(a.len(), 0);
    let mut nothing = [Span::new(&mut a, &[], Want::All)];
    model.forward(&mut nothing).unwrap();
    assert!(nothing[0].logits.is_empty());
}
