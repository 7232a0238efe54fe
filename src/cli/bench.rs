//! `oxiline bench`: what this machine can do, and how much of it our kernels reach.

use std::fmt::Write;

use oxiline::graph::Result;
use oxiline::kernels::bench::{WHISPER, attention_figure, gemm_figures};
use oxiline::kernels::limits::Limits;
use oxiline::kernels::{Pool, Storage};
use serde_json::json;

use super::args::Bench;
use super::{Outcome, print};

/// Runs the verb.
pub fn run(args: Bench) -> Result<Outcome> {
    let pool = Pool::global();
    let one = Pool::new(1);
    let (single, all) = (Limits::measure(&one), Limits::measure(pool));
    let mut rows = Vec::new();
    for storage in [Storage::F32, Storage::F16, Storage::Q8] {
        for figure in gemm_figures(pool, &WHISPER, storage) {
            let peak = if storage == Storage::Q8 { all.int8 } else { all.fma };
            // Many tokens are bound by arithmetic, one token by reading the weights.
            let of_limit = if figure.shape.tokens > 16 { figure.gflops / peak } else { figure.gbytes / all.read };
            rows.push((figure, of_limit));
        }
    }
    let attention: Vec<(usize, f64)> =
        [6, 8, 20].map(|heads| (heads, attention_figure(pool, 1500, heads, 64))).to_vec();
    if args.json {
        let limits = |l: &Limits| json!({"threads": l.threads, "read_gbytes_s": l.read, "fma_gflops": l.fma, "int8_gops": l.int8, "region_us": l.region});
        let figures: Vec<_> = rows
            .iter()
            .map(|(f, of_limit)| {
                json!({"tokens": f.shape.tokens, "k": f.shape.k, "out": f.shape.out, "storage": format!("{:?}", f.storage),
                       "seconds": f.seconds, "gflops": f.gflops, "gbytes_s": f.gbytes, "of_limit": of_limit})
            })
            .collect();
        let attention: Vec<_> = attention.iter().map(|(heads, g)| json!({"heads": heads, "gflops": g})).collect();
        print(
            json!({"one_thread": limits(&single), "all_threads": limits(&all), "matmul": figures, "attention": attention}),
        )?;
        return Ok(Outcome::Done);
    }
    let mut text = String::from("Limits of this machine (best of short bursts)\n");
    let _ = writeln!(
        text,
        "{:>8} {:>12} {:>14} {:>13} {:>12}",
        "threads", "read GB/s", "FMA GFLOP/s", "int8 GOP/s", "region us"
    );
    for l in [&single, &all] {
        let _ = writeln!(text, "{:>8} {:>12.1} {:>14.1} {:>13.1} {:>12.2}", l.threads, l.read, l.fma, l.int8, l.region);
    }
    let _ = writeln!(text, "\nMatrix products at Whisper's shapes, {} threads", all.threads);
    let _ = writeln!(
        text,
        "{:>7} {:>6} {:>7} {:>8} {:>10} {:>9} {:>8}  limit",
        "tokens", "in", "out", "weights", "GFLOP/s", "GB/s", "reached"
    );
    for (f, of_limit) in &rows {
        let limit = match (f.shape.tokens > 16, f.storage) {
            (false, _) => "memory",
            (true, Storage::Q8) => "int8 peak",
            (true, _) => "FMA peak",
        };
        let storage = format!("{:?}", f.storage).to_lowercase();
        let _ = writeln!(
            text,
            "{:>7} {:>6} {:>7} {:>8} {:>10.1} {:>9.2} {:>7.0}%  {limit}",
            f.shape.tokens,
            f.shape.k,
            f.shape.out,
            storage,
            f.gflops,
            f.gbytes,
            of_limit * 100.0
        );
    }
    let _ = writeln!(text, "\nEncoder attention, 1500 positions, head width 64");
    for (heads, gflops) in &attention {
        let _ =
            writeln!(text, "{heads:>7} heads {gflops:>10.1} GFLOP/s {:>7.0}% of FMA peak", gflops / all.fma * 100.0);
    }
    text.push_str("\nSmall one-token products are read from the caches and may exceed the memory's rate.");
    print(text)?;
    Ok(Outcome::Done)
}
