//! MLX's quantised weights against what MLX itself makes of them.

mod common;

use std::fs;
use std::path::Path;

use oxiline_kernels::{Matrix, Storage};
use oxiline_weights::{Checkpoint, Dtype, Keep, MatrixRequest, Mode};
use serde_json::{Value, json};

const GOLDEN: &str = "tests/fixtures/mlx/affine.safetensors";

/// The golden file as a model of which `config.json` says this.
fn model(config: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    fs::copy(golden, dir.path().join("model.safetensors")).unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    dir
}

/// Bits and group of each weight of the file.
const WEIGHTS: [(&str, u8, u32); 10] = [
    ("q4_g32", 4, 32),
    ("q4_g64", 4, 64),
    ("q4_g128", 4, 128),
    ("q8_g32", 8, 32),
    ("q8_g64", 8, 64),
    ("q8_g128", 8, 128),
    ("q2_g64", 2, 64),
    ("q3_g64", 3, 64),
    ("q5_g64", 5, 64),
    ("q6_g64", 6, 64),
];

fn config() -> Value {
    let mut quantization = json!({"bits": 4, "group_size": 64, "mode": "affine"});
    for (name, bits, group) in WEIGHTS {
        quantization[name] = json!({"bits": bits, "group_size": group});
    }
    json!({"quantization": quantization})
}

fn rows(m: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; m.out_dim() * m.in_dim()];
    out.chunks_exact_mut(m.in_dim()).enumerate().for_each(|(i, row)| m.row(i, row));
    out
}

#[test]
fn every_width_and_group_gives_mlx_s_own_values() {
    let dir = model(&config());
    let c = Checkpoint::open(dir.path(), Mode::Mmap).unwrap();
    for (name, bits, group) in WEIGHTS {
        let tensor = format!("{name}.weight");
        let info = c.info(&tensor).unwrap();
        assert_eq!((info.dtype, info.shape), (Dtype::Affine { bits, group }, vec![12, 256]), "{name}");
        assert!(!c.contains(&format!("{name}.scales")) && !c.names().any(|n| n.ends_with(".biases")));
        let golden = c.f32(&format!("{name}.values")).unwrap();
        let largest = golden.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let close = |values: &[f32], what: &str| {
            assert_eq!(values.len(), golden.len());
            let worst = values.iter().zip(&golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 2e-7 * largest, "{name} {what}: {worst} of {largest}");
        };
        let values = c.f32(&tensor).unwrap();
        close(&values, "f32");
        for keep in [Keep::Stored, Keep::As(Storage::F32)] {
            let m = c.load_matrix(&MatrixRequest::whole(&tensor, 12, 256), keep).unwrap();
            close(&rows(&m), "matrix");
            let request =
                MatrixRequest { rows: Some((3, 12)), order: Some(&[2, 0, 1]), ..MatrixRequest::whole(&tensor, 3, 256) };
            let got = rows(&c.load_matrix(&request, keep).unwrap());
            for (i, from) in [5, 3, 4].into_iter().enumerate() {
                assert_eq!(got[i * 256..(i + 1) * 256], values[from * 256..(from + 1) * 256], "{name} {keep:?}");
            }
        }
    }
}

#[test]
fn what_is_not_quantised_stays_as_it_is() {
    let mut config = config();
    config["quantization"]["q4_g32"] = json!(false);
    let dir = model(&config);
    let c = Checkpoint::open(dir.path(), Mode::Read).unwrap();
    assert_eq!(c.info("q4_g32.weight").unwrap().dtype, Dtype::U32);
    assert!(c.contains("q4_g32.scales"));
    // Another tool's quantisation is not MLX's.
    let dir = model(&json!({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64}}));
    let c = Checkpoint::open(dir.path(), Mode::Read).unwrap();
    assert_eq!(c.info("q4_g64.weight").unwrap().dtype, Dtype::U32);
    // The other key is read as well.
    let mut config = self::config();
    config["quantization_config"] = config["quantization"].take();
    config.as_object_mut().unwrap().remove("quantization");
    let dir = model(&config);
    let c = Checkpoint::open(dir.path(), Mode::Read).unwrap();
    assert_eq!(c.info("q3_g64.weight").unwrap().shape, [12, 256]);
}

#[test]
fn configurations_that_do_not_fit_are_refused() {
    for (key, value, word) in [
        ("bits", json!(7), "7 bits"),
        ("bits", json!(u64::MAX), "bits in groups"),
        ("bits", json!("4"), "no whole number"),
        ("bits", json!(8), "does not fit"),
        ("group_size", json!(0), "groups of 0"),
        ("group_size", json!(u64::MAX), "groups of"),
        ("group_size", json!(32), "does not fit"),
        ("mode", json!("mxfp4"), "mxfp4"),
    ] {
        let mut config = config();
        config["quantization"]["q4_g64"][key] = value.clone();
        let dir = model(&config);
        let error = Checkpoint::open(dir.path(), Mode::Read).map(drop).unwrap_err().to_string();
        assert!(error.contains(word) && !error.contains('\n'), "{key} {value}: {error}");
    }
}

/// The models of the kit: every quantised tensor opens under its own name.
#[test]
fn whole_models_open() {
    for name in ["mlx4-qwen3", "mlx4-gemma3", "mlx4-gemma4-moe", "mlx6-qwen3", "mlx8-qwen3"] {
        let Some(folder) = common::shared(&format!("ref/text/{name}")) else { continue };
        let case: Value = serde_json::from_slice(&fs::read(folder.join("case.json")).unwrap()).unwrap();
        let c = Checkpoint::open(&folder, Mode::Mmap).unwrap();
        let quantised = c.names().filter(|n| c.info(n).unwrap().dtype.is_quantised()).count();
        let wanted = &case["quantized_tensors"];
        let wanted = wanted.as_u64().map_or_else(|| wanted.as_array().unwrap().len(), |n| n as usize);
        assert_eq!(quantised, wanted, "{name}");
        for tensor in c.names() {
            let (info, values) = (c.info(tensor).unwrap(), c.f32(tensor).unwrap());
            assert_eq!(values.len(), info.shape.iter().product::<usize>(), "{name} {tensor}");
            assert!(values.iter().all(|v| v.is_finite()), "{name} {tensor}");
        }
    }
}
