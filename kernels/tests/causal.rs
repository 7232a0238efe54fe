//! Causal attention over paged caches: against f64, and the same bits however it is run.

mod common;

use common::{pools, turn, values};
use oxiline_kernels::causal::{Attend, attend};
use oxiline_kernels::{Isa, KvCache, KvFormat, PAGE, Pool, SLACK};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
struct Case {
    format: KvFormat,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    len: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
}

const CASE: Case =
    Case { format: KvFormat::F32, heads: 4, kv_heads: 2, dim: 64, len: 300, window: None, softcap: None, sinks: false };

struct Data {
    case: Case,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    sinks: Vec<f32>,
}

impl Data {
    fn new(case: Case, seed: u64) -> Self {
        let kv = case.len * case.kv_heads * case.dim;
        // Large enough that weights differ much and maxima move.
        let q = values(seed, case.len * case.heads * case.dim).iter().map(|v| v * 6.0).collect();
        let sinks = values(seed + 3, case.heads);
        Self { case, q, k: values(seed + 1, kv), v: values(seed + 2, kv), sinks }
    }

    fn row(&self) -> usize {
        self.case.kv_heads * self.case.dim
    }

    fn cache(&self) -> KvCache {
        KvCache::new(self.case.format, self.case.kv_heads, self.case.dim)
    }

    fn push(&self, kv: &mut KvCache, pool: &Pool, to: usize) {
        let range = kv.len() * self.row()..to * self.row();
        kv.push(pool, &self.k[range.clone()], &self.v[range]);
    }

    fn ask<'a>(&'a self, kv: &'a KvCache, rows: std::ops::Range<usize>, out: &'a mut [f32]) -> Attend<'a> {
        let width = self.case.heads * self.case.dim;
        let mut a = Attend::new(&self.q[rows.start * width..rows.end * width], kv, rows.start, self.case.heads, out);
        a.window = self.case.window;
        a.softcap = self.case.softcap;
        a.sinks = self.case.sinks.then_some(&self.sinks[..]);
        a
    }

    /// All rows in spans cut at `cuts`, pushed as they come.
    fn run(&self, pool: &Pool, cuts: &[usize]) -> Vec<f32> {
        let width = self.case.heads * self.case.dim;
        let mut out = vec![f32::NAN; self.case.len * width];
        let mut kv = self.cache().with_window(self.case.window);
        let mut at = 0;
        for to in cuts.iter().copied().filter(|c| *c < self.case.len).chain([self.case.len]) {
            if to <= at {
                continue;
            }
            self.push(&mut kv, pool, to);
            attend(pool, &mut [self.ask(&kv, at..to, &mut out[at * width..to * width])]);
            at = to;
        }
        out
    }

    /// The definition in f64, over what the cache kept.
    fn reference(&self, row: usize) -> Vec<f64> {
        let Case { heads, kv_heads, dim, .. } = self.case;
        let mut kv = self.cache();
        self.push(&mut kv, &pools()[0], row + 1);
        let low = self.case.window.map_or(0, |w| (row + 1).saturating_sub(w));
        let mut rows = Vec::new();
        for p in low..=row {
            let (mut k, mut v) = (vec![0.0; self.row()], vec![0.0; self.row()]);
            kv.read(p, &mut k, &mut v);
            rows.push((k, v));
        }
        let mut out = Vec::new();
        for h in 0..heads {
            let at = h / (heads / kv_heads) * dim;
            let q = &self.q[(row * heads + h) * dim..][..dim];
            let scores: Vec<f64> = rows
                .iter()
                .map(|(k, _)| {
                    let s: f64 = q.iter().zip(&k[at..]).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    let s = s / (dim as f64).sqrt();
                    self.case.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                })
                .collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let mut sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            if self.case.sinks {
                sum += (f64::from(self.sinks[h]) - max).exp();
            }
            for d in 0..dim {
                let value = scores.iter().zip(&rows).map(|(s, (_, v))| (s - max).exp() * f64::from(v[at + d]));
                out.push(value.sum::<f64>() / sum);
            }
        }
        out
    }

    fn check(&self, out: &[f32], rows: impl IntoIterator<Item = usize>) {
        let width = self.case.heads * self.case.dim;
        for row in rows {
            for (d, (a, b)) in out[row * width..].iter().zip(self.reference(row)).enumerate() {
                assert!((f64::from(*a) - b).abs() < 3e-6, "{:?} row {row} value {d}: {a} instead of {b}", self.case);
            }
        }
    }
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

#[test]
fn against_the_definition() {
    let _turn = turn();
    let shapes = [(4, 2, 64), (3, 1, 80), (6, 2, 96), (12, 2, 128), (4, 1, 256), (7, 1, 16), (2, 2, 24), (5, 5, 7)];
    for format in KvFormat::ALL {
        for (i, (heads, kv_heads, dim)) in shapes.into_iter().enumerate() {
            let window = [None, Some(1), Some(50), Some(200)][i % 4];
            let softcap = [None, Some(2.0), None][i % 3];
            let case = Case { format, heads, kv_heads, dim, window, softcap, sinks: i % 5 == 1, ..CASE };
            let data = Data::new(case, i as u64 * 10);
            let out = data.run(&pools()[1], &[1, 5, 250]);
            data.check(&out, [0, 1, 4, 15, 16, 127, 128, 129, 249, 250, 299]);
        }
    }
}

#[test]
fn four_thousand_positions() {
    let _turn = turn();
    for (format, window) in [(KvFormat::F32, None), (KvFormat::F16, Some(1000)), (KvFormat::Int8, None)] {
        let case = Case { format, window, heads: 3, kv_heads: 1, dim: 32, len: 4200, ..CASE };
        let data = Data::new(case, 5);
        // One token at a time goes over chunks on several threads, 600 at once do not.
        let out = data.run(&pools()[1], &(1..7).map(|i| i * 600).chain(4150..4200).collect::<Vec<_>>());
        data.check(&out, [511, 512, 513, 2047, 2048, 4095, 4149, 4199]);
        assert!(same(&out, &data.run(&pools()[0], &[3000, 4100])), "cuts and threads do not matter");
    }
}

#[test]
fn the_same_bits_on_every_instruction_set() {
    let _turn = turn();
    for format in KvFormat::ALL {
        let case = Case { format, len: 200, dim: 40, softcap: Some(3.0), window: Some(150), sinks: true, ..CASE };
        let data = Data::new(case, 77);
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::ALL.into_iter().filter(|isa| isa.force()) {
            for pool in pools() {
                let out = data.run(pool, &[60, 61, 199]);
                assert!(same(&out, first.get_or_insert_with(|| out.clone())), "{isa:?} differs");
            }
        }
        Isa::detect().force();
    }
}

#[test]
fn what_is_not_seen_does_not_matter() {
    let _turn = turn();
    for format in KvFormat::ALL {
        let mut data = Data::new(Case { format, len: 140, ..CASE }, 3);
        let clean = data.run(&pools()[1], &[]);
        // From position 70 on: infinities and NaN, also where pages are half seen.
        let row = data.row();
        for (i, bad) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30].into_iter().enumerate() {
            data.k[(70 + i) * row + i] = bad;
            data.v[(75 + i) * row + i] = bad;
        }
        let width = data.case.heads * data.case.dim;
        let out = data.run(&pools()[1], &[]);
        assert!(same(&out[..70 * width], &clean[..70 * width]), "{format:?}: later positions change earlier rows");
        assert!(out[80 * width..].iter().any(|v| v.is_nan()), "and later rows show it");
        assert!(same(&out, &data.run(&pools()[0], &(1..140).collect::<Vec<_>>())), "{format:?}: in any cut");
        // Taken back and pushed anew, nothing is left of it.
        let good = Data::new(Case { format, len: 140, ..CASE }, 3);
        let mut kv = data.cache();
        data.push(&mut kv, &pools()[0], 140);
        kv.truncate(70);
        good.push(&mut kv, &pools()[0], 140);
        let mut out = vec![0.0; 140 * width];
        attend(&pools()[1], &mut [good.ask(&kv, 0..140, &mut out)]);
        assert!(same(&out, &clean), "{format:?}: traces of what was taken back");
    }
}

#[test]
fn windows_drop_pages_and_keep_room_to_go_back() {
    let pool = &pools()[0];
    let mut kv = KvCache::new(KvFormat::F16, 1, 16).with_window(Some(100));
    let row = [0.5; 16];
    for _ in 0..2000 {
        kv.push(pool, &row, &row);
    }
    assert!(kv.first_position() > 1400 && kv.first_position() <= 2000 - 100 - SLACK);
    assert!(kv.bytes() <= (100 + SLACK + 3 * PAGE) * kv.bytes_per_position());
    assert_eq!(kv.reachable(2000 - SLACK + 10), 2000 - SLACK + 10);
    assert_eq!(kv.reachable(500), 0);
    kv.truncate(1800);
    assert_eq!(kv.len(), 1800);
    kv.truncate(500);
    assert_eq!((kv.len(), kv.bytes(), kv.first_position()), (0, 0, 0));
    kv.push(pool, &row, &row);
    assert_eq!(kv.len(), 1);
}

#[test]
fn forks_share_pages() {
    let pool = &pools()[0];
    let mut kv = KvCache::new(KvFormat::Int8, 2, 64);
    let rows = values(1, 300 * 128);
    kv.push(pool, &rows, &rows);
    assert_eq!(kv.bytes(), 3 * PAGE * kv.bytes_per_position());
    let mut fork = kv.fork();
    assert_eq!(kv.own_bytes(), 0);
    fork.push(pool, &rows[..128], &rows[..128]);
    assert_eq!(kv.own_bytes(), PAGE * kv.bytes_per_position(), "only the page that was written is copied");
    assert_eq!((kv.len(), fork.len()), (300, 301));
    assert_eq!(KvFormat::ALL.map(|f| KvFormat::from_name(f.name())), KvFormat::ALL.map(Some));
}

fn case() -> impl Strategy<Value = Case> {
    let format = prop::sample::select(KvFormat::ALL.to_vec());
    let shape = prop::sample::select(vec![(1, 1, 64), (4, 2, 16), (7, 1, 80), (9, 3, 32), (12, 1, 128), (26, 2, 8)]);
    let window = prop::option::of(1..700_usize);
    (format, shape, 1..700_usize, window, prop::option::of(0.5..5.0_f32), any::<bool>()).prop_map(
        |(format, (heads, kv_heads, dim), len, window, softcap, sinks)| Case {
            format,
            heads,
            kv_heads,
            dim,
            len,
            window,
            softcap,
            sinks,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// However a sequence is cut, with whatever threads.
    #[test]
    fn cuts_and_threads(case in case(), seed in any::<u32>(), mut cuts in prop::collection::vec(1..700_usize, 0..12), threads in 0..3_usize) {
        let _turn = turn();
        let data = Data::new(case, u64::from(seed));
        cuts.sort_unstable();
        prop_assert!(same(&data.run(&pools()[0], &[]), &data.run(&pools()[threads], &cuts)));
    }

    /// Beside other sequences, after forks, going back and growing again.
    #[test]
    fn mates_and_forks(case in case(), seed in any::<u32>(), back in 0..700_usize, to in 0..700_usize, threads in 0..3_usize) {
        let _turn = turn();
        let pool = &pools()[threads];
        let data = Data::new(case, u64::from(seed));
        let other = Data::new(Case { len: 33, ..case }, u64::from(seed) + 9);
        let width = case.heads * case.dim;
        let alone = data.run(&pools()[0], &[]);
        let mut kv = data.cache();
        data.push(&mut kv, pool, case.len);
        let mut fork = kv.fork();
        fork.truncate(back);
        // Another future, which must leave no trace in the first.
        let wrong = vec![3.0; 40 * data.row()];
        fork.push(pool, &wrong, &wrong);
        fork.truncate(back.min(to).min(case.len));
        data.push(&mut fork, pool, case.len);
        let mut beside = other.cache();
        other.push(&mut beside, pool, 33);
        let (mut a, mut b, mut c) = (vec![0.0; case.len * width], vec![0.0; case.len * width], vec![0.0; 33 * width]);
        attend(pool, &mut [data.ask(&kv, 0..case.len, &mut a), other.ask(&beside, 0..33, &mut c), data.ask(&fork, 0..case.len, &mut b)]);
        prop_assert!(same(&a, &alone) && same(&b, &alone));
        let last = case.len - 1;
        let (mut a, mut b) = (vec![0.0; width], vec![0.0; width]);
        attend(pool, &mut [data.ask(&fork, last..case.len, &mut a), data.ask(&kv, last..case.len, &mut b)]);
        prop_assert!(same(&a, &alone[last * width..]) && same(&b, &alone[last * width..]));
    }
}
