//! An answer as it is made: from logits to text, until something ends it.

use std::time::Instant;

use oxiline_graph::protocol::llm::{Finish, Generate, LlmDone, LlmReply, LlmStats, Prompt, TokenInfo, ToolCall};
use oxiline_graph::{Error, Result};
use oxiline_weights::{DecodeStream, Tokenizer};

use super::session::Written;
use crate::chat::{OutputFormat, OutputParser, Piece};
use crate::grammar::Constraint;
use crate::sample::{Sampler, Stop, logprobs};

/// An answer being made.
pub(super) struct Answer {
    sampler: Sampler,
    stream: DecodeStream,
    stop: Stop,
    parser: OutputParser,
    constraint: Option<Constraint>,
    /// Most tokens.
    most: usize,
    ignore_end: bool,
    logprobs: Option<usize>,
    tell_tokens: bool,
    /// Positions of the prompt.
    prompt: usize,
    done: LlmDone,
    written: Written,
    began: Instant,
    /// When the prompt was computed.
    first: Option<Instant>,
}

/// What an answer needs of the model.
pub(super) struct Tongue<'a> {
    pub tokenizer: &'a Tokenizer,
    pub format: OutputFormat,
}

impl Answer {
    pub fn new(
        generate: &Generate,
        tongue: &Tongue<'_>,
        constraint: Option<Constraint>,
        prompt: &[u32],
        cached: usize,
        wait_s: f64,
    ) -> Result<Self> {
        let tools = match &generate.prompt {
            Prompt::Chat(chat) => chat.tools.clone(),
            _ => [].into(),
        };
        let end = tongue.tokenizer.decode(tail(prompt), false).map_err(Error::msg)?;
        // Raw text is given back raw.
        let format = if matches!(generate.prompt, Prompt::Chat(_)) { tongue.format } else { OutputFormat::default() };
        // An answer of a given form is that form, also where a call has it too.
        let format = if constraint.is_some() { format.without_calls() } else { format };
        Ok(Self {
            sampler: Sampler::new(&generate.sampling)?,
            stream: tongue.tokenizer.decode_stream(false),
            stop: Stop::new(&generate.stop),
            parser: format.answer_to(&end, tools),
            constraint,
            most: generate.max_tokens.unwrap_or(usize::MAX),
            ignore_end: generate.ignore_end,
            logprobs: generate.logprobs,
            tell_tokens: generate.tokens,
            prompt: prompt.len(),
            done: LlmDone {
                finish: Finish::End,
                text: String::new(),
                thinking: String::new(),
                tool_calls: Vec::new(),
                ids: Vec::new(),
                stats: LlmStats { prompt_tokens: prompt.len(), cached_tokens: cached, wait_s, ..LlmStats::default() },
                position: 0,
            },
            written: Written { start: prompt.len(), ..Written::default() },
            began: Instant::now(),
            first: None,
        })
    }

    /// Positions of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt
    }

    /// Is the prompt still being computed?
    pub fn prefilling(&self) -> bool {
        self.first.is_none()
    }

    /// Was nothing asked for?
    pub fn wants_nothing(&self) -> bool {
        self.most == 0
    }

    /// Chooses the next token of `logits` and appends it to `tokens`. Some: the answer is over.
    pub fn next(
        &mut self,
        mut logits: Vec<f32>,
        tokens: &mut Vec<u32>,
        limit: usize,
        tokenizer: &Tokenizer,
        reply: &mut dyn FnMut(LlmReply),
    ) -> Result<Option<Finish>> {
        self.first.get_or_insert_with(Instant::now);
        // Probabilities are told as the model has them, before anything is taken out.
        let raw = self.logprobs.map(|most| (logits.clone(), most));
        // A thought is free: the grammar is that of the answer.
        let mut bound = self.constraint.as_mut().filter(|_| !self.parser.is_thinking());
        if let Some(constraint) = &mut bound {
            constraint.mask(&mut logits)?;
        }
        let (prompt, answer) = tokens.split_at(self.prompt);
        let Some(id) = self.sampler.choose(&mut logits, prompt, answer) else { return Ok(Some(Finish::Nothing)) };
        let complete = bound.map_or(Ok(false), |constraint| constraint.accept(id))?;
        tokens.push(id);
        self.done.ids.push(id);
        self.done.stats.tokens += 1;
        if self.tell_tokens || raw.is_some() {
            let (logprob, top) = match raw {
                Some((raw, most)) => {
                    let (logprob, top) = logprobs(&raw, id, most);
                    (Some(logprob), top)
                }
                None => (None, Vec::new()),
            };
            reply(LlmReply::Token(TokenInfo { id, text: tokenizer.token_bytes(id).into(), logprob, top }));
        }
        let end = tokenizer.is_end(id);
        if end && (complete || !self.ignore_end) {
            self.written.ends.push(self.done.text.len());
            return Ok(Some(Finish::End));
        }
        let special =
            end || tokenizer.is_special(id) && !self.parser.marks(&tokenizer.id_to_token(id).unwrap_or_default());
        if !special && let Some(text) = self.stream.push(id).map_err(Error::msg)? {
            self.text(&text, reply);
        }
        self.written.ends.push(self.done.text.len());
        Ok(if self.stop.met() {
            Some(Finish::Stop)
        } else if complete {
            Some(Finish::Complete)
        } else if self.done.ids.len() >= self.most {
            Some(Finish::Length)
        } else if tokens.len() >= limit {
            Some(Finish::Context)
        } else {
            None
        })
    }

    fn text(&mut self, text: &str, reply: &mut dyn FnMut(LlmReply)) {
        let text = self.stop.push(text);
        let pieces = self.parser.push(&text);
        self.show(pieces, reply);
    }

    fn show(&mut self, pieces: Vec<Piece>, reply: &mut dyn FnMut(LlmReply)) {
        for piece in pieces {
            let (text, thinking) = match piece {
                Piece::ToolCall(call) => {
                    self.call(call, reply);
                    continue;
                }
                Piece::Text(text) => (text, false),
                Piece::Thinking(text) => (text, true),
            };
            if text.is_empty() {
                continue;
            }
            let into = if thinking { &mut self.done.thinking } else { &mut self.done.text };
            into.push_str(&text);
            reply(LlmReply::Text { text: text.into(), thinking });
        }
    }

    fn call(&mut self, call: ToolCall, reply: &mut dyn FnMut(LlmReply)) {
        self.done.tool_calls.push(call.clone());
        reply(LlmReply::ToolCall(call));
    }

    /// The end: shows what was held back, and says why.
    pub fn finish(mut self, finish: Finish, position: usize, reply: &mut dyn FnMut(LlmReply)) -> Written {
        if let Ok(Some(rest)) = self.stream.clone().finish() {
            self.text(&rest, reply);
        }
        let rest = self.stop.finish();
        let mut pieces = self.parser.push(&rest);
        pieces.extend(self.parser.finish());
        self.show(pieces, reply);
        if let Some(last) = self.written.ends.last_mut() {
            *last = self.done.text.len();
        }
        self.written.text.clone_from(&self.done.text);
        let first = self.first.unwrap_or_else(Instant::now);
        self.done.stats.prefill_s = first.duration_since(self.began).as_secs_f64();
        self.done.stats.decode_s = first.elapsed().as_secs_f64();
        self.done.finish = finish;
        self.done.position = position;
        reply(LlmReply::Done(Box::new(self.done)));
        self.written
    }
}

/// Tokens at the end of a prompt that may open a thought.
fn tail(prompt: &[u32]) -> &[u32] {
    &prompt[prompt.len().saturating_sub(16)..]
}
