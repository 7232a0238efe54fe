//! Quantised formats against gguf-py's and MLX's numbers. `tests/fixtures/quant` holds:
//! `blocks` (ordinary and extreme scales), `quantize` and `affine` from the reference kit, and
//! `edges`: blocks of random bytes throughout and rows to quantise with subnormals, NaNs and
//! infinities, computed by gguf-py 0.19 on x86-64.

use oxiline_kernels::quant::{Affine, Integers};
use oxiline_kernels::{BlockType, Isa, Pool};
use proptest::prelude::*;
use safetensors::SafeTensors;

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/quant/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).expect("fixture")
}

struct File(Vec<u8>);

impl File {
    fn open(name: &str) -> Self {
        Self(fixture(name))
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).expect("safetensors")
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.tensors().tensor(name).unwrap_or_else(|_| panic!("tensor {name}")).data().to_vec()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn bf16(&self, name: &str) -> Vec<f32> {
        let bits = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
        self.bytes(name).as_chunks::<2>().0.iter().map(bits).collect()
    }
}

/// The same bits; any NaN is as good as another.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

fn values(kind: BlockType, blocks: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; blocks.len() / kind.bytes() * kind.block()];
    kind.dequantize(blocks, &mut values);
    values
}

/// Every type but F32, which the goldens leave out.
fn types() -> impl Iterator<Item = BlockType> {
    BlockType::all().filter(|kind| *kind != BlockType::F32)
}

#[test]
fn weights_are_the_references_bit_for_bit() {
    for file in ["blocks", "edges"] {
        let file = File::open(file);
        for kind in types() {
            let name = kind.name();
            let (blocks, golden) = (file.bytes(&format!("{name}.blocks")), file.f32(&format!("{name}.values")));
            for isa in Isa::ALL.into_iter().filter(|isa| isa.force()) {
                let got = values(kind, &blocks);
                let at = (0..got.len()).find(|&i| !same(&got[i..=i], &golden[i..=i]));
                assert!(at.is_none(), "{name}, {isa:?}: {:?}", at.map(|i| (i, got[i], golden[i])));
                assert_eq!(got.len(), golden.len(), "{name}");
            }
        }
    }
    Isa::detect().force();
}

#[test]
fn every_half_is_exact() {
    let bits: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let exact: Vec<f32> = (0..=u16::MAX).map(|bits| half::f16::from_bits(bits).to_f32()).collect();
    assert!(same(&values(BlockType::F16, &bits), &exact));
    let exact: Vec<f32> = (0..=u16::MAX).map(|bits| half::bf16::from_bits(bits).to_f32()).collect();
    assert!(same(&values(BlockType::BF16, &bits), &exact));
    let floats = [0.0, -0.0, 1.5, f32::MIN_POSITIVE / 8.0, f32::INFINITY];
    let bits: Vec<u8> = floats.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert!(same(&values(BlockType::F32, &bits), &floats));
}

/// The documented formula over what `integers` gives.
fn from_integers(kind: BlockType, blocks: &[u8]) -> Option<Vec<f32>> {
    let (sub, (least, most)) = (kind.sub_block()?, kind.quant_range()?);
    let mut integers = Integers::default();
    let mut values = Vec::new();
    for block in blocks.chunks(kind.bytes()) {
        assert!(kind.integers(block, &mut integers));
        for i in 0..kind.block() {
            let (q, j) = (integers.quants[i], i / sub);
            assert!((least..=most).contains(&q), "{}: quant {q}", kind.name());
            let scale = integers.d * integers.scales[j] as f32;
            values.push(scale * f32::from(q) - integers.dmin * f32::from(integers.mins[j]));
        }
    }
    Some(values)
}

#[test]
fn integers_say_the_same() {
    let file = File::open("edges");
    for kind in types() {
        let blocks = file.bytes(&format!("{}.blocks", kind.name()));
        match from_integers(kind, &blocks) {
            Some(got) => assert!(same(&got, &values(kind, &blocks)), "{}", kind.name()),
            None => assert!(!kind.integers(&blocks[..kind.bytes()], &mut Integers::default())),
        }
    }
}

#[test]
fn the_least_and_the_greatest_quant_occur() {
    let mut random = 1u64;
    for kind in types() {
        let Some((least, most)) = kind.quant_range() else { continue };
        let mut integers = Integers::default();
        let (mut low, mut high) = (i8::MAX, i8::MIN);
        for _ in 0..400 {
            let block: Vec<u8> = (0..kind.bytes())
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (random >> 56) as u8
                })
                .collect();
            kind.integers(&block, &mut integers);
            low = low.min(*integers.quants[..kind.block()].iter().min().expect("quants"));
            high = high.max(*integers.quants[..kind.block()].iter().max().expect("quants"));
        }
        assert_eq!((low, high), (least, most), "{}", kind.name());
    }
}

#[test]
fn threads_change_nothing() {
    let file = File::open("blocks");
    let pool = Pool::new(3);
    for kind in types() {
        let blocks = file.bytes(&format!("{}.blocks", kind.name())).repeat(40);
        let mut many = vec![0.0; blocks.len() / kind.bytes() * kind.block()];
        kind.dequantize_on(&pool, &blocks, &mut many);
        assert!(same(&many, &values(kind, &blocks)), "{}", kind.name());
        kind.dequantize_on(&pool, &[], &mut []);
    }
}

#[test]
fn quantised_blocks_are_the_references_byte_for_byte() {
    let file = File::open("quantize");
    let input = file.f32("input");
    for kind in BlockType::QUANTIZABLE {
        if matches!(kind, BlockType::F32 | BlockType::F16) {
            continue; // not in the reference kit; below
        }
        let name = kind.name();
        let blocks = kind.quantize(&input).expect("quantisable");
        let golden = file.bytes(&format!("{name}.blocks"));
        let at = (0..golden.len()).find(|&i| blocks[i] != golden[i]);
        assert!(blocks.len() == golden.len() && at.is_none(), "{name}: byte {at:?}");
        assert!(same(&values(kind, &blocks), &file.f32(&format!("{name}.values"))), "{name}");
    }
    let bytes: Vec<u8> = input.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(BlockType::F32.quantize(&input), Some(bytes));
    assert_eq!(BlockType::Q6_K.quantize(&[0.0; 256]), None);
}

/// Bytes of a block that are f16 fields, where a NaN may be any NaN.
fn halves(kind: BlockType) -> &'static [usize] {
    match kind {
        BlockType::F16 | BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 => &[0],
        BlockType::Q4_1 | BlockType::Q5_1 => &[0, 2],
        _ => &[],
    }
}

#[test]
fn edges_are_quantised_like_the_reference() {
    let file = File::open("edges");
    let input = file.f32("input");
    for kind in [
        BlockType::F16,
        BlockType::BF16,
        BlockType::Q8_0,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
    ] {
        let mut got = kind.quantize(&input).expect("quantisable");
        let mut golden = file.bytes(&format!("quantized.{}", kind.name()));
        assert_eq!(got.len(), golden.len());
        for blocks in [&mut got, &mut golden] {
            for block in blocks.chunks_mut(kind.bytes()) {
                for &at in halves(kind) {
                    if half::f16::from_le_bytes([block[at], block[at + 1]]).is_nan() {
                        block[at..at + 2].copy_from_slice(&half::f16::NAN.to_le_bytes());
                    }
                }
                if kind == BlockType::BF16 && half::bf16::from_le_bytes([block[0], block[1]]).is_nan() {
                    block.copy_from_slice(&half::bf16::NAN.to_le_bytes());
                }
            }
        }
        for (i, (got, golden)) in got.chunks(kind.bytes()).zip(golden.chunks(kind.bytes())).enumerate() {
            assert_eq!(got, golden, "{}: block {i} of {:?}", kind.name(), &input[i * kind.block()..][..kind.block()]);
        }
    }
}

#[test]
fn affine_weights_are_mlxs() {
    let file = File::open("affine");
    let (mut cases, x) = (0, file.f32("x"));
    for bits in Affine::BITS {
        for group in [32, 64, 128] {
            let name = |part: &str| format!("q{bits}_g{group}.{part}");
            if file.tensors().tensor(&name("weight")).is_err() {
                continue;
            }
            cases += 1;
            let affine = Affine::new(bits, group).expect("a width of MLX");
            let packed = file.bytes(&name("weight"));
            assert_eq!(affine.row_bytes(256).map(|row| row * 12), Some(packed.len()));
            let golden = file.f32(&name("values"));
            let mut got = vec![0.0; golden.len()];
            affine.dequantize(&packed, &file.bf16(&name("scales")), &file.bf16(&name("biases")), &mut got);
            assert!(same(&got, &golden), "{bits} bits, groups of {group}");
            let y = file.bytes(&name("y"));
            for (row, y) in got.chunks(256).zip(y.as_chunks::<8>().0) {
                let sum: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                assert!((sum - f64::from_le_bytes(*y)).abs() < 1e-12);
            }
        }
    }
    assert_eq!(cases, 10);
}

#[test]
fn affine_refuses_what_it_cannot_read() {
    assert!(Affine::new(7, 64).is_none() && Affine::new(1, 64).is_none() && Affine::new(4, 0).is_none());
    let affine = Affine::new(3, 64).expect("a width of MLX");
    assert_eq!(affine.row_bytes(64), Some(24));
    assert_eq!(affine.row_bytes(63), None);
    assert_eq!(affine.row_bytes(usize::MAX / 2), None);
    assert_eq!(Affine::new(4, 4).and_then(|a| a.row_bytes(4)), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_weights(bytes in prop::collection::vec(any::<u8>(), 1024)) {
        for kind in BlockType::all() {
            let whole = bytes.len() / kind.bytes() * kind.bytes();
            let got = values(kind, &bytes[..whole]);
            if let Some(integers) = from_integers(kind, &bytes[..whole]) {
                prop_assert!(same(&got, &integers), "{}", kind.name());
            }
        }
    }

    #[test]
    fn quantising_keeps_close(values_in in prop::collection::vec(-1000.0f32..1000.0, 64), exponent in -6..2) {
        let input: Vec<f32> = values_in.iter().map(|v| v * 10f32.powi(exponent)).collect();
        for kind in BlockType::QUANTIZABLE {
            let back = values(kind, &kind.quantize(&input).expect("quantisable"));
            for (input, back) in input.chunks(32).zip(back.chunks(32)) {
                let most = input.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let (low, high) = input.iter().fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
                // Half a step (a whole one where the far end is clipped), and the rounding of f16 scales to 11
                // bits (times the code, which reaches twice `most`) and minima, or to 2^-25 where they are
                // subnormal.
                let bound = |step: f32, codes: f32| step + most * 3.0 * 2f32.powi(-11) + codes * 2f32.powi(-24);
                let bound = match kind {
                    BlockType::F32 => 0.0,
                    BlockType::F16 => most * 2f32.powi(-11) + 2f32.powi(-25),
                    BlockType::BF16 => most * 2f32.powi(-8),
                    BlockType::Q8_0 => bound(most / 127.0 / 2.0, 127.0),
                    BlockType::Q4_0 => bound(most / 8.0, 8.0),
                    BlockType::Q5_0 => bound(most / 16.0, 16.0),
                    BlockType::Q4_1 => bound((high - low) / 15.0 / 2.0, 16.0),
                    _ => bound((high - low) / 31.0 / 2.0, 32.0),
                };
                for (a, b) in input.iter().zip(back) {
                    prop_assert!((a - b).abs() <= bound, "{}: {a} became {b}, bound {bound}", kind.name());
                }
            }
        }
    }

    #[test]
    fn affine_unpacks_a_stream_of_bits(
        quants in prop::collection::vec(any::<u8>(), 96),
        scale in -2.0f32..2.0,
        bias in -2.0f32..2.0,
    ) {
        for bits in Affine::BITS {
            for group in [1, 3, 12, 32, 96] {
                let quants: Vec<u8> = quants.iter().map(|q| q & ((1u32 << bits) - 1) as u8).collect();
                let mut packed = vec![0u8; quants.len() * bits as usize / 8];
                for (i, q) in quants.iter().enumerate() {
                    for bit in 0..bits as usize {
                        let at = i * bits as usize + bit;
                        packed[at / 8] |= (q >> bit & 1) << (at % 8);
                    }
                }
                let affine = Affine::new(bits, group).expect("a width of MLX");
                let mut unpacked = vec![0; quants.len()];
                affine.unpack(&packed, &mut unpacked);
                prop_assert_eq!(&unpacked, &quants);
                let scales: Vec<f32> = (0..96 / group).map(|g| scale + g as f32).collect();
                let biases: Vec<f32> = (0..96 / group).map(|g| bias - g as f32).collect();
                let mut got = vec![0.0; 96];
                affine.dequantize(&packed, &scales, &biases, &mut got);
                for (i, q) in quants.iter().enumerate() {
                    prop_assert_eq!(got[i], scales[i / group] * f32::from(*q) + biases[i / group]);
                }
            }
        }
    }
}
