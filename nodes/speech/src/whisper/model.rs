//! A loaded checkpoint: weights and the operations on them.

use std::path::Path;

use oxiline_graph::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Config, Encoding, Feed, Stream};

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
    /// IEEE half.
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

/// A loaded checkpoint.
pub struct Whisper {
    /// What it is.
    pub config: Config,
}

impl Whisper {
    /// Reads a checkpoint folder. Errors name the file and the tensor.
    pub fn load(dir: &Path, options: &LoadOptions) -> Result<Self> {
        let _ = options;
        bail!("{}: not readable yet", dir.display())
    }

    /// Starts an encoder pass over log-mel windows of `[bins, 3000]` each.
    pub fn begin_encode(&self, windows: &[&[f32]]) -> Encoding {
        let _ = windows;
        Encoding { hidden: Vec::new(), layer: 0 }
    }

    /// Does one layer (the first call: the convolutions); true when all are done.
    pub fn encode_step(&self, encoding: &mut Encoding) -> bool {
        encoding.layer += 1;
        encoding.layer > self.config.encoder_layers
    }

    /// The output of a finished pass, `[source_positions, width]` per window.
    pub fn finish_encode(&self, encoding: Encoding) -> Vec<Vec<f32>> {
        encoding.hidden.chunks(self.config.source_positions * self.config.width).map(<[f32]>::to_vec).collect()
    }

    /// Encodes windows `[bins, 3000]`; several at once give bitwise the same as one at a time.
    /// `cancelled` is asked between layers; Err(Cancelled) when it says true.
    pub fn encode(&self, windows: &[&[f32]], cancelled: &dyn Fn() -> bool) -> Result<Vec<Vec<f32>>> {
        let mut encoding = self.begin_encode(windows);
        while !self.encode_step(&mut encoding) {
            if cancelled() {
                return Err(oxiline_graph::Error::Cancelled);
            }
        }
        Ok(self.finish_encode(encoding))
    }

    /// A stream on an encoded window: its cross-attention keys and values are computed here, once.
    pub fn start(&self, encoded: &[f32]) -> Stream {
        let _ = encoded;
        unreachable!("the model's body lands next")
    }

    /// Feeds tokens to streams as one batch. A stream's logits are bitwise the same whatever else
    /// is in the batch and however its tokens are cut into steps.
    ///
    /// Err when a token id is not in the vocabulary or a stream would pass
    /// [`Config::target_positions`]; then no stream has changed.
    pub fn step(&self, feeds: &mut [Feed<'_>]) -> Result<()> {
        let _ = feeds;
        bail!("the model's body lands next")
    }
}
