//! From named tensors to layers: names, shapes, formats.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::{Matrix, Storage, conv::Conv1d};
use oxiline_weights::{Checkpoint, Dtype, Mode};

use super::Config;
use super::decoder::{Decoder, DecoderLayer};
use super::encoder::{Encoder, EncoderLayer, Linear, Norm};
use super::model::{LoadOptions, Precision, Quant};

/// Where tensors come from.
pub trait Tensors {
    /// Shape and element type of a tensor; None when there is none of this name.
    fn info(&self, name: &str) -> Option<(Vec<usize>, Dtype)>;
    /// Hands its little-endian bytes to `sink`, in order, in pieces of whole elements.
    fn bytes(&self, name: &str, sink: &mut dyn FnMut(&[u8])) -> Result<()>;
    /// What the tensors are from, for messages: a file or folder.
    fn origin(&self) -> String;
}

/// Bytes read from a file at a time.
const PIECE: usize = 1 << 20;

impl Tensors for Checkpoint {
    fn info(&self, name: &str) -> Option<(Vec<usize>, Dtype)> {
        let info = Checkpoint::info(self, name).ok()?;
        Some((info.shape, info.dtype))
    }

    fn bytes(&self, name: &str, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        let info = Checkpoint::info(self, name).map_err(Error::msg)?;
        if info.file.extension().is_none_or(|kind| kind != "safetensors") {
            sink(&Checkpoint::bytes(self, name).map_err(Error::msg)?);
            return Ok(());
        }
        // Read, not touched through the map: pages of the map would stay and count as memory beside
        // the packed copy.
        let failed = |e| Error::msg(format_args!("{}: reading tensor `{name}`: {e}", info.file.display()));
        let mut file = File::open(&info.file).map_err(failed)?;
        file.seek(SeekFrom::Start(info.offset as u64)).map_err(failed)?;
        let mut piece = vec![0; PIECE.min(info.bytes)];
        let mut left = info.bytes;
        while left > 0 {
            let n = left.min(PIECE);
            file.read_exact(&mut piece[..n]).map_err(failed)?;
            sink(&piece[..n]);
            left -= n;
        }
        Ok(())
    }

    fn origin(&self) -> String {
        self.folder().display().to_string()
    }
}

/// Opens the weights of a checkpoint folder.
pub(crate) fn open(dir: &Path) -> Result<Checkpoint> {
    Checkpoint::open(dir, Mode::Mmap).map_err(Error::msg)
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
        let half = self.options.precision == Precision::F16;
        Ok(Decoder { embedding, positions, layers, norm: self.norm("decoder.layer_norm")?, half })
    }

    /// One more layer is there.
    fn tick(&mut self) -> Result<()> {
        self.done += 1;
        (self.progress)(self.done, (self.config.encoder_layers + self.config.decoder_layers + 2) as u64)
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.info(&format!("{}{name}", self.prefix)).is_some()
    }

    /// The full name and element type of a tensor that must have this shape.
    fn expect(&self, name: &str, shape: &[usize]) -> Result<(String, Dtype)> {
        let full = format!("{}{name}", self.prefix);
        match self.tensors.info(&full) {
            Some((found, dtype)) if found == shape => Ok((full, dtype)),
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
        let (full, dtype) = self.expect(name, shape)?;
        let values = self.floats(&full, dtype, shape.iter().product())?;
        self.bytes += values.len() as u64 * 4;
        Ok(values)
    }

    fn floats(&self, full: &str, dtype: Dtype, size: usize) -> Result<Vec<f32>> {
        let mut values = Vec::with_capacity(size);
        let mut real = true;
        self.tensors.bytes(full, &mut |piece| match dtype.to_f32(piece) {
            Some(piece) => values.extend(piece),
            None => real = false,
        })?;
        if !real {
            bail!("{}: tensor `{full}` holds {}, not real numbers", self.tensors.origin(), dtype.name());
        }
        self.whole(full, values.len(), size)?;
        Ok(values)
    }

    /// The raw halves of several tensors one after the other.
    fn halves(&self, names: &[String], size: usize) -> Result<Vec<u16>> {
        let mut bits = Vec::with_capacity(size);
        for full in names {
            self.tensors.bytes(full, &mut |piece| {
                bits.extend(piece.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)));
            })?;
        }
        self.whole(&names[0], bits.len(), size)?;
        Ok(bits)
    }

    fn whole(&self, full: &str, found: usize, size: usize) -> Result<()> {
        if found != size {
            bail!("{}: tensor `{full}` has {found} values instead of {size}", self.tensors.origin());
        }
        Ok(())
    }

    fn norm(&mut self, name: &str) -> Result<Norm> {
        let width = [self.config.width];
        Ok(Norm {
            weight: self.values(&format!("{name}.weight"), &width)?,
            bias: self.values(&format!("{name}.bias"), &width)?,
        })
    }

    /// How a matrix of this element type is kept.
    fn storage(&self, stored: Dtype, in_dim: usize) -> Storage {
        match (self.options.quant, self.options.precision, stored) {
            // A block never crosses a row.
            (Some(Quant::Q8), ..) if in_dim.is_multiple_of(32) => Storage::Q8,
            (_, Precision::F16, _) | (_, Precision::Stored, Dtype::F16) => Storage::F16,
            (_, Precision::Bf16, _) | (_, Precision::Stored, Dtype::BF16) => Storage::BF16,
            _ => Storage::F32,
        }
    }

    /// One matrix of the rows of several tensors `[out_dim, in_dim]` one after the other.
    fn matrix(&mut self, names: &[String], out_dim: usize, in_dim: usize) -> Result<Matrix> {
        let mut full = Vec::with_capacity(names.len());
        let mut dtypes = Vec::with_capacity(names.len());
        for name in names {
            let (name, dtype) = self.expect(name, &[out_dim, in_dim])?;
            full.push(name);
            dtypes.push(dtype);
        }
        let storage = self.storage(dtypes[0], in_dim);
        let (rows, size) = (out_dim * names.len(), out_dim * names.len() * in_dim);
        let alike = dtypes.iter().all(|dtype| *dtype == dtypes[0]);
        let matrix = match dtypes[0] {
            Dtype::F16 if alike => Matrix::from_f16_bits(rows, in_dim, &self.halves(&full, size)?, storage),
            Dtype::BF16 if alike => Matrix::from_bf16_bits(rows, in_dim, &self.halves(&full, size)?, storage),
            _ => {
                let mut values = Vec::with_capacity(size);
                for (name, dtype) in full.iter().zip(dtypes) {
                    values.extend(self.floats(name, dtype, out_dim * in_dim)?);
                }
                Matrix::from_f32(rows, in_dim, &values, storage)
            }
        };
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
