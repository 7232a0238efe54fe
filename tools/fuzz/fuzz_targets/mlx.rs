#![no_main]
mod common;

/// A weight of four bits and one of three, for whatever the configuration says of them.
fn file() -> Vec<u8> {
    let header = r#"{"a.weight":{"dtype":"U32","shape":[4,8],"data_offsets":[0,128]},
        "a.scales":{"dtype":"BF16","shape":[4,1],"data_offsets":[128,136]},
        "a.biases":{"dtype":"BF16","shape":[4,1],"data_offsets":[136,144]},
        "b.weight":{"dtype":"U32","shape":[2,6],"data_offsets":[144,192]},
        "b.scales":{"dtype":"F16","shape":[2,1],"data_offsets":[192,196]},
        "b.biases":{"dtype":"F16","shape":[2,1],"data_offsets":[196,200]}}"#;
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(0..200u8);
    out
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(config) = serde_json::from_slice(bytes) {
        common::read("m.safetensors", &file(), Some(config));
    }
});
