//! Norms, activations and rotations of language models against f64, bitwise alike everywhere.

mod common;

use common::everywhere;
use oxiline_kernels::rope::{Pairs, Rope};
use oxiline_kernels::{Pool, ops};

fn wave(len: usize, size: f32) -> Vec<f32> {
    (0..len).map(|i| ((i * i * 7 + i * 13) % 1009) as f32 / 1009.0 * size - size / 3.0).collect()
}

fn close(got: &[f32], expected: impl Iterator<Item = f64>, relative: f64) {
    let mut count = 0;
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(*a) - b).abs() <= relative * b.abs() + 1e-36, "value {i}: {a} instead of {b}");
        count += 1;
    }
    assert_eq!(count, got.len());
}

#[test]
fn rms_norms() {
    for dim in [1, 5, 16, 64, 100, 1536] {
        for rows in [1, 3, 40] {
            let (x, y, w) = (wave(rows * dim, 9.0), wave(rows * dim, 2.0), wave(dim, 3.0));
            let norm = |x: &[f32], w: Option<&[f32]>| {
                let mut out = Vec::new();
                for row in x.chunks(dim) {
                    let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / dim as f64;
                    for (i, v) in row.iter().enumerate() {
                        out.push(f64::from(*v) / (mean + 1e-5).sqrt() * w.map_or(1.0, |w| f64::from(w[i])));
                    }
                }
                out
            };
            let got = everywhere(|pool| {
                let mut out = vec![0.0; x.len()];
                ops::rms_norm(pool, &x, dim, Some(&w), 1e-5, &mut out);
                let mut same = x.clone();
                ops::rms_norm_in_place(pool, &mut same, dim, Some(&w), 1e-5);
                assert_eq!(out, same);
                out
            });
            close(&got, norm(&x, Some(&w)).into_iter(), 6e-7);
            let got = everywhere(|pool| {
                let (mut out, mut sum) = (vec![0.0; x.len()], x.clone());
                ops::add_rms_norm(pool, &mut sum, &y, dim, None, 1e-5, &mut out);
                let mut two = vec![0.0; x.len()];
                ops::rms_norm(pool, &sum, dim, None, 1e-5, &mut two);
                assert_eq!(out, two);
                assert!(sum.iter().zip(x.iter().zip(&y)).all(|(s, (x, y))| *s == x + y));
                out
            });
            let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            close(&got, norm(&sum, None).into_iter(), 6e-7);
        }
    }
}

fn silu(x: f32) -> f64 {
    f64::from(x) / (1.0 + (-f64::from(x)).exp())
}

fn gelu(x: f32) -> f64 {
    let x = f64::from(x);
    x / (1.0 + (-2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).exp())
}

#[test]
fn activations() {
    let x: Vec<f32> = (-86_000..=86_000).map(|i| i as f32 * 1e-3).chain([1e-30, -1e-30, 1e30, 0.0]).collect();
    let run = |f: fn(&Pool, &mut [f32])| {
        everywhere(|pool| {
            let mut y = x.clone();
            f(pool, &mut y);
            y
        })
    };
    close(&run(ops::silu), x.iter().map(|x| silu(*x)), 4e-7);
    let y = run(ops::gelu_tanh);
    for (x, y) in x.iter().zip(&y) {
        // The exponent's rounding grows with it: relative far below, absolute elsewhere.
        let exact = gelu(*x);
        let bound = if *x < 0.0 { 2e-5 * exact.abs() + 1e-37 } else { 4e-7 * exact.abs() };
        assert!((f64::from(*y) - exact).abs() <= bound.min(3e-7 * exact.abs() + 3e-7), "{x}: {y} instead of {exact}");
    }
    let capped = |x: &f32| 30.0 * (f64::from(*x) / 30.0).tanh();
    close(&run(|pool, x| ops::softcap(pool, x, 30.0)), x.iter().map(capped), 5e-7);
    close(&run(|pool, x| ops::scale(pool, x, 0.5)), x.iter().map(|x| f64::from(*x) * 0.5), 0.0);
    let mut odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e30];
    ops::gelu_tanh(&Pool::new(1), &mut odd);
    assert!(odd[0].is_nan() && odd[1] == f32::INFINITY && odd[3] == 0.0, "{odd:?}");
    ops::silu(&Pool::new(1), &mut odd);
    assert!(odd[0].is_nan() && odd[1] == f32::INFINITY, "{odd:?}");
}

#[test]
fn gates() {
    for (rows, width) in [(1, 1), (1, 8960), (3, 100), (40, 513), (1, 30_000)] {
        let x = wave(rows * width * 2, 8.0);
        let pick = |half: usize| -> Vec<f32> {
            x.chunks(2 * width).flat_map(|row| row[half * width..(half + 1) * width].iter().copied()).collect()
        };
        let (gate, up) = (pick(0), pick(1));
        type Two = fn(&Pool, &mut [f32], &[f32]);
        type Fused = fn(&Pool, &[f32], usize, &mut [f32]);
        type Kind = (Two, Fused, fn(f32) -> f64);
        let kinds: [Kind; 2] =
            [(ops::silu_mul, ops::silu_mul_fused, silu), (ops::gelu_tanh_mul, ops::gelu_tanh_mul_fused, gelu)];
        for (two, fused, exact) in kinds {
            let got = everywhere(|pool| {
                let mut a = gate.clone();
                two(pool, &mut a, &up);
                let mut b = vec![0.0; a.len()];
                fused(pool, &x, width, &mut b);
                assert_eq!(a, b);
                a
            });
            close(&got, gate.iter().zip(&up).map(|(g, u)| exact(*g) * f64::from(*u)), 2e-6);
        }
    }
}

#[test]
fn rotations() {
    for (rot, dim) in [(64, 64), (128, 128), (32, 80), (10, 12)] {
        let freq: Vec<f32> = (0..rot / 2).map(|i| 1e4_f32.powf(-2.0 * i as f32 / rot as f32)).collect();
        let positions = [0, 1, 63, 64, 1000, 131_071, 3];
        let x = wave(positions.len() * 3 * dim, 2.0);
        for pairs in [Pairs::Halves, Pairs::Neighbours] {
            let rope = Rope::new(freq.clone(), 1.5).with_pairs(pairs);
            assert_eq!(rope.rotated(), rot);
            let got = everywhere(|pool| {
                let mut y = x.clone();
                rope.apply(pool, &mut y, dim, &positions);
                y
            });
            for (t, position) in positions.into_iter().enumerate() {
                for h in 0..3 {
                    let at = (t * 3 + h) * dim;
                    let (x, y) = (&x[at..at + dim], &got[at..at + dim]);
                    for (i, f) in freq.iter().enumerate() {
                        let (a, b) = match pairs {
                            Pairs::Halves => (i, i + rot / 2),
                            Pairs::Neighbours => (2 * i, 2 * i + 1),
                        };
                        let (sin, cos) = f64::from(position as f32 * f).sin_cos();
                        let (p, q) = (f64::from(x[a]) * 1.5, f64::from(x[b]) * 1.5);
                        assert!((f64::from(y[a]) - (p * cos - q * sin)).abs() < 1e-6, "position {position}");
                        assert!((f64::from(y[b]) - (q * cos + p * sin)).abs() < 1e-6, "position {position}");
                    }
                    assert_eq!(x[rot..], y[rot..], "the rest stays");
                }
            }
            assert!(rope.bytes() > 0);
        }
    }
}
