//! Attention inside unpadded sequences: against f64, and the same bits whatever lies beside a sequence.

mod common;

use common::{pools, values};
use oxiline_kernels::Pool;
use oxiline_kernels::ragged::{Ragged, Relative, attend};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Case {
    lengths: Vec<usize>,
    kv_heads: usize,
    group: usize,
    dim: usize,
    back: Option<usize>,
    ahead: Option<usize>,
    relative: bool,
}

struct Data {
    starts: Vec<usize>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    relative: Option<Relative>,
}

impl Case {
    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    fn data(&self) -> Data {
        let mut starts = vec![0];
        self.lengths.iter().for_each(|len| starts.push(starts[starts.len() - 1] + len));
        let rows = starts[starts.len() - 1];
        let reach = self.lengths.iter().max().copied().unwrap_or(0);
        let relative = self.relative.then(|| Relative { values: values(9, self.heads() * (2 * reach + 1)), reach });
        Data {
            q: values(1, rows * self.heads() * self.dim).iter().map(|v| v * 4.0).collect(),
            k: values(2, rows * self.kv_heads * self.dim),
            v: values(3, rows * self.kv_heads * self.dim),
            starts,
            relative,
        }
    }

    fn run(&self, pool: &Pool, d: &Data, sequences: std::ops::Range<usize>) -> Vec<f32> {
        let (first, last) = (d.starts[sequences.start], d.starts[sequences.end]);
        let starts: Vec<usize> = d.starts[sequences.start..=sequences.end].iter().map(|s| s - first).collect();
        let (width, kv_width) = (self.heads() * self.dim, self.kv_heads * self.dim);
        let mut out = vec![f32::NAN; (last - first) * width];
        let ragged = Ragged {
            q: &d.q[first * width..last * width],
            k: &d.k[first * kv_width..last * kv_width],
            v: &d.v[first * kv_width..last * kv_width],
            starts: &starts,
            heads: self.heads(),
            kv_heads: self.kv_heads,
            head_dim: self.dim,
            scale: 0.5,
            back: self.back,
            ahead: self.ahead,
            relative: d.relative.as_ref(),
        };
        attend(pool, &ragged, &mut out);
        out
    }

    /// One value in f64.
    fn expected(&self, d: &Data, sequence: usize, row: usize, head: usize, at: usize) -> f64 {
        let (start, len) = (d.starts[sequence], self.lengths[sequence]);
        let (width, kv_width) = (self.heads() * self.dim, self.kv_heads * self.dim);
        let low = row - self.back.unwrap_or(row).min(row);
        let high = self.ahead.map_or(len, |ahead| (row + ahead + 1).min(len));
        let kv = head / self.group * self.dim;
        let score = |j: usize| {
            let q = &d.q[(start + row) * width + head * self.dim..][..self.dim];
            let k = &d.k[(start + j) * kv_width + kv..][..self.dim];
            let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let bias = d.relative.as_ref().map_or(0.0, |r| r.values[head * (2 * r.reach + 1) + r.reach + j - row]);
            dot * 0.5 + f64::from(bias)
        };
        let scores: Vec<f64> = (low..high).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let value = |j: usize| f64::from(d.v[(start + j) * kv_width + kv + at]);
        let sum: f64 = weights.iter().zip(low..high).map(|(w, j)| w * value(j)).sum();
        sum / weights.iter().sum::<f64>()
    }

    fn check(&self) {
        let d = self.data();
        let got = self.run(Pool::global(), &d, 0..self.lengths.len());
        let width = self.heads() * self.dim;
        for (s, len) in self.lengths.iter().enumerate() {
            for row in 0..*len {
                for head in 0..self.heads() {
                    for at in 0..self.dim {
                        let value = got[(d.starts[s] + row) * width + head * self.dim + at];
                        let want = self.expected(&d, s, row, head, at);
                        assert!((f64::from(value) - want).abs() < 2e-5, "{self:?}: {value} for {want}");
                    }
                }
            }
            // Alone and with other numbers of threads the same bits.
            for pool in pools() {
                let alone = self.run(pool, &d, s..s + 1);
                assert_eq!(alone, got[d.starts[s] * width..d.starts[s + 1] * width], "{self:?}: sequence {s}");
            }
        }
    }
}

#[test]
fn long_sequences_with_windows_and_values_by_distance() {
    let case =
        Case { lengths: vec![130, 1, 57], kv_heads: 2, group: 2, dim: 32, back: None, ahead: None, relative: true };
    case.check();
    Case { back: Some(8), ahead: Some(8), relative: false, ..case.clone() }.check();
    Case { ahead: Some(0), relative: false, ..case }.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_sizes(
        lengths in prop::collection::vec(0_usize..40, 1..5),
        kv_heads in 1_usize..4,
        group in 1_usize..3,
        dim in 1_usize..36,
        back in prop::option::of(0_usize..20),
        ahead in prop::option::of(0_usize..20),
        relative: bool,
    ) {
        Case { lengths, kv_heads, group, dim, back, ahead, relative }.check();
    }
}
