//! Flags of `oxiline embed` and `oxiline rerank`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use oxiline::EmbedOptions;
use oxiline::language::embed::Precision;

/// How matrices are kept.
#[derive(Debug, Clone, Copy, Args)]
pub struct Weights {
    /// Precision the matrices are kept in [default: as stored]
    #[arg(long, value_name = "P", value_enum, conflicts_with = "quant")]
    pub precision: Option<FloatArg>,
    /// Quantise the matrices at load: faster, and the loss against the floats is measured and printed
    #[arg(long, value_name = "Q", value_enum)]
    pub quant: Option<QuantArg>,
}

/// `--precision`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum FloatArg {
    F32,
    Bf16,
}

/// `--quant`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum QuantArg {
    Q8,
}

impl Weights {
    /// What the model is told.
    pub fn precision(&self) -> Option<Precision> {
        match (self.quant, self.precision) {
            (Some(QuantArg::Q8), _) => Some(Precision::Q8),
            (None, Some(FloatArg::F32)) => Some(Precision::F32),
            (None, Some(FloatArg::Bf16)) => Some(Precision::Bf16),
            (None, None) => None,
        }
    }
}

/// Where texts come from.
#[derive(Debug, Clone, Args)]
pub struct Source {
    /// File with the texts ("-": standard input)
    #[arg(value_name = "FILE", default_value = "-")]
    pub file: PathBuf,
    /// What a text is: a line, the field of a JSON object a line, or a column of a CSV file
    #[arg(long, value_name = "FORM", value_enum, default_value = "lines")]
    pub from: Form,
    /// The field of JSON lines, or the column of a CSV file (its name, or its number from 1)
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub field: String,
}

/// `--from`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Form {
    Lines,
    Jsonl,
    Csv,
}

/// What is computed of a text.
#[derive(Debug, Clone, Args)]
pub struct Wanted {
    /// Put this prompt of the model before every text [default: the model's own default]
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Only so many first dimensions (Matryoshka), normalised again
    #[arg(long, value_name = "N")]
    pub dim: Option<usize>,
    /// Weights of tokens too (BGE-M3)
    #[arg(long)]
    pub sparse: bool,
    /// A vector a token too (BGE-M3)
    #[arg(long)]
    pub colbert: bool,
    /// Embed texts that are too long in pieces and take the mean [default: cut them, counted]
    #[arg(long)]
    pub chunk: bool,
}

impl Wanted {
    /// The same as the library takes it.
    pub fn options(&self) -> EmbedOptions {
        EmbedOptions {
            prompt_name: self.prompt_name.clone(),
            dim: self.dim,
            sparse: self.sparse,
            colbert: self.colbert,
            chunk: self.chunk,
        }
    }
}

/// `oxiline embed`
#[derive(Debug, Args)]
pub struct Embed {
    /// Model: sentence-transformers folder, GGUF file, `org/name` or a known name
    #[arg(long, short, value_name = "MODEL", default_value = "all-minilm-l6-v2")]
    pub model: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub source: Source,
    /// Embed this text instead
    #[arg(long, short = 'p', value_name = "TEXT", conflicts_with = "file")]
    pub prompt: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wanted: Wanted,
    /// JSON a text: an array, or an object with `dense`, `sparse` and `colbert` [default: numbers]
    #[arg(long)]
    pub json: bool,
    /// Print the cosines of all texts with one another instead
    #[arg(long, conflicts_with_all = ["sparse", "colbert"])]
    pub similarity: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub weights: Weights,
}

/// `oxiline rerank`
#[derive(Debug, Args)]
pub struct Rerank {
    /// Cross-encoder: folder, `org/name` or a known name
    #[arg(long, short, value_name = "MODEL")]
    pub model: String,
    /// What texts are scored against
    #[arg(long, value_name = "TEXT")]
    pub query: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub source: Source,
    /// A JSON number a text (an array with several labels), in the order of the texts [default: a sorted list]
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub weights: Weights,
}
