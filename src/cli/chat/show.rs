//! What of an answer goes where: the answer to standard output, everything else to standard error.

use std::io::{IsTerminal, Write};

use oxiline::engine::{Turn, TurnStats};
use oxiline::graph::protocol::llm::{Finish, TokenInfo};
use oxiline::graph::{Error, Result};
use oxiline::media::text::printable;
use oxiline::{Event, Flow};
use serde_json::{Value, json};

use super::args::Chat;
use crate::cli::args::{Common, Stats};
use crate::cli::{quiet, say};

/// Shows answers as they come.
pub struct Show {
    json: bool,
    think: bool,
    tokens: bool,
    logprobs: bool,
    /// Standard output and standard error are terminals.
    terminal: bool,
    notes: bool,
    stats: Option<Stats>,
    /// The line that is being written has something on it.
    open: bool,
    thinking: bool,
    ids: Vec<Value>,
    /// Nobody reads standard output any more.
    pub closed: bool,
    failed: Option<Error>,
}

impl Show {
    /// As the flags say.
    pub fn new(args: &Chat, common: &Common) -> Self {
        Self {
            json: args.json,
            think: args.think,
            tokens: args.show_tokens,
            logprobs: args.answer.logprobs.is_some(),
            terminal: std::io::stdout().is_terminal(),
            notes: !quiet(common),
            stats: common.stats,
            open: false,
            thinking: false,
            ids: Vec::new(),
            closed: false,
            failed: None,
        }
    }

    /// Shows an event; stops the answer when nobody reads it.
    pub fn event(&mut self, event: &Event<'_>) -> Flow {
        match event {
            Event::Text(text) if !self.json => {
                self.end_thinking();
                self.out(text);
            }
            Event::Thinking(text) if self.think && !self.json => self.thought(text),
            Event::Token(token) => self.token(token),
            Event::ToolCall(call) if self.notes && !self.json => {
                self.end_line();
                say(format_args!("[{} {}]", call.name, call.arguments));
            }
            Event::ToolResult(_, result) if self.notes && !self.json => say(format_args!("[= {}]", printable(result))),
            Event::Prompt { dropped, .. } if *dropped > 0 && self.notes => {
                say(format_args!("[the context is full: {dropped} old turns were left out]"));
            }
            _ => {}
        }
        if self.closed || self.failed.is_some() { Flow::Stop } else { Flow::Continue }
    }

    /// The answer's text. A whole write, so that an interrupt leaves no half character.
    fn out(&mut self, text: &str) {
        let text = if self.terminal { printable(text) } else { text.into() };
        self.write(text.as_bytes());
        self.open = if text.is_empty() { self.open } else { !text.ends_with('\n') };
    }

    /// Thinking: dimmed between the lines on a terminal, apart from the answer in a pipe.
    fn thought(&mut self, text: &str) {
        if self.terminal {
            self.write(format!("\x1b[2m{}\x1b[22m", printable(text)).as_bytes());
            self.open = if text.is_empty() { self.open } else { !text.ends_with('\n') };
        } else {
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        self.thinking = true;
    }

    /// The answer begins on a line of its own.
    fn end_thinking(&mut self) {
        if std::mem::take(&mut self.thinking) {
            if self.terminal { self.end_line() } else { say("") }
        }
    }

    fn token(&mut self, token: &TokenInfo) {
        if self.json && self.logprobs {
            let top: Vec<Value> = token.top.iter().map(|(id, p)| json!({"id": id, "logprob": p})).collect();
            let text = String::from_utf8_lossy(&token.text);
            self.ids.push(json!({"id": token.id, "text": text, "logprob": token.logprob, "top": top}));
        } else if !self.json && (self.tokens || self.logprobs) {
            let mut line = format!("{:>8} {:?}", token.id, String::from_utf8_lossy(&token.text));
            if let Some(p) = token.logprob {
                line.push_str(&format!(" {p:.4}"));
            }
            for (id, p) in &token.top {
                line.push_str(&format!(" {id}:{p:.4}"));
            }
            say(line);
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut out = std::io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => self.closed = true,
            Err(e) => self.failed = Some(Error::msg(format_args!("cannot write to standard output: {e}"))),
        }
    }

    /// Ends the line that was begun.
    pub fn end_line(&mut self) {
        if std::mem::take(&mut self.open) {
            self.write(b"\n");
        }
    }

    /// Shows what there is to say when an answer is complete.
    pub fn done(&mut self, prompt: &str, turn: &Turn, context: Option<usize>) -> Result<()> {
        self.end_thinking();
        if self.json {
            let line = self.object(prompt, turn);
            self.write(format!("{line}\n").as_bytes());
        }
        self.end_line();
        self.statistics(turn, context);
        self.failed.take().map_or(Ok(()), Err)
    }

    /// The line after an answer, where a person or `--stats` wants it.
    pub fn statistics(&self, turn: &Turn, context: Option<usize>) {
        match self.stats {
            Some(Stats::Json) => say(json!({"event": "turn", "finish": turn.finish, "stats": figures(&turn.stats)})),
            Some(Stats::Summary) => say(line(turn, context)),
            None if self.notes && self.terminal && std::io::stderr().is_terminal() => {
                say(format_args!("\x1b[2m{}\x1b[22m", line(turn, context)));
            }
            None => {}
        }
    }

    fn object(&mut self, prompt: &str, turn: &Turn) -> Value {
        let mut object = json!({
            "prompt": prompt,
            "text": turn.text,
            "thinking": turn.thinking,
            "finish": turn.finish,
            "tool_calls": turn.tool_calls,
            "ids": turn.ids,
            "stats": figures(&turn.stats),
        });
        if self.logprobs {
            object["logprobs"] = std::mem::take(&mut self.ids).into();
        }
        object
    }
}

/// Figures with their rates.
fn figures(stats: &TurnStats) -> Value {
    let mut value = serde_json::to_value(stats).unwrap_or_default();
    value["decode_tok_s"] = stats.decode_tok_s().into();
    value["prefill_tok_s"] = stats.prefill_tok_s().into();
    value
}

/// One line for a person.
pub fn line(turn: &Turn, context: Option<usize>) -> String {
    let s = &turn.stats;
    let mut text = format!("[{} tokens", s.tokens);
    if s.decode_tok_s() > 0.0 {
        text.push_str(&format!(", {:.1} tokens/s", s.decode_tok_s()));
    }
    text.push_str(&format!("; prompt {} tokens", s.prompt_tokens));
    if s.cached_tokens > 0 {
        text.push_str(&format!(", {} known", s.cached_tokens));
    }
    if s.prefill_tok_s() > 0.0 {
        text.push_str(&format!(", {:.1} tokens/s", s.prefill_tok_s()));
    }
    match context {
        Some(most) => text.push_str(&format!("; context {} of {most}", s.context)),
        None => text.push_str(&format!("; context {}", s.context)),
    }
    match turn.finish {
        Finish::Length => text.push_str("; cut at --max-tokens"),
        Finish::Context => text.push_str("; cut: the context is full"),
        Finish::Cancelled => text.push_str("; stopped"),
        Finish::End | Finish::Stop | Finish::Complete | Finish::Nothing => {}
    }
    text + "]"
}
