//! `oxiline dump tokens`: text to token ids and back.

use std::io::{Read, Write};

use oxiline::graph::{Error, Result};
use oxiline::weights::{Checkpoint, Mode, Tokenizer};

use crate::cli::args::DumpTokens;

pub fn run(args: DumpTokens) -> Result<()> {
    let path = oxiline::models::resolve(&args.model)?;
    let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    let has_own = path.join("tokenizer.json").is_file() || path.join("vocab.json").is_file();
    let tokenizer = if is_gguf || (path.is_dir() && !has_own) {
        let checkpoint = Checkpoint::open(&path, Mode::Mmap).map_err(Error::msg)?;
        match checkpoint.gguf() {
            Some(metadata) => Tokenizer::from_gguf(metadata),
            None => Tokenizer::load(&path),
        }
    } else {
        Tokenizer::load(&path)
    }
    .map_err(Error::msg)?;
    let mut input = Vec::new();
    std::io::stdin()
        .read_to_end(&mut input)
        .map_err(|e| Error::msg(format_args!("cannot read standard input: {e}")))?;
    if args.decode {
        let ids: Vec<u32> = serde_json::from_slice(&input)
            .map_err(|e| Error::msg(format_args!("standard input is not a JSON array of token ids: {e}")))?;
        let text = tokenizer.decode(&ids, false).map_err(Error::msg)?;
        // To the byte: no line end is added.
        let mut out = std::io::stdout().lock();
        return match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Error::msg(format_args!("cannot write to standard output: {e}")))
            }
            _ => Ok(()),
        };
    }
    let text = String::from_utf8(input).map_err(|e| {
        Error::msg(format_args!(
            "standard input is not UTF-8: the byte at offset {} begins no character; convert the text first",
            e.utf8_error().valid_up_to()
        ))
    })?;
    let ids = tokenizer.encode(&text, false).map_err(Error::msg)?;
    crate::cli::print(serde_json::to_string(&ids).map_err(Error::msg)?)
}
