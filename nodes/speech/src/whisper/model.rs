//! A loaded checkpoint and the operations on it.

use std::path::Path;

use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::Pool;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::decoder::Decoder;
use super::encoder::Encoder;
use super::load::{Loader, Tensors};
use super::{Config, Encoding, Feed, Mel, Stream};

/// How weights are kept. Arithmetic is float32 throughout, so `stored` and `f32` give the same
/// results and differ in memory and speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// As the file stores them: exact.
    #[default]
    Stored,
    /// 32-bit floats.
    F32,
    /// IEEE half, and so are the keys and values of every window (11 bits: logits change a little).
    F16,
    /// bfloat16.
    Bf16,
}

/// Integer weights instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Quant {
    /// 8-bit integers in blocks of 32, encoder and decoder.
    Q8,
}

/// How to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// How weights are kept.
    pub precision: Precision,
    /// Integer weights for the linear layers.
    pub quant: Option<Quant>,
}

/// A loaded checkpoint. All methods take `&self`: any number of threads may use it at once.
pub struct Whisper {
    /// What it is.
    pub config: Config,
    encoder: Encoder,
    decoder: Decoder,
    bytes: u64,
}

impl Whisper {
    /// Reads a checkpoint folder. Errors name the file and the tensor.
    pub fn load(dir: &Path, options: &LoadOptions) -> Result<Self> {
        let config = Config::load(dir)?;
        Self::load_with(dir, config, options, &mut |_, _| Ok(()))
    }

    /// The same with the configuration already read; `progress(done, total)` as in
    /// [`Whisper::from_tensors`].
    pub fn load_with(
        dir: &Path,
        config: Config,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Self> {
        Self::from_tensors(config, &super::load::open(dir)?, options, progress)
    }

    /// Builds the model from named tensors. `progress(done, total)` is called between tensors with
    /// the number of layers; an error from it ends the load.
    pub fn from_tensors(
        config: Config,
        tensors: &dyn Tensors,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Self> {
        let mut loader = Loader::new(&config, tensors, options, progress);
        // The decoder has the largest tensor, the embedding: its copy in passing comes and goes
        // while little else is there.
        let decoder = loader.decoder()?;
        let encoder = loader.encoder()?;
        let bytes = loader.bytes();
        Ok(Self { config, encoder, decoder, bytes })
    }

    /// Bytes of weights held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts an encoder pass over log-mel windows of `[frames, bins]` each ([`Mel::window`]): 3000 frames, or
    /// an even number of fewer. Err when a window has another size.
    pub fn begin_encode(&self, windows: &[&[f32]]) -> Result<Encoding> {
        let bins = self.config.mel_bins;
        let fits = |window: &&&[f32]| {
            !window.is_empty() && window.len().is_multiple_of(2 * bins) && window.len() <= Mel::WINDOW * bins
        };
        if let Some(window) = windows.iter().find(|window| !fits(window)) {
            bail!(
                "an encoder window has {} values, but this model takes at most {} frames of {bins} bins, an even number",
                window.len(),
                Mel::WINDOW
            );
        }
        Ok(Encoding::new(windows.iter().map(|window| window.to_vec()).collect()))
    }

    /// Does one layer of all windows (the first call: the convolutions); true when the pass is done.
    pub fn encode_step(&self, encoding: &mut Encoding) -> bool {
        self.encoder.step(Pool::global(), &self.config, encoding)
    }

    /// The output of a finished pass, `[frames / 2, width]` per window.
    pub fn finish_encode(&self, mut encoding: Encoding) -> Vec<Vec<f32>> {
        while !self.encode_step(&mut encoding) {}
        encoding.into_windows()
    }

    /// Encodes windows, at most `[3000, bins]` each; several at once give bitwise the same as one at a time.
    /// `cancelled` is asked between layers; Err([`Error::Cancelled`]) when it says true.
    pub fn encode(&self, windows: &[&[f32]], cancelled: &dyn Fn() -> bool) -> Result<Vec<Vec<f32>>> {
        let mut encoding = self.begin_encode(windows)?;
        while !self.encode_step(&mut encoding) {
            if cancelled() {
                return Err(Error::Cancelled);
            }
        }
        Ok(encoding.into_windows())
    }

    /// A stream on an encoded window: its cross-attention keys and values are computed here, once.
    /// Err when `encoded` is not `[positions, width]` with at most the model's positions.
    pub fn start(&self, encoded: &[f32]) -> Result<Stream> {
        let size = self.config.source_positions * self.config.width;
        if encoded.is_empty() || encoded.len() > size || !encoded.len().is_multiple_of(self.config.width) {
            bail!("an encoded window has {} values, but this model's have at most {size}", encoded.len());
        }
        Ok(self.decoder.start(Pool::global(), &self.config, encoded))
    }

    /// Feeds tokens to streams as one batch. A stream's logits are bitwise the same whatever else
    /// is in the batch and however its tokens are cut into steps.
    ///
    /// Err when a token id is not in the vocabulary or a stream would pass
    /// [`Config::target_positions`]; then no stream has changed.
    pub fn step(&self, feeds: &mut [Feed<'_>]) -> Result<()> {
        self.decoder.step(Pool::global(), &self.config, feeds)
    }
}
