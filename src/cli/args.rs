//! The command line as data: verbs, flags and their help.

mod dump;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use oxiline::media::caption::Format;

pub use self::dump::*;

/// Local AI as streaming media pipelines: actor nodes, bounded channels, graphs in TOML.
#[derive(Debug, Parser)]
#[command(name = "oxiline", version, about, max_term_width = 100, arg_required_else_help = true)]
pub struct Cli {
    /// Options every verb takes.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Options every verb takes.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Compute threads [default: one a core]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Where downloaded models are kept
    #[arg(long, global = true, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Use no network at all
    #[arg(long, global = true)]
    pub offline: bool,
    /// Statistics on standard error: a summary, or JSON (one object a line, the last one at the end)
    #[arg(long, global = true, value_name = "FORM", num_args = 0..=1, default_missing_value = "summary")]
    pub stats: Option<Stats>,
    /// No progress bar and no notes
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// Form of `--stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stats {
    /// A table for a person.
    Summary,
    /// JSON for a program.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Transcribe speech in audio or video files to text or captions
    Transcribe(Box<Transcribe>),
    /// Show captions of what a microphone hears, while it is said
    Listen(Listen),
    /// Talk with a language model: in a terminal, one answer, or a batch from a pipe
    Chat(Box<super::chat::args::Chat>),
    /// Texts to vectors, with an embedding model
    Embed(Box<super::embed::args::Embed>),
    /// Scores of texts against a query, with a cross-encoder
    Rerank(Box<super::embed::args::Rerank>),
    /// Make text and media files searchable
    Index(IndexArgs),
    /// Find the passage of indexed files that answers a question
    Search(SearchArgs),
    /// Run graphs from TOML files, all in this process
    Run(Run),
    /// Check, show or draw a graph file
    Graph(Graph),
    /// Print the JSON Schema of graph files, for editors
    Schema(Schema),
    /// Download, list, inspect and remove models
    Models(Models),
    /// Print processor, memory, compute and audio devices
    Devices(Devices),
    /// Measure this machine's limits and our kernels against them
    Bench(Bench),
    /// Run one model or stage on exact tensors and write what it computes
    Dump(Dump),
}

/// `oxiline listen`
#[derive(Debug, Args)]
pub struct Listen {
    /// Microphone, as `oxiline devices` names it
    #[arg(long, short, value_name = "ID", default_value = "default", conflicts_with = "file")]
    pub device: String,
    /// Hear a file at the speed of speech instead
    #[arg(long, value_name = "FILE")]
    pub file: Option<String>,
    /// Model directory, `org/name`, or a name of `oxiline models list --known`
    #[arg(long, short, value_name = "MODEL", default_value = "whisper-base")]
    pub model: String,
    /// Language spoken, as code or name ("de", "german") [default: detected in every segment]
    #[arg(long, short, value_name = "LANG")]
    pub language: Option<String>,
    /// When a word counts as certain
    #[arg(long, value_name = "POLICY", value_parser = ["local-agreement", "align-att", "stable-prefix", "final-only"], default_value = "local-agreement")]
    pub policy: String,
    /// Write the captions to this file too; its name says the format (vtt, srt, txt, json, tsv, lrc)
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<String>,
    /// Print the graph instead of running it
    #[arg(long)]
    pub print_graph: bool,
}

/// `oxiline transcribe`
#[derive(Debug, Args)]
pub struct Transcribe {
    /// Audio or video files ("-": standard input)
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// Model directory, `org/name`, or a name of `oxiline models list --known`
    #[arg(long, short, value_name = "MODEL", default_value = "whisper-base")]
    pub model: String,
    /// Language spoken, as code or name ("de", "german") [default: detected]
    #[arg(long, short, value_name = "LANG")]
    pub language: Option<String>,
    /// Translate to English
    #[arg(long)]
    pub translate: bool,
    /// Segment times from the model's timestamp tokens (always on past 30 s and for caption formats)
    #[arg(long)]
    pub timestamps: bool,
    /// Word times
    #[arg(long)]
    pub word_timestamps: bool,
    /// Output format
    #[arg(long, short, value_name = "FORMAT", value_parser = caption_format())]
    pub format: Option<Format>,
    /// The same as `--format json`
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Output file, or a directory when there are several inputs ("-": standard output)
    #[arg(long, short, value_name = "OUT", default_value = "-")]
    pub output: String,
    /// So many files at once, on one loaded model, when they are written to a folder
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub jobs: usize,
    /// Longest caption line, characters (srt, vtt, lrc)
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub max_line: u32,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub decode: Decode,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub load: LoadArgs,
    /// Print the graph instead of running it
    #[arg(long)]
    pub print_graph: bool,
    /// Fetch the model and stop
    #[arg(long)]
    pub download_only: bool,
}

/// How Whisper decodes: the same flags for `transcribe` and `dump whisper`.
#[derive(Debug, Clone, Args)]
pub struct Decode {
    /// Text the model believes was said before
    #[arg(long, value_name = "TEXT")]
    pub initial_prompt: Option<String>,
    /// Text the transcript of every window starts with
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
    /// Decode again at higher temperatures when a window looks wrong
    #[arg(long)]
    pub fallback: bool,
    /// Temperatures of the fallback
    #[arg(long, value_name = "T,T,...", value_delimiter = ',', allow_hyphen_values = true, value_parser = temperature)]
    pub temperatures: Option<Vec<f32>>,
    /// A window that compresses better than this looks wrong
    #[arg(long, value_name = "R", allow_hyphen_values = true, value_parser = finite)]
    pub compression_ratio_threshold: Option<f32>,
    /// A window less probable than this (mean log-probability) looks wrong
    #[arg(long, value_name = "L", allow_hyphen_values = true, value_parser = finite)]
    pub logprob_threshold: Option<f32>,
    /// Above this probability of no speech, an improbable window is skipped
    #[arg(long, value_name = "P", allow_hyphen_values = true, value_parser = finite)]
    pub no_speech_threshold: Option<f32>,
    /// Give every window the text of the windows before it
    #[arg(long)]
    pub condition_on_prev: bool,
    /// Beams (1: greedy)
    #[arg(long, value_name = "N", value_parser = up_to_64::<1>)]
    pub beam: Option<usize>,
    /// Most tokens a window
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Cut windows at silences and decode so many at a time (0: the sequential algorithm)
    #[arg(long, value_name = "N", value_parser = up_to_64::<0>)]
    pub batch: Option<usize>,
    /// Decode stretches without voice activity too
    #[arg(long)]
    pub keep_all: bool,
    /// Seed of the sampling at temperatures above 0
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// A finite number.
fn finite(text: &str) -> Result<f32, String> {
    let value: f32 = text.trim().parse().map_err(|_| "it is not a number".to_string())?;
    if value.is_finite() { Ok(value) } else { Err("it is not a finite number".into()) }
}

/// A sampling temperature.
fn temperature(text: &str) -> Result<f32, String> {
    let value = finite(text)?;
    if value >= 0.0 { Ok(value) } else { Err("temperatures are 0 or more".into()) }
}

/// A count of beams or windows.
fn up_to_64<const LEAST: usize>(text: &str) -> Result<usize, String> {
    let value = text.trim().parse().ok().filter(|n| (LEAST..=64).contains(n));
    value.ok_or_else(|| format!("it is not a whole number from {LEAST} to 64"))
}

/// How the weights are kept.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Precision the weights are kept in [default: as stored]
    #[arg(long, value_name = "P", value_enum)]
    pub precision: Option<PrecisionArg>,
    /// Quantise the weights at load: faster, may change words
    #[arg(long, value_name = "Q", value_enum)]
    pub quant: Option<QuantArg>,
}

/// `--precision`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum PrecisionArg {
    F32,
    F16,
    Bf16,
}

/// `--quant`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum QuantArg {
    Q8,
}

/// A caption format by name.
fn caption_format() -> impl clap::builder::TypedValueParser<Value = Format> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(Format::ALL.map(|(name, _)| name))
        .try_map(|name| Format::by_name(&name).ok_or("no format"))
}

/// `oxiline index`
#[derive(Debug, Args)]
pub struct IndexArgs {
    /// Folder of the index; made when it is not there
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Text, captions, or media, which are transcribed first; files that have not changed are left
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Embedding model
    #[arg(long, short, value_name = "MODEL", default_value = "all-minilm-l6-v2")]
    pub model: String,
    /// Whisper model for media
    #[arg(long, value_name = "MODEL", default_value = "whisper-base")]
    pub transcriber: String,
}

/// `oxiline search`
#[derive(Debug, Args)]
pub struct SearchArgs {
    /// Folder of the index
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// What to look for
    #[arg(value_name = "QUESTION")]
    pub question: String,
    /// Embedding model, where it is kept elsewhere than when the index was made
    #[arg(long, short, value_name = "MODEL")]
    pub model: Option<String>,
    /// Most passages
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub top: usize,
    /// Order them by this cross-encoder
    #[arg(long, value_name = "MODEL")]
    pub rerank: Option<String>,
    /// A JSON object a passage
    #[arg(long)]
    pub json: bool,
}

/// `oxiline run`
#[derive(Debug, Args)]
pub struct Run {
    /// Graph files
    #[arg(required = true, value_name = "GRAPH.toml")]
    pub graphs: Vec<PathBuf>,
    /// Set a variable, or a key: `--set input=talk.mp3`, `--set nodes.vad.threshold=0.4`
    #[arg(long = "set", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub sets: Vec<String>,
    /// Fail (exit code 1) when anything was dropped, skipped or muted
    #[arg(long)]
    pub strict: bool,
}

/// `oxiline graph`
#[derive(Debug, Args)]
pub struct Graph {
    /// What to do with it
    #[command(subcommand)]
    pub what: GraphVerb,
}

/// `oxiline graph ...`
#[derive(Debug, Subcommand)]
pub enum GraphVerb {
    /// Check a graph file and print what is wrong, or its limits
    Check(GraphFile),
    /// Show nodes, edges, capacities, types, latency and memory
    Show(GraphFile),
    /// Draw it for Graphviz
    Dot(GraphFile),
    /// Draw it for Mermaid
    Mermaid(GraphFile),
}

/// A graph file with its settings.
#[derive(Debug, Args)]
pub struct GraphFile {
    /// Graph file
    #[arg(value_name = "GRAPH.toml")]
    pub graph: PathBuf,
    /// Set a variable or key
    #[arg(long = "set", value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub sets: Vec<String>,
}

/// `oxiline schema`
#[derive(Debug, Args)]
pub struct Schema {
    /// Print the node reference in Markdown instead
    #[arg(long)]
    pub markdown: bool,
}

/// `oxiline models`
#[derive(Debug, Args)]
pub struct Models {
    /// What to do
    #[command(subcommand)]
    pub what: ModelsVerb,
}

/// `oxiline models ...`
#[derive(Debug, Subcommand)]
pub enum ModelsVerb {
    /// Download a model
    Pull {
        /// `org/name` or a known name
        model: String,
    },
    /// List what is in the cache
    List {
        /// List the names this program knows instead
        #[arg(long)]
        known: bool,
        /// JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what a model is: architecture, parameters, types, context, template; and its files
    Show {
        /// GGUF file, directory, `org/name` or a known name
        model: String,
    },
    /// Quantise a model once and keep the result as a folder
    Convert {
        /// Folder, GGUF file, `org/name` or `org/name:QUANT`
        model: String,
        /// q8 or q4
        #[arg(long, value_name = "Q", value_parser = ["q8", "q4"])]
        quant: String,
        /// The new folder
        #[arg(long, short, value_name = "OUTDIR")]
        output: PathBuf,
    },
    /// Remove a model from the cache
    Rm {
        /// `org/name`
        model: String,
    },
}

/// `oxiline devices`
#[derive(Debug, Args)]
pub struct Devices {
    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// `oxiline bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// Measure this language model (GGUF file, directory, `org/name`) instead of the machine
    #[arg(value_name = "MODEL")]
    pub model: Option<String>,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 512, requires = "model")]
    pub prompt: usize,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64, requires = "model")]
    pub generate: usize,
    /// Runs of each
    #[arg(long, value_name = "N", default_value_t = 3, requires = "model")]
    pub repeat: usize,
    /// Sequences decoded together
    #[arg(long, value_name = "N", default_value_t = 1, requires = "model")]
    pub decode_batch: usize,
    /// How the cache is kept: f32, f16, int8
    #[arg(long, value_name = "TYPE", requires = "model")]
    pub kv: Option<String>,
    /// Quantise the weights at load: q8, q4
    #[arg(long, value_name = "Q", requires = "model")]
    pub quant: Option<String>,
    /// Compute in float32 on dequantised weights
    #[arg(long, requires = "model")]
    pub exact: bool,
    /// JSON
    #[arg(long)]
    pub json: bool,
}
