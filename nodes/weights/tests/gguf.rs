//! GGUF files: what is read of good ones, what is said of bad ones.

mod common;

use std::fs;
use std::path::Path;

use common::{Gguf, q8_0, string};
use oxiline_kernels::{BlockType, Storage};
use oxiline_weights::gguf::Value;
use oxiline_weights::{Checkpoint, Dtype, ErrorKind, Keep, MatrixRequest, Mode};

fn open(file: &Gguf) -> Result<Checkpoint, String> {
    open_bytes(&file.build())
}

fn open_bytes(bytes: &[u8]) -> Result<Checkpoint, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, bytes).unwrap();
    let mapped = Checkpoint::open(&path, Mode::Mmap).map(drop).map_err(|e| e.to_string());
    let read = Checkpoint::open(&path, Mode::Read).map_err(|e| e.to_string());
    assert_eq!(mapped.err(), read.as_ref().err().cloned(), "both ways of opening say the same");
    read
}

fn small() -> Gguf {
    Gguf::default().str("general.architecture", "llama").f32s("a", &[3, 2], &[0., 1., 2., 3., 4., 5.])
}

#[test]
fn metadata_and_tensors_of_both_versions() {
    for version in [2, 3] {
        let file = Gguf { version, ..small() }
            .raw("i", 5, &(-3i32).to_le_bytes())
            .raw("f", 6, &0.5f32.to_le_bytes())
            .raw("b", 7, &[1])
            .strings("tokens", &["a", "", "ü"])
            .array("types", 5, 2, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff])
            .array("scores", 6, 1, &1.5f32.to_le_bytes())
            .array("none", 4, 0, &[])
            .tensor("q", &[32, 2], 8, q8_0(0x3c00, |i| i as i8 - 20, 64));
        let c = open(&file).unwrap();
        let m = c.gguf().unwrap();
        assert_eq!(m.str("general.architecture"), Some("llama"));
        assert_eq!((m.f64("i"), m.u64("i"), m.f64("f"), m.bool("b")), (Some(-3.0), None, Some(0.5), Some(true)));
        assert_eq!(m.strings("tokens").unwrap(), ["a", "", "ü"]);
        assert_eq!(m.i64s("types").unwrap(), [1, -1]);
        assert_eq!(m.f32s("scores").unwrap(), [1.5]);
        assert_eq!(m.get("none"), Some(&Value::U64s(Vec::new())));
        assert_eq!(c.names().collect::<Vec<_>>(), ["a", "q"]);
        assert_eq!(c.info("a").unwrap().shape, [2, 3]);
        assert_eq!(c.f32("a").unwrap(), [0., 1., 2., 3., 4., 5.]);
        let info = c.info("q").unwrap();
        assert_eq!((info.dtype, info.shape, info.bytes), (Dtype::Block(BlockType::Q8_0), vec![2, 32], 68));
        assert_eq!(c.f32("q").unwrap(), (0..64).map(|i| i as f32 - 20.0).collect::<Vec<_>>());
    }
}

#[test]
fn alignment_is_what_the_file_says() {
    for alignment in [1usize, 8, 64, 4096] {
        let file = Gguf { alignment, ..small() }.u32("general.alignment", alignment as u32).f32s("b", &[1], &[7.0]);
        let c = open(&file).unwrap();
        assert_eq!((c.f32("a").unwrap()[5], c.f32("b").unwrap()[0]), (5.0, 7.0));
    }
}

/// Rows asked for by part, range and order, from blocks and from plain types alike.
#[test]
fn matrices_are_cut_and_ordered() {
    // Two matrices of 3 rows of 64; weight = row in all - column pattern.
    let weight = |i: usize| ((i / 64) * 10 + i % 64 % 7) as i8;
    let floats: Vec<f32> = (0..2 * 3 * 64).map(|i| f32::from(weight(i))).collect();
    let halves = |to: fn(f32) -> u16| floats.iter().flat_map(|v| to(*v).to_le_bytes()).collect::<Vec<u8>>();
    let file = small()
        .tensor("q", &[64, 3, 2], 8, q8_0(0x3c00, weight, 2 * 3 * 64))
        .f32s("f", &[64, 3, 2], &floats)
        .tensor("h", &[64, 3, 2], 1, halves(|v| half::f16::from_f32(v).to_bits()))
        .tensor("b", &[64, 3, 2], 30, halves(|v| half::bf16::from_f32(v).to_bits()));
    let c = open(&file).unwrap();
    for name in ["q", "f", "h", "b"] {
        for keep in [Keep::Stored, Keep::As(Storage::F32), Keep::As(Storage::BF16), Keep::As(Storage::F16)] {
            let request = MatrixRequest {
                part: Some((1, 2)),
                rows: Some((1, 3)),
                order: Some(&[1, 0]),
                ..MatrixRequest::whole(name, 2, 64)
            };
            let m = c.load_matrix(&request, keep).unwrap();
            let mut row = vec![0.0; 64];
            for (i, from) in [(0, 5), (1, 4)] {
                m.row(i, &mut row);
                assert_eq!(row, floats[from * 64..(from + 1) * 64], "{name} {keep:?} row {i}");
            }
            let whole = c.load_matrix(&MatrixRequest::whole(name, 6, 64), keep).unwrap();
            whole.row(5, &mut row);
            assert_eq!(row, floats[5 * 64..], "{name} {keep:?}");
        }
        for (rows, order) in [((2, 3), None), ((0, 3), Some(&[0u32, 2][..])), ((usize::MAX, 3), None)] {
            let request =
                MatrixRequest { part: Some((0, 2)), rows: Some(rows), order, ..MatrixRequest::whole(name, 2, 64) };
            assert!(c.load_matrix(&request, Keep::Stored).is_err(), "{name} {rows:?}");
        }
        let request = MatrixRequest { part: Some((2, 2)), ..MatrixRequest::whole(name, 3, 64) };
        assert!(c.load_matrix(&request, Keep::Stored).is_err());
    }
}

/// Its rows cost no bytes, so a file could claim any number of them.
#[test]
fn a_matrix_without_elements_is_refused_at_once() {
    for kind in [0, 1, 8, 12] {
        let c = open(&small().tensor("t", &[0, 1 << 58], kind, Vec::new())).unwrap();
        assert_eq!(c.f32("t").unwrap(), [0.0; 0]);
        for keep in [Keep::Stored, Keep::As(Storage::F32)] {
            assert!(c.load_matrix(&MatrixRequest::whole("t", 1 << 58, 0), keep).is_err());
        }
    }
}

fn split(dir: &Path, change: impl Fn(usize, Gguf) -> Gguf) {
    for i in 0..3u16 {
        let mut file = Gguf::default();
        if i == 0 {
            file = file.str("general.architecture", "llama");
        }
        file = file.u16("split.no", i).u16("split.count", 3).raw("split.tensors.count", 5, &3i32.to_le_bytes());
        file = file.f32s(&format!("t{i}"), &[1], &[f32::from(i)]);
        change(i as usize, file).write(&dir.join(format!("m-{:05}-of-00003.gguf", i + 1)));
    }
}

#[test]
fn any_part_opens_all() {
    let dir = tempfile::tempdir().unwrap();
    split(dir.path(), |_, f| f);
    let part = |n: usize| dir.path().join(format!("m-{n:05}-of-00003.gguf"));
    for path in [part(1), part(2), part(3), dir.path().to_path_buf()] {
        for mode in [Mode::Mmap, Mode::Read] {
            let c = Checkpoint::open(&path, mode).unwrap();
            assert_eq!(c.names().collect::<Vec<_>>(), ["t0", "t1", "t2"]);
            assert_eq!(c.f32("t2").unwrap(), [2.0]);
            assert_eq!(c.gguf().unwrap().str("general.architecture"), Some("llama"));
        }
    }
    let fails = |word: &str| {
        for path in [part(1), part(3)] {
            if path.exists() {
                let error = Checkpoint::open(&path, Mode::Read).unwrap_err().to_string();
                assert!(error.contains(word), "{error}");
            }
        }
    };
    split(dir.path(), |i, f| if i == 1 { Gguf { keys: Vec::new(), ..f } } else { f });
    fails("split.no nothing");
    split(dir.path(), |i, f| if i == 2 { f.f32s("t0", &[1], &[0.0]) } else { f });
    fails("tensor t0 is there twice");
    split(dir.path(), |i, f| if i == 2 { f.f32s("more", &[1], &[0.0]) } else { f });
    fails("split.tensors.count says 3");
    split(dir.path(), |_, f| f);
    fs::remove_file(part(2)).unwrap();
    fails("m-00002-of-00003.gguf is not beside it");
    fs::rename(part(3), dir.path().join("other.gguf")).unwrap();
    let error = Checkpoint::open(&dir.path().join("other.gguf"), Mode::Read).unwrap_err().to_string();
    assert!(error.contains("part 3 of 3") && error.contains("names back"), "{error}");
}

#[test]
fn a_folder_with_one_model_opens_and_with_several_says_which() {
    let dir = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(dir.path(), Mode::Read).unwrap_err();
    assert!(error.to_string().contains("it is empty"), "{error}");
    small().write(&dir.path().join("a.gguf"));
    small().write(&dir.path().join("mmproj-a.gguf"));
    assert_eq!(Checkpoint::open(dir.path(), Mode::Read).unwrap().names().len(), 1);
    small().write(&dir.path().join("b.gguf"));
    let error = Checkpoint::open(dir.path(), Mode::Read).unwrap_err();
    assert!(error.to_string().contains("2 GGUF models") && error.to_string().contains("a.gguf, b.gguf"), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn broken_headers_are_one_sentence_with_a_place() {
    let count = |at: usize, value: u64| {
        let mut bytes = small().build();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    let version = |v: u32| Gguf { version: v, ..small() }.build();
    let f = |dims: &[u64], kind: u32| small().tensor("t", dims, kind, vec![0; 4096]).build();
    let twice = small().f32s("a", &[1], &[0.0]).build();
    let one_byte_short = {
        let mut bytes = small().build();
        bytes.pop();
        bytes
    };
    let bad_key = {
        let mut g = small();
        g.keys.push(("x".into(), [4u32.to_le_bytes(), [0; 4]].concat()));
        let mut bytes = g.build();
        let at = bytes.windows(2).position(|w| w == b"x\x04").unwrap();
        bytes[at] = 0xff;
        bytes
    };
    let overlap = {
        let mut bytes = small().f32s("z", &[1], &[0.0]).build();
        // The offset of the second tensor.
        let at = bytes.windows(9).position(|w| w == [string("z"), Vec::new()].concat()).unwrap() + 9 + 4 + 8 + 4;
        bytes[at..at + 8].copy_from_slice(&0u64.to_le_bytes());
        bytes
    };
    for (bytes, words) in [
        (count(8, 1 << 60), &["1152921504606846976 tensors (byte 8)", "left can hold"][..]),
        (count(16, u64::MAX), &["metadata entries (byte 16)"]),
        (version(1), &["version 1", "byte 4"]),
        (version(4), &["version 4"]),
        (version(3u32.swap_bytes()), &["big-endian"]),
        (b"FUGG\0\0\0\x03".to_vec(), &["big-endian"]),
        (b"ggjt\x01\0\0\0".to_vec(), &["before GGUF"]),
        (b"<html>".to_vec(), &["<htm", "byte 0"]),
        (Vec::new(), &["empty"]),
        (f(&[32], 200), &["tensor t (byte", "element type 200"]),
        (f(&[32], 4), &["element type 4"]),
        (f(&[33], 8), &["rows of 33", "blocks of 32 (Q8_0)"]),
        (f(&[], 0), &["0 dimensions"]),
        (f(&[1, 1, 1, 1, 1], 0), &["5 dimensions"]),
        (f(&[1 << 33, 1 << 33], 0), &["overflows"]),
        (f(&[1 << 33, 0, 1 << 33], 0), &["overflows"]),
        (f(&[5000], 0), &["past the end", "20000 bytes"]),
        (twice, &["tensor a", "twice"]),
        (overlap, &["overlaps"]),
        (one_byte_short, &["past the end"]),
        (bad_key, &["not UTF-8"]),
        (small().u32("k", 1).u32("k", 1).build(), &["key k", "twice"]),
        (small().u32("general.alignment", 3).build(), &["general.alignment"]),
        (small().raw("k", 7, &[2]).build(), &["truth value"]),
        (small().raw("k", 13, &[0]).build(), &["unknown type 13"]),
        (small().array("k", 9, 1, &[0; 64]).build(), &["array of arrays"]),
        (small().array("k", 8, 1 << 50, &[0; 64]).build(), &["1125899906842624 items"]),
        (small().array("k", 77, 1, &[0; 64]).build(), &["unknown type 77"]),
        (small().raw("k", 8, &(1u64 << 60).to_le_bytes()).build(), &["the file ends inside the value of k"]),
    ] {
        let error = open_bytes(&bytes).map(drop).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
    // Cut anywhere, a file is refused (its last byte belongs to a tensor).
    let whole = small().build();
    for n in 0..whole.len() {
        assert!(open_bytes(&whole[..n]).is_err(), "{n} bytes");
    }
}

/// Every type of the format, bit for bit as its own tools read it.
#[test]
fn every_block_type_is_read() {
    let Some(folder) = common::shared("ref/quant/gguf_blocks_a") else { return };
    let golden = Checkpoint::open(&folder.join("golden.safetensors"), Mode::Read).unwrap();
    let c = Checkpoint::open(&folder.join("blocks.gguf"), Mode::Mmap).unwrap();
    let mut seen = 0;
    for name in c.names() {
        let kind = c.info(name).unwrap().dtype.name();
        let want = golden.f32(&format!("{kind}.values")).unwrap();
        let shape = golden.info(&format!("{kind}.values")).unwrap().shape;
        assert_eq!(c.info(name).unwrap().shape, shape, "{name}");
        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&c.f32(name).unwrap()), bits(&want), "{name}");
        let m = c.load_matrix(&MatrixRequest::whole(name, shape[0], shape[1]), Keep::Stored).unwrap();
        let mut row = vec![0.0; shape[1]];
        m.row(2, &mut row);
        assert_eq!(bits(&row), bits(&want[2 * shape[1]..3 * shape[1]]), "{name}");
        seen += 1;
    }
    assert!(seen >= 24, "{seen}");
}
