//! Prints what products of quantised matrices reach of this machine's limits: GB/s of weights with one
//! token, GOP/s with more.
//!
//! `cargo run --release -p oxiline-kernels --example quant_figures [threads] [type,type..]`

use std::time::{Duration, Instant};

use oxiline_kernels::limits::Limits;
use oxiline_kernels::{BlockType, Isa, Matrix, Pool};

fn best(mut task: impl FnMut()) -> f64 {
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed() < Duration::from_millis(300) {
        let before = Instant::now();
        task();
        best = best.min(before.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(2);
    let only = std::env::args().nth(2);
    let pool = Pool::new(threads);
    let limits = Limits::measure(&pool);
    println!("{:?} {limits:?}", Isa::current());
    for kind in BlockType::all() {
        if only.as_ref().is_some_and(|only| !only.split(',').any(|o| o.eq_ignore_ascii_case(kind.name()))) {
            continue;
        }
        print!("{:8}", kind.name());
        for (out, k) in [(1536, 8960), (2048, 2048)] {
            let count = out * k / kind.block();
            // Any bytes are blocks; small scales keep sums finite.
            let blocks: Vec<u8> =
                (0..count * kind.bytes()).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x77).collect();
            // More copies than the caches hold: a model's matrices come from memory each time.
            let copies: Vec<Matrix> = (0..4).map(|_| Matrix::from_blocks(out, k, kind, &blocks)).collect();
            for tokens in [1, 4, 512] {
                let x: Vec<f32> = (0..tokens * k).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
                let mut y = vec![0.0; tokens * out];
                let mut i = 0;
                let seconds = best(|| {
                    copies[i % 4].matmul(&pool, &x, None, &mut y);
                    i += 1;
                });
                let gops = 2.0 * (tokens * k * out) as f64 / seconds / 1e9;
                let gbytes = copies[0].bytes() as f64 / seconds / 1e9;
                match tokens {
                    1 => print!(
                        "  [{out} {k}] 1: {:6.0} us {gbytes:5.2} GB/s ({:3.0} %)",
                        seconds * 1e6,
                        100.0 * gbytes / limits.read
                    ),
                    4 => print!("  4: {:6.0} us", seconds * 1e6),
                    _ => print!("  512: {gops:6.1} GOP/s ({:3.0} % of FMA)", 100.0 * gops / limits.fma),
                }
            }
        }
        println!();
    }
    println!("again {:?}", Limits::measure(&pool));
}
