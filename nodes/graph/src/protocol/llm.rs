//! What clients and a language model say to each other.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::Protocol;

/// Text generation with a cache per session.
pub struct Llm;

impl Protocol for Llm {
    const NAME: &'static str = "llm";
    type Open = OpenLlm;
    type Request = LlmRequest;
    type Reply = LlmReply;
}

/// What a session may use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OpenLlm {
    /// Most positions (prompt and answer together); the model's own context when left out.
    pub context: Option<usize>,
    /// What happens when the context is full.
    pub full: ContextFull,
}

/// What happens when the context is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContextFull {
    /// The request fails (a prompt too long) or the answer ends with [`Finish::Context`].
    #[default]
    Error,
    /// The oldest turns after the system message are left out, and the reply says how many.
    DropOldest,
}

/// A request of a session. One at a time a session.
#[derive(Debug, Clone)]
pub enum LlmRequest {
    /// Answer a prompt.
    Generate(Box<Generate>),
    /// Remember where the session is: answered by [`LlmReply::Marked`].
    Mark,
    /// Back to a mark: everything after it is forgotten. Answered by [`LlmReply::Marked`].
    Rollback(LlmMark),
    /// Cut the last answer to its first bytes (what was heard or shown): the next turn goes on from
    /// there without computing anything twice. Answered by [`LlmReply::Marked`].
    TruncateAnswer {
        /// Bytes of the answer's text that stay.
        bytes: usize,
    },
    /// Forget everything. Answered by [`LlmReply::Marked`].
    Reset,
    /// What a prompt would be, without computing it: answered by [`LlmReply::Prompt`].
    Render(Box<Prompt>),
}

/// A place in a session to go back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LlmMark {
    /// Positions held there.
    pub position: usize,
    /// The session's turn number there.
    pub turn: u64,
}

/// A prompt and how to answer it.
#[derive(Debug, Clone, Default)]
pub struct Generate {
    /// The prompt.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens of the answer.
    pub max_tokens: Option<usize>,
    /// The answer ends before any of these, even when they straddle tokens.
    pub stop: Vec<String>,
    /// End tokens do not end the answer (comparisons with references).
    pub ignore_end: bool,
    /// Log-probabilities of the chosen and so many most probable tokens.
    pub logprobs: Option<usize>,
    /// A reply for every token, special ones included ([`LlmReply::Token`]).
    pub tokens: bool,
    /// The answer keeps to this. A thought that the prompt has opened stays free.
    pub grammar: Option<Grammar>,
}

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grammar {
    /// JSON that a JSON schema allows.
    JsonSchema(serde_json::Value),
    /// Text that matches a regular expression as a whole.
    Regex(String),
}

/// What the model is given.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Ids continuing the session as they are.
    Append(Vec<u32>),
    /// Ids of the whole context: what the session already holds of them is not computed again.
    Ids(Vec<u32>),
    /// Raw text as the whole context, with the beginning-of-text token where the model wants one.
    Text(String),
    /// A conversation for the model's chat template, as the whole context.
    Chat(Chat),
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Append(Vec::new())
    }
}

/// A conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chat {
    /// Messages in the template's own form: objects with `role`, `content`, `tool_calls`, ...
    pub messages: Arc<[serde_json::Value]>,
    /// Tools in the form the reference's `apply_chat_template(tools=...)` takes.
    pub tools: Arc<[serde_json::Value]>,
    /// Thinking on or off; the template's own default when left out.
    pub think: Option<bool>,
    /// More variables for the template.
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// The last message is the beginning of the answer.
    pub continue_last: bool,
}

/// How tokens are chosen. The defaults choose the most probable token.
///
/// Order: logit bias, repetition, presence and frequency penalties, DRY, temperature, top-k, top-p,
/// min-p, typical, XTC, draw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0: always the most probable token.
    pub temperature: f32,
    /// Only the so many most probable tokens (0: all). Ties with the last of them stay.
    pub top_k: usize,
    /// Only the most probable tokens whose probabilities together reach this (1: all).
    pub top_p: f32,
    /// Only tokens at least this times as probable as the most probable one (0: all).
    pub min_p: f32,
    /// Locally typical sampling: mass kept (1: off).
    pub typical_p: f32,
    /// XTC: with this probability, all but the least probable token above the threshold are taken out (0: off).
    pub xtc_probability: f32,
    /// XTC's threshold.
    pub xtc_threshold: f32,
    /// DRY: strength (0: off).
    pub dry_multiplier: f32,
    /// DRY: growth with the length of a repetition.
    pub dry_base: f32,
    /// DRY: repetitions up to this length are free.
    pub dry_allowed_length: usize,
    /// Logits of tokens already there are divided (positive) or multiplied (negative) by this (1: off).
    pub repetition_penalty: f32,
    /// Taken off the logit of tokens that are already in the answer.
    pub presence_penalty: f32,
    /// Taken off for every time a token is already in the answer.
    pub frequency_penalty: f32,
    /// So many last tokens count for penalties and DRY (0: all).
    pub penalty_window: usize,
    /// Added to logits of tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws; a fresh one when left out.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// What a model streams back.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LlmReply {
    /// The prompt is known: what it is and how much of it was already there.
    Prompt {
        /// Its text, special tokens included.
        text: Arc<str>,
        /// Its ids.
        ids: Arc<[u32]>,
        /// Positions the cache already held.
        cached: usize,
        /// Turns left out because the context was full.
        dropped: usize,
    },
    /// So many of the prompt's positions are computed.
    Progress {
        /// Positions done.
        done: usize,
        /// Positions in all.
        total: usize,
    },
    /// More of the answer: whole characters.
    Text {
        /// The text.
        text: Arc<str>,
        /// Is it the model's thinking rather than its answer?
        thinking: bool,
    },
    /// A token was chosen (when asked for).
    Token(TokenInfo),
    /// A complete tool call.
    ToolCall(ToolCall),
    /// The answer is complete.
    Done(Box<LlmDone>),
    /// Where the session is now.
    Marked(LlmMark),
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// Its id.
    pub id: u32,
    /// Its bytes, as far as it has any.
    pub text: Arc<[u8]>,
    /// Logarithm of its probability before any filter, when asked for.
    pub logprob: Option<f32>,
    /// The most probable ones, when asked for.
    pub top: Vec<(u32, f32)>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Its name.
    pub name: String,
    /// Its arguments, an object.
    pub arguments: serde_json::Value,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finish {
    /// An end token.
    End,
    /// A stop string.
    Stop,
    /// The grammar allows nothing more.
    Complete,
    /// The most tokens asked for.
    Length,
    /// The context is full.
    Context,
    /// The client gave up; what was generated stays in the session.
    Cancelled,
    /// No token may come: all are forbidden.
    Nothing,
}

/// An answer's end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LlmDone {
    /// Why.
    pub finish: Finish,
    /// The answer's text without thinking.
    pub text: String,
    /// The thinking.
    pub thinking: String,
    /// Tool calls of the answer.
    pub tool_calls: Vec<ToolCall>,
    /// Ids of the answer, the end token included.
    pub ids: Vec<u32>,
    /// Figures.
    pub stats: LlmStats,
    /// The session after it.
    pub position: usize,
}

/// Figures of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LlmStats {
    /// Positions of the prompt.
    pub prompt_tokens: usize,
    /// Of these, already in the cache.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Seconds from the request to the prompt's end.
    pub prefill_s: f64,
    /// Seconds from there to the end.
    pub decode_s: f64,
    /// Seconds the request waited for its first step.
    pub wait_s: f64,
}
