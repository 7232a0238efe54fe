//! Norms, GELU and softmax against f64, and bitwise alike on every instruction set.

mod common;

use common::everywhere;
use oxiline_kernels::{Pool, ops};

/// erf by its Taylor series, 2/sqrt(pi) sum (-1)^n z^(2n+1) / (n! (2n+1)), or 1 - the continued
/// fraction of erfc from 3 on.
fn erfc(z: f64) -> f64 {
    if z < 0.0 {
        return 2.0 - erfc(-z);
    }
    if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..200 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let mut tail = 0.0;
    for n in (1..=200).rev() {
        tail = f64::from(n) / 2.0 / (z + tail);
    }
    (-z * z).exp() / (z + tail) / std::f64::consts::PI.sqrt()
}

#[test]
fn gelu_is_exact() {
    // Known values of erfc, so that the reference is checked too.
    assert!((erfc(0.5) - 0.479_500_122_186_953_5).abs() < 1e-15);
    assert!((erfc(4.0) / 1.541_725_790_028_002e-8 - 1.0).abs() < 1e-13);
    let x: Vec<f32> =
        (-160_001..=160_001).map(|i| i as f32 * 1e-4).chain([1e-30, -1e-30, 30.0, -30.0, 1e30, -1e30]).collect();
    let y = everywhere(|pool| {
        let mut y = x.clone();
        ops::gelu(pool, &mut y);
        y
    });
    let (mut absolute, mut relative) = (0.0_f64, 0.0_f64);
    for (x, y) in x.iter().zip(&y) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        let exact = 0.5 * x * erfc(-x / std::f64::consts::SQRT_2);
        absolute = absolute.max((y - exact).abs() / x.abs().max(1.0));
        // The series loses its tail between -4.2 and -1.5; below -12 f32 ends.
        if (-1.5..16.0).contains(&x) && x != 0.0 || (-12.0..-4.3).contains(&x) {
            relative = relative.max((y / exact - 1.0).abs());
        }
    }
    assert!(absolute < 1.2e-7, "absolute {absolute:e}");
    assert!(relative < 6e-7, "relative {relative:e}");
    let mut odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
    ops::gelu(&Pool::new(1), &mut odd);
    assert!(odd[0].is_nan() && odd[1] == f32::INFINITY && odd[3] == 0.0 && odd[2] == 0.0, "{odd:?}");
}

fn wave(len: usize, size: f32) -> Vec<f32> {
    (0..len).map(|i| ((i * i * 7 + i * 13) % 1009) as f32 / 1009.0 * size - size / 3.0).collect()
}

#[test]
fn softmax_is_within_a_few_units() {
    for len in [1, 2, 15, 16, 17, 100, 1500] {
        for size in [1.0, 20.0, 300.0] {
            let x = wave(len, size);
            let y = everywhere(|_| {
                let mut y = x.clone();
                ops::softmax(&mut y);
                y
            });
            let logs = everywhere(|_| {
                let mut y = x.clone();
                ops::log_softmax(&mut y);
                y
            });
            let max = x.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = x.iter().map(|v| f64::from(v - max).exp()).sum();
            for ((x, y), log) in x.iter().zip(&y).zip(&logs) {
                let exact = f64::from(x - max).exp() / sum;
                assert!((f64::from(*y) - exact).abs() <= 4e-7 * exact + 1e-38, "{y} {exact}");
                assert!((f64::from(*log) - (f64::from(x - max) - sum.ln())).abs() < 1e-6 * (1.0 + f64::from(size)));
            }
            let lse = f64::from(ops::logsumexp(&x));
            assert!((lse - (f64::from(max) + sum.ln())).abs() < 1e-6 * (1.0 + f64::from(size)));
        }
    }
}

#[test]
fn softmax_of_masks() {
    let mut row = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0];
    ops::softmax(&mut row);
    assert_eq!(row, [0.0, 0.5, 0.0, 0.5]);
    let mut none = [f32::NEG_INFINITY; 3];
    ops::softmax(&mut none);
    assert!(none.iter().all(|v| v.is_nan()));
    assert_eq!(ops::logsumexp(&[f32::NEG_INFINITY; 3]), f32::NEG_INFINITY);
    let mut bad = [1.0, f32::NAN, 2.0];
    ops::softmax(&mut bad);
    assert!(bad.iter().all(|v| v.is_nan()));
}

#[test]
fn layer_norm_is_near_the_exact_one() {
    for dim in [1, 3, 16, 31, 80, 384, 512, 1280] {
        for offset in [0.0, 5.0, -100.0] {
            let x: Vec<f32> = wave(3 * dim, 4.0).iter().map(|v| v + offset).collect();
            let (weight, bias) = (wave(dim, 2.0), wave(dim, 1.0));
            let y = everywhere(|pool| {
                let mut y = vec![0.0; x.len()];
                ops::layer_norm(pool, &x, dim, &weight, &bias, 1e-5, &mut y);
                y
            });
            for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact(dim)) {
                let n = dim as f64;
                let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
                let var = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
                for i in 0..dim {
                    let exact =
                        (f64::from(x[i]) - mean) / (var + 1e-5).sqrt() * f64::from(weight[i]) + f64::from(bias[i]);
                    // The inputs themselves are only known to half a unit in their last place.
                    let known = f64::from(offset.abs()) * 6e-8 / (var + 1e-5).sqrt();
                    assert!((f64::from(y[i]) - exact).abs() < 1e-6 + known, "{} {exact}", y[i]);
                }
            }
        }
    }
}

#[test]
fn add_and_argmax() {
    let (a, b) = (wave(40_000, 3.0), wave(40_000, 5.0));
    let sum = everywhere(|pool| {
        let mut x = a.clone();
        ops::add(pool, &mut x, &b);
        x
    });
    assert!(sum.iter().zip(a.iter().zip(&b)).all(|(s, (a, b))| *s == a + b));
    assert_eq!(ops::argmax(&[1.0, 3.0, f32::NAN, 3.0]), Some(1));
    assert_eq!(ops::argmax(&[f32::NEG_INFINITY, f32::NAN]), None);
}
