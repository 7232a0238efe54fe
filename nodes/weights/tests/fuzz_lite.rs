//! Every reader on files spoilt at random: an error or some values, never a panic.
//!
//! The same number of rounds, from the same seeds, in every run; `OXILINE_FUZZ_SECONDS` gives each
//! reader so many seconds instead, from other starting points each time.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use common::{Gguf, q8_0};
use oxiline_weights::{Checkpoint, Keep, MatrixRequest, Tokenizer};
use serde_json::{Value, json};

/// Rounds of each reader when no time is given.
const ROUNDS: u64 = 400;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Numbers at which readers break.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    31,
    32,
    33,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 60,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// A file spoilt in a few places, with pieces of another of its kind.
fn spoil(rng: &mut Rng, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut bytes = rng.pick(seeds).clone();
    for _ in 0..1 + rng.below(6) {
        if bytes.is_empty() {
            break;
        }
        // Headers are where readers think: half of the edits are near the front.
        let reach = if rng.below(2) == 0 { bytes.len() } else { bytes.len().min(400) };
        let at = rng.below(reach);
        let end = (at + 1 + rng.below(16)).min(bytes.len());
        match rng.below(9) {
            0 => bytes[at] = rng.next() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            4 => bytes.truncate(at),
            5 | 6 => {
                let number = *rng.pick(&NUMBERS);
                let number = number.wrapping_add(rng.below(3) as u64).to_le_bytes();
                let size = (*rng.pick(&[1, 2, 4, 8])).min(bytes.len() - at);
                bytes[at..at + size].copy_from_slice(&number[..size]);
            }
            7 => {
                let other = rng.pick(seeds);
                let from = rng.below(other.len());
                let to = (from + 1 + rng.below(64)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            _ => {
                let word = if words.is_empty() { "\0" } else { rng.pick(words) };
                bytes.splice(at..end, word.bytes());
            }
        }
    }
    bytes
}

fn fuzz(what: &str, seeds: &[Vec<u8>], words: &[&str], run: impl Fn(&[u8])) {
    assert!(!seeds.is_empty());
    let seconds = std::env::var("OXILINE_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    let start = match seconds {
        Some(_) => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64,
        None => 1,
    };
    seeds.iter().for_each(|seed| run(seed));
    let (mut rng, began, mut rounds) = (Rng(start), Instant::now(), 0u64);
    let until = seconds.map(Duration::from_secs);
    while until.map_or(rounds < ROUNDS, |limit| began.elapsed() < limit) {
        let state = rng.0;
        let bytes = spoil(&mut rng, seeds, words);
        let fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&bytes))).is_ok();
        if !fine {
            let path = std::env::temp_dir().join(format!("oxiline-fuzz-{what}-{state:016x}"));
            drop(fs::write(&path, &bytes));
            panic!("{what}: a panic on {} bytes, kept as {}", bytes.len(), path.display());
        }
        rounds += 1;
    }
    eprintln!("{what}: {rounds} files in {:.0} s, no panic (from {start})", began.elapsed().as_secs_f64());
}

/// Everything a caller does with a checkpoint.
fn read(name: &str, bytes: &[u8], config: Option<Value>) {
    let c = match Checkpoint::from_bytes(Path::new(name), bytes.to_vec(), config) {
        Ok(c) => c,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text}");
            return;
        }
    };
    for name in c.names().take(64) {
        let info = c.info(name).unwrap();
        let _ = c.f32(name);
        let _ = c.bytes(name);
        if let [rows, row] = info.shape[..] {
            let _ = c.load_matrix(&MatrixRequest::whole(name, rows, row), Keep::Stored);
            let order = [0u32];
            let part =
                MatrixRequest { rows: Some((0, rows)), order: Some(&order), ..MatrixRequest::whole(name, 1, row) };
            let _ = c.load_matrix(&part, Keep::Stored);
        }
    }
    if let Some(metadata) = c.gguf() {
        let _ = Tokenizer::from_gguf(metadata).map(|t| t.encode("hello world", true));
    }
}

fn safetensors(tensors: &[(&str, &str, &[usize], usize)]) -> Vec<u8> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, dtype, shape, bytes) in tensors {
        header.insert((*name).into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::Object(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend((0..at).map(|i| (i * 37) as u8));
    out
}

const JSON: [&str; 18] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "-1",
    "1e9",
    "18446744073709551615",
    "\"\"",
    "\\u0000",
    "\"F32\"",
    "\"BF16\"",
    "[0,0]",
    "true",
    "\"shape\"",
    "\"dtype\"",
];

#[test]
fn safetensors_files() {
    let seeds = [
        safetensors(&[("a", "F32", &[2, 3], 24), ("b", "BF16", &[4], 8), ("c", "F8_E4M3", &[0], 0)]),
        safetensors(&[("w.q8", "I8", &[2, 64], 128), ("w.q8s", "F32", &[2, 2], 16)]),
        safetensors(&[("w.q4", "U8", &[2, 32], 64), ("w.q4s", "F16", &[2, 2], 8), ("n", "F64", &[1], 8)]),
    ];
    fuzz("safetensors", &seeds, &JSON, |b| read("m.safetensors", b, None));
}

#[test]
fn mlx_configurations() {
    let file = safetensors(&[
        ("a.weight", "U32", &[4, 8], 128),
        ("a.scales", "BF16", &[4, 1], 8),
        ("a.biases", "BF16", &[4, 1], 8),
        ("b.weight", "U32", &[2, 6], 48),
        ("b.scales", "F16", &[2, 1], 4),
        ("b.biases", "F16", &[2, 1], 4),
    ]);
    let seeds: Vec<Vec<u8>> = [
        json!({"quantization": {"bits": 4, "group_size": 64, "b": {"bits": 3, "group_size": 64}}}),
        json!({"quantization_config": {"bits": 4, "group_size": 64, "mode": "affine", "b": false}}),
    ]
    .iter()
    .map(|c| c.to_string().into_bytes())
    .collect();
    let words = [
        "\"bits\"",
        "\"group_size\"",
        "\"mode\"",
        "0",
        "1",
        "2",
        "6",
        "32",
        "65537",
        "false",
        "{}",
        "-1",
        "1.5",
        "\"b\"",
    ];
    fuzz("mlx config", &seeds, &words, |bytes| {
        if let Ok(config) = serde_json::from_slice(bytes) {
            read("m.safetensors", &file, Some(config));
        }
    });
}

#[test]
fn gguf_files() {
    let model = Gguf::default()
        .str("general.architecture", "llama")
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "qwen2")
        .strings("tokenizer.ggml.tokens", &["a", "b", "ab", "<|end|>"])
        .strings("tokenizer.ggml.merges", &["a b"])
        .array("tokenizer.ggml.token_type", 5, 4, &[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0])
        .u32("tokenizer.ggml.eos_token_id", 3)
        .tensor("q", &[32, 2], 8, q8_0(0x3c00, |i| i as i8, 64))
        .f32s("n", &[3], &[1., 2., 3.]);
    let scores: Vec<u8> = [0f32, -1., -2.].iter().flat_map(|v| v.to_le_bytes()).collect();
    let piece = Gguf::default()
        .str("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<unk>", "\u{2581}a", "<0x41>"])
        .array("tokenizer.ggml.scores", 6, 3, &scores)
        .array("tokenizer.ggml.token_type", 5, 3, &[2, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0])
        .raw("x", 12, &0.5f64.to_le_bytes())
        .tensor("k", &[256, 1], 12, vec![7; 144])
        .tensor("i", &[256, 1], 19, vec![9; 50]);
    let seeds = [model.build(), piece.build(), Gguf { version: 2, ..model }.build()];
    let words = ["general.alignment", "split.count", "tokenizer.ggml.tokens", "llama", "GGUF", "\0\0\0\0\0\0\0\0"];
    fuzz("gguf", &seeds, &words, |b| read("m.gguf", b, None));
}

#[test]
fn torch_archives() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/archives/good");
    let files = fs::read_dir(folder).unwrap().flatten().map(|e| e.path());
    let torch = |p: &PathBuf| p.extension().is_some_and(|e| e == "bin" || e == "pt" || e == "ckpt");
    let mut files: Vec<PathBuf> = files.filter(torch).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|p| fs::read(p).unwrap()).collect();
    let words = ["cos\nsystem\n", "\u{7f}", "torch._utils", "(", ")", "R", "b", "PK\u{1}\u{2}", "data.pkl"];
    fuzz("torch", &seeds, &words, |b| read("m.bin", b, None));
}

#[test]
fn tokenizer_files() {
    let added = json!([{"id": 4, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    let seeds: Vec<Vec<u8>> = [
        json!({"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u{120}": 3}, "merges": ["a b"]}}),
        json!({"version": "1.0", "added_tokens": [], "normalizer": {"type": "Prepend", "prepend": "\u{2581}"},
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+|\\w+"}, "behavior": "Isolated", "invert": false},
            "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {}},
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["\u{2581}a", -1.0]], "byte_fallback": true}}),
    ]
    .iter()
    .map(|t| t.to_string().into_bytes())
    .collect();
    let words = [
        "null",
        "{}",
        "[]",
        "-1",
        "4294967296",
        "\"type\"",
        "\"BPE\"",
        "\"Unigram\"",
        "\"Regex\"",
        "(",
        "*",
        "+",
        "\\\\",
        "?",
        "0",
    ];
    fuzz("tokenizer.json", &seeds, &words, |bytes| {
        if let Ok(t) = Tokenizer::from_bytes(bytes) {
            let ids = t.encode("a hello ab <|end|> \u{e9}", true).unwrap_or_default();
            let _ = t.decode(&ids, true);
            let mut stream = t.decode_stream(false);
            for id in ids.into_iter().chain([0, u32::MAX]) {
                let _ = stream.push(id);
            }
            let _ = stream.finish();
        }
    });
}
