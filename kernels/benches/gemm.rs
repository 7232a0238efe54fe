//! Products, attention and the pool at Whisper's shapes: `cargo bench -p oxiline-kernels`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use oxiline_kernels::bench::{Shape, WHISPER};
use oxiline_kernels::{Matrix, Pool, Storage, attention};

fn gemm(c: &mut Criterion) {
    let pool = Pool::global();
    for storage in [Storage::F32, Storage::F16, Storage::Q8] {
        let mut group = c.benchmark_group(format!("{storage:?}"));
        group.sample_size(10);
        for Shape { tokens, k, out } in WHISPER {
            let matrix = Matrix::from_values(out, k, |i| (i % 17) as f32 / 17.0 - 0.5, storage);
            let x = vec![0.25; tokens * k];
            let mut y = vec![0.0; tokens * out];
            group.throughput(Throughput::Elements((tokens * k * out) as u64));
            group.bench_function(format!("{tokens}x{k}x{out}"), |b| {
                b.iter(|| matrix.matmul(pool, black_box(&x), None, &mut y));
            });
        }
        group.finish();
    }
}

fn attention(c: &mut Criterion) {
    let mut group = c.benchmark_group("attention");
    group.sample_size(10);
    for heads in [6, 20] {
        let x = vec![0.1; 1500 * heads * 64];
        let mut out = x.clone();
        group.throughput(Throughput::Elements((2 * 1500 * 1500 * heads * 64) as u64));
        group.bench_function(format!("1500x{heads}x64"), |b| {
            b.iter(|| attention::full(Pool::global(), black_box(&x), &x, &x, heads, 64, &mut out));
        });
    }
    group.finish();
}

fn region(c: &mut Criterion) {
    for threads in [1, 2, 8] {
        let pool = Pool::new(threads);
        c.bench_function(&format!("region of {threads} threads"), |b| {
            b.iter(|| {
                pool.run(threads.max(2), |i| {
                    black_box(i);
                })
            });
        });
    }
}

criterion_group!(benches, gemm, attention, region);
criterion_main!(benches);
