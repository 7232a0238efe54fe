//! The real files of `tools/fetch_model.py`, when `OXILINE_TEST_MODELS` names their folder.

use std::fs;
use std::path::PathBuf;

use oxiline_weights::{Checkpoint, Dtype, Mode, Tokenizer};

fn model(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("OXILINE_TEST_MODELS")?).join(name);
    folder.is_dir().then_some(folder)
}

#[test]
fn whisper_tiny_en_opens() {
    let Some(folder) = model("whisper-tiny.en") else {
        eprintln!("left out: OXILINE_TEST_MODELS has no whisper-tiny.en");
        return;
    };
    let c = Checkpoint::open(&folder, Mode::Mmap).unwrap();
    let info = c.info("model.decoder.embed_tokens.weight").unwrap();
    assert_eq!((info.dtype, info.shape), (Dtype::F16, vec![51864, 384]));
    let parameters: usize = c.names().map(|n| c.info(n).unwrap().bytes / 2).sum();
    assert_eq!(parameters, 37_760_256);
    assert_eq!(c.config("config.json").unwrap()["encoder_layers"], 4);
}

#[test]
fn tokenizers_agree_whatever_files_they_come_from() {
    let Some(folder) = model("whisper-tiny.en") else {
        eprintln!("left out: OXILINE_TEST_MODELS has no whisper-tiny.en");
        return;
    };
    let whole = Tokenizer::load(&folder).unwrap();
    // GPT-2's vocabulary.
    assert_eq!(whole.encode("Hello world", false).unwrap(), [15496, 995]);
    let older = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt", "added_tokens.json"] {
        fs::copy(folder.join(name), older.path().join(name)).unwrap();
    }
    let older = Tokenizer::load(older.path()).unwrap();
    for text in ["And so, my fellow Americans", "  naïve—café 😀 3.14\n\tx", "<|startoftranscript|> it's", ""] {
        assert_eq!(older.encode(text, false).unwrap(), whole.encode(text, false).unwrap(), "{text}");
    }
}
