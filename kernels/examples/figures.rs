//! Prints this machine's limits and what the kernels reach of them.
//!
//! `cargo run --release -p oxiline-kernels --example figures [threads]`

use oxiline_kernels::bench::{WHISPER, attention_figure, gemm_figures};
use oxiline_kernels::limits::{Limits, fma_peak};
use oxiline_kernels::{Isa, Pool, Storage};

fn main() {
    let threads = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(1);
    let pool = Pool::new(threads);
    let limits = Limits::measure(&pool);
    println!("{:?} {limits:#?}", Isa::current());
    for storage in [Storage::F32, Storage::F16, Storage::BF16, Storage::Q8] {
        for f in gemm_figures(&pool, &WHISPER, storage) {
            println!(
                "{storage:?} {:5} x {:4} x {:5}: {:7.1} GFLOP/s ({:3.0} % of the peak), {:5.1} GB/s ({:3.0} % of memory), {:8.1} us",
                f.shape.tokens,
                f.shape.k,
                f.shape.out,
                f.gflops,
                100.0 * f.gflops / limits.fma,
                f.gbytes,
                100.0 * f.gbytes / limits.read,
                f.seconds * 1e6,
            );
        }
    }
    for heads in [6, 8, 20] {
        let reached = attention_figure(&pool, 1500, heads, 64);
        println!("attention 1500 x {heads} x 64: {reached:.1} GFLOP/s ({:.0} %)", 100.0 * reached / limits.fma);
    }
    let mut scratch = Vec::new();
    let fft = oxiline_kernels::fft::Fft::new(400);
    let frame: Vec<f64> = (0..400).map(|i| f64::from(i * i % 101)).collect();
    let mut power = vec![0.0; 201];
    let best = (0..5)
        .map(|_| {
            let start = std::time::Instant::now();
            for _ in 0..3000 {
                fft.power(&frame, &mut scratch, &mut power);
            }
            start.elapsed()
        })
        .min();
    println!("3000 spectra of 400: {best:?}");
    println!("peak again: {:.1} GFLOP/s", fma_peak(&pool));
}
