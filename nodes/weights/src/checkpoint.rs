//! A model's tensors by name, whatever files they lie in.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use oxiline_kernels::{Matrix, Storage};

use crate::blob::{Blob, Mode, read_small};
use crate::dtype::Dtype;
use crate::error::{Error, Result, shown};
use crate::gguf::{self, Metadata};
use crate::parts::{self, Parts};
use crate::sniff::{hint, only_gguf, sniff};

/// Most dimensions a tensor may have (numpy's and torch's own limit).
pub(crate) const MAX_RANK: usize = 64;
/// The metadata of the GGUF file that a converted checkpoint was made of: a GGUF file without tensors.
pub(crate) const METADATA: &str = "oxiline-metadata.gguf";
/// Largest JSON file read beside a checkpoint.
const MAX_JSON: u64 = 256 << 20;

/// Where a tensor's elements are.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Index into the checkpoint's blobs.
    pub blob: usize,
    /// First byte inside the blob.
    pub offset: usize,
    /// Bytes of the tensor when contiguous.
    pub bytes: usize,
    /// Steps in elements, for a view that isn't contiguous.
    pub strides: Option<Vec<usize>>,
    /// The tensors that belong to it, of a weight that is stored as several.
    pub parts: Option<Box<Parts>>,
}

/// What is known of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type as stored.
    pub dtype: Dtype,
    /// Shape, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The file it lies in.
    pub file: PathBuf,
    /// First byte in that file (in the unpacked record, for a compressed one).
    pub offset: usize,
    /// Bytes of its elements, with those of the scales and offsets stored beside them.
    pub bytes: usize,
}

/// How a matrix is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// In the format of the file: halves, quantised blocks, MLX groups.
    Stored,
    /// Dequantised where the file is quantised, then as this.
    As(Storage),
}

/// A linear layer's weight asked of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct MatrixRequest<'a> {
    /// The tensor. For MLX the name with `.weight`, scales and biases are found beside it.
    pub name: &'a str,
    /// Rows of the result.
    pub out_dim: usize,
    /// Columns.
    pub in_dim: usize,
    /// For a tensor of stacked matrices `[count, rows, in]`: which one, of how many.
    pub part: Option<(usize, usize)>,
    /// The first row of the result inside the matrix `[rows, in]`, when it has more than `out_dim`
    /// (fused projections); rows in all.
    pub rows: Option<(usize, usize)>,
    /// Row `i` of the result is row `order[i]` of what the above describe (undoing a conversion's permutation).
    pub order: Option<&'a [u32]>,
}

impl<'a> MatrixRequest<'a> {
    /// The whole tensor `[out_dim, in_dim]`.
    pub fn whole(name: &'a str, out_dim: usize, in_dim: usize) -> Self {
        Self { name, out_dim, in_dim, part: None, rows: None, order: None }
    }
}

/// An open checkpoint: tensors by name.
pub struct Checkpoint {
    /// Folder of the checkpoint, where its configurations are.
    folder: PathBuf,
    blobs: Vec<(PathBuf, Blob)>,
    names: Vec<String>,
    entries: HashMap<String, Entry>,
    gguf: Option<Metadata>,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Checkpoint").field("folder", &self.folder).field("tensors", &self.names.len()).finish()
    }
}

impl Checkpoint {
    /// Opens a folder (`model.safetensors`, `model.safetensors.index.json`, `pytorch_model.bin`
    /// or `pytorch_model.bin.index.json`, in this order, else the only GGUF model) or one file. Of
    /// a GGUF model in several files any one opens all.
    ///
    /// # Errors
    /// Missing files, files that break their format, formats that aren't read.
    pub fn open(path: &Path, mode: Mode) -> Result<Self> {
        let mut out = Self::open_files(path, mode)?;
        let folder = &out.folder;
        let config = || {
            let path = folder.join("config.json");
            if path.is_file() { read_config(&path).map(Some) } else { Ok(None) }
        };
        parts::join(&mut out.names, &mut out.entries, config).map_err(|e| e.at(path))?;
        Ok(out)
    }

    /// A checkpoint of one file that is in memory, called `name` (its end may say the format), with
    /// what its `config.json` says. Nothing is read from the disk but other parts of a split model,
    /// if `name` is the path of one.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_bytes(name: &Path, bytes: Vec<u8>, config: Option<serde_json::Value>) -> Result<Self> {
        let mut out = Self::empty(name.parent().unwrap_or(Path::new("")));
        out.add_blob(name, Blob::Owned(bytes), Mode::Read, None)?;
        parts::join(&mut out.names, &mut out.entries, || Ok(config)).map_err(|e| e.at(name))?;
        Ok(out)
    }

    fn empty(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), blobs: Vec::new(), names: Vec::new(), entries: HashMap::new(), gguf: None }
    }

    fn open_files(path: &Path, mode: Mode) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|e| Error::io("open it", path, &e))?;
        let folder = if meta.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let mut out = Self::empty(folder);
        if !meta.is_dir() {
            if path.extension().is_some_and(|e| e == "json") {
                out.add_index(path, mode)?;
            } else {
                out.add_file(path, mode, None)?;
            }
            return Ok(out);
        }
        for name in ["model.safetensors", "pytorch_model.bin"] {
            let (file, index) = (folder.join(name), folder.join(format!("{name}.index.json")));
            if file.is_file() {
                out.add_file(&file, mode, None)?;
                return Ok(out);
            }
            if index.is_file() {
                out.add_index(&index, mode)?;
                let metadata = folder.join(METADATA);
                if metadata.is_file() {
                    let blob = Blob::open(&metadata, Mode::Read)?;
                    out.gguf = Some(gguf::parse(&blob).map_err(|e| e.at(&metadata))?.metadata);
                }
                return Ok(out);
            }
        }
        if let Some(file) = only_gguf(folder)? {
            out.add_file(&file, mode, None)?;
            return Ok(out);
        }
        Err(Error::missing(format!(
            "{}: no model.safetensors, no pytorch_model.bin and no .gguf in this folder{}",
            folder.display(),
            hint(folder)
        )))
    }

    fn add_file(&mut self, path: &Path, mode: Mode, wanted: Option<&HashMap<String, String>>) -> Result<()> {
        self.add_blob(path, Blob::open(path, mode)?, mode, wanted)
    }

    fn add_blob(
        &mut self,
        path: &Path,
        blob: Blob,
        mode: Mode,
        wanted: Option<&HashMap<String, String>>,
    ) -> Result<()> {
        if blob.starts_with(gguf::MAGIC) || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            return self.add_gguf(path, blob, mode);
        }
        let tensors = sniff(&blob, path).map_err(|e| e.at(path))?;
        self.add_tensors(path, blob, tensors, wanted)
    }

    /// A GGUF file, with the other parts of its model.
    fn add_gguf(&mut self, path: &Path, blob: Blob, mode: Mode) -> Result<()> {
        let file = gguf::parse(&blob).map_err(|e| e.at(path))?;
        let files = gguf::files(path, &file.metadata)?;
        if files.len() == 1 {
            self.gguf = Some(file.metadata);
            return self.add_tensors(path, blob, file.tensors, None);
        }
        let mut first = Some((blob, file));
        let mut all = None;
        for (i, part) in files.iter().enumerate() {
            let given = if part == path { first.take() } else { None };
            let (blob, file) = match given {
                Some(given) => given,
                None => {
                    let blob = Blob::open(part, mode)?;
                    let file = gguf::parse(&blob).map_err(|e| e.at(part))?;
                    (blob, file)
                }
            };
            gguf::check(&file.metadata, i + 1, files.len()).map_err(|e| e.at(part))?;
            all = all.or(file.metadata.u64("split.tensors.count"));
            self.add_tensors(part, blob, file.tensors, None)?;
            // The first part carries the model's metadata, the others little more than their number.
            self.gguf.get_or_insert(file.metadata);
        }
        match all {
            Some(all) if all != self.names.len() as u64 => Err(Error::malformed(format!(
                "split.tensors.count says {all} tensors, the {} parts have {}; download them again",
                files.len(),
                self.names.len()
            ))
            .at(path)),
            _ => Ok(()),
        }
    }

    fn add_tensors(
        &mut self,
        path: &Path,
        blob: Blob,
        tensors: Vec<(String, Entry)>,
        wanted: Option<&HashMap<String, String>>,
    ) -> Result<()> {
        let index = self.blobs.len();
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        for (name, mut entry) in tensors {
            // A sharded checkpoint's index decides which file a tensor comes from.
            if wanted.is_some_and(|map| map.get(&name).is_none_or(|file| *file != file_name)) {
                continue;
            }
            entry.blob += index;
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(Error::malformed(format!("tensor {} is there twice", shown(&name))).at(path));
            }
            self.names.push(name);
        }
        self.blobs.push((path.to_path_buf(), blob));
        Ok(())
    }

    fn add_index(&mut self, path: &Path, mode: Mode) -> Result<()> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: HashMap<String, String>,
        }
        let bytes = read_small(path, MAX_JSON)?;
        let Index { weight_map } = serde_json::from_slice(&bytes)
            .map_err(|e| Error::malformed(format!("no weight_map of names to files: {e}")).at(path))?;
        let mut files: Vec<&String> = weight_map.values().collect();
        files.sort_unstable();
        files.dedup();
        for file in files {
            let mut parts = Path::new(file).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                return Err(Error::malformed(format!("weight_map names {}, outside this folder", shown(file))).at(path));
            }
            let shard = self.folder.join(file);
            if !shard.is_file() {
                return Err(Error::missing(format!(
                    "the shard {} is not there; download the model again",
                    shown(file)
                ))
                .at(path));
            }
            self.add_file(&shard, mode, Some(&weight_map))?;
        }
        if let Some(name) = weight_map.keys().filter(|n| !self.entries.contains_key(*n)).min() {
            return Err(Error::malformed(format!(
                "tensor {} is not in {}, where weight_map puts it",
                shown(name),
                shown(&weight_map[name])
            ))
            .at(path));
        }
        Ok(())
    }

    /// Folder the checkpoint lies in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Names of the tensors, in the order of the files.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Is there a tensor of this name?
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    pub(crate) fn entry(&self, name: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| {
            let place = self.blobs.first().map_or(&self.folder, |(path, _)| path);
            let last = name.rsplit('.').take(2).collect::<Vec<_>>();
            let near = self.names.iter().find(|n| n.rsplit('.').take(2).eq(last.iter().copied()));
            let near = near.map_or(String::new(), |n| format!("; it has {}", shown(n)));
            Error::missing(format!("no tensor {} among its {}{near}", shown(name), self.names.len())).at(place)
        })
    }

    /// What is known of tensor `name`.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        let e = self.entry(name)?;
        let file = self.blobs[e.blob].0.clone();
        let parts = e.parts.iter().flat_map(|p| std::iter::once(&p.scales).chain(&p.biases));
        let bytes = e.bytes + parts.map(|p| p.bytes).sum::<usize>();
        Ok(TensorInfo { dtype: e.dtype, shape: e.shape.clone(), file, offset: e.offset, bytes })
    }

    /// Little-endian bytes of tensor `name`, row-major; copied only for views that aren't
    /// contiguous in the file. Of a weight stored as several tensors, the integers.
    ///
    /// # Errors
    /// There is no such tensor.
    pub fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        Ok(self.entry_bytes(self.entry(name)?))
    }

    pub(crate) fn entry_bytes(&self, e: &Entry) -> Cow<'_, [u8]> {
        let blob = &self.blobs[e.blob].1;
        match &e.strides {
            None => Cow::Borrowed(&blob[e.offset..e.offset + e.bytes]),
            Some(strides) => Cow::Owned(gather(&blob[e.offset..], e, strides)),
        }
    }

    /// Gives back the memory of a mapped tensor's pages; they come again when touched.
    pub(crate) fn release(&self, e: &Entry) {
        if e.strides.is_none() {
            self.blobs[e.blob].1.release(e.offset..e.offset + e.bytes);
        }
        for part in e.parts.iter().flat_map(|p| std::iter::once(&p.scales).chain(&p.biases)) {
            self.release(part);
        }
    }

    /// The elements as f32.
    ///
    /// # Errors
    /// There is no such tensor, or it is complex.
    pub fn f32(&self, name: &str) -> Result<Vec<f32>> {
        let e = self.entry(name)?;
        let values = match e.dtype.is_quantised() {
            true => self.dequantised(e),
            false => e.dtype.to_f32(&self.entry_bytes(e)),
        };
        self.release(e);
        values.ok_or_else(|| self.wrong_type(name, e, "real numbers"))
    }

    /// The elements as f32, once the shape is as expected.
    ///
    /// # Errors
    /// As [`Checkpoint::f32`], and a tensor of another shape.
    pub fn f32_shaped(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.expect_shape(name, shape)?;
        self.f32(name)
    }

    /// Raw bits of a tensor of 16-bit floats (`F16` or `BF16`), without conversion.
    ///
    /// # Errors
    /// There is no such tensor, or its elements aren't of type `dtype`.
    pub fn bits16(&self, name: &str, dtype: Dtype) -> Result<Vec<u16>> {
        let e = self.entry(name)?;
        if e.dtype != dtype || dtype.size() != 2 {
            return Err(self.wrong_type(name, e, dtype.name()));
        }
        Ok(self.bytes(name)?.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect())
    }

    /// The weight `name` of a linear layer, `[out, in]`, kept as `storage`.
    ///
    /// A tensor with more dimensions is accepted when their products agree: `[out, a, b]` with
    /// `a * b == in`.
    ///
    /// # Errors
    /// There is no such tensor, its shape differs, or its elements aren't floats.
    pub fn matrix(&self, name: &str, out_dim: usize, in_dim: usize, storage: Storage) -> Result<Matrix> {
        let e = self.entry(name)?;
        let flat = e.shape.first() == Some(&out_dim) && e.shape[1..].iter().product::<usize>() == in_dim;
        if !flat {
            return Err(self.wrong_shape(name, e, &[out_dim, in_dim]));
        }
        self.load_matrix(&MatrixRequest::whole(name, out_dim, in_dim), Keep::As(storage))
    }

    /// The metadata, when this is a GGUF file.
    pub fn gguf(&self) -> Option<&Metadata> {
        self.gguf.as_ref()
    }

    /// Fails unless tensor `name` has this shape.
    ///
    /// # Errors
    /// There is no such tensor, or it has another shape.
    pub fn expect_shape(&self, name: &str, shape: &[usize]) -> Result<()> {
        let e = self.entry(name)?;
        if e.shape == shape { Ok(()) } else { Err(self.wrong_shape(name, e, shape)) }
    }

    pub(crate) fn wrong_shape(&self, name: &str, e: &Entry, wanted: &[usize]) -> Error {
        Error::malformed(format!(
            "tensor {} has shape {:?}, the configuration asks for {wanted:?}; do config.json and weights belong together?",
            shown(name),
            e.shape
        ))
        .at(&self.blobs[e.blob].0)
    }

    pub(crate) fn wrong_type(&self, name: &str, e: &Entry, wanted: &str) -> Error {
        Error::unsupported(format!("tensor {} holds {}, {wanted} are needed", shown(name), e.dtype.name()))
            .at(&self.blobs[e.blob].0)
    }

    /// Is there a file `name` beside the checkpoint?
    pub fn has_file(&self, name: &str) -> bool {
        self.folder.join(name).is_file()
    }

    /// A JSON file beside the checkpoint, such as `config.json`.
    ///
    /// # Errors
    /// The file is missing or isn't JSON.
    pub fn config(&self, name: &str) -> Result<serde_json::Value> {
        read_config(&self.folder.join(name))
    }
}

fn read_config(path: &Path) -> Result<serde_json::Value> {
    serde_json::from_slice(&read_small(path, MAX_JSON)?)
        .map_err(|e| Error::malformed(format!("not JSON: {e}; download it again")).at(path))
}

/// A strided view made contiguous. Entries of strided views were checked to lie inside the blob.
fn gather(blob: &[u8], e: &Entry, strides: &[usize]) -> Vec<u8> {
    let size = e.dtype.size();
    let mut out = Vec::with_capacity(e.bytes);
    let mut at = vec![0usize; e.shape.len()];
    while out.len() < e.bytes {
        let from = at.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>() * size;
        out.extend_from_slice(&blob[from..from + size]);
        for d in (0..at.len()).rev() {
            at[d] += 1;
            if at[d] < e.shape[d] {
                break;
            }
            at[d] = 0;
        }
    }
    out
}
