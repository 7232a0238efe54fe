//! GGUF files built byte by byte.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

/// What a file is to hold; every part can be wrong on purpose.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub keys: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
    pub alignment: usize,
}

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    /// Fastest first, as the file has them.
    pub dims: Vec<u64>,
    pub kind: u32,
    pub bytes: Vec<u8>,
}

pub fn string(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

fn typed(kind: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend(bytes);
    out
}

impl Default for Gguf {
    fn default() -> Self {
        Self { version: 3, keys: Vec::new(), tensors: Vec::new(), alignment: 32 }
    }
}

impl Gguf {
    pub fn raw(mut self, key: &str, kind: u32, bytes: &[u8]) -> Self {
        self.keys.push((key.into(), typed(kind, bytes)));
        self
    }
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }
    pub fn u16(self, key: &str, value: u16) -> Self {
        self.raw(key, 2, &value.to_le_bytes())
    }
    pub fn str(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &string(value))
    }
    pub fn array(self, key: &str, kind: u32, count: u64, items: &[u8]) -> Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(count.to_le_bytes());
        bytes.extend(items);
        self.raw(key, 9, &bytes)
    }
    pub fn strings(self, key: &str, items: &[&str]) -> Self {
        let bytes: Vec<u8> = items.iter().flat_map(|s| string(s)).collect();
        self.array(key, 8, items.len() as u64, &bytes)
    }
    pub fn tensor(mut self, name: &str, dims: &[u64], kind: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push(Tensor { name: name.into(), dims: dims.to_vec(), kind, bytes });
        self
    }
    pub fn f32s(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        self.tensor(name, dims, 0, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }
    pub fn build(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.extend(string(key));
            out.extend(value);
        }
        let mut offset = 0usize;
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + t.bytes.len()).next_multiple_of(self.alignment);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&t.bytes);
        }
        out
    }
    pub fn write(&self, path: &Path) -> PathBuf {
        std::fs::write(path, self.build()).unwrap();
        path.to_path_buf()
    }
}

/// Q8_0 blocks of whole numbers -127..=127 times a scale.
pub fn q8_0(scale: u16, values: impl Fn(usize) -> i8, count: usize) -> Vec<u8> {
    (0..count / 32)
        .flat_map(|b| {
            let mut block = scale.to_le_bytes().to_vec();
            block.extend((0..32).map(|i| values(b * 32 + i) as u8));
            block
        })
        .collect()
}

/// A part of the kit of goldens beside the checkout, with a notice when it isn't there.
pub fn shared(path: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().map(|a| a.join("shared").join(path)).find(|p| p.exists());
    if found.is_none() {
        eprintln!("notice: {path} is not here (no shared/ref beside the checkout): skipped");
    }
    found
}
