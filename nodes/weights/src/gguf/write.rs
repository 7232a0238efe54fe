//! Metadata back into bytes: a GGUF file without tensors.

use super::metadata::{Metadata, Value};

/// The file that holds this metadata, without what is about the tensors and files it came with.
pub(crate) fn header(metadata: &Metadata) -> Vec<u8> {
    let kept = || metadata.0.iter().filter(|(k, _)| !k.starts_with("split.") && *k != "general.alignment");
    let mut out = super::MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend((kept().count() as u64).to_le_bytes());
    for (key, value) in kept() {
        string(&mut out, key);
        put(&mut out, value);
    }
    out
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put(out: &mut Vec<u8>, value: &Value) {
    let mut plain = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U64(v) => plain(10, &v.to_le_bytes()),
        Value::I64(v) => plain(11, &v.to_le_bytes()),
        Value::F64(v) => plain(12, &v.to_le_bytes()),
        Value::Bool(v) => plain(7, &[u8::from(*v)]),
        Value::String(v) => {
            out.extend(8u32.to_le_bytes());
            string(out, v);
        }
        Value::Strings(v) => {
            array(out, 8, v.len());
            v.iter().for_each(|v| string(out, v));
        }
        Value::U64s(v) => {
            array(out, 10, v.len());
            v.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Value::I64s(v) => {
            array(out, 11, v.len());
            v.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Value::F32s(v) => {
            array(out, 6, v.len());
            v.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        Value::Bools(v) => {
            array(out, 7, v.len());
            out.extend(v.iter().map(|v| u8::from(*v)));
        }
    }
}

fn array(out: &mut Vec<u8>, kind: u32, len: usize) {
    out.extend(9u32.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}
