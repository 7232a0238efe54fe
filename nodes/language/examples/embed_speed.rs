//! Texts a second of an embedding model:
//! `cargo run --release -p oxiline-language --example embed_speed -- MODEL TEXTS [THREADS] [q8] [ROUNDS]`.
//!
//! TEXTS is a file with a text a line. Tokenizing is counted. One line a round: seconds, texts/s, tokens/s.

use std::time::Instant;

use oxiline_graph::protocol::embed::EmbedOptions;
use oxiline_kernels::{Pool, Storage};
use oxiline_language::embed::{Prepared, ROWS, TextEmbedder};
use oxiline_language::encoder::LoadOptions;

fn main() -> oxiline_graph::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, texts, rest @ ..] = &words[..] else {
        eprintln!("usage: embed_speed MODEL TEXTS [THREADS] [q8] [ROUNDS]");
        std::process::exit(2);
    };
    let numbers: Vec<usize> = rest.iter().filter_map(|w| w.parse().ok()).collect();
    Pool::init_global(numbers.first().copied().unwrap_or(2));
    let keep = rest.iter().any(|w| w == "q8").then_some(Storage::Q8);
    let text = std::fs::read_to_string(texts).map_err(oxiline_graph::Error::msg)?;
    let texts: Vec<&str> = text.lines().collect();
    let model = TextEmbedder::load(model.as_ref(), &LoadOptions { keep }, &mut |_, _| Ok(()))?;
    let (pool, options) = (Pool::global(), EmbedOptions::default());
    for round in 0..numbers.get(1).copied().unwrap_or(3) {
        let began = Instant::now();
        let (mut tokens, mut sum) = (0, 0.0);
        let mut batch: Vec<Prepared> = Vec::new();
        let mut run = |batch: &mut Vec<Prepared>| -> oxiline_graph::Result<()> {
            let vectors = model.run(pool, &batch.iter().collect::<Vec<_>>(), &options)?;
            sum += vectors.iter().map(|v| v.dense[0]).sum::<f32>();
            batch.clear();
            Ok(())
        };
        let mut rows = 0;
        for text in &texts {
            let prepared = model.prepare(text, &options)?;
            if rows > 0 && rows + prepared.tokens() > ROWS {
                run(&mut batch)?;
                rows = 0;
            }
            (rows, tokens) = (rows + prepared.tokens(), tokens + prepared.tokens());
            batch.push(prepared);
        }
        run(&mut batch)?;
        let seconds = began.elapsed().as_secs_f64();
        let (per_text, per_token) = (texts.len() as f64 / seconds, tokens as f64 / seconds);
        println!("round {round}: {seconds:.3} s, {per_text:.1} texts/s, {per_token:.0} tokens/s ({sum:.4})");
    }
    Ok(())
}
