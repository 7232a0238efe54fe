//! Safetensors files made here: what must load, what must not.

use std::fs;
use std::path::Path;

use oxiline_weights::{Checkpoint, Dtype, ErrorKind, Mode};

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out
}

const TWO: &str = r#"{"__metadata__":{"format":"pt"},
    "a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},
    "b":{"dtype":"F16","shape":[2],"data_offsets":[16,20]},
    "e":{"dtype":"BF16","shape":[0,7],"data_offsets":[20,20]},
    "h":{"dtype":"F16","shape":[1,2],"data_offsets":[20,24]}}"#;

fn two() -> Vec<u8> {
    let mut data: Vec<u8> = [1.0f32, -2.0, 0.5, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    for _ in 0..2 {
        data.extend([0x00, 0x3c, 0x00, 0xc0]);
    }
    file(TWO, &data)
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn reads_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "model.safetensors", &two());
    write(dir.path(), "config.json", br#"{"d_model": 384}"#);
    for mode in [Mode::Mmap, Mode::Read] {
        let c = Checkpoint::open(dir.path(), mode).unwrap();
        assert_eq!(c.names().collect::<Vec<_>>(), ["a", "b", "e", "h"]);
        assert_eq!(c.f32("a").unwrap(), [1.0, -2.0, 0.5, 4.0]);
        assert_eq!(c.f32("b").unwrap(), [1.0, -2.0]);
        assert_eq!(c.bits16("b", Dtype::F16).unwrap(), [0x3c00, 0xc000]);
        assert!(c.bits16("b", Dtype::BF16).unwrap_err().to_string().contains("holds F16"));
        assert!(c.f32("e").unwrap().is_empty());
        let info = c.info("b").unwrap();
        assert_eq!((info.dtype, info.shape.as_slice(), info.bytes), (Dtype::F16, &[2][..], 4));
        assert_eq!(info.offset, 8 + TWO.len() + 16);
        assert_eq!(c.config("config.json").unwrap()["d_model"], 384);
        let missing = c.f32("model.a").unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(c.matrix("a", 2, 3, oxiline_kernels::Storage::F32).is_err_and(|e| e.to_string().contains("[2, 3]")));
        let m = c.matrix("a", 2, 2, oxiline_kernels::Storage::F32).unwrap();
        let mut row = [0.0; 2];
        m.row(1, &mut row);
        assert_eq!(row, [0.5, 4.0]);
        let m = c.matrix("h", 1, 2, oxiline_kernels::Storage::F16).unwrap();
        m.row(0, &mut row);
        assert_eq!(row, [1.0, -2.0]);
    }
}

#[test]
fn shards_come_through_their_index() {
    let dir = tempfile::tempdir().unwrap();
    let one = |name: &str, v: f32| {
        file(&format!(r#"{{"{name}":{{"dtype":"F32","shape":[],"data_offsets":[0,4]}}}}"#), &v.to_le_bytes())
    };
    write(dir.path(), "s1.safetensors", &one("x", 1.0));
    write(dir.path(), "s2.safetensors", &one("y", 2.0));
    let index = |map: &str| format!(r#"{{"metadata":{{}},"weight_map":{map}}}"#);
    let put = |map: &str| write(dir.path(), "model.safetensors.index.json", index(map).as_bytes());
    put(r#"{"x":"s1.safetensors","y":"s2.safetensors"}"#);
    let c = Checkpoint::open(dir.path(), Mode::Read).unwrap();
    assert_eq!((c.f32("x").unwrap()[0], c.f32("y").unwrap()[0]), (1.0, 2.0));
    for (map, word) in [
        (r#"{"x":"../s1.safetensors"}"#, "outside this folder"),
        (r#"{"x":"/etc/passwd"}"#, "outside this folder"),
        (r#"{"x":".."}"#, "outside this folder"),
        (r#"{"x":"s3.safetensors"}"#, "is not there"),
        (r#"{"z":"s1.safetensors"}"#, "weight_map puts it"),
        (r#"[]"#, "weight_map"),
    ] {
        put(map);
        let error = Checkpoint::open(dir.path(), Mode::Read).unwrap_err().to_string();
        assert!(error.contains(word), "{map}: {error}");
    }
}

#[test]
fn broken_headers_are_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let t = |rest: &str| format!(r#"{{"a":{{{rest}}}}}"#);
    let cases: &[(Vec<u8>, &str)] = &[
        (vec![], "too few"),
        (vec![0xff; 8], "above the limit"),
        ((1000u64).to_le_bytes().to_vec(), "past the end"),
        (file("[]", &[]), "not a JSON object"),
        (file("{\"a\":", &[]), "header is broken"),
        (file(&t(r#""dtype":"F99","shape":[1],"data_offsets":[0,4]"#), &[0; 4]), "F99"),
        (file(&t(r#""dtype":"F32","shape":[2],"data_offsets":[0,4]"#), &[0; 4]), "takes 8 bytes"),
        (file(&t(r#""dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]"#), &[]), "overflows"),
        (file(&t(r#""dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]"#), &[]), "overflows"),
        (file(&t(r#""dtype":"F32","shape":[1],"data_offsets":[4,0]"#), &[0; 4]), "not inside"),
        (file(&t(r#""dtype":"F32","shape":[1],"data_offsets":[0,4]"#), &[0; 5]), "belong to no tensor"),
        (
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
                &[0; 6],
            ),
            "overlaps",
        ),
        (
            file(
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
                &[0; 2],
            ),
            "twice",
        ),
        (file(&t(r#""x\ny":1"#), &[]), "unknown field `x\\ny`"),
        (b"GGUF\x03\0\0\0".to_vec(), "the file ends inside"),
    ];
    for (bytes, word) in cases {
        write(dir.path(), "model.safetensors", bytes);
        for mode in [Mode::Mmap, Mode::Read] {
            let error = Checkpoint::open(dir.path(), mode).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("model.safetensors"), "{word}: {error}");
        }
    }
}
