//! What a turn gave: the answer and its figures.

use oxiline_graph::protocol::llm::{Finish, LlmDone, LlmReply, LlmStats, TokenInfo, ToolCall};
use serde::Serialize;

use super::{Event, Flow};

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Turn {
    /// The answer without thinking.
    pub text: String,
    /// The thinking.
    pub thinking: String,
    /// Tools the model called last.
    pub tool_calls: Vec<ToolCall>,
    /// Why it ended.
    pub finish: Finish,
    /// Ids of the answer, the end token included.
    pub ids: Vec<u32>,
    /// Figures.
    pub stats: TurnStats,
}

/// Figures of a turn, all its answers together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TurnStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, already computed by an earlier turn.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Seconds from the request to the prompt's end.
    pub prefill_s: f64,
    /// Seconds from there to the end.
    pub decode_s: f64,
    /// Seconds waited for other sessions.
    pub wait_s: f64,
    /// Positions of the context that are taken after it.
    pub context: usize,
    /// Turns left out because the context was full.
    pub dropped: usize,
}

impl TurnStats {
    /// Tokens of the answer a second; 0 before two tokens are there.
    pub fn decode_tok_s(&self) -> f64 {
        // The first token falls out of the prompt's last step.
        rate(self.tokens.saturating_sub(1), self.decode_s)
    }

    /// Tokens of the prompt computed a second.
    pub fn prefill_tok_s(&self) -> f64 {
        rate(self.prompt_tokens.saturating_sub(self.cached_tokens), self.prefill_s)
    }
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

impl From<&LlmStats> for TurnStats {
    fn from(stats: &LlmStats) -> Self {
        Self {
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            tokens: stats.tokens,
            prefill_s: stats.prefill_s,
            decode_s: stats.decode_s,
            wait_s: stats.wait_s,
            ..Self::default()
        }
    }
}

impl Turn {
    /// Was it ended from outside?
    pub fn stopped(&self) -> bool {
        self.finish == Finish::Cancelled
    }

    /// This turn, and what the model answered to the results of its tool calls.
    pub(super) fn then(self, next: Self) -> Self {
        let (a, b) = (self.stats, next.stats);
        let stats = TurnStats {
            prompt_tokens: a.prompt_tokens + b.prompt_tokens,
            cached_tokens: a.cached_tokens + b.cached_tokens,
            tokens: a.tokens + b.tokens,
            prefill_s: a.prefill_s + b.prefill_s,
            decode_s: a.decode_s + b.decode_s,
            wait_s: a.wait_s + b.wait_s,
            context: b.context,
            dropped: a.dropped.max(b.dropped),
        };
        Self { text: self.text + &next.text, thinking: self.thinking + &next.thinking, stats, ..next }
    }
}

/// Collects the replies of one request.
#[derive(Default)]
pub(super) struct Collect {
    text: String,
    thinking: String,
    tool_calls: Vec<ToolCall>,
    ids: Vec<u32>,
    dropped: usize,
    prompt: (usize, usize),
    done: Option<Box<LlmDone>>,
    pub told_to_stop: bool,
    pub cancelled: bool,
}

impl Collect {
    /// Takes a reply and tells of it.
    pub fn take(&mut self, reply: LlmReply, each: &mut dyn FnMut(Event<'_>) -> Flow) -> Flow {
        match reply {
            LlmReply::Prompt { text, ids, cached, dropped } => {
                self.dropped = dropped;
                self.prompt = (ids.len(), cached);
                each(Event::Prompt { text: &text, ids: &ids, cached, dropped })
            }
            LlmReply::Progress { done, total } => each(Event::Progress { done, total }),
            LlmReply::Text { text, thinking: true } => {
                self.thinking.push_str(&text);
                each(Event::Thinking(&text))
            }
            LlmReply::Text { text, thinking: false } => {
                self.text.push_str(&text);
                each(Event::Text(&text))
            }
            LlmReply::Token(token) => {
                self.token(&token);
                each(Event::Token(&token))
            }
            LlmReply::ToolCall(call) => {
                let flow = each(Event::ToolCall(&call));
                self.tool_calls.push(call);
                flow
            }
            LlmReply::Done(done) => {
                self.done = Some(done);
                Flow::Continue
            }
            _ => Flow::Continue,
        }
    }

    /// Takes a reply that came after the stop: only its figures count.
    pub fn after_stop(&mut self, reply: LlmReply) {
        if let LlmReply::Done(done) = reply {
            self.done = Some(done);
        }
    }

    fn token(&mut self, token: &TokenInfo) {
        self.ids.push(token.id);
    }

    /// The turn. What the model says at the end counts, unless the answer was stopped before it.
    pub fn finish(self) -> Turn {
        let stopped = self.told_to_stop || self.cancelled;
        let mut stats = self.done.as_ref().map(|done| TurnStats::from(&done.stats)).unwrap_or_default();
        if self.done.is_none() {
            (stats.prompt_tokens, stats.cached_tokens) = self.prompt;
            stats.tokens = self.ids.len();
        }
        stats.dropped = self.dropped;
        match self.done {
            Some(done) => {
                stats.context = done.position;
                let finish = if stopped { Finish::Cancelled } else { done.finish };
                let told = finish == Finish::Cancelled;
                Turn {
                    text: if told { self.text } else { done.text },
                    thinking: if told { self.thinking } else { done.thinking },
                    tool_calls: if told { self.tool_calls } else { done.tool_calls },
                    finish,
                    ids: done.ids,
                    stats,
                }
            }
            None => Turn {
                text: self.text,
                thinking: self.thinking,
                tool_calls: self.tool_calls,
                finish: Finish::Cancelled,
                ids: self.ids,
                stats,
            },
        }
    }
}
