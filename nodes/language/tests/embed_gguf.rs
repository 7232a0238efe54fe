//! Tokenizers of encoders out of GGUF metadata, made as its converter does from the folders of the fixtures, give
//! the ids of the folders' own.

use std::path::Path;

use oxiline_weights::Tokenizer;
use oxiline_weights::gguf::{Metadata, Value};
use serde_json::Value as Json;

const TEXTS: [&str; 9] = [
    "The quick brown fox jumps over the lazy dog.",
    "  Two   spaces, and a tab\there ",
    "naïve café ÀÉÎ, ﬁnally (un)believable!",
    "[CLS] is text, <s> too",
    "東京 is a city; Привет мир",
    "antidisestablishmentarianism 12345 $5.00",
    "a",
    "",
    "e\u{301}clair \u{200b}zero\u{ad}width",
];

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/embed").join(name)
}

fn file(name: &str) -> Json {
    let path = folder(name).join("tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).expect("a tokenizer")).expect("JSON")
}

/// Ids of the special tokens.
fn added(file: &Json) -> Vec<usize> {
    let list = file["added_tokens"].as_array().expect("added tokens");
    list.iter().map(|token| token["id"].as_u64().expect("an id") as usize).collect()
}

fn base64(text: &str) -> Vec<u64> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u64, 0, Vec::new());
    for c in text.bytes().filter(|c| *c != b'=') {
        bits = bits << 6 | LETTERS.iter().position(|l| *l == c).expect("a letter of base64") as u64;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(bits >> count & 0xff);
        }
    }
    bytes
}

fn compare(name: &str, metadata: &Metadata) {
    let (own, gguf) =
        (Tokenizer::load(&folder(name).join("tokenizer.json")).unwrap(), Tokenizer::from_gguf(metadata).unwrap());
    for text in TEXTS {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, true).unwrap();
        assert_eq!(ids(&gguf), ids(&own), "{name}: {text:?}");
        let pair = |tokenizer: &Tokenizer| {
            let pair = tokenizer.encode_pair(text, "another text", 512).unwrap();
            (pair.ids, pair.types)
        };
        assert_eq!(pair(&gguf), pair(&own), "{name}: a pair with {text:?}");
    }
}

#[test]
fn word_pieces_are_those_of_the_folder() {
    let file = file("bert_mean");
    let vocabulary = file["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens = vec![String::new(); vocabulary.len()];
    for (piece, id) in vocabulary {
        let written = match piece.strip_prefix("##") {
            Some(inside) => inside.to_string(),
            None if piece.starts_with('[') && piece.ends_with(']') => piece.clone(),
            None => format!("\u{2581}{piece}"),
        };
        tokens[id.as_u64().expect("an id") as usize] = written;
    }
    let special = added(&file);
    let types = (0..tokens.len()).map(|id| if special.contains(&id) { 3 } else { 1 }).collect();
    let mut metadata = Metadata::default();
    metadata.0.insert("tokenizer.ggml.model".into(), Value::String("bert".into()));
    metadata.0.insert("tokenizer.ggml.tokens".into(), Value::Strings(tokens.clone()));
    metadata.0.insert("tokenizer.ggml.token_type".into(), Value::I64s(types));
    compare("bert_mean", &metadata);
    // Newer files name the first token as beginning.
    let first = tokens.iter().position(|token| token == "[CLS]").expect("[CLS]");
    metadata.0.insert("tokenizer.ggml.bos_token_id".into(), Value::U64(first as u64));
    compare("bert_mean", &metadata);
    // Without a token for what is unknown there is no WordPiece.
    let unknown = tokens.iter().position(|token| token == "[UNK]").expect("[UNK]");
    tokens[unknown] = "[GONE]".into();
    metadata.0.insert("tokenizer.ggml.tokens".into(), Value::Strings(tokens));
    let said = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
    assert!(said.contains("[UNK]") && said.contains("tokenizer.ggml.unknown_token_id"), "{said}");
}

#[test]
fn unigrams_are_those_of_the_folder() {
    let file = file("bgem3");
    let vocabulary = file["model"]["vocab"].as_array().expect("a vocabulary");
    let mut tokens: Vec<String> = vocabulary.iter().map(|v| v[0].as_str().expect("a piece").to_string()).collect();
    let mut scores: Vec<f32> = vocabulary.iter().map(|v| v[1].as_f64().expect("a score") as f32).collect();
    let special = added(&file);
    for token in file["added_tokens"].as_array().expect("added tokens") {
        let id = token["id"].as_u64().expect("an id") as usize;
        while tokens.len() <= id {
            tokens.push(format!("[PAD{}]", tokens.len()));
            scores.push(-1000.0);
        }
        tokens[id] = token["content"].as_str().expect("text").to_string();
    }
    let unknown = file["model"]["unk_id"].as_u64().expect("an id");
    let types = (0..tokens.len())
        .map(|id| if id as u64 == unknown { 2 } else { 1 + 2 * i64::from(special.contains(&id)) })
        .collect();
    let mut metadata = Metadata::default();
    metadata.0.insert("tokenizer.ggml.model".into(), Value::String("t5".into()));
    metadata.0.insert("tokenizer.ggml.tokens".into(), Value::Strings(tokens));
    metadata.0.insert("tokenizer.ggml.scores".into(), Value::F32s(scores));
    metadata.0.insert("tokenizer.ggml.token_type".into(), Value::I64s(types));
    metadata.0.insert("tokenizer.ggml.unknown_token_id".into(), Value::U64(unknown));
    let steps = &file["normalizer"]["normalizers"];
    let map = steps.as_array().expect("steps").iter().find_map(|step| step["precompiled_charsmap"].as_str());
    let map = base64(map.expect("SentencePiece's table"));
    metadata.0.insert("tokenizer.ggml.precompiled_charsmap".into(), Value::U64s(map));
    compare("bgem3", &metadata);
    for refused in [Value::U64s(vec![1, 2, 256]), Value::U64s(vec![7; 9]), Value::Bool(true)] {
        metadata.0.insert("tokenizer.ggml.precompiled_charsmap".into(), refused);
        let said = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
        assert!(said.contains("precompiled_charsmap"), "{said}");
    }
    metadata.0.remove("tokenizer.ggml.precompiled_charsmap");
    metadata.0.insert("tokenizer.ggml.scores".into(), Value::F32s(vec![f32::NAN; 3]));
    assert!(Tokenizer::from_gguf(&metadata).is_err());
}
