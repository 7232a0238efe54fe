//! Flags of `oxiline chat`. Values are checked where every client's are: by [`oxiline::EngineOptions::set`].

use std::path::PathBuf;

use clap::Args;

/// `oxiline chat`
#[derive(Debug, Args)]
pub struct Chat {
    /// GGUF file, model directory, `org/name`, `org/name:QUANT`, or a name of `oxiline models list --known`
    #[arg(long, short, value_name = "MODEL", required_unless_present = "print_graph")]
    pub model: Option<String>,
    /// Answer this and end ("-": all of standard input)
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Go on interactively after `--prompt`
    #[arg(long)]
    pub chat: bool,
    /// From a pipe: every line is a prompt of its own, each a new conversation
    #[arg(long)]
    pub lines: bool,
    /// One JSON object an answer instead of text
    #[arg(long)]
    pub json: bool,
    /// The system message [default: who answers, and the date and time]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// No system message
    #[arg(long, conflicts_with = "system")]
    pub no_system: bool,
    /// Go on with the text as it is: no chat template, no roles
    #[arg(long, conflicts_with_all = ["system", "tools", "think", "no_think"])]
    pub raw: bool,
    /// Let the model think, and show it dimmed
    #[arg(long)]
    pub think: bool,
    /// Keep the model from thinking, where its template can
    #[arg(long, conflicts_with = "think")]
    pub no_think: bool,
    /// Give the model tools: the date and time and an exact calculator; or for `--print-prompt` those of a file
    #[arg(long, value_name = "T.json", num_args = 0..=1, default_missing_value = "")]
    pub tools: Option<String>,
    /// Go on with a conversation that /save wrote
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    pub resume: Option<PathBuf>,
    /// Write the conversation here at the end
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    pub save: Option<PathBuf>,
    /// Keep what was typed in this file [default: nowhere]
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub answer: Answer,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub weights: Weights,
    /// Print the prompt instead of answering it: exactly the template's bytes, no weights are read
    #[arg(long)]
    pub print_prompt: bool,
    /// Messages for `--print-prompt`: a JSON array, or what /save wrote
    #[arg(long, value_name = "M.json", requires = "print_prompt")]
    pub messages: Option<PathBuf>,
    /// For `--print-prompt`: leave out what begins the answer
    #[arg(long, requires = "print_prompt")]
    pub no_generation_prompt: bool,
    /// Show every token, special ones included, on standard error
    #[arg(long)]
    pub show_tokens: bool,
    /// Write the logits that follow the prompt to this safetensors file instead of answering
    #[arg(long, value_name = "OUT")]
    pub dump_logits: Option<PathBuf>,
    /// Print the graph that holds this conversation instead of holding it
    #[arg(long)]
    pub print_graph: bool,
}

/// How an answer is chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "The answer")]
#[allow(missing_docs)]
pub struct Answer {
    /// Most tokens of an answer
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub max_tokens: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub choose: Choose,
    /// The answer ends before this text (may be given again)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// The answer is JSON that this JSON schema allows: a file, or the schema itself
    #[arg(long, value_name = "SCHEMA", conflicts_with = "regex")]
    pub json_schema: Option<String>,
    /// The answer matches this regular expression as a whole
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    pub regex: Option<String>,
    /// End tokens do not end the answer
    #[arg(long)]
    pub ignore_end: bool,
    /// Log-probabilities of so many tokens at each place (with --json in the object, else on standard error)
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub logprobs: Option<String>,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Choosing tokens")]
pub struct Choose {
    /// Temperature; 0: always the most probable token [default: 0]
    #[arg(long, visible_alias = "temperature", value_name = "T", allow_hyphen_values = true)]
    pub temp: Option<String>,
    /// Only the so many most probable tokens
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub top_k: Option<String>,
    /// Only the most probable tokens that reach this probability together
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub top_p: Option<String>,
    /// Only tokens at least this times as probable as the most probable one
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub min_p: Option<String>,
    /// Locally typical sampling: the mass kept
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub typical: Option<String>,
    /// Factor against tokens already there (1: off)
    #[arg(long, visible_alias = "repetition-penalty", value_name = "R", allow_hyphen_values = true)]
    pub repeat_penalty: Option<String>,
    /// Taken off tokens that are in the answer
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    pub presence_penalty: Option<String>,
    /// Taken off for every time a token is in the answer
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    pub frequency_penalty: Option<String>,
    /// So many last tokens count for penalties (0: all)
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub penalty_window: Option<String>,
    /// DRY against repetitions: strength (0: off)
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    pub dry_multiplier: Option<String>,
    /// DRY: growth with the length
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    pub dry_base: Option<String>,
    /// DRY: repetitions up to this length are free
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub dry_allowed_length: Option<String>,
    /// XTC: how often the most probable tokens are taken out (0: off)
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub xtc_probability: Option<String>,
    /// XTC: what counts as probable
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub xtc_threshold: Option<String>,
    /// Added to tokens' logits; `-inf` forbids a token
    #[arg(long, value_name = "ID=BIAS,...", allow_hyphen_values = true)]
    pub logit_bias: Option<String>,
    /// Seed of the draws [default: fresh]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub seed: Option<String>,
}

impl Choose {
    /// What was given, as keys of the engine's options.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = [
            ("temp", &self.temp),
            ("top_k", &self.top_k),
            ("top_p", &self.top_p),
            ("min_p", &self.min_p),
            ("typical", &self.typical),
            ("repeat_penalty", &self.repeat_penalty),
            ("presence_penalty", &self.presence_penalty),
            ("frequency_penalty", &self.frequency_penalty),
            ("penalty_window", &self.penalty_window),
            ("dry_multiplier", &self.dry_multiplier),
            ("dry_base", &self.dry_base),
            ("dry_allowed_length", &self.dry_allowed_length),
            ("xtc_probability", &self.xtc_probability),
            ("xtc_threshold", &self.xtc_threshold),
            ("logit_bias", &self.logit_bias),
            ("seed", &self.seed),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)))
    }
}

/// How the model is kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "The model")]
#[allow(missing_docs)]
pub struct Weights {
    /// Most tokens of prompt and answer together [default: the model's own]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub context: Option<String>,
    /// When the context is full: error, or drop-oldest turns
    #[arg(long, value_name = "WHAT")]
    pub context_full: Option<String>,
    /// How the cache is kept: f32, f16, int8
    #[arg(long, value_name = "TYPE")]
    pub kv: Option<String>,
    /// Quantise the weights at load: q8, q4
    #[arg(long, value_name = "Q")]
    pub quant: Option<String>,
    /// Compute in float32 on dequantised weights: slow, for comparisons
    #[arg(long)]
    pub exact: bool,
    /// Most tokens of a prompt computed at a time
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub prefill_chunk: Option<String>,
}
