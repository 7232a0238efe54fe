//! One checkpoint in every kind of file: the same bits come out.

mod common;

use std::fs;
use std::path::Path;

use common::{clip, fixture};
use oxiline_speech::whisper::{Features, Feed, LoadOptions, Whisper};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

/// A folder with the fixture's configurations and no weights.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"] {
        fs::copy(fixture("whisper_en").join(name), dir.path().join(name)).unwrap();
    }
    dir
}

/// Logits of the first step on a clip.
fn logits(folder: &Path) -> Vec<f32> {
    let model = Whisper::load(folder, &LoadOptions::default()).unwrap();
    let mel = Features::new(model.config.mel_bins).mel(&clip("en_a"));
    let encoded = model.encode(&[&mel.window(0)], &|| false).unwrap().remove(0);
    let mut stream = model.start(&encoded).unwrap();
    let start = [model.config.ids.start];
    let mut feeds = [Feed::new(&mut stream, &start)];
    model.step(&mut feeds).unwrap();
    std::mem::take(&mut feeds[0].logits)
}

#[test]
fn shards_and_torch_archives_load_like_one_safetensors_file() {
    let bytes = fs::read(fixture("whisper_en/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<(String, TensorView)> = tensors.tensors();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let wanted = logits(&fixture("whisper_en"));

    let shards = folder();
    let (first, second) = all.split_at(all.len() / 2);
    let mut map = serde_json::Map::new();
    for (i, part) in [first, second].into_iter().enumerate() {
        let name = format!("model-0000{}-of-00002.safetensors", i + 1);
        for (tensor, _) in part {
            map.insert(tensor.clone(), name.clone().into());
        }
        let part = part.iter().map(|(n, v)| (n, v));
        fs::write(shards.path().join(&name), safetensors::serialize(part, None).unwrap()).unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map }).to_string();
    fs::write(shards.path().join("model.safetensors.index.json"), index).unwrap();
    assert!(logits(shards.path()) == wanted, "shards");

    let archive = folder();
    fs::write(archive.path().join("pytorch_model.bin"), torch(&all)).unwrap();
    assert!(logits(archive.path()) == wanted, "torch archive");

    fs::remove_file(shards.path().join("model-00002-of-00002.safetensors")).unwrap();
    let said = Whisper::load(shards.path(), &LoadOptions::default()).err().unwrap().to_string();
    assert!(said.contains("model-00002-of-00002.safetensors"), "{said}");
}

/// What `torch.save` writes of a state dict of float32 tensors: a zip of a pickle and raw storages.
fn torch(tensors: &[(String, TensorView)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.push(b'X');
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    }
    fn number(out: &mut Vec<u8>, value: usize) {
        out.push(b'J');
        out.extend((value as u32).to_le_bytes());
    }
    fn tuple(out: &mut Vec<u8>, values: &[usize]) {
        out.push(b'(');
        values.iter().for_each(|v| number(out, *v));
        out.push(b't');
    }
    let mut pickle = b"\x80\x02}(".to_vec();
    let mut records = vec![("archive/data.pkl".to_string(), Vec::new())];
    for (key, (name, view)) in tensors.iter().enumerate() {
        assert_eq!(view.dtype(), safetensors::Dtype::F32);
        text(&mut pickle, name);
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut pickle, "storage");
        pickle.extend(b"ctorch\nFloatStorage\n");
        text(&mut pickle, &key.to_string());
        text(&mut pickle, "cpu");
        let shape = view.shape();
        number(&mut pickle, shape.iter().product());
        pickle.extend(b"tQ");
        number(&mut pickle, 0);
        tuple(&mut pickle, shape);
        let strides: Vec<usize> = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
        tuple(&mut pickle, &strides);
        pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        records.push((format!("archive/data/{key}"), view.data().to_vec()));
    }
    pickle.extend(b"u.");
    records[0].1 = pickle;
    records.push(("archive/version".into(), b"3\n".to_vec()));
    zip(&records)
}

/// A zip archive of stored records.
fn zip(records: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in records {
        let mut crc = flate2::Crc::new();
        crc.update(data);
        let mut head = Vec::new();
        head.extend([20u16, 0, 0, 0, 33].iter().flat_map(|v| v.to_le_bytes()));
        head.extend([crc.sum(), data.len() as u32, data.len() as u32].iter().flat_map(|v| v.to_le_bytes()));
        head.extend([name.len() as u16, 0].iter().flat_map(|v| v.to_le_bytes()));
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&head);
        directory.extend([0u8; 10]);
        directory.extend((out.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&head);
        out.extend(name.as_bytes());
        out.extend(data);
    }
    let (start, count) = (out.len() as u32, records.len() as u16);
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([count, count].iter().flat_map(|v| v.to_le_bytes()));
    out.extend([directory.len() as u32, start].iter().flat_map(|v| v.to_le_bytes()));
    out.extend([0u8; 2]);
    out
}
