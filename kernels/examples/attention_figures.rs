//! What causal attention reaches at the shape of Qwen2.5-1.5B.
//!
//! `cargo run --release -p oxiline-kernels --example attention_figures [threads]`

use std::time::Duration;

use oxiline_kernels::causal::{Attend, attend};
use oxiline_kernels::limits::{Limits, best};
use oxiline_kernels::{KvCache, KvFormat, Pool};

const HEADS: usize = 12;
const KV_HEADS: usize = 2;
const DIM: usize = 128;

fn main() {
    let threads = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads);
    let limits = Limits::measure(&pool);
    println!("{limits:#?}");
    for format in KvFormat::ALL {
        // A few rows at a time too: short enough that a busy machine does not show in the best.
        for (len, rows) in [(512, 16), (512, 64), (4096, 16), (512, 512), (4096, 512), (4096, 1), (4096, 4), (256, 1)] {
            let values = |n: usize| (0..n).map(|i| (i * 7 % 1013) as f32 / 1013.0 - 0.5).collect::<Vec<f32>>();
            let mut kv = KvCache::new(format, KV_HEADS, DIM);
            let (k, q) = (values(len * KV_HEADS * DIM), values(rows * HEADS * DIM));
            kv.push(&pool, &k, &k);
            let mut out = vec![0.0; q.len()];
            let time = best(Duration::from_millis(400), || {
                attend(&pool, &mut [Attend::new(&q, &kv, len - rows, HEADS, &mut out)]);
            });
            let seen: usize = (len - rows..len).map(|p| p + 1).sum();
            let gflops = 4.0 * (seen * HEADS * DIM) as f64 / time / 1e9;
            let gbytes = (len * kv.bytes_per_position()) as f64 / time / 1e9;
            println!(
                "{:5} {rows:4} rows to position {len}: {:9.1} us, {gflops:5.1} GFLOP/s ({:3.0} %), {gbytes:5.2} GB/s ({:3.0} %)",
                format.name(),
                time * 1e6,
                100.0 * gflops / limits.fma,
                100.0 * gbytes / limits.read,
            );
        }
    }
}
