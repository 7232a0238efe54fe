//! Tokenizers out of GGUF metadata against the reference's ids and texts.

use std::path::{Path, PathBuf};

use oxiline_weights::Tokenizer;
use oxiline_weights::gguf::{Metadata, Value};

/// The key-value part of a GGUF file of version 3, read by the test itself.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_at(N);
        self.0 = rest;
        head.try_into().unwrap()
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    fn string(&mut self) -> String {
        let length = self.u64() as usize;
        let (head, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(head.to_vec()).unwrap()
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 => Value::U64(self.bytes::<1>()[0].into()),
            1 => Value::I64((self.bytes::<1>()[0] as i8).into()),
            2 => Value::U64(u16::from_le_bytes(self.bytes()).into()),
            3 => Value::I64(i16::from_le_bytes(self.bytes()).into()),
            4 => Value::U64(u32::from_le_bytes(self.bytes()).into()),
            5 => Value::I64(i32::from_le_bytes(self.bytes()).into()),
            6 => Value::F64(f32::from_le_bytes(self.bytes()).into()),
            7 => Value::Bool(self.bytes::<1>()[0] != 0),
            8 => Value::String(self.string()),
            9 => {
                let (of, count) = (u32::from_le_bytes(self.bytes()), self.u64());
                let items: Vec<Value> = (0..count).map(|_| self.value(of)).collect();
                match items.first() {
                    Some(Value::String(_)) => Value::Strings(
                        items.into_iter().map(|v| if let Value::String(s) = v { s } else { unreachable!() }).collect(),
                    ),
                    Some(Value::F64(_)) => {
                        Value::F32s(items.iter().map(|v| if let Value::F64(x) = v { *x as f32 } else { 0.0 }).collect())
                    }
                    Some(Value::I64(_)) => {
                        Value::I64s(items.iter().map(|v| if let Value::I64(x) = v { *x } else { 0 }).collect())
                    }
                    _ => Value::U64s(items.iter().map(|v| if let Value::U64(x) = v { *x } else { 0 }).collect()),
                }
            }
            10 => Value::U64(self.u64()),
            11 => Value::I64(i64::from_le_bytes(self.bytes())),
            12 => Value::F64(f64::from_le_bytes(self.bytes())),
            other => panic!("type {other}"),
        }
    }
}

fn metadata(path: &Path) -> Metadata {
    let file = std::fs::read(path).unwrap();
    let mut reader = Reader(&file);
    assert_eq!(&reader.bytes::<4>(), b"GGUF");
    let (_version, _tensors, count) = (reader.bytes::<4>(), reader.u64(), reader.u64());
    let mut metadata = Metadata::default();
    for _ in 0..count {
        let key = reader.string();
        let kind = u32::from_le_bytes(reader.bytes());
        metadata.0.insert(key, reader.value(kind));
    }
    metadata
}

fn shared(path: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here.ancestors().map(|a| a.join("shared").join(path)).find(|p| p.exists());
    if found.is_none() {
        eprintln!("skipped: no shared/{path} beside this checkout");
    }
    found
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

#[test]
fn small_vocabularies_are_the_references() {
    let mut seen = 0;
    for case in ["gguf-gemma3", "gguf-llama", "gguf-qwen2", "gguf-qwen3", "gguf-qwen35", "gguf-qwen35moe"] {
        let Some(folder) = shared(&format!("ref/text/{case}")) else { return };
        let file = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().path())
            .find(|p| p.extension().is_some_and(|e| e == "gguf"));
        let tokenizer = Tokenizer::from_gguf(&metadata(&file.unwrap())).unwrap();
        let golden: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("tokenizer_golden.json")).unwrap()).unwrap();
        for row in golden["strings"].as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            let wanted = ids(&row["ids"]);
            // This golden is SentencePiece's own, which never takes control tokens out of a text.
            if case == "gguf-gemma3" && ["<bos>", "<eos>"].iter().any(|t| text.contains(t)) {
                continue;
            }
            assert_eq!(tokenizer.encode(text, false).unwrap(), wanted, "{case}: {text:?}");
            if row["ids_with_special"].is_array() {
                assert_eq!(tokenizer.encode(text, true).unwrap(), ids(&row["ids_with_special"]), "{case}: {text:?}");
            }
            if let Some(decoded) = row["decoded"].as_str() {
                assert_eq!(tokenizer.decode(&wanted, false).unwrap(), decoded, "{case}: {text:?}");
            }
            if let Some(skipped) = row["decoded_skip_special"].as_str() {
                assert_eq!(tokenizer.decode(&wanted, true).unwrap(), skipped, "{case}: {text:?}");
            }
            let plain = tokenizer.encode_plain(text).unwrap();
            assert!(plain.iter().all(|&id| !tokenizer.is_special(id)), "{case}: {text:?}");
            let guarded = tokenizer.guard_literals(text, '\u{f8fe}');
            assert_eq!(tokenizer.encode_guarded(&guarded, '\u{f8fe}').unwrap(), plain, "{case}: {text:?}");
            seen += 1;
        }
    }
    eprintln!("{seen} texts equal");
}

#[test]
fn real_vocabularies_are_the_references() {
    // Read from where OXILINE_MODELS points; the vocabularies are not part of this repository.
    let Some(models) = std::env::var_os("OXILINE_MODELS").map(PathBuf::from) else { return };
    let Some(goldens) = shared("models/golden") else { return };
    for name in ["smollm2-135m-instruct-q4_1", "qwen2.5-coder-0.5b-instruct-q4_k_m", "gemma-3-270m-q4_k_m"] {
        let Ok(folder) = std::fs::read_dir(models.join(name)) else { continue };
        let file = folder.map(|e| e.unwrap().path()).find(|p| p.extension().is_some_and(|e| e == "gguf")).unwrap();
        let tokenizer = Tokenizer::from_gguf(&metadata(&file)).unwrap();
        let golden: serde_json::Value =
            serde_json::from_slice(&std::fs::read(goldens.join(format!("{name}.json"))).unwrap()).unwrap();
        for row in golden["tokenizer"].as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&row["ids"]), "{name}: {text:?}");
            assert_eq!(
                tokenizer.decode(&ids(&row["ids"]), false).unwrap(),
                row["decoded"].as_str().unwrap(),
                "{name}: {text:?}"
            );
        }
        let line = "The quick brown fox, 12345 times; naïve café 東京 is a city.\n    return x + 1\n";
        let text = line.repeat((1 << 20) / line.len());
        let from = std::time::Instant::now();
        let count = tokenizer.encode(&text, false).unwrap().len();
        eprintln!(
            "{name}: {} texts equal; 1 MiB in {:?}, {count} tokens; ends {:?}",
            golden["tokenizer"].as_array().unwrap().len(),
            from.elapsed(),
            tokenizer.ends()
        );
    }
}
