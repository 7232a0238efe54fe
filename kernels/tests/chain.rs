//! Every output is one chain of fused multiply-adds, whatever is computed beside it and however.
//!
//! The references here are written from the definition and know nothing of panels or tiles.

mod common;

use common::{isas, pools, turn, values};
use half::{bf16, f16};
use oxiline_kernels::attention::{self, Kv, Query};
use oxiline_kernels::conv::Conv1d;
use oxiline_kernels::{Epilogue, Isa, Matrix, Storage, ops};
use proptest::prelude::*;

fn rounded(storage: Storage, v: f32) -> f32 {
    match storage {
        Storage::F16 => f16::from_f32(v).to_f32(),
        Storage::BF16 => bf16::from_f32(v).to_f32(),
        _ => v,
    }
}

/// The definition.
fn chain(x: &[f32], w: &[f32], bias: f32) -> f32 {
    x.iter().zip(w).fold(bias, |sum, (x, w)| x.mul_add(*w, sum))
}

/// The definition for 8-bit blocks: exact integers, then one multiply-add a block.
fn chain_q8(x: &[f32], w: &[f32], bias: f32) -> f32 {
    let quantise = |v: &[f32]| {
        let max = v.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
        (v.iter().map(|v| (v * inverse).round_ties_even() as i32).collect::<Vec<_>>(), max / 127.0)
    };
    x.chunks(32).zip(w.chunks(32)).fold(bias, |sum, (x, w)| {
        let ((x, sx), (w, sw)) = (quantise(x), quantise(w));
        let dot: i32 = x.iter().zip(&w).map(|(x, w)| x * w).sum();
        (dot as f32).mul_add(sx * sw, sum)
    })
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

fn check_matmul(storage: Storage, tokens: usize, out: usize, k: usize, with_bias: bool, seed: u64) {
    let _turn = turn();
    let (w, x, b) = (values(seed, out * k), values(seed + 1, tokens * k), values(seed + 2, out));
    let bias = with_bias.then_some(&b[..]);
    let kept: Vec<f32> = w.iter().map(|v| rounded(storage, *v)).collect();
    let mut expected = Vec::new();
    for t in 0..tokens {
        for o in 0..out {
            let (x, w) = (&x[t * k..(t + 1) * k], &kept[o * k..(o + 1) * k]);
            let start = bias.map_or(0.0, |b| b[o]);
            expected.push(if storage == Storage::Q8 { chain_q8(x, w, start) } else { chain(x, w, start) });
        }
    }
    let matrix = Matrix::from_f32(out, k, &w, storage);
    let residual = values(seed + 3, tokens * out);
    let added: Vec<f32> = residual.iter().zip(&expected).map(|(r, e)| r + e).collect();
    let rows: Vec<u32> = (0..out as u32).rev().step_by(3).collect();
    for isa in isas() {
        assert!(isa.force());
        for pool in pools() {
            let mut y = vec![f32::NAN; tokens * out];
            matrix.matmul(pool, &x, bias, &mut y);
            let what = format!("{storage:?} [{tokens}, {k}] x [{out}] {isa:?} {} threads", pool.threads());
            assert_eq!(bits(&y), bits(&expected), "{what}");
            y.copy_from_slice(&residual);
            matrix.matmul_with(pool, &x, bias, Epilogue::AddTo, &mut y);
            assert_eq!(bits(&y), bits(&added), "{what} with residual");
            let mut fused = vec![0.0; tokens * out];
            matrix.matmul_with(pool, &x, bias, Epilogue::Gelu, &mut fused);
            let mut apart = expected.clone();
            ops::gelu(pool, &mut apart);
            assert_eq!(bits(&fused), bits(&apart), "{what} with GELU");
            if bias.is_none() {
                let mut some = vec![0.0; tokens * rows.len()];
                matrix.matmul_rows(pool, &x, &rows, &mut some);
                for (t, some) in some.chunks_exact(rows.len()).enumerate() {
                    for (row, v) in rows.iter().zip(some) {
                        assert_eq!(v.to_bits(), expected[t * out + *row as usize].to_bits(), "{what} row {row}");
                    }
                }
            }
        }
    }
    Isa::detect().force();
}

fn storages() -> impl Strategy<Value = Storage> {
    prop::sample::select(vec![Storage::F32, Storage::F16, Storage::BF16, Storage::Q8])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matmul_is_the_chain(
        storage in storages(), tokens in 1_usize..=66, out in 1_usize..=90, k in 1_usize..=70,
        bias: bool, seed in 0_u64..1000,
    ) {
        check_matmul(storage, tokens, out, k, bias, seed);
    }
}

#[test]
fn matmul_across_blocks() {
    for storage in [Storage::F32, Storage::F16, Storage::BF16, Storage::Q8] {
        // Several blocks of inputs and of tokens, a last panel of one output.
        check_matmul(storage, 101, 33, 523, true, 7);
        check_matmul(storage, 1, 129, 300, false, 8);
    }
}

#[test]
fn every_number_of_tokens() {
    for tokens in 1..=30 {
        check_matmul(Storage::F32, tokens, 70, 9, true, tokens as u64);
    }
}

#[test]
fn rows_come_back() {
    for storage in [Storage::F32, Storage::F16, Storage::BF16] {
        let w = values(3, 37 * 11);
        let matrix = Matrix::from_f32(37, 11, &w, storage);
        assert_eq!((matrix.out_dim(), matrix.in_dim(), matrix.storage()), (37, 11, storage));
        for (r, w) in w.chunks_exact(11).enumerate() {
            let mut row = [0.0; 11];
            matrix.row(r, &mut row);
            let expected: Vec<f32> = w.iter().map(|v| rounded(storage, *v)).collect();
            assert_eq!(bits(&row), bits(&expected));
        }
    }
    let w = values(4, 20 * 70);
    let matrix = Matrix::from_f32(20, 70, &w, Storage::Q8);
    let mut row = vec![0.0; 70];
    for (r, w) in w.chunks_exact(70).enumerate() {
        matrix.row(r, &mut row);
        assert!(row.iter().zip(w).all(|(a, b)| (a - b).abs() <= 0.5 / 127.0 + 1e-6));
    }
}

#[test]
fn raw_halves_are_kept_as_they_are() {
    let w = values(5, 19 * 7);
    let x = values(6, 3 * 7);
    let pool = &pools()[1];
    let h: Vec<u16> = w.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
    let b: Vec<u16> = w.iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
    for (raw, storage) in [
        (Matrix::from_f16_bits(19, 7, &h, Storage::F16), Storage::F16),
        (Matrix::from_f16_bits(19, 7, &h, Storage::F32), Storage::F16),
        (Matrix::from_bf16_bits(19, 7, &b, Storage::BF16), Storage::BF16),
        (Matrix::from_bf16_bits(19, 7, &b, Storage::F32), Storage::BF16),
    ] {
        let mut y = vec![0.0; 3 * 19];
        let mut expected = y.clone();
        raw.matmul(pool, &x, None, &mut y);
        Matrix::from_f32(19, 7, &w, storage).matmul(pool, &x, None, &mut expected);
        assert_eq!(bits(&y), bits(&expected));
    }
}

#[test]
fn eight_bits_are_near() {
    let (out, k, tokens) = (40, 200, 5);
    let (w, x) = (values(8, out * k), values(9, tokens * k));
    let pool = &pools()[0];
    let (mut y, mut exact) = (vec![0.0; tokens * out], vec![0.0; tokens * out]);
    Matrix::from_f32(out, k, &w, Storage::Q8).matmul(pool, &x, None, &mut y);
    Matrix::from_f32(out, k, &w, Storage::F32).matmul(pool, &x, None, &mut exact);
    let error: f32 = y.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
    let size: f32 = exact.iter().map(|v| v * v).sum::<f32>().sqrt();
    assert!(error < 0.01 * size, "{error} of {size}");
}

#[test]
fn eight_bits_do_not_saturate_and_pass_on_what_is_no_number() {
    let pool = &pools()[0];
    let (w, x) = (vec![-1.0; 16 * 64], vec![1.0; 64]);
    let matrix = Matrix::from_f32(16, 64, &w, Storage::Q8);
    let mut y = vec![0.0; 16];
    matrix.matmul(pool, &x, None, &mut y);
    assert!(y.iter().all(|y| (y + 64.0).abs() < 1e-4), "{y:?}");
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = x.clone();
        x[3] = bad;
        matrix.matmul(pool, &x, None, &mut y);
        assert!(y.iter().all(|y| !y.is_finite()), "{y:?}");
    }
}

/// Attention from its definition, in f64.
fn attention_f64(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    len: usize,
    width: usize,
    head: std::ops::Range<usize>,
) -> (Vec<f64>, Vec<f64>) {
    let scores: Vec<f64> =
        (0..len).map(|j| head.clone().map(|d| f64::from(q[d]) * f64::from(k[j * width + d])).sum()).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    let weights: Vec<f64> = e.iter().map(|e| e / sum).collect();
    let out = head.map(|d| (0..len).map(|j| weights[j] * f64::from(v[j * width + d])).sum()).collect();
    (out, weights)
}

#[test]
fn attention_agrees_with_its_definition_and_itself() {
    let _turn = turn();
    for (tokens, heads, dim) in [(1, 1, 8), (12, 2, 8), (12, 3, 16), (33, 2, 32), (70, 2, 64), (50, 1, 20)] {
        let width = heads * dim;
        let [q, k, v] = [11, 12, 13].map(|s| values(s, tokens * width));
        let mut first: Option<Vec<u32>> = None;
        for isa in isas() {
            isa.force();
            for pool in pools() {
                let mut out = vec![f32::NAN; tokens * width];
                attention::full(pool, &q, &k, &v, heads, dim, &mut out);
                for h in 0..heads {
                    for t in 0..tokens {
                        let head = h * dim..(h + 1) * dim;
                        let (exact, _) = attention_f64(&q[t * width..], &k, &v, tokens, width, head.clone());
                        for (a, b) in out[t * width..][head].iter().zip(exact) {
                            assert!((f64::from(*a) - b).abs() < 1e-6, "{a} {b}");
                        }
                    }
                }
                let first = first.get_or_insert_with(|| bits(&out));
                assert_eq!(*first, bits(&out), "{isa:?} {} threads", pool.threads());
                // The decoder's road gives the same bits, all rows at once or one.
                let mut kv = Kv::new(heads, dim, 4);
                kv.push(&k, &v);
                for together in [1, 2, 5, tokens] {
                    let mut again = vec![f32::NAN; tokens * width];
                    for (q, out) in q.chunks(together * width).zip(again.chunks_mut(together * width)) {
                        let mut queries: Vec<Query<'_>> = q
                            .chunks_exact(width)
                            .zip(out.chunks_exact_mut(width))
                            .map(|(q, out)| Query { q, kv: &kv, len: tokens, out, weights: None })
                            .collect();
                        attention::rows(pool, &mut queries);
                    }
                    assert_eq!(*first, bits(&again), "{isa:?} {together} rows together");
                }
            }
        }
    }
    Isa::detect().force();
}

#[test]
fn decoder_rows_of_many_streams() {
    let (heads, dim) = (3, 16);
    let width = heads * dim;
    let [q, k, v] = [21, 22, 23].map(|s| values(s, 40 * width));
    let mut streams = Vec::new();
    for n in [1, 7, 16, 17, 40] {
        let mut kv = Kv::new(heads, dim, 1);
        for t in 0..n {
            kv.push(&k[t * width..(t + 1) * width], &v[t * width..(t + 1) * width]);
        }
        assert_eq!(kv.len(), n);
        streams.push(kv);
    }
    let wanted = [2, 0, 2];
    let mut out = vec![0.0; streams.len() * width];
    let mut weights: Vec<Vec<f32>> = streams.iter().map(|s| vec![0.0; 3 * s.len()]).collect();
    let mut queries: Vec<Query<'_>> = streams
        .iter()
        .zip(out.chunks_exact_mut(width))
        .zip(&mut weights)
        .enumerate()
        .map(|(i, ((kv, out), w))| Query {
            q: &q[i * width..(i + 1) * width],
            kv,
            len: kv.len(),
            out,
            weights: Some((&wanted, w)),
        })
        .collect();
    attention::rows(&pools()[2], &mut queries);
    for (i, kv) in streams.iter().enumerate() {
        for h in 0..heads {
            let head = h * dim..(h + 1) * dim;
            let (exact, w) = attention_f64(&q[i * width..], &k, &v, kv.len(), width, head.clone());
            for (a, b) in out[i * width..][head].iter().zip(exact) {
                assert!((f64::from(*a) - b).abs() < 1e-6);
            }
            for (slot, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted == h) {
                for (a, b) in weights[i][slot * kv.len()..].iter().zip(&w) {
                    assert!((f64::from(*a) - b).abs() < 1e-6, "weights of head {h}");
                }
            }
        }
    }
}

#[test]
fn streams_fork_truncate_and_shrink_to_halves() {
    let (heads, dim) = (2, 24);
    let width = heads * dim;
    let [q, k, v] = [31, 32, 33].map(|s| values(s, 60 * width));
    let ask = |kv: &Kv, len: usize| {
        let mut out = vec![0.0; width];
        let mut query = [Query { q: &q[..width], kv, len, out: &mut out, weights: None }];
        attention::rows(&pools()[0], &mut query);
        out
    };
    let mut kv = Kv::new(heads, dim, 10);
    kv.push(&k[..20 * width], &v[..20 * width]);
    let mut fork = kv.fork();
    let before = ask(&kv, 20);
    assert_eq!(bits(&ask(&fork, 20)), bits(&before));
    fork.push(&k[20 * width..60 * width], &v[20 * width..60 * width]);
    kv.truncate(5);
    kv.push(&k[40 * width..45 * width], &v[40 * width..45 * width]);
    assert_eq!(kv.len(), 10);
    assert_eq!(bits(&ask(&fork, 20)), bits(&before), "a fork is on its own");
    let mut whole = Kv::new(heads, dim, 100);
    whole.push(&k, &v);
    assert_eq!(bits(&ask(&fork, 60)), bits(&ask(&whole, 60)), "room grows without a trace");
    kv.copy_from(&whole, 20);
    assert_eq!(bits(&ask(&kv, 20)), bits(&before));
    let mut half = Kv::new_f16(heads, dim, 60);
    half.push(&k, &v);
    assert!(half.bytes() * 2 <= whole.bytes());
    for (a, b) in ask(&half, 60).iter().zip(ask(&whole, 60)) {
        assert!((a - b).abs() < 1e-3);
    }
}

#[test]
fn convolution_agrees_with_its_definition() {
    for (time, channels, out_channels, kernel, stride, pad) in [
        (20, 5, 7, 3, 1, 1),
        (21, 4, 18, 3, 2, 1),
        (9, 3, 2, 5, 3, 0),
        (4, 1, 1, 1, 1, 0),
        (2, 2, 2, 5, 1, 1),
        (100, 8, 20, 3, 2, 1),
    ] {
        let w = values(41, out_channels * kernel * channels);
        let bias = values(42, out_channels);
        let x = values(43, time * channels);
        let conv = Conv1d {
            weight: Matrix::from_f32(out_channels, kernel * channels, &w, Storage::F32),
            bias: bias.clone(),
            kernel,
            stride,
            pad,
        };
        let mut out = Vec::new();
        conv.run(&pools()[2], &x, &mut out);
        let padded = time + 2 * pad;
        let time_out = if padded < kernel { 0 } else { (padded - kernel) / stride + 1 };
        assert_eq!(out.len(), time_out * out_channels);
        for t in 0..time_out {
            for o in 0..out_channels {
                let mut sum = bias[o];
                for j in 0..kernel {
                    for c in 0..channels {
                        let at = (t * stride + j).checked_sub(pad).filter(|at| *at < time);
                        let v = at.map_or(0.0, |at| x[at * channels + c]);
                        sum = v.mul_add(w[(o * kernel + j) * channels + c], sum);
                    }
                }
                assert_eq!(out[t * out_channels + o].to_bits(), sum.to_bits());
            }
        }
    }
}
