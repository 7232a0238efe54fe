//! Reading the golden cases.
#![allow(dead_code)]

pub mod gguf;
pub mod mlx;
pub mod reference;
pub mod tiny;

use std::path::{Path, PathBuf};

use oxiline_language::decoder::{CausalLm, Decoder, LoadOptions, Observer, Span, State, Want};
use safetensors::SafeTensors;

/// The folder of a case: a fixture of this crate, or in the reference kit beside the checkout.
pub fn case(name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fixture = here.join("tests/fixtures").join(name);
    if fixture.is_dir() {
        return Some(fixture);
    }
    let kit = |a: &Path| Some(a.join("shared/ref/text").join(name)).filter(|p| p.is_dir());
    let found = here.ancestors().find_map(kit);
    if found.is_none() {
        eprintln!("notice: case {name} is not here (no shared/ref beside the checkout): skipped");
    }
    found
}

/// A file of tensors.
pub struct Tensors(Vec<u8>);

impl Tensors {
    pub fn open(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        file.tensor(name).ok().map(|t| t.data().to_vec())
    }

    pub fn has(&self, name: &str) -> bool {
        self.bytes(name).is_some()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes(name).unwrap_or_else(|| panic!("tensor {name}"));
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        let bytes = self.bytes(name).unwrap_or_else(|| panic!("tensor {name}"));
        bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
    }
}

pub fn load(path: &Path, options: LoadOptions) -> Decoder {
    Decoder::load(path, &options, &mut |_, _| Ok(())).unwrap_or_else(|e| panic!("{e}"))
}

pub const EXACT: LoadOptions = LoadOptions { exact: true, quant: None, kv: None };

/// Logits of all positions of one span.
pub fn logits(model: &Decoder, state: &mut State, tokens: &[u32], want: Want) -> Vec<f32> {
    let mut batch = [Span::new(state, tokens, want)];
    model.forward(&mut batch).expect("a forward pass");
    std::mem::take(&mut batch[0].logits)
}

pub fn argmax(row: &[f32]) -> u32 {
    oxiline_kernels::ops::argmax(row).expect("numbers") as u32
}

/// Greedy tokens after a prompt that `state` has just seen.
pub fn greedy(model: &Decoder, state: &mut State, last: &[f32], count: usize) -> Vec<u32> {
    let mut ids = vec![argmax(last)];
    while ids.len() < count {
        let next = [ids[ids.len() - 1]];
        ids.push(argmax(&logits(model, state, &next, Want::Last)));
    }
    ids
}

pub fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "as many values");
    let far = |(a, b): (&f32, &f32)| if a == b { 0.0 } else { (a - b).abs() };
    a.iter().zip(b).map(far).fold(0.0, |m, d| if d.is_nan() || d > m { d } else { m })
}

/// The residual stream on its way.
#[derive(Default)]
pub struct Layers {
    pub embeddings: Vec<f32>,
    pub layers: Vec<Vec<f32>>,
}

impl Observer for Layers {
    fn embeddings(&mut self, x: &[f32]) {
        self.embeddings = x.to_vec();
    }
    fn layer(&mut self, _: usize, x: &[f32]) {
        self.layers.push(x.to_vec());
    }
}
