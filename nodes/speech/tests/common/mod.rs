//! Goldens and clips for the tests of this crate.
#![allow(dead_code)]

use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};

/// A file or folder under tests/fixtures.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The golden tensors of a case.
pub struct Golden(Vec<u8>);

impl Golden {
    pub fn open(name: &str) -> Self {
        let path = fixture(name);
        Self(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    pub fn names(&self) -> Vec<String> {
        SafeTensors::deserialize(&self.0).unwrap().names().iter().map(|name| name.to_string()).collect()
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().shape().to_vec()
    }

    /// Any numeric tensor as f64.
    pub fn f64(&self, name: &str) -> Vec<f64> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let data = tensor.data();
        match tensor.dtype() {
            Dtype::F64 => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            Dtype::I32 => data.as_chunks::<4>().0.iter().map(|b| f64::from(i32::from_le_bytes(*b))).collect(),
            other => panic!("{name} is {other}"),
        }
    }

    /// A tensor of bytes.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data().to_vec()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.f64(name).into_iter().map(|v| v as f32).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.f64(name).into_iter().map(|v| v as u32).collect()
    }
}

/// A 16-bit mono WAV clip, or a recipe of clips.json.
pub fn clip(name: &str) -> Vec<f32> {
    let recipes: serde_json::Value =
        serde_json::from_slice(&std::fs::read(fixture("clips/clips.json")).unwrap()).unwrap();
    if let Some(parts) = recipes["recipes"][name].as_array() {
        let mut samples = Vec::new();
        for part in parts {
            let part = part.as_array().unwrap();
            let number = |i: usize| part[i].as_u64().unwrap() as usize;
            match part[0].as_str().unwrap() {
                "silence" => samples.resize(samples.len() + number(1), 0.0),
                source => samples.extend_from_slice(&clip(source)[number(1)..number(2)]),
            }
        }
        return samples;
    }
    if name == "odd31s" {
        return clip("long")[5..5 + 496_059].to_vec();
    }
    let data = std::fs::read(fixture(&format!("clips/{name}.wav"))).unwrap();
    let start = data.windows(4).position(|w| w == b"data").unwrap() + 8;
    data[start..].as_chunks::<2>().0.iter().map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0).collect()
}

/// Largest |a - b|, with the index.
pub fn worst(a: &[f32], b: &[f32]) -> (f32, usize) {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).enumerate().fold((0.0, 0), |worst, (i, (a, b))| {
        let diff = (a - b).abs();
        if diff > worst.0 || diff.is_nan() { (diff, i) } else { worst }
    })
}
