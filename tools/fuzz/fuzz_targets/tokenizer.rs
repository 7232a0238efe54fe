#![no_main]
use oxiline_weights::Tokenizer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_bytes(bytes) {
        let ids = tokenizer.encode("a hello ab <|end|> é", true).unwrap_or_default();
        let _ = tokenizer.decode(&ids, true);
    }
});
