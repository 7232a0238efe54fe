//! Embedding models and rerankers against the reference implementation's numbers.

use std::path::{Path, PathBuf};

use oxiline_graph::protocol::embed::EmbedOptions;
use oxiline_kernels::Pool;
use oxiline_language::embed::{Prepared, TextEmbedder, TextReranker};
use oxiline_language::encoder::LoadOptions;
use safetensors::SafeTensors;
use serde_json::Value;

/// The folder of a case: a fixture of this crate, or in the reference kit beside the checkout.
fn case(name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fixture = here.join("tests/fixtures/embed").join(name);
    let kit = |a: &Path| Some(a.join("shared/ref/embed").join(name)).filter(|p| p.is_dir());
    let found = Some(fixture).filter(|p| p.is_dir()).or_else(|| here.ancestors().find_map(kit));
    if found.is_none() {
        eprintln!("notice: case {name} is not here (no shared/ref beside the checkout): skipped");
    }
    found
}

struct Golden(Vec<u8>);

impl Golden {
    fn open(folder: &Path) -> Self {
        Self(std::fs::read(folder.join("golden.safetensors")).expect("a golden"))
    }
    fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).expect("safetensors");
        file.names().into_iter().map(str::to_owned).collect()
    }
    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.0).expect("safetensors");
        file.tensor(name).unwrap_or_else(|_| panic!("tensor {name}")).data().as_chunks::<4>().0.to_vec()
    }
    fn f32(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }
    fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).into_iter().map(u32::from_le_bytes).collect()
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).expect("JSON")
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().expect("texts").iter().map(|t| t.as_str().expect("a text").to_string()).collect()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "as many values");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn load(folder: &Path) -> TextEmbedder {
    TextEmbedder::load(folder, &LoadOptions::default(), &mut |_, _| Ok(())).unwrap_or_else(|e| panic!("{e}"))
}

fn prompt(name: &str) -> EmbedOptions {
    EmbedOptions { prompt_name: Some(name.into()), ..EmbedOptions::default() }
}

/// Ids, hidden states, layers, vectors with every prompt and of every length.
fn check(name: &str) {
    let Some(folder) = case(name) else { return };
    let (golden, model, pool) = (Golden::open(&folder), load(&folder), Pool::global());
    let texts = texts(&json(&folder.join("texts.json"))["texts"]);
    let normalised = json(&folder.join("modules.json")).to_string().contains("Normalize");
    let most = if normalised { 2e-5 } else { 1e-4 };
    let mut off = [0.0_f32; 3];
    for tensor in golden.names().iter().filter(|n| n.ends_with(".embedding")) {
        let prompt_name = tensor.trim_end_matches(".embedding");
        let options = if prompt_name == "none" { prompt("") } else { prompt(prompt_name) };
        let prepared: Vec<Prepared> = texts.iter().map(|t| model.prepare(t, &options).expect("tokens")).collect();
        for (i, text) in prepared.iter().enumerate() {
            assert_eq!(
                text.pieces[0].ids,
                golden.ids(&format!("{prompt_name}.ids.{i}")),
                "{name}, {prompt_name}, text {i}"
            );
        }
        let batch: Vec<&Prepared> = prepared.iter().collect();
        let got = model.run(pool, &batch, &options).expect("vectors");
        let flat: Vec<f32> = got.iter().flat_map(|e| e.dense.iter().copied()).collect();
        off[2] = off[2].max(furthest(&flat, &golden.f32(tensor)));
        // Alone, each text has the same bits.
        for (text, together) in prepared.iter().zip(&got) {
            assert_eq!(
                model.run(pool, &[text], &options).expect("a vector")[0],
                *together,
                "{name}: alone and together"
            );
        }
        if prompt_name != "none" {
            continue;
        }
        for (i, text) in prepared.iter().take(2).enumerate() {
            let hidden = model.encoder().forward(pool, &[&text.pieces[0]]).expect("hidden states");
            off[0] = off[0].max(furthest(&hidden, &golden.f32(&format!("none.hidden.{i}"))));
        }
        let mut layers = Vec::new();
        let mut keep = |_: usize, x: &[f32]| layers.push(x.to_vec());
        model.encoder().forward_observed(pool, &[&prepared[1].pieces[0]], &mut keep).expect("layers");
        for (i, x) in layers.iter().enumerate() {
            off[1] = off[1].max(furthest(x, &golden.f32(&format!("none.layer.{i}"))));
        }
        for tensor in golden.names().iter().filter(|n| n.starts_with("truncate.")) {
            let dim = tensor.trim_start_matches("truncate.").parse().expect("a number");
            let options = EmbedOptions { dim: Some(dim), ..prompt("") };
            let got = model.run(pool, &batch, &options).expect("vectors");
            let flat: Vec<f32> = got.iter().flat_map(|e| e.dense.iter().copied()).collect();
            off[2] = off[2].max(furthest(&flat, &golden.f32(tensor)));
        }
    }
    println!("{name}: hidden {:e}, layers {:e}, vectors {:e} off", off[0], off[1], off[2]);
    assert!(off[0] < 1e-4 && off[1] < 1e-4, "{name}: hidden states are {off:?} off");
    assert!(off[2] < most, "{name}: vectors are {} off", off[2]);
}

macro_rules! cases {
    ($($name:ident),*) => { $( #[test] fn $name() { check(stringify!($name)); } )* };
}

cases!(bert_mean, bert_cls, bert_max, xlmr, mpnet, modernbert, nomic, gemma3, qwen3, qwen2_gte, qwen2_stella);

#[test]
fn bge_m3_gives_weights_and_vectors_of_tokens() {
    let Some(folder) = case("bgem3") else { return };
    let (golden, model, pool) = (Golden::open(&folder), load(&folder), Pool::global());
    let texts = texts(&json(&folder.join("texts.json"))["texts"]);
    let options = EmbedOptions { sparse: true, colbert: true, ..EmbedOptions::default() };
    let prepared: Vec<Prepared> = texts.iter().map(|t| model.prepare(t, &options).expect("tokens")).collect();
    let got = model.run(pool, &prepared.iter().collect::<Vec<_>>(), &options).expect("vectors");
    let dense: Vec<f32> = got.iter().flat_map(|e| e.dense.iter().copied()).collect();
    let mut off = [furthest(&dense, &golden.f32("dense")), 0.0, 0.0];
    for (i, one) in got.iter().enumerate() {
        assert_eq!(prepared[i].pieces[0].ids, golden.ids(&format!("ids.{i}")));
        let mut want: Vec<(u32, f32)> =
            golden.ids(&format!("sparse_ids.{i}")).into_iter().zip(golden.f32(&format!("sparse_w.{i}"))).collect();
        want.sort_by_key(|(id, _)| *id);
        assert_eq!(one.sparse.iter().map(|s| s.0).collect::<Vec<_>>(), want.iter().map(|s| s.0).collect::<Vec<_>>());
        for (got, want) in one.sparse.iter().zip(&want) {
            off[1] = f32::max(off[1], (got.1 - want.1).abs());
        }
        let colbert: Vec<f32> = one.colbert.concat();
        off[2] = off[2].max(furthest(&colbert, &golden.f32(&format!("colbert.{i}"))));
    }
    println!("bgem3: dense {:e}, sparse {:e}, colbert {:e} off", off[0], off[1], off[2]);
    assert!(off[0] < 2e-5 && off[1] < 1e-4 && off[2] < 5e-5, "bgem3 is {off:?} off");
}

fn rerank(name: &str) {
    let Some(folder) = case(name) else { return };
    let (golden, pool) = (Golden::open(&folder), Pool::global());
    let model = TextReranker::load(&folder, &LoadOptions::default(), &mut |_, _| Ok(())).expect("a reranker");
    let pairs = json(&folder.join("pairs.json"))["pairs"].clone();
    let pairs: Vec<Vec<String>> = pairs.as_array().expect("pairs").iter().map(texts).collect();
    let prepared: Vec<_> = pairs.iter().map(|p| model.prepare(&p[0], &p[1]).expect("tokens")).collect();
    for (i, pair) in prepared.iter().enumerate() {
        assert_eq!(pair.tokens.ids, golden.ids(&format!("ids.{i}")), "{name}, pair {i}");
    }
    let batch: Vec<_> = prepared.iter().collect();
    let off = furthest(&model.logits(pool, &batch).expect("logits"), &golden.f32("logits"));
    let scored = model.run(pool, &batch).expect("scores");
    let flat: Vec<f32> = scored.iter().flat_map(|s| s.scores.iter().copied()).collect();
    let scores = furthest(&flat, &golden.f32("scores"));
    println!("{name}: logits {off:e}, scores {scores:e} off");
    assert!(off < 1e-4 && scores < 1e-4, "{name}: logits are {off} off, scores {scores}");
    for (pair, together) in batch.iter().zip(&scored) {
        assert_eq!(model.run(pool, &[pair]).expect("a score")[0], *together, "alone and together");
    }
}

#[test]
fn rerank_bert() {
    rerank("rerank_bert");
}

#[test]
fn rerank_bert3() {
    rerank("rerank_bert3");
}

#[test]
fn rerank_xlmr() {
    rerank("rerank_xlmr");
}
