//! How far the speed path is from exact arithmetic on one model: `agreement MODEL IDS.json [KV]`, where
//! the file holds token ids as a JSON array and `KV` is f32, f16 or int8.
//!
//! Prints the mean and largest Kullback-Leibler divergence (nats) of the next token's distribution, how
//! often the most probable token is the same, and the largest difference of a logit.

use std::path::Path;

use oxiline_graph::{Error, Result};
use oxiline_kernels::ops::{argmax, log_softmax};
use oxiline_language::decoder::{CausalLm, Decoder, KvFormat, LoadOptions, Span, Want};

/// Tokens computed at a time: two models' logits of these are in memory.
const CHUNK: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&args) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run(args: &[String]) -> Result<()> {
    let [model, ids, rest @ ..] = args else {
        return Err(Error::msg("usage: agreement MODEL IDS.json [f32|f16|int8]"));
    };
    let kv = match rest.first().map(String::as_str) {
        None => None,
        Some("f32") => Some(KvFormat::F32),
        Some("f16") => Some(KvFormat::F16),
        Some("int8") => Some(KvFormat::Int8),
        Some(other) => return Err(Error::msg(format_args!("`{other}` is no format of keys and values"))),
    };
    let ids: Vec<u32> = serde_json::from_slice(&std::fs::read(ids)?).map_err(Error::msg)?;
    let load = |options| Decoder::load(Path::new(model), &options, &mut |_, _| Ok(()));
    let exact = load(LoadOptions { exact: true, ..LoadOptions::default() })?;
    let fast = load(LoadOptions { kv, ..LoadOptions::default() })?;
    let vocab = exact.vocab();
    let (mut a, mut b) = (exact.new_state(), fast.new_state());
    let (mut sum, mut most, mut same, mut off) = (0.0_f64, 0.0_f64, 0, 0.0_f32);
    for tokens in ids.chunks(CHUNK) {
        let mut want = [Span::new(&mut a, tokens, Want::All)];
        exact.forward(&mut want)?;
        let mut got = [Span::new(&mut b, tokens, Want::All)];
        fast.forward(&mut got)?;
        for (p, q) in want[0].logits.chunks_exact_mut(vocab).zip(got[0].logits.chunks_exact_mut(vocab)) {
            same += usize::from(argmax(p) == argmax(q));
            off = p.iter().zip(&*q).fold(off, |m, (p, q)| m.max((p - q).abs()));
            log_softmax(p);
            log_softmax(q);
            let kl: f64 = p.iter().zip(&*q).map(|(p, q)| f64::from(*p).exp() * f64::from(p - q)).sum();
            sum += kl;
            most = most.max(kl);
        }
    }
    let n = ids.len();
    println!(
        "{n} tokens: KL {:.5} mean, {most:.4} largest; top-1 {:.2} %; largest logit difference {off:.3}",
        sum / n as f64,
        100.0 * same as f64 / n as f64
    );
    Ok(())
}
