//! Checkpoints written quantised and read back.

mod common;

use std::fs;
use std::path::Path;

use common::Gguf;
use oxiline_kernels::{Matrix, Storage};
use oxiline_weights::convert::{ConvertOptions, Quant, convert};
use oxiline_weights::{Checkpoint, Dtype, ErrorKind, Keep, MatrixRequest, Mode};

/// Numbers without a pattern.
fn values(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next() * next()).collect()
}

const TENSORS: [(&str, [usize; 2]); 4] = [
    ("model.embed_tokens.weight", [40, 64]),
    ("model.layers.0.self_attn.q_proj.weight", [48, 64]),
    ("model.layers.0.mlp.gate.weight", [4, 64]),
    ("model.layers.0.odd.weight", [8, 40]),
];

fn safetensors(folder: &Path) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut add = |name: &str, shape: &[usize], seed: u32| {
        let values = values(seed, shape.iter().product());
        let from = data.len();
        data.extend(values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()));
        let offsets = [from, data.len()];
        header.insert(name.into(), serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": offsets}));
    };
    for (i, (name, shape)) in TENSORS.iter().enumerate() {
        add(name, shape, i as u32);
    }
    add("model.norm.weight", &[64], 9);
    let header = serde_json::Value::Object(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    fs::write(folder.join("model.safetensors"), out).unwrap();
    fs::write(folder.join("config.json"), r#"{"model_type":"llama","quantization":{"bits":4}}"#).unwrap();
    fs::write(folder.join("chat_template.jinja"), "{{ messages }}").unwrap();
}

fn rows(m: &Matrix) -> Vec<u32> {
    let mut out = vec![0.0; m.out_dim() * m.in_dim()];
    out.chunks_exact_mut(m.in_dim()).enumerate().for_each(|(i, row)| m.row(i, row));
    out.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn what_is_read_back_is_what_quantising_at_load_gives() {
    for (quant, storage, dtype) in [(Quant::Q8, Storage::Q8, Dtype::Q8), (Quant::Q4, Storage::Q4, Dtype::Q4)] {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        safetensors(&from);
        let mut seen = Vec::new();
        let made = convert(&from, &to, ConvertOptions::new(quant), &mut |done, total| {
            seen.push((done, total));
            true
        })
        .unwrap();
        assert_eq!((made.quantised, made.kept, made.files), (2, 3, 2));
        assert_eq!(seen.last().map(|(d, t)| d == t), Some(true));
        let (source, c) = (Checkpoint::open(&from, Mode::Read).unwrap(), Checkpoint::open(&to, Mode::Mmap).unwrap());
        let mut names: Vec<&str> = c.names().collect();
        let mut wanted: Vec<&str> = source.names().collect();
        names.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(names, wanted);
        let name = TENSORS[1].0;
        assert_eq!((c.info(name).unwrap().dtype, c.info(name).unwrap().shape), (dtype, vec![48, 64]));
        assert_eq!(c.info(TENSORS[0].0).unwrap().dtype, Dtype::Q8, "tables have 8 bits");
        for (name, storage) in [(name, storage), (TENSORS[0].0, Storage::Q8)] {
            let [out_dim, in_dim] = source.info(name).unwrap().shape[..] else { panic!() };
            for (rows_of, order) in [(None, None), (Some((1, out_dim)), Some(&[1u32, 0][..]))] {
                let n = if rows_of.is_some() { 2 } else { out_dim };
                let request = MatrixRequest { rows: rows_of, order, ..MatrixRequest::whole(name, n, in_dim) };
                let stored = c.load_matrix(&request, Keep::Stored).unwrap();
                let now = source.load_matrix(&request, Keep::As(storage)).unwrap();
                assert_eq!(rows(&stored), rows(&now), "{name}");
                let floats = c.load_matrix(&request, Keep::As(Storage::F32)).unwrap();
                assert_eq!(rows(&floats), rows(&now), "{name} as floats");
            }
        }
        for name in [TENSORS[2].0, TENSORS[3].0, "model.norm.weight"] {
            assert_eq!(c.info(name).unwrap().dtype, Dtype::BF16);
            assert_eq!(c.bytes(name).unwrap(), source.bytes(name).unwrap());
            assert_eq!(c.info(name).unwrap().offset % (16 << 10), 0, "{name} is aligned");
        }
        assert_eq!(fs::read(to.join("chat_template.jinja")).unwrap(), b"{{ messages }}");
        assert_eq!(c.config("config.json").unwrap(), serde_json::json!({"model_type": "llama"}));
        assert!(to.join("model-tables-00001-of-00001.safetensors").is_file());
        // Other readers find no fault in the files.
        let bytes = fs::read(to.join("model-00001-of-00001.safetensors")).unwrap();
        safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let again = convert(&to, &dir.path().join("again"), ConvertOptions::new(quant), &mut |_, _| true);
        assert!(again.unwrap_err().to_string().contains("converted already"));
    }
}

#[test]
fn a_gguf_model_keeps_its_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let floats = values(3, 64 * 64);
    let file = Gguf { alignment: 64, ..Gguf::default() }
        .str("general.architecture", "llama")
        .u32("general.alignment", 64)
        .strings("tokenizer.ggml.tokens", &["a", "b"])
        .array("tokenizer.ggml.scores", 6, 1, &0.5f32.to_le_bytes())
        .array("tokenizer.ggml.token_type", 5, 1, &3i32.to_le_bytes())
        .raw("f", 6, &0.1f32.to_le_bytes())
        .raw("b", 7, &[1])
        .f32s("blk.0.attn_q.weight", &[64, 64], &floats)
        .f32s("output_norm.weight", &[64], &floats[..64]);
    let path = file.write(&dir.path().join("m.gguf"));
    let to = dir.path().join("to");
    convert(&path, &to, ConvertOptions::new(Quant::Q8), &mut |_, _| true).unwrap();
    let (source, c) = (Checkpoint::open(&path, Mode::Read).unwrap(), Checkpoint::open(&to, Mode::Read).unwrap());
    let (mut before, after) = (source.gguf().unwrap().clone(), c.gguf().unwrap());
    before.0.remove("general.alignment");
    assert_eq!(&before, after);
    let request = MatrixRequest::whole("blk.0.attn_q.weight", 64, 64);
    let now = source.load_matrix(&request, Keep::As(Storage::Q8)).unwrap();
    assert_eq!(rows(&c.load_matrix(&request, Keep::Stored).unwrap()), rows(&now));
    assert_eq!(c.f32("output_norm.weight").unwrap(), floats[..64]);
}

#[test]
fn nothing_is_overwritten_and_nothing_half_written_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    safetensors(&from);
    let options = ConvertOptions::new(Quant::Q8);
    let error = convert(&from, &to, options, &mut |done, _| done < 1000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["from"]);
    fs::create_dir(&to).unwrap();
    let error = convert(&from, &to, options, &mut |_, _| true).unwrap_err();
    assert!(error.to_string().contains("is there already"), "{error}");
    assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
    let error = convert(&from, &dir.path().join("no/such"), options, &mut |_, _| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
