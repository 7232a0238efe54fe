//! From named tensors to layers: names, shapes, formats.

use std::path::Path;

use oxiline_graph::{Result, bail};
use oxiline_kernels::{Matrix, Storage, conv::Conv1d};

use super::Config;
use super::decoder::{Decoder, DecoderLayer};
use super::encoder::{Encoder, EncoderLayer, Linear, Norm};
use super::model::{LoadOptions, Precision, Quant};

/// Where tensors come from.
pub trait Tensors {
    /// Shape and stored format of a tensor; None when there is none of this name.
    fn info(&self, name: &str) -> Option<(Vec<usize>, Storage)>;
    /// Its values, row-major.
    fn read(&self, name: &str) -> Result<Vec<f32>>;
    /// What the tensors are from, for messages: a file or folder.
    fn origin(&self) -> String;
}

/// Builds layers, checking every shape against the configuration.
pub(crate) struct Loader<'a> {
    config: &'a Config,
    tensors: &'a dyn Tensors,
    /// `"model."` or nothing: both spellings are published.
    prefix: &'static str,
    options: &'a LoadOptions,
    progress: &'a mut dyn FnMut(u64, u64) -> Result<()>,
    done: u64,
    bytes: u64,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        config: &'a Config,
        tensors: &'a dyn Tensors,
        options: &'a LoadOptions,
        progress: &'a mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Self {
        let bare = tensors.info("encoder.conv1.weight").is_some();
        Self { config, tensors, prefix: if bare { "" } else { "model." }, options, progress, done: 0, bytes: 0 }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn encoder(&mut self) -> Result<Encoder> {
        let c = self.config;
        let (width, ffn) = (c.width, c.encoder_ffn);
        let conv1 = self.conv("encoder.conv1", width, c.mel_bins, 1)?;
        let conv2 = self.conv("encoder.conv2", width, width, 2)?;
        let positions = self.values("encoder.embed_positions.weight", &[c.source_positions, width])?;
        self.tick()?;
        let mut layers = Vec::with_capacity(c.encoder_layers);
        for i in 0..c.encoder_layers {
            let at = |part: &str| format!("encoder.layers.{i}.{part}");
            layers.push(EncoderLayer {
                attention_norm: self.norm(&at("self_attn_layer_norm"))?,
                q: self.linear(&at("self_attn.q_proj"), width, width)?,
                k: self.linear(&at("self_attn.k_proj"), width, width)?,
                v: self.linear(&at("self_attn.v_proj"), width, width)?,
                out: self.linear(&at("self_attn.out_proj"), width, width)?,
                ffn_norm: self.norm(&at("final_layer_norm"))?,
                up: self.linear(&at("fc1"), ffn, width)?,
                down: self.linear(&at("fc2"), width, ffn)?,
            });
            self.tick()?;
        }
        Ok(Encoder { conv1, conv2, positions, layers, norm: self.norm("encoder.layer_norm")? })
    }

    pub(crate) fn decoder(&mut self) -> Result<Decoder> {
        let c = self.config;
        let (width, ffn) = (c.width, c.decoder_ffn);
        let embedding = self.matrix(&["decoder.embed_tokens.weight".into()], c.vocab, width)?;
        let positions = self.values("decoder.embed_positions.weight", &[c.target_positions, width])?;
        self.tick()?;
        let mut layers = Vec::with_capacity(c.decoder_layers);
        for i in 0..c.decoder_layers {
            let at = |part: &str| format!("decoder.layers.{i}.{part}");
            let qkv = [at("self_attn.q_proj"), at("self_attn.k_proj"), at("self_attn.v_proj")];
            layers.push(DecoderLayer {
                attention_norm: self.norm(&at("self_attn_layer_norm"))?,
                qkv: self.stacked(&qkv, width, width)?,
                out: self.linear(&at("self_attn.out_proj"), width, width)?,
                cross_norm: self.norm(&at("encoder_attn_layer_norm"))?,
                cross_q: self.linear(&at("encoder_attn.q_proj"), width, width)?,
                cross_k: self.linear(&at("encoder_attn.k_proj"), width, width)?,
                cross_v: self.linear(&at("encoder_attn.v_proj"), width, width)?,
                cross_out: self.linear(&at("encoder_attn.out_proj"), width, width)?,
                ffn_norm: self.norm(&at("final_layer_norm"))?,
                up: self.linear(&at("fc1"), ffn, width)?,
                down: self.linear(&at("fc2"), width, ffn)?,
            });
            self.tick()?;
        }
        Ok(Decoder { embedding, positions, layers, norm: self.norm("decoder.layer_norm")? })
    }

    /// One more layer is there.
    fn tick(&mut self) -> Result<()> {
        self.done += 1;
        (self.progress)(self.done, (self.config.encoder_layers + self.config.decoder_layers + 2) as u64)
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.info(&format!("{}{name}", self.prefix)).is_some()
    }

    /// The full name and stored format of a tensor that must have this shape.
    fn expect(&self, name: &str, shape: &[usize]) -> Result<(String, Storage)> {
        let full = format!("{}{name}", self.prefix);
        match self.tensors.info(&full) {
            Some((found, storage)) if found == shape => Ok((full, storage)),
            Some((found, _)) => bail!(
                "{}: tensor `{full}` has shape {found:?}, but by config.json it should be {shape:?}",
                self.tensors.origin()
            ),
            None => bail!(
                "{}: tensor `{full}` of shape {shape:?} is missing; is the checkpoint whole, and is it Whisper's?",
                self.tensors.origin()
            ),
        }
    }

    fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let (full, _) = self.expect(name, shape)?;
        let values = self.tensors.read(&full)?;
        let size: usize = shape.iter().product();
        if values.len() != size {
            bail!("{}: tensor `{full}` has {} values instead of {size}", self.tensors.origin(), values.len());
        }
        self.bytes += size as u64 * 4;
        Ok(values)
    }

    fn norm(&mut self, name: &str) -> Result<Norm> {
        let width = [self.config.width];
        Ok(Norm {
            weight: self.values(&format!("{name}.weight"), &width)?,
            bias: self.values(&format!("{name}.bias"), &width)?,
        })
    }

    /// How a matrix of this stored format is kept.
    fn storage(&self, stored: Storage, in_dim: usize) -> Storage {
        match (self.options.quant, self.options.precision) {
            // A block never crosses a row.
            (Some(Quant::Q8), _) if in_dim % 32 == 0 => Storage::Q8,
            (_, Precision::Stored) => stored,
            (_, Precision::F32) => Storage::F32,
            (_, Precision::F16) => Storage::F16,
            (_, Precision::Bf16) => Storage::BF16,
        }
    }

    /// One matrix of the rows of several tensors `[out_dim, in_dim]` one after the other.
    fn matrix(&mut self, names: &[String], out_dim: usize, in_dim: usize) -> Result<Matrix> {
        let mut storage = Storage::F32;
        let mut values = Vec::new();
        for name in names {
            let (full, stored) = self.expect(name, &[out_dim, in_dim])?;
            storage = self.storage(stored, in_dim);
            let part = self.tensors.read(&full)?;
            if part.len() != out_dim * in_dim {
                bail!("{}: tensor `{full}` has {} values", self.tensors.origin(), part.len());
            }
            if values.is_empty() {
                values = part;
            } else {
                values.extend_from_slice(&part);
            }
        }
        let matrix = Matrix::from_f32(out_dim * names.len(), in_dim, &values, storage);
        self.bytes += matrix.bytes() as u64;
        Ok(matrix)
    }

    /// A linear layer; a bias is used where the file has one (Whisper's keys have none).
    fn linear(&mut self, name: &str, out_dim: usize, in_dim: usize) -> Result<Linear> {
        self.stacked(&[name.to_owned()], out_dim, in_dim)
    }

    /// Linear layers of the same input as one.
    fn stacked(&mut self, names: &[String], out_dim: usize, in_dim: usize) -> Result<Linear> {
        let weights: Vec<String> = names.iter().map(|name| format!("{name}.weight")).collect();
        let weight = self.matrix(&weights, out_dim, in_dim)?;
        let mut bias = Vec::new();
        let mut any = false;
        for name in names {
            let key = format!("{name}.bias");
            // Only keys may go without: elsewhere a missing bias is a damaged checkpoint.
            if self.has(&key) || !name.ends_with("k_proj") {
                bias.extend(self.values(&key, &[out_dim])?);
                any = true;
            } else {
                bias.resize(bias.len() + out_dim, 0.0);
            }
        }
        Ok(Linear { weight, bias: any.then_some(bias) })
    }

    fn conv(&mut self, name: &str, out_dim: usize, in_dim: usize, stride: usize) -> Result<Conv1d> {
        const K: usize = 3;
        let key = format!("{name}.weight");
        let (_, stored) = self.expect(&key, &[out_dim, in_dim, K])?;
        let values = self.values(&key, &[out_dim, in_dim, K])?;
        // From [out, in, k] to the kernel's [out, k, in].
        let mut turned = Vec::with_capacity(values.len());
        for row in values.chunks_exact(in_dim * K) {
            for k in 0..K {
                turned.extend(row.iter().skip(k).step_by(K));
            }
        }
        let storage = match self.storage(stored, in_dim * K) {
            Storage::Q8 => Storage::F32,
            storage => storage,
        };
        let bias = self.values(&format!("{name}.bias"), &[out_dim])?;
        Ok(Conv1d { weight: Matrix::from_f32(out_dim, in_dim * K, &turned, storage), bias, kernel: K, stride, pad: 1 })
    }
}

/// Opens the weights of a checkpoint folder.
pub fn open(dir: &Path) -> Result<impl Tensors + use<>> {
    Files::open(dir)
}

struct Files {
    path: std::path::PathBuf,
    data: Vec<u8>,
}

impl Files {
    fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("model.safetensors");
        let data = std::fs::read(&path)?;
        Ok(Self { path, data })
    }
    fn tensors(&self) -> Option<safetensors::SafeTensors<'_>> {
        safetensors::SafeTensors::deserialize(&self.data).ok()
    }
}

impl Tensors for Files {
    fn info(&self, name: &str) -> Option<(Vec<usize>, Storage)> {
        let tensors = self.tensors()?;
        let t = tensors.tensor(name).ok()?;
        let storage = match t.dtype() {
            safetensors::Dtype::F16 => Storage::F16,
            safetensors::Dtype::BF16 => Storage::BF16,
            _ => Storage::F32,
        };
        Some((t.shape().to_vec(), storage))
    }
    fn read(&self, name: &str) -> Result<Vec<f32>> {
        let tensors = self.tensors().ok_or_else(|| oxiline_graph::Error::msg("bad file"))?;
        let t = tensors.tensor(name).map_err(oxiline_graph::Error::msg)?;
        Ok(match t.dtype() {
            safetensors::Dtype::F16 => {
                t.data().chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            _ => t.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        })
    }
    fn origin(&self) -> String {
        self.path.display().to_string()
    }
}
