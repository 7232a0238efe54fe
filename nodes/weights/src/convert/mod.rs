//! Checkpoints quantised once and kept: `oxiline models convert`.
//!
//! The result is a folder of safetensors files. A matrix `x` quantised to 8 bits is `x.q8` (i8
//! `[out, in]`) with `x.q8s` (f32 `[out, in / 32]`); to 4 bits `x.q4` (u8 `[out, in / 2]`, in each
//! block of 32 the low halves first, then the high ones) with `x.q4s` (f16 `[out, in / 32]`).
//! Embedding tables and heads lie in `model-tables-*` files, everything starts at multiples of
//! 16 KiB, and a file is at most 1 GiB unless one tensor alone is larger.

mod plan;
mod write;

use std::fs;
use std::path::{Path, PathBuf};

use crate::blob::Mode;
use crate::checkpoint::{Checkpoint, METADATA};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::gguf;

/// What matrices are quantised to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quant {
    /// 8-bit integers in blocks of 32 with an f32 scale.
    Q8,
    /// 4-bit integers in blocks of 32 with an f16 scale.
    Q4,
}

impl Quant {
    /// `q8` or `q4`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }
}

/// How a conversion is done.
#[derive(Debug, Clone, Copy)]
pub struct ConvertOptions {
    /// For matrices.
    pub quant: Quant,
    /// For embedding tables and heads; None keeps them as they are.
    pub tables: Option<Quant>,
}

impl ConvertOptions {
    /// The usual: tables, where a rounding error reaches every token, have 8 bits in either case.
    pub fn new(quant: Quant) -> Self {
        Self { quant, tables: Some(Quant::Q8) }
    }
}

/// What a conversion made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// Matrices that were quantised.
    pub quantised: usize,
    /// Tensors kept as they were.
    pub kept: usize,
    /// Bytes of the files with tensors.
    pub bytes: u64,
    /// Their number.
    pub files: usize,
}

/// Largest file copied from beside the weights.
const MAX_COPY: u64 = 256 << 20;

/// Writes the checkpoint at `source` (folder, file, GGUF) quantised into the new folder `out`. It
/// appears there whole or not at all. `progress(done, total)` counts bytes read; `false` stops.
///
/// # Errors
/// `out` exists, the checkpoint can't be read or is of a kind that isn't converted, a full disk.
pub fn convert(
    source: &Path,
    out: &Path,
    options: ConvertOptions,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Converted> {
    if fs::symlink_metadata(out).is_ok() {
        return Err(Error::new(
            ErrorKind::Io,
            format!("{}: is there already; name a new folder, nothing is overwritten", out.display()),
        ));
    }
    let checkpoint = Checkpoint::open(source, Mode::Mmap)?;
    refuse(&checkpoint, source)?;
    let plan = plan::Plan::new(&checkpoint, options).map_err(|e| e.at(source))?;
    let name = out.file_name().ok_or_else(|| Error::missing(format!("{}: is no name of a folder", out.display())))?;
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temp = Temp::new(parent.join(format!(".{}.{}.partial", name.to_string_lossy(), std::process::id())))?;
    let converted = write::shards(&checkpoint, &plan, &temp.0, progress)?;
    match checkpoint.gguf() {
        Some(metadata) => write::whole(&temp.0.join(METADATA), &gguf::header(metadata))?,
        None => copy_beside(&checkpoint, &temp.0)?,
    }
    fs::rename(&temp.0, out).map_err(|e| Error::io("move the result here", out, &e))?;
    std::mem::forget(temp);
    Ok(converted)
}

/// Kinds whose loaders want plain numbers.
fn refuse(checkpoint: &Checkpoint, source: &Path) -> Result<()> {
    if checkpoint.gguf().is_none() && checkpoint.has_file("config.json") {
        let config = checkpoint.config("config.json")?;
        if config["model_type"] == "whisper" {
            return Err(
                Error::unsupported("a Whisper model; it is quantised when it is loaded (--quant q8)").at(source)
            );
        }
    }
    if checkpoint.names().any(|n| matches!(checkpoint.info(n).map(|i| i.dtype), Ok(Dtype::Q8 | Dtype::Q4))) {
        return Err(Error::unsupported("was converted already; convert the model it was made of").at(source));
    }
    Ok(())
}

/// Configurations, tokenizer and templates.
fn copy_beside(checkpoint: &Checkpoint, to: &Path) -> Result<()> {
    let folder = checkpoint.folder();
    let list = fs::read_dir(folder).map_err(|e| Error::io("list it", folder, &e))?;
    for entry in list.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let wanted = [".json", ".txt", ".model", ".jinja"].iter().any(|e| name.ends_with(e));
        let path = entry.path();
        if !wanted || name.ends_with(".index.json") || name.starts_with('.') || !path.is_file() {
            continue;
        }
        let mut bytes = crate::blob::read_small(&path, MAX_COPY)?;
        if name == "config.json" {
            // What it says of MLX's quantisation is no longer so.
            let mut config = checkpoint.config(&name)?;
            if let Some(map) = config.as_object_mut() {
                let before = map.len();
                for key in ["quantization", "quantization_config"] {
                    map.shift_remove(key);
                }
                if map.len() != before {
                    bytes =
                        serde_json::to_vec_pretty(&config).map_err(|e| Error::malformed(e.to_string()).at(&path))?;
                }
            }
        }
        write::whole(&to.join(&name), &bytes)?;
    }
    Ok(())
}

/// A folder that goes away again unless it is forgotten.
struct Temp(PathBuf);

impl Temp {
    fn new(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path).map_err(|e| Error::io("make this folder", &path, &e))?;
        Ok(Self(path))
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}
