//! Tensors of any shape out of the input file of a dump.

use std::path::{Path, PathBuf};

use oxiline::graph::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// A safetensors file, read whole.
pub struct Input {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Input {
    /// Reads the file.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::msg(format_args!("cannot read {}: {e}", path.display())))?;
        Ok(Self { path: path.into(), bytes })
    }

    /// An error about this file.
    pub fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::msg(format_args!("{}: {what}", self.path.display()))
    }

    fn tensors(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.bytes).map_err(|e| self.error(format_args!("not a safetensors file: {e}")))
    }

    fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        let file = self.tensors()?;
        file.tensor(name).map_err(|_| {
            let mut names: Vec<_> = file.names().into_iter().map(|n| format!("`{n}`")).collect();
            names.sort();
            let held = if names.is_empty() { "none".into() } else { names.join(", ") };
            self.error(format_args!("there is no tensor `{name}`; it holds: {held}"))
        })
    }

    fn wrong(&self, name: &str, tensor: &TensorView<'_>, wanted: &str) -> Error {
        self.error(format_args!("tensor `{name}` is {:?}; give it as {wanted}", tensor.dtype()))
    }

    /// Shape and bytes of a tensor of type `dtype`.
    pub fn bytes(&self, name: &str, dtype: Dtype, wanted: &str) -> Result<(Vec<usize>, &[u8])> {
        let tensor = self.tensor(name)?;
        if tensor.dtype() != dtype {
            return Err(self.wrong(name, &tensor, wanted));
        }
        Ok((tensor.shape().to_vec(), tensor.data()))
    }

    /// Token ids of the first of these tensors that is there; none when none is.
    pub fn ids(&self, names: &[&str]) -> Result<Vec<u32>> {
        let file = self.tensors()?;
        let Some((name, tensor)) = names.iter().find_map(|n| file.tensor(n).ok().map(|t| (n, t))) else {
            return Ok(Vec::new());
        };
        if tensor.dtype() != Dtype::I64 {
            return Err(self.wrong(name, &tensor, "int64"));
        }
        let ids = tensor.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
        ids.map(|id| u32::try_from(id).map_err(|_| self.error(format_args!("`{name}` holds {id}, which is no token"))))
            .collect()
    }

    /// Shape and values of a tensor of 16- or 32-bit floats.
    pub fn floats(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
        let tensor = self.tensor(name)?;
        let kind = match tensor.dtype() {
            Dtype::F32 => oxiline::kernels::BlockType::F32,
            Dtype::F16 => oxiline::kernels::BlockType::F16,
            Dtype::BF16 => oxiline::kernels::BlockType::BF16,
            _ => return Err(self.wrong(name, &tensor, "float32, float16 or bfloat16")),
        };
        let mut values = vec![0.0; tensor.data().len() / kind.bytes()];
        kind.dequantize(tensor.data(), &mut values);
        Ok((tensor.shape().to_vec(), values))
    }
}
