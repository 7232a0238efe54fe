//! What the program's tests share: running the binary, fixtures, clips.
#![allow(dead_code)] // each test file uses its part

pub mod echo;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The workspace's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The speech crate's fixtures: tiny seeded checkpoints with their reference results, clips.
pub fn speech(path: &str) -> PathBuf {
    root().join("nodes/speech/tests/fixtures").join(path)
}

/// The program, with no network and no cache of the person who runs the tests.
pub fn oxiline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxiline"));
    command.arg("--offline").env_remove("OXILINE_LOG").env("OXILINE_CACHE", root().join("target/no-such-cache"));
    command
}

/// Runs the program.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    oxiline().args(args).output().expect("the program starts")
}

/// Standard output of a run that must succeed.
pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// The sentence of a run that must fail with exit code 1: one line, from `oxiline: `.
pub fn sentence(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "exit code of: {text}");
    assert!(!text.contains("panicked"), "{text}");
    text.trim_end().to_string()
}

/// A 16 kHz 16-bit WAV fixture as samples.
pub fn clip(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(speech(&format!("clips/{name}.wav"))).expect("clip");
    let data = bytes.windows(4).position(|w| w == b"data").expect("data chunk") + 8;
    bytes[data..].as_chunks::<2>().0.iter().map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0).collect()
}

/// A clip or a recipe of clips.json that joins clips and silences.
pub fn recipe(name: &str) -> Vec<f32> {
    let recipes = json(&speech("clips/clips.json"))["recipes"].take();
    let Some(parts) = recipes[name].as_array() else { return clip(name) };
    let mut samples = Vec::new();
    for part in parts {
        let number = |i: usize| part[i].as_u64().expect("a number") as usize;
        match part[0].as_str().expect("a name") {
            "silence" => samples.resize(samples.len() + number(1), 0.0),
            name => samples.extend_from_slice(&clip(name)[number(1)..number(2)]),
        }
    }
    samples
}

/// A JSON file.
pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("JSON file")).expect("JSON")
}

/// Writes `samples` as a safetensors file.
pub fn write_samples(path: &Path, samples: &[f32]) {
    let bytes: Vec<u8> = samples.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![samples.len()], &bytes).expect("view");
    std::fs::write(path, safetensors::serialize([("samples", view)], None).expect("serialised")).expect("written");
}

/// Writes 16 kHz mono 16-bit WAV.
pub fn write_wav(path: &Path, samples: &[f32]) {
    let data: Vec<u8> = samples.iter().flat_map(|v| ((v * 32767.0).round() as i16).to_le_bytes()).collect();
    let mut wav = Vec::new();
    wav.extend_from_slice(b"RIFF");
    wav.extend_from_slice(&(36 + data.len() as u32).to_le_bytes());
    wav.extend_from_slice(b"WAVEfmt ");
    wav.extend_from_slice(&16u32.to_le_bytes());
    for (value, size) in [(1u32, 2), (1, 2), (16_000, 4), (32_000, 4), (2, 2), (16, 2)] {
        wav.extend_from_slice(&value.to_le_bytes()[..size]);
    }
    wav.extend_from_slice(b"data");
    wav.extend_from_slice(&(data.len() as u32).to_le_bytes());
    wav.extend_from_slice(&data);
    std::fs::write(path, wav).expect("written");
}

/// Tensors of a safetensors file.
pub struct Tensors(Vec<u8>);

impl Tensors {
    /// Reads the file.
    pub fn read(path: &Path) -> Self {
        Self(std::fs::read(path).expect("safetensors file"))
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("safetensors");
        file.tensor(name).unwrap_or_else(|_| panic!("tensor {name}")).data().to_vec()
    }

    /// Its shape.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("safetensors");
        file.tensor(name).unwrap_or_else(|_| panic!("tensor {name}")).shape().to_vec()
    }

    /// f32 values.
    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    /// u8 values.
    pub fn u8(&self, name: &str) -> Vec<u8> {
        self.bytes(name)
    }

    /// i64 values.
    pub fn i64(&self, name: &str) -> Vec<i64> {
        self.bytes(name).as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
    }

    /// i32 values.
    pub fn i32(&self, name: &str) -> Vec<i64> {
        self.bytes(name).as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect()
    }
}

/// Largest absolute difference; the lengths must be equal.
pub fn max_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Runs the program with text on its standard input.
pub fn fed<S: AsRef<std::ffi::OsStr>>(args: &[S], input: &str) -> Output {
    let mut child = oxiline()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("stdin").write_all(input.as_bytes()).expect("written");
    child.wait_with_output().expect("it ends")
}
