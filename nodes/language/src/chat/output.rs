//! What a model writes, taken apart as it comes: thinking, answer, tool calls.
//!
//! The formats are those of the families' own templates: `<think>`, `<tool_call>` around JSON (Qwen 2.5
//! and 3) or around `<function=...>` (Qwen 3.5 on), Gemma 4's channels and calls, Llama 3's bare JSON.

use std::sync::Arc;

use oxiline_graph::protocol::llm::ToolCall;
use serde_json::{Map, Value};

/// Around a string in Gemma 4's calls.
const QUOTE: &str = "<|\"|>";
/// Deepest nesting of a call's arguments.
const DEPTH: usize = 64;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text for the reader.
    Text(String),
    /// The model's thinking.
    Thinking(String),
    /// A complete call.
    ToolCall(ToolCall),
}

/// How a model marks its thinking and its calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputFormat {
    thinking: Option<Marks>,
    calls: Option<(Marks, Style)>,
}

/// What stands before and behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marks {
    open: &'static str,
    close: &'static str,
}

/// What stands inside a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// `{"name": ..., "arguments": ...}`, or `<function=NAME>` with parameters.
    Qwen,
    /// `call:NAME{key:value}`.
    Gemma,
    /// The whole answer is `{"name": ..., "parameters": ...}`.
    Llama,
}

impl OutputFormat {
    /// The format that a chat template writes for the answers it was given.
    pub fn of(template: &str) -> Self {
        let has = |text: &str| template.contains(text);
        if has("<|channel>") {
            return Self {
                thinking: Some(Marks { open: "<|channel>thought\n", close: "<channel|>" }),
                calls: Some((Marks { open: "<|tool_call>", close: "<tool_call|>" }, Style::Gemma)),
            };
        }
        let calls = if has("<tool_call>") {
            Some((Marks { open: "<tool_call>", close: "</tool_call>" }, Style::Qwen))
        } else if has("<|python_tag|>") || has("\"parameters\": ") && has("<|start_header_id|>") {
            Some((Marks { open: "<|python_tag|>", close: "" }, Style::Llama))
        } else {
            None
        };
        Self { thinking: has("<think>").then_some(Marks { open: "<think>", close: "</think>" }), calls }
    }

    /// The same without calls: whatever looks like one is the answer's text.
    pub fn without_calls(self) -> Self {
        Self { calls: None, ..self }
    }

    /// A parser of the answer to a prompt, whose end may open a thought already. `tools` tell which
    /// arguments are texts.
    pub fn answer_to(self, prompt: &str, tools: Arc<[Value]>) -> OutputParser {
        let opened = self.thinking.is_some_and(|marks| {
            let open = prompt.rfind(marks.open.trim_end());
            open.is_some_and(|at| {
                !prompt[at..].contains(marks.close) && prompt[at..].trim_end() == marks.open.trim_end()
            })
        });
        OutputParser {
            format: self,
            tools,
            held: String::new(),
            place: if opened { Place::Thinking } else { Place::Text },
            fresh: opened,
            begun: false,
            called: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Text,
    Thinking,
    Call,
}

/// Takes an answer apart. Text is given as soon as it cannot be the beginning of a mark; white space
/// only once it is known to stand between words.
#[derive(Debug, Clone)]
pub struct OutputParser {
    format: OutputFormat,
    tools: Arc<[Value]>,
    held: String,
    place: Place,
    /// White space at the beginning belongs to the marks.
    fresh: bool,
    /// There was text.
    begun: bool,
    called: bool,
}

impl OutputParser {
    /// Is a control token with this text part of the format? Others are not shown.
    pub fn marks(&self, token: &str) -> bool {
        if token.is_empty() {
            return false;
        }
        let within = |marks: &Marks| marks.open.contains(token) || marks.close.contains(token);
        self.format.thinking.as_ref().is_some_and(within)
            || self
                .format
                .calls
                .as_ref()
                .is_some_and(|(marks, style)| within(marks) || *style == Style::Gemma && token == QUOTE)
    }

    /// Is what comes now the model's thinking?
    pub fn is_thinking(&self) -> bool {
        self.place == Place::Thinking
    }

    /// Adds text.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.step(&mut out) {}
        out
    }

    /// Nothing more comes: what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self.place {
            Place::Text => {
                if self.format.calls.is_some_and(|(_, style)| style == Style::Llama) && !self.begun {
                    match json_call(rest.trim()) {
                        Some(call) => out.push(Piece::ToolCall(call)),
                        None => out.push(Piece::Text(rest)),
                    }
                } else if !(self.called || self.fresh) || !rest.trim().is_empty() {
                    out.push(Piece::Text(if self.fresh { rest.trim_start().into() } else { rest }));
                }
            }
            Place::Thinking => out.push(Piece::Thinking(rest.trim_end().into())),
            Place::Call => {
                let open = self.format.calls.map_or("", |(marks, _)| marks.open);
                let llama = self.format.calls.is_some_and(|(_, style)| style == Style::Llama);
                match json_call(rest.trim()).filter(|_| llama) {
                    Some(call) => out.push(Piece::ToolCall(call)),
                    // A call that was cut off is shown as what it is.
                    None => out.push(Piece::Text(format!("{open}{rest}"))),
                }
            }
        }
        out.retain(|piece| !matches!(piece, Piece::Text(t) | Piece::Thinking(t) if t.is_empty()));
        out
    }

    /// Takes one piece out of what is held; false when nothing can be taken yet.
    fn step(&mut self, out: &mut Vec<Piece>) -> bool {
        match self.place {
            Place::Text => self.text(out),
            Place::Thinking => self.thinking(out),
            Place::Call => self.call(out),
        }
    }

    fn text(&mut self, out: &mut Vec<Piece>) -> bool {
        let (thinking, calls) = (self.format.thinking, self.format.calls);
        // An answer of Llama 3 that begins with a brace may be a call as a whole.
        if calls.is_some_and(|(_, style)| style == Style::Llama)
            && !self.begun
            && self.held.trim_start().starts_with('{')
        {
            return false;
        }
        let opens = [(thinking.map(|m| m.open), Place::Thinking), (calls.map(|(m, _)| m.open), Place::Call)];
        let found = opens.iter().filter_map(|(open, place)| {
            let open = (*open)?;
            Some((self.held.find(open)?, open.len(), *place))
        });
        if let Some((at, length, place)) = found.min_by_key(|(at, ..)| *at) {
            let before = self.held[..at].trim_end().to_string();
            self.held.drain(..at + length);
            self.say(&before, out);
            (self.place, self.fresh) = (place, true);
            return true;
        }
        let marks: Vec<&str> = opens.iter().filter_map(|(open, _)| *open).collect();
        let certain = certain(&self.held, &marks);
        // Where marks may follow, white space waits for what comes behind it.
        let certain = if marks.is_empty() { certain } else { self.held[..certain].trim_end().len() };
        let now: String = self.held.drain(..certain).collect();
        self.say(&now, out);
        false
    }

    fn say(&mut self, text: &str, out: &mut Vec<Piece>) {
        let text = if self.fresh { text.trim_start() } else { text };
        if !text.is_empty() {
            (self.fresh, self.begun) = (false, true);
            out.push(Piece::Text(text.into()));
        }
    }

    fn thinking(&mut self, out: &mut Vec<Piece>) -> bool {
        let Some(marks) = self.format.thinking else { return false };
        if self.fresh {
            self.held = self.held.trim_start().to_string();
            self.fresh = self.held.is_empty();
        }
        if let Some(at) = self.held.find(marks.close) {
            let thought = self.held[..at].trim_end().to_string();
            self.held.drain(..at + marks.close.len());
            if !thought.is_empty() {
                out.push(Piece::Thinking(thought));
            }
            (self.place, self.fresh) = (Place::Text, true);
            return true;
        }
        let certain = self.held[..certain(&self.held, &[marks.close])].trim_end().len();
        if certain > 0 {
            out.push(Piece::Thinking(self.held.drain(..certain).collect()));
        }
        false
    }

    fn call(&mut self, out: &mut Vec<Piece>) -> bool {
        let Some((marks, style)) = self.format.calls.filter(|(marks, _)| !marks.close.is_empty()) else {
            return false;
        };
        let Some(at) = end_of_call(&self.held, marks.close, style) else { return false };
        let body = self.held[..at].to_string();
        self.held.drain(..at + marks.close.len());
        let call = match style {
            Style::Gemma => gemma_call(body.trim()),
            _ if body.trim_start().starts_with("<function=") => xml_call(body.trim(), &self.tools),
            _ => json_call(body.trim()),
        };
        out.push(match call {
            Some(call) => {
                self.called = true;
                Piece::ToolCall(call)
            }
            None => Piece::Text(format!("{}{body}{}", marks.open, marks.close)),
        });
        (self.place, self.fresh) = (Place::Text, self.called);
        true
    }
}

/// Bytes at the front of `text` that cannot belong to one of the marks.
fn certain(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|m| m.len()).max().unwrap_or(0);
    let from = text.len().saturating_sub(longest.saturating_sub(1));
    let begins = |at: &usize| text.is_char_boundary(*at) && marks.iter().any(|m| m.starts_with(&text[*at..]));
    (from..text.len()).find(begins).unwrap_or(text.len())
}

/// Where a call's closing mark is; inside Gemma's quotes it is text.
fn end_of_call(text: &str, close: &str, style: Style) -> Option<usize> {
    if style != Style::Gemma {
        return text.find(close);
    }
    let mut from = 0;
    loop {
        let at = from + text[from..].find(close)?;
        match text[from..].find(QUOTE).map(|q| from + q).filter(|q| *q < at) {
            None => return Some(at),
            Some(quote) => from = quote + QUOTE.len() + text[quote + QUOTE.len()..].find(QUOTE)? + QUOTE.len(),
        }
    }
}

/// `{"name": ..., "arguments" or "parameters": {...}}`.
fn json_call(text: &str) -> Option<ToolCall> {
    let Value::Object(mut object) = serde_json::from_str(text).ok()? else { return None };
    let Some(Value::String(name)) = object.remove("name") else { return None };
    let arguments = object.remove("arguments").or_else(|| object.remove("parameters")).unwrap_or_default();
    // Some models write the object as a text.
    let arguments = match arguments {
        Value::String(text) => serde_json::from_str(&text).ok()?,
        Value::Null => Value::Object(Map::new()),
        other => other,
    };
    arguments.is_object().then_some(ToolCall { name, arguments })
}

/// `<function=NAME><parameter=KEY>VALUE</parameter>...</function>`.
fn xml_call(text: &str, tools: &[Value]) -> Option<ToolCall> {
    let (name, mut rest) = text.strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("</function>") {
            return after.trim().is_empty().then(|| ToolCall { name: name.into(), arguments: arguments.into() });
        }
        let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        // One line end on each side belongs to the tags.
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let text = || Value::String(value.into());
        let value =
            if is_text(tools, name, key) { text() } else { serde_json::from_str(value).unwrap_or_else(|_| text()) };
        arguments.insert(key.into(), value);
        rest = after;
    }
}

/// Does the declaration of tool `name` say that argument `key` is a text?
fn is_text(tools: &[Value], name: &str, key: &str) -> bool {
    let function = |tool: &Value| tool.get("function").unwrap_or(tool).clone();
    let Some(tool) = tools.iter().map(function).find(|tool| tool["name"] == name) else { return false };
    tool["parameters"]["properties"][key]["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("string"))
}

/// `call:NAME{key:value,...}`.
fn gemma_call(text: &str) -> Option<ToolCall> {
    let (name, _) = text.strip_prefix("call:")?.split_once('{')?;
    let mut rest = &text["call:".len() + name.len()..];
    let arguments = gemma_value(&mut rest, DEPTH)?;
    (rest.trim().is_empty() && arguments.is_object()).then(|| ToolCall { name: name.trim().into(), arguments })
}

/// A value in Gemma 4's writing: bare keys, texts in their own quotes.
fn gemma_value(rest: &mut &str, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    *rest = rest.trim_start();
    let mut take = |open: char| {
        let after = rest.strip_prefix(open)?;
        *rest = after.trim_start();
        Some(())
    };
    if take('{').is_some() {
        let mut object = Map::new();
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                *rest = after;
                return Some(object.into());
            }
            let key = match rest.strip_prefix(QUOTE) {
                Some(quoted) => {
                    let (key, after) = quoted.split_once(QUOTE)?;
                    *rest = after.trim_start().strip_prefix(':')?;
                    key.to_string()
                }
                None => {
                    let (key, after) = rest.split_once(':')?;
                    *rest = after;
                    key.trim().to_string()
                }
            };
            object.insert(key, gemma_value(rest, depth)?);
            comma(rest, '}')?;
        }
    }
    if take('[').is_some() {
        let mut list = Vec::new();
        loop {
            if let Some(after) = rest.strip_prefix(']') {
                *rest = after;
                return Some(list.into());
            }
            list.push(gemma_value(rest, depth)?);
            comma(rest, ']')?;
        }
    }
    if let Some(quoted) = rest.strip_prefix(QUOTE) {
        let (text, after) = quoted.split_once(QUOTE)?;
        *rest = after;
        return Some(text.into());
    }
    let end = rest.find([',', '}', ']']).unwrap_or(rest.len());
    let (bare, after) = rest.split_at(end);
    *rest = after;
    serde_json::from_str(bare.trim()).ok()
}

/// A comma, or the end that `close` is.
fn comma(rest: &mut &str, close: char) -> Option<()> {
    let trimmed = rest.trim_start();
    *rest = match trimmed.strip_prefix(',') {
        Some(after) => after.trim_start(),
        None if trimmed.starts_with(close) => trimmed,
        None => return None,
    };
    Some(())
}
