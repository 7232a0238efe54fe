//! Packed quantised matrices: the same bits on every instruction set, whatever is computed beside a
//! row; near the exact product of the dequantised weights; rows as they are in the file.

mod common;

use common::{isas, random, turn, values};
use oxiline_kernels::{BlockType, Epilogue, Isa, Matrix, Pool, Product, Storage, ops};

/// Where a block's half-precision scales are; MXFP4 and IQ1_M have theirs elsewhere.
fn halves(kind: BlockType) -> &'static [usize] {
    match kind {
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
        BlockType::Q2_K => &[80, 82],
        BlockType::Q3_K => &[108],
        BlockType::Q6_K => &[208],
        BlockType::TQ1_0 => &[52],
        BlockType::TQ2_0 => &[64],
        BlockType::MXFP4 | BlockType::IQ1_M => &[],
        _ => &[0],
    }
}

/// Random blocks, scales as `scale` makes them of random numbers.
fn blocks(kind: BlockType, count: usize, seed: u64, scale: impl Fn(u64) -> u16) -> Vec<u8> {
    let mut next = random(seed);
    let mut out = Vec::new();
    for _ in 0..count {
        let mut block: Vec<u8> = (0..kind.bytes()).map(|_| next() as u8).collect();
        for at in halves(kind) {
            block[*at..at + 2].copy_from_slice(&scale(next()).to_le_bytes());
        }
        match kind {
            BlockType::MXFP4 => block[0] = (scale(next()) >> 8) as u8 ^ 0x40,
            BlockType::IQ1_M => {
                let d = scale(next());
                for i in 0..4 {
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | ((d >> (4 * i)) as u8 & 15) << 4;
                }
            }
            _ => {}
        }
        out.extend(block);
    }
    out
}

/// Halves between 2^-8 and 2^-6 of either sign.
fn ordinary(r: u64) -> u16 {
    (r as u16 & 0x87ff) | 0x1c00 | (r as u16 & 0x0400)
}

fn packed() -> impl Iterator<Item = BlockType> {
    // NVFP4 has no packed form: it is kept as floats.
    let floats = [BlockType::F32, BlockType::F16, BlockType::BF16, BlockType::NVFP4];
    BlockType::all().filter(move |k| !floats.contains(k))
}

/// NaN as one value: its sign and payload are the machine's.
fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

fn rows(m: &Matrix) -> Vec<f32> {
    let mut all = vec![0.0; m.out_dim() * m.in_dim()];
    for (r, row) in all.chunks_exact_mut(m.in_dim()).enumerate() {
        m.row(r, row);
    }
    all
}

/// Every way of computing gives the bits of the plain kernel with one token; and these are near.
fn check(m: &Matrix, tokens: usize, seed: u64, near: bool) {
    let _turn = turn();
    let (out, k) = (m.out_dim(), m.in_dim());
    let pool = Pool::new(2);
    let (x, bias) = (values(seed, tokens * k), values(seed + 1, out));
    let mut expected = vec![0.0; tokens * out];
    assert!(Isa::Scalar.force());
    for t in 0..tokens {
        let y = &mut expected[t * out..(t + 1) * out];
        m.matmul(&pool, &x[t * k..(t + 1) * k], Some(&bias), y);
    }
    if near {
        let w = rows(m);
        for (i, y) in expected.iter().enumerate() {
            let (x, w) = (&x[i / out * k..][..k], &w[i % out * k..][..k]);
            let (mut exact, mut size) = (f64::from(bias[i % out]), 0.0);
            for (x, w) in x.iter().zip(w) {
                exact += f64::from(*x) * f64::from(*w);
                size += (f64::from(*x) * f64::from(*w)).abs();
            }
            let off = (f64::from(*y) - exact).abs();
            assert!(off <= 1e-2 * size + 1e-6, "{:?} output {i}: {y} for {exact}, {off} of {size}", m.storage());
        }
    }
    for isa in isas() {
        assert!(isa.force());
        let what = format!("{:?} {isa:?} [{tokens}, {k}] x [{out}]", m.storage());
        let mut y = vec![f32::NAN; tokens * out];
        m.matmul(&pool, &x, Some(&bias), &mut y);
        assert_eq!(bits(&y), bits(&expected), "{what}");
        let mut fused = vec![f32::NAN; tokens * out];
        m.matmul_with(&pool, &x, Some(&bias), Epilogue::Gelu, &mut fused);
        let mut apart = expected.clone();
        ops::gelu(&pool, &mut apart);
        assert_eq!(bits(&fused), bits(&apart), "{what} with GELU");
        let mut added = values(seed + 2, tokens * out);
        let sums: Vec<f32> = added.iter().zip(&expected).map(|(r, e)| r + e).collect();
        m.matmul_with(&pool, &x, Some(&bias), Epilogue::AddTo, &mut added);
        assert_eq!(bits(&added), bits(&sums), "{what} with residual");
    }
    Isa::detect().force();
}

#[test]
fn all_ways_give_the_same_bits() {
    for kind in packed() {
        for (tokens, out, k) in [(1, 21, 512), (3, 8, 256), (7, 9, 768), (33, 19, 512)] {
            let blocks = blocks(kind, out * k / kind.block(), tokens as u64, ordinary);
            check(&Matrix::from_blocks(out, k, kind, &blocks), tokens, 5, true);
        }
    }
}

#[test]
fn every_number_of_tokens() {
    for kind in [BlockType::Q4_K, BlockType::Q8_0] {
        for tokens in 1..34 {
            let blocks = blocks(kind, 11 * 512 / kind.block(), 3, ordinary);
            check(&Matrix::from_blocks(11, 512, kind, &blocks), tokens, 5, false);
        }
    }
    let blocks = blocks(BlockType::Q6_K, 40 * 2, 3, ordinary);
    check(&Matrix::from_blocks(40, 512, BlockType::Q6_K, &blocks), 300, 5, false);
}

#[test]
fn rows_that_are_not_whole_slabs() {
    for kind in packed().filter(|k| k.block() == 32) {
        for k in [32, 96, 288, 544] {
            for tokens in [1, 6] {
                let blocks = blocks(kind, 13 * k / 32, 3, ordinary);
                check(&Matrix::from_blocks(13, k, kind, &blocks), tokens, 5, true);
            }
        }
    }
}

#[test]
fn extreme_scales() {
    for kind in packed() {
        for tokens in [1, 5] {
            let blocks = blocks(kind, 16 * 512 / kind.block(), 9, |r| r as u16);
            check(&Matrix::from_blocks(16, 512, kind, &blocks), tokens, 5, false);
        }
    }
}

#[test]
fn activations_that_are_not_numbers_stay_in_their_row() {
    let _turn = turn();
    let pool = Pool::new(2);
    for kind in [BlockType::Q4_0, BlockType::Q4_K] {
        let m = Matrix::from_blocks(9, 512, kind, &blocks(kind, 9 * 512 / kind.block(), 3, ordinary));
        let mut x = values(1, 4 * 512);
        let mut clean = vec![0.0; 4 * 9];
        m.matmul(&pool, &x, None, &mut clean);
        (x[5], x[512 + 300], x[1024]) = (f32::NAN, f32::INFINITY, f32::MIN_POSITIVE);
        let mut y = vec![0.0; 4 * 9];
        m.matmul(&pool, &x, None, &mut y);
        assert!(y[..18].iter().all(|v| !v.is_finite()));
        assert!(y[18..27].iter().all(|v| v.is_finite()));
        assert_eq!(bits(&y[27..]), bits(&clean[27..]));
    }
}

#[test]
fn rows_are_the_files() {
    for kind in packed() {
        let blocks = blocks(kind, 10 * 512 / kind.block(), 3, ordinary);
        let m = Matrix::from_blocks(10, 512, kind, &blocks);
        assert_eq!(m.storage(), Storage::Blocks(kind));
        let mut exact = vec![0.0; 10 * 512];
        kind.dequantize(&blocks, &mut exact);
        assert_eq!(bits(&rows(&m)), bits(&exact), "{kind:?}");
        let (w, row) = (kind.row_bytes(512).unwrap(), |r: usize| 9 - r);
        let turned = Matrix::from_blocks_with(10, 512, kind, |r| &blocks[row(r) * w..(row(r) + 1) * w]);
        for r in 0..10 {
            let mut got = vec![0.0; 512];
            turned.row(r, &mut got);
            assert_eq!(bits(&got), bits(&exact[(9 - r) * 512..(10 - r) * 512]), "{kind:?}");
        }
    }
}

#[test]
fn plain_floats_keep_their_bits() {
    for (kind, storage) in
        [(BlockType::F32, Storage::F32), (BlockType::F16, Storage::F16), (BlockType::BF16, Storage::BF16)]
    {
        let mut next = random(4);
        let bytes: Vec<u8> = (0..7 * 48 * kind.bytes()).map(|_| next() as u8).collect();
        let m = Matrix::from_blocks(7, 48, kind, &bytes);
        assert_eq!(m.storage(), storage);
        let mut exact = vec![0.0; 7 * 48];
        kind.dequantize(&bytes, &mut exact);
        assert_eq!(bits(&rows(&m)), bits(&exact));
    }
}

#[test]
fn groups_equal_single_products() {
    let _turn = turn();
    let kinds = [BlockType::Q4_K, BlockType::Q6_K, BlockType::Q4_0, BlockType::F32];
    let ms: Vec<Matrix> = kinds
        .into_iter()
        .enumerate()
        .map(|(i, kind)| {
            let out = [300, 5, 64, 33][i];
            Matrix::from_blocks(out, 512, kind, &blocks(kind, out * 512 / kind.block(), i as u64, ordinary))
        })
        .collect();
    let biases: Vec<Vec<f32>> = ms.iter().map(|m| values(8, m.out_dim())).collect();
    for threads in [1, 2, 3] {
        let pool = Pool::new(threads);
        for tokens in [1, 4, 150] {
            let (x, other) = (values(3, tokens * 512), values(4, tokens * 512));
            let mut ys: Vec<Vec<f32>> = ms.iter().map(|m| vec![f32::NAN; tokens * m.out_dim()]).collect();
            let mut group: Vec<Product<'_>> = ms.iter().zip(&mut ys).map(|(m, y)| Product::new(m, &x, y)).collect();
            group[1].x = &other;
            group[2].bias = Some(&biases[2]);
            group[0].epilogue = Epilogue::Gelu;
            Matrix::matmul_group(&pool, &mut group);
            for (i, (m, y)) in ms.iter().zip(&ys).enumerate() {
                let mut single = vec![0.0; y.len()];
                let x = if i == 1 { &other } else { &x };
                let bias = (i == 2).then_some(&biases[2][..]);
                let epilogue = if i == 0 { Epilogue::Gelu } else { Epilogue::None };
                m.matmul_with(&pool, x, bias, epilogue, &mut single);
                assert_eq!(bits(y), bits(&single), "{:?} {tokens} tokens {threads} threads", m.storage());
            }
            let rows = [4, 0, 2];
            let mut some = vec![0.0; tokens * 3];
            ms[1].matmul_rows(&pool, &other, &rows, &mut some);
            for (t, some) in some.chunks_exact(3).enumerate() {
                for (row, v) in rows.iter().zip(some) {
                    assert_eq!(v.to_bits(), ys[1][t * 5 + *row as usize].to_bits());
                }
            }
        }
    }
}

#[test]
fn four_bits_of_f32_values() {
    for k in [64, 40] {
        let w = values(2, 10 * k);
        let m = Matrix::from_f32(10, k, &w, Storage::Q4);
        assert_eq!(m.storage(), Storage::Q4);
        for (w, got) in w.chunks(k).zip(rows(&m).chunks(k)) {
            for (w, got) in w.chunks(32).zip(got.chunks(32)) {
                let greatest = w.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                for (w, got) in w.iter().zip(got) {
                    assert!((w - got).abs() <= greatest / 8.0 * 1.01, "{w} {got} of {greatest}");
                }
            }
        }
        check(&m, 3, 5, true);
    }
}

#[test]
fn mlx_groups() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            assert!(Matrix::affine_supported(bits, group));
            let (out, k) = (11, 384);
            let mut next = random((bits * group) as u64);
            let stream: Vec<u8> = (0..out * k * bits / 8).map(|_| next() as u8).collect();
            let coarse = |v: &f32| f32::from_bits(v.to_bits() & 0xffff_0000);
            let scales: Vec<f32> = values(3, out * k / group).iter().map(coarse).collect();
            let biases: Vec<f32> = values(4, out * k / group).iter().map(coarse).collect();
            let m = Matrix::from_affine(out, k, bits, group, &stream, &scales, &biases);
            assert_eq!(m.storage(), Storage::Affine { bits: bits as u8, group: group as u16 });
            assert_eq!(m.bytes(), 16 * (k * bits / 8 + k / group * 4));
            let got = rows(&m);
            for (i, got) in got.iter().enumerate() {
                let q = (0..bits).fold(0, |q, b| {
                    let at = i / k * k * bits + i % k * bits + b;
                    q | u32::from(stream[at / 8] >> (at % 8) & 1) << b
                });
                let g = i / k * (k / group) + i % k / group;
                assert_eq!(*got, scales[g] * q as f32 + biases[g], "{bits} bits, groups of {group}, {i}");
            }
            for tokens in [1, 6] {
                check(&m, tokens, 5, true);
            }
        }
    }
}
