//! Arguments of `oxiline dump`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Decode, LoadArgs};

/// `oxiline dump`
#[derive(Debug, Args)]
pub struct Dump {
    /// Of what
    #[command(subcommand)]
    pub what: DumpVerb,
}

/// `oxiline dump ...`
#[derive(Debug, Subcommand)]
pub enum DumpVerb {
    /// Whisper: `samples` to `mel encoder prompt_ids first_logits tokens language_probs`
    Whisper(Box<DumpWhisper>),
    /// Language model: `input_ids` to `logits hidden greedy_ids`
    Text(DumpText),
    /// Embedding: a JSON array of texts on standard input to `ids mask hidden embeddings`
    Embed(DumpEmbed),
    /// Sampling: `logits` (and `previous` tokens) to the `probabilities` tokens are drawn with
    Sample(Box<DumpSample>),
    /// Voice activity: `samples` to `probabilities`
    Vad(DumpVad),
    /// Resampling: `samples` to `samples`
    Resample(DumpResample),
    /// Names, shapes and types of a checkpoint's tensors, or one tensor's values
    Tensors(DumpTensors),
    /// Text on standard input to token ids, without special tokens added, or back
    Tokens(DumpTokens),
    /// Quantised weights: `blocks` to `values`
    Dequantize(DumpDequantize),
    /// Quantising: `values` to `blocks`
    Quantize(DumpQuantize),
    /// A quantised matrix times `x`: `blocks x` to `y`
    Matvec(DumpMatvec),
}

/// Input and output of a dump.
#[derive(Debug, Args)]
pub struct InOut {
    /// Safetensors file with the inputs
    #[arg(long, value_name = "IN")]
    pub input: PathBuf,
    /// Safetensors file to write
    #[arg(long, value_name = "OUT")]
    pub output: PathBuf,
}

/// `oxiline dump embed`
#[derive(Debug, Args)]
pub struct DumpEmbed {
    /// Model: sentence-transformers folder, GGUF file, `org/name` or a known name
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// Put this prompt of the model before every text
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Only so many first dimensions
    #[arg(long, value_name = "N")]
    pub dim: Option<usize>,
    /// Safetensors file to write ("-": standard output)
    #[arg(long, value_name = "OUT", default_value = "-")]
    pub output: PathBuf,
}

/// `oxiline dump sample`
#[derive(Debug, Args)]
pub struct DumpSample {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub io: InOut,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub choose: super::super::chat::args::Choose,
    /// A key of the engine's options with its value (may be given again)
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub option: Vec<(String, String)>,
    /// Tokens already there, for penalties [default: the tensor `previous` or `context_ids`, if any]
    #[arg(long, value_name = "ID,ID,...", value_delimiter = ',')]
    pub previous: Option<Vec<u32>>,
    /// The previous tokens are the answer's, not the prompt's: presence and frequency count them
    #[arg(long)]
    pub answered: bool,
}

impl DumpSample {
    /// All settings in order.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.choose.settings().chain(self.option.iter().map(|(k, v)| (k.as_str(), v.as_str())))
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

/// `oxiline dump whisper`
#[derive(Debug, Args)]
pub struct DumpWhisper {
    /// Model directory, `org/name` or a known name
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub io: InOut,
    /// Language [default: detected]
    #[arg(long, value_name = "L")]
    pub language: Option<String>,
    /// Task: transcribe or translate
    #[arg(long, value_name = "T")]
    pub task: Option<String>,
    /// With timestamp tokens
    #[arg(long)]
    pub timestamps: bool,
    /// Word times: adds `word_starts` and `word_ends` (seconds) and the words' texts to the metadata
    #[arg(long)]
    pub word_timestamps: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub decode: Decode,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub load: LoadArgs,
}

/// `oxiline dump text`
#[derive(Debug, Args)]
pub struct DumpText {
    /// Model: directory, file, `org/name` or a known name
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub io: InOut,
    /// Greedy tokens after the input, end tokens like any other
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub greedy: usize,
    /// Tokens of the input computed at a time [default: all]; results don't depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,
    /// Compute in float32 on dequantised weights
    #[arg(long, conflicts_with = "quant")]
    pub exact: bool,
    /// How keys and values are kept [default: f32 with --exact, else f16]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub kv: Option<KvArg>,
    /// Quantise the weights at load
    #[arg(long, value_name = "Q", value_enum)]
    pub quant: Option<TextQuantArg>,
    /// Write the residual stream too: `layer_last layer0_all embeddings_head`
    #[arg(long)]
    pub layers: bool,
}

/// `--kv`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum KvArg {
    F32,
    F16,
    Int8,
}

/// `--quant` of language models
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum TextQuantArg {
    Q8,
    Q4,
}

/// `oxiline dump vad`
#[derive(Debug, Args)]
pub struct DumpVad {
    /// Silero weights [default: the built-in ones]
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub io: InOut,
}

/// `oxiline dump resample`
#[derive(Debug, Args)]
pub struct DumpResample {
    /// Rate of the input, Hz
    #[arg(long, value_name = "R")]
    pub rate_in: u32,
    /// Rate of the output, Hz
    #[arg(long, value_name = "R")]
    pub rate_out: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub io: InOut,
}

/// `oxiline dump dequantize`
#[derive(Debug, Args)]
pub struct DumpDequantize {
    /// GGUF block type such as Q4_K, or mlx
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: String,
    /// Bits of a quant, with `--type mlx`
    #[arg(long, value_name = "N")]
    pub bits: Option<u32>,
    /// Weights of a group, with `--type mlx` [default: what the shapes say]
    #[arg(long, value_name = "N")]
    pub group: Option<usize>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub io: InOut,
}

/// `oxiline dump quantize`
#[derive(Debug, Args)]
pub struct DumpQuantize {
    /// Block type: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, F32, F16 or BF16
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub io: InOut,
}

/// `oxiline dump matvec`
#[derive(Debug, Args)]
pub struct DumpMatvec {
    /// GGUF block type such as Q4_K
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: String,
    /// In float32 on dequantised weights instead of the speed path
    #[arg(long)]
    pub exact: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub io: InOut,
}

/// `oxiline dump tokens`
#[derive(Debug, Args)]
pub struct DumpTokens {
    /// Model directory or file, `org/name` or a known name
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// Standard input is a JSON array of ids; print their text
    #[arg(long)]
    pub decode: bool,
}

/// `oxiline dump tensors`
#[derive(Debug, Args)]
pub struct DumpTensors {
    /// Checkpoint: directory, file, `org/name` or a known name
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// Write this tensor's values, as f32, to `--output`
    #[arg(long, value_name = "NAME", requires = "output")]
    pub tensor: Option<String>,
    /// Safetensors file to write
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
