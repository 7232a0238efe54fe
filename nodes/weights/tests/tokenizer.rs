//! A tiny byte-level tokenizer made here, from both kinds of files.

use std::fs;

use oxiline_weights::Tokenizer;

/// The printable stand-ins byte-level vocabularies use for all 256 bytes.
fn byte_alphabet() -> Vec<String> {
    let mut next = 256u32;
    (0u32..256)
        .map(|b| {
            let plain = matches!(b, 33..=126 | 161..=172 | 174..=255);
            let code = if plain { b } else { next };
            next += u32::from(!plain);
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        byte_alphabet().into_iter().enumerate().map(|(i, t)| (t, i.into())).collect();
    for (i, token) in ["he", "ll", "hell", "\u{120}w"].iter().enumerate() {
        vocab.insert((*token).into(), (256 + i).into());
    }
    fs::write(dir.path().join("vocab.json"), serde_json::to_vec(&vocab).unwrap()).unwrap();
    fs::write(dir.path().join("merges.txt"), "#version: 0.2\nh e\nl l\nhe ll\n\u{120} w\n").unwrap();
    fs::write(dir.path().join("added_tokens.json"), r#"{"<|end|>": 260, "<|start|>": 261}"#).unwrap();
    dir
}

#[test]
fn older_files_make_a_tokenizer() {
    let dir = folder();
    let t = Tokenizer::load(dir.path()).unwrap();
    assert_eq!(t.vocab_size(), 262);
    assert_eq!(t.encode("hello wo", false).unwrap(), [258, 111, 259, 111]);
    assert_eq!(t.encode("<|start|>he", false).unwrap(), [261, 256]);
    assert_eq!(t.decode(&[261, 258, 111, 260], true).unwrap(), "hello");
    assert_eq!(t.decode(&[261, 258, 111, 99_999], false).unwrap(), "<|start|>hello");
    assert_eq!((t.token_to_id("<|end|>"), t.id_to_token(256)), (Some(260), Some("he".into())));
    assert!(t.is_special(260) && !t.is_special(256));
}

#[test]
fn pieces_join_to_the_whole_and_never_cut_a_character() {
    let t = Tokenizer::load(folder().path()).unwrap();
    for text in ["hello world", "ü€😀x", "a😀", "\u{fffd}b", ""] {
        let ids = t.encode(text, false).unwrap();
        let mut stream = t.decode_stream(true);
        let mut out = String::new();
        for id in ids {
            let piece = stream.push(id).unwrap().unwrap_or_default();
            assert!(text[out.len()..].starts_with(&piece), "{text}: {piece:?} after {out:?}");
            out += &piece;
        }
        out += &stream.finish().unwrap().unwrap_or_default();
        assert_eq!(out, text);
    }
    // A cut character comes out as one replacement at the end, and bytes that never become a
    // character do not hold text back for ever.
    let mut cut = t.decode_stream(true);
    assert_eq!(cut.push(0xe2).unwrap(), None);
    assert_eq!(cut.finish().unwrap().as_deref(), Some("\u{fffd}"));
    let mut broken = t.decode_stream(true);
    let got: String = (0..40).filter_map(|_| broken.push(0xff).unwrap()).collect();
    assert!(got.chars().count() > 20, "{got}");
}

#[test]
fn broken_files_are_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("no tokenizer.json"), "{error}");
    for bytes in [
        &b"{}"[..],
        b"[1",
        br#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}"#,
        br#"{"version":"1.0","added_tokens":[{"id":4000000000,"content":"x","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"model":{"type":"BPE","vocab":{},"merges":[["a"]]}}"#,
        &b"[".repeat(100_000),
    ] {
        fs::write(dir.path().join("tokenizer.json"), bytes).unwrap();
        let error = Tokenizer::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: not a usable tokenizer"), "{error}");
    }
}
