//! Texts that are hard to take apart, against the reference's ids, from both kinds of files.
//!
//! The fixtures are the reference cases' `tokenizers`: small vocabularies trained on nothing of anybody's, with the
//! splitting rules of the families, and 284 texts each.

use std::path::{Path, PathBuf};

use oxiline_weights::Tokenizer;
use oxiline_weights::gguf::{Metadata, Value};
use serde_json::Value as Json;

const FAMILIES: [&str; 6] = ["gemma3", "gemma4", "llama3", "qwen2", "qwen3", "qwen3_5"];

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers").join(family)
}

fn read(family: &str, file: &str) -> Json {
    serde_json::from_slice(&std::fs::read(folder(family).join(file)).unwrap()).unwrap()
}

/// Text, ids, and what the ids are as text.
fn rows(family: &str) -> Vec<(String, Vec<u32>, String)> {
    serde_json::from_value(read(family, "strings.json")).unwrap()
}

/// The same vocabulary as a converter writes it into a GGUF file.
fn as_gguf(family: &str) -> Metadata {
    let json = read(family, "tokenizer.json");
    let (vocab, merges) = (json["model"]["vocab"].as_object().unwrap(), json["model"]["merges"].as_array().unwrap());
    let added = json["added_tokens"].as_array().unwrap();
    let id = |v: &Json| v.as_u64().unwrap() as usize;
    let size = 1 + vocab.values().chain(added.iter().map(|a| &a["id"])).map(id).max().unwrap();
    let (mut tokens, mut types) = (vec![String::new(); size], vec![1_i64; size]);
    for (token, at) in vocab {
        tokens[id(at)].clone_from(token);
        if token.len() == 6 && token.starts_with("<0x") {
            types[id(at)] = 6;
        }
    }
    for token in added {
        let at = id(&token["id"]);
        tokens[at] = token["content"].as_str().unwrap().into();
        types[at] = if token["special"] == true { 3 } else { 4 };
    }
    let pair = |m: &Json| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap());
    let text = |s: &str| Value::String(s.into());
    let mut metadata = Metadata::default();
    let mut set = |key: &str, value: Value| metadata.0.insert(format!("tokenizer.ggml.{key}"), value);
    let (model, pre) = match family {
        "gemma3" | "gemma4" => ("gemma4", "default"),
        "llama3" => ("gpt2", "llama-bpe"),
        "qwen3_5" => ("gpt2", "qwen35"),
        _ => ("gpt2", "qwen2"),
    };
    set("model", text(model));
    set("pre", text(pre));
    set("add_space_prefix", Value::Bool(false));
    set("tokens", Value::Strings(tokens));
    set("token_type", Value::I64s(types));
    set("merges", Value::Strings(merges.iter().map(pair).collect()));
    metadata
}

fn equal(family: &str, how: &str, tokenizer: &Tokenizer) {
    let rows = rows(family);
    assert_eq!(rows.len(), 284);
    for (text, ids, decoded) in rows {
        assert_eq!(tokenizer.encode(&text, false).unwrap(), ids, "{family}, {how}: {text:?}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), decoded, "{family}, {how}: {text:?}");
        // Token by token it is the same text.
        let mut stream = tokenizer.decode_stream(false);
        let mut told = String::new();
        for id in &ids {
            told += &stream.push(*id).unwrap().unwrap_or_default();
        }
        told += &stream.finish().unwrap().unwrap_or_default();
        assert_eq!(told, decoded, "{family}, {how}, streamed: {text:?}");
    }
}

#[test]
fn hard_texts_are_the_references() {
    for family in FAMILIES {
        equal(family, "tokenizer.json", &Tokenizer::load(&folder(family)).unwrap());
    }
}

#[test]
fn hard_texts_are_the_references_out_of_gguf() {
    for family in FAMILIES {
        equal(family, "GGUF", &Tokenizer::from_gguf(&as_gguf(family)).unwrap());
    }
}

#[test]
fn a_long_text_without_a_break_is_taken_apart() {
    // What a rule takes in one piece, a merge at a time would take hours.
    for family in ["llama3", "qwen2", "gemma3"] {
        let tokenizer = Tokenizer::load(&folder(family)).unwrap();
        for piece in ["in", "a", " ", "\n", "7", "é", "🙂"] {
            let text = piece.repeat((1 << 18) / piece.len());
            let ids = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{family}: {piece:?}");
        }
    }
}

/// Pieces that rules of splitting, normalisation and added tokens fall over, and characters by chance.
fn fuzzed(seed: &mut u64) -> String {
    const PIECES: [&str; 40] = [
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\n\n",
        "\u{a0}",
        "\u{2003}",
        "\u{200b}",
        "\u{200d}",
        "'s",
        "'RE",
        "\u{2019}t",
        "'\u{17f}",
        "1",
        "12",
        "2026",
        "\u{663}",
        "\u{bd}",
        "e\u{301}",
        "\u{e9}",
        "\u{308}",
        "\u{1100}\u{1161}",
        "\u{d55c}",
        "\u{4e2d}\u{6587}",
        "\u{1f469}\u{200d}\u{1f4bb}",
        "\u{1f1e9}\u{1f1ea}",
        "\u{fffd}",
        "\u{0}",
        "\u{7f}",
        "\u{2581}",
        "\u{120}",
        "<",
        "|im_end|>",
        "<|im_start|>",
        "<|eot_id|>",
        "<start_of_turn>",
        "<0x0A>",
        "...",
        "the in def",
    ];
    let mut draw = |n: u64| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % n
    };
    let mut text = String::new();
    for _ in 0..draw(9) {
        match draw(4) {
            0 => text.extend(char::from_u32(draw(0x11_0000) as u32)),
            1 => text.extend(char::from_u32(0x20 + draw(0x2e0) as u32)),
            _ => text += PIECES[draw(40) as usize],
        }
    }
    text
}

/// Both kinds of files on `count` fuzzed texts a family: the library reads tokenizer.json itself, so it is the
/// reference.
fn alike(count: usize) {
    for family in FAMILIES {
        let json = Tokenizer::load(&folder(family)).unwrap();
        let gguf = Tokenizer::from_gguf(&as_gguf(family)).unwrap();
        let mut seed = 97;
        for _ in 0..count {
            let text = fuzzed(&mut seed);
            let ids = json.encode(&text, false).unwrap();
            assert_eq!(gguf.encode(&text, false).unwrap(), ids, "{family}: {text:?}");
            let decoded = json.decode(&ids, false).unwrap();
            assert_eq!(gguf.decode(&ids, false).unwrap(), decoded, "{family}: {text:?}");
        }
    }
}

#[test]
fn fuzzed_texts_are_the_references() {
    alike(3000);
}

#[test]
#[ignore = "takes minutes"]
fn a_million_fuzzed_texts_are_the_references() {
    alike(1_000_000 / FAMILIES.len() + 1);
}
