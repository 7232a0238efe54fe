//! Reading and writing the safetensors files of `oxiline dump`.

use std::path::Path;

use oxiline_graph::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// A tensor to write.
pub struct Out {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Out {
    /// f32 values.
    pub fn f32(name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { name: name.into(), dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    /// Bytes.
    pub fn u8(name: &str, shape: &[usize], bytes: Vec<u8>) -> Self {
        Self { name: name.into(), dtype: Dtype::U8, shape: shape.to_vec(), bytes }
    }

    /// Token ids as i64.
    pub fn ids(name: &str, ids: &[u32]) -> Self {
        let bytes = ids.iter().flat_map(|&v| i64::from(v).to_le_bytes()).collect();
        Self { name: name.into(), dtype: Dtype::I64, shape: vec![ids.len()], bytes }
    }

    /// The same values in another shape.
    pub fn shaped(self, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), ..self }
    }
}

/// The one-dimensional f32 tensor `name` of a safetensors file (f64, f16, bf16 and i16 are converted;
/// i16 is taken as PCM).
pub fn read_samples(path: &Path, name: &str) -> Result<Vec<f32>> {
    with_tensor(path, name, |tensor| samples(path, name, tensor))
}

/// The one-dimensional tensor of token ids `name` of a safetensors file (i64, i32 or u32).
pub fn read_ids(path: &Path, name: &str) -> Result<Vec<u32>> {
    let shown = path.display();
    with_tensor(path, name, |tensor| {
        if tensor.shape().len() != 1 {
            return Err(Error::msg(format_args!(
                "{shown}: tensor `{name}` has shape {:?}; token ids are one-dimensional",
                tensor.shape()
            )));
        }
        let data = tensor.data();
        let ids: Vec<i64> = match tensor.dtype() {
            Dtype::I64 => data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
            Dtype::I32 => data.as_chunks::<4>().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
            Dtype::U32 => data.as_chunks::<4>().0.iter().map(|b| i64::from(u32::from_le_bytes(*b))).collect(),
            other => {
                return Err(Error::msg(format_args!("{shown}: tensor `{name}` is {other:?}; give int64 token ids")));
            }
        };
        let id = |(at, id): (usize, &i64)| {
            u32::try_from(*id)
                .map_err(|_| Error::msg(format_args!("{shown}: id {at} of `{name}` is {id}, which is no token id")))
        };
        ids.iter().enumerate().map(id).collect()
    })
}

fn with_tensor<T>(path: &Path, name: &str, work: impl FnOnce(&TensorView<'_>) -> Result<T>) -> Result<T> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|e| Error::msg(format_args!("cannot read {shown}: {e}")))?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|e| Error::msg(format_args!("{shown} is not a safetensors file: {e}")))?;
    let tensor = file.tensor(name).map_err(|_| {
        let mut names: Vec<_> = file.names().into_iter().map(|n| format!("`{n}`")).collect();
        names.sort();
        Error::msg(format_args!("{shown} has no tensor `{name}`; it holds: {}", names.join(", ")))
    })?;
    work(&tensor)
}

fn samples(path: &Path, name: &str, tensor: &TensorView<'_>) -> Result<Vec<f32>> {
    let shown = path.display();
    if tensor.shape().len() != 1 {
        return Err(Error::msg(format_args!(
            "{shown}: tensor `{name}` has shape {:?}; samples are one-dimensional (mono)",
            tensor.shape()
        )));
    }
    let data = tensor.data();
    let values: Vec<f32> = match tensor.dtype() {
        Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F64 => data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        Dtype::I16 => data.as_chunks::<2>().0.iter().map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0).collect(),
        other => {
            return Err(Error::msg(format_args!("{shown}: tensor `{name}` is {other:?}; give float32 samples")));
        }
    };
    if let Some(at) = values.iter().position(|v| !v.is_finite()) {
        return Err(Error::msg(format_args!("{shown}: sample {at} of `{name}` is not a finite number")));
    }
    Ok(values)
}

/// Refuses to write over what is being read.
pub fn apart(input: &Path, output: &Path) -> Result<()> {
    match (input.canonicalize(), output.canonicalize()) {
        (Ok(a), Ok(b)) if a == b => Err(Error::msg(format_args!(
            "{} is read and would be replaced by what is computed; give --output another name",
            output.display()
        ))),
        _ => Ok(()),
    }
}

/// Writes tensors (and string metadata) beside `path` and renames the file when it is whole.
pub fn write(path: &Path, tensors: &[Out], metadata: Vec<(String, String)>) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::msg(format_args!("cannot write {}: {e}", path.display()));
    let views: Vec<(&str, TensorView<'_>)> = tensors
        .iter()
        .map(|t| {
            TensorView::new(t.dtype, t.shape.clone(), &t.bytes)
                .map(|view| (t.name.as_str(), view))
                .map_err(|e| failed(&e))
        })
        .collect::<Result<_>>()?;
    let metadata = (!metadata.is_empty()).then(|| metadata.into_iter().collect());
    let bytes = safetensors::serialize(views, metadata).map_err(|e| failed(&e))?;
    if path == Path::new("-") {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        return out.write_all(&bytes).and_then(|()| out.flush()).map_err(|e| failed(&e));
    }
    // A link's file is replaced, not the link; a device or pipe is written itself.
    let path = &if path.is_symlink() { path.canonicalize().unwrap_or(path.into()) } else { path.to_path_buf() };
    if std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return std::fs::write(path, bytes).map_err(|e| failed(&e));
    }
    let mut sibling = path.as_os_str().to_owned();
    sibling.push(".part");
    let sibling = std::path::PathBuf::from(sibling);
    let done = std::fs::write(&sibling, bytes).and_then(|()| std::fs::rename(&sibling, path));
    if let Err(error) = done {
        // A half-written file must not look like a result; the write's own error is what matters.
        let _ = std::fs::remove_file(&sibling);
        return Err(failed(&error));
    }
    Ok(())
}
