//! `llm.generate` and `llm.chat`: text in, the model's text out as it is made.

use std::sync::Arc;

use oxiline_graph::payload::{Event, Text};
use oxiline_graph::protocol::llm::{
    Chat, ContextFull, Finish, Generate, Grammar, Llm, LlmDone, LlmReply, LlmRequest, OpenLlm, Prompt, Sampling,
};
use oxiline_graph::{
    Error, Header, Incoming, Input, Io, Mark, ModelRef, Node, Output, PortType, Result, Session, Setup, Timed, bail,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// What both nodes take.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlmGenerateOptions {
    /// The prompt: `{text}` is where the input's text goes.
    pub prompt: String,
    /// System message; none when empty.
    pub system: String,
    /// Give the prompt as it is, without the model's chat template.
    pub raw: bool,
    /// Most tokens of an answer.
    pub max_tokens: usize,
    /// Thinking on or off; the model's own default when left out.
    pub think: Option<bool>,
    /// Answers end before any of these texts.
    pub stop: Vec<String>,
    /// Most positions of the context, prompt and answer together; the model's own when left out.
    pub context: Option<usize>,
    /// Answers are JSON that this schema allows: the schema, or the name of its file.
    pub json_schema: Option<Value>,
    /// Answers match this regular expression.
    pub regex: Option<String>,
    /// 0: always the most probable token.
    pub temperature: f32,
    /// More ways to choose tokens.
    pub sampling: Sampling,
}

impl Default for LlmGenerateOptions {
    fn default() -> Self {
        Self {
            prompt: "{text}".into(),
            system: String::new(),
            raw: false,
            max_tokens: 1024,
            think: None,
            stop: Vec::new(),
            context: None,
            json_schema: None,
            regex: None,
            temperature: 0.0,
            sampling: Sampling::default(),
        }
    }
}

/// How much of a conversation is kept.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct History {
    /// So many last turns; all that fit when left out.
    pub turns: Option<usize>,
    /// So many tokens with the system message; the model's context when left out.
    pub tokens: Option<usize>,
}

/// Options of `llm.chat`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlmChatOptions {
    /// System message; none when empty.
    pub system: String,
    /// How much of the conversation is kept; the oldest turns go first.
    pub history: History,
    /// Most tokens of an answer.
    pub max_tokens: usize,
    /// Thinking on or off; the model's own default when left out.
    pub think: Option<bool>,
    /// Answers end before any of these texts.
    pub stop: Vec<String>,
    /// Answers are JSON that this schema allows: the schema, or the name of its file.
    pub json_schema: Option<Value>,
    /// Answers match this regular expression.
    pub regex: Option<String>,
    /// 0: always the most probable token.
    pub temperature: f32,
    /// More ways to choose tokens.
    pub sampling: Sampling,
}

impl Default for LlmChatOptions {
    fn default() -> Self {
        Self {
            system: String::new(),
            history: History::default(),
            max_tokens: 1024,
            think: None,
            stop: Vec::new(),
            json_schema: None,
            regex: None,
            temperature: 0.0,
            sampling: Sampling::default(),
        }
    }
}

/// The node's own `temperature` goes before that of `sampling`.
fn sampling(options: &Sampling, temperature: f32) -> Result<Sampling> {
    let mut sampling = options.clone();
    if temperature != 0.0 {
        sampling.temperature = temperature;
    }
    crate::sample::check(&sampling)?;
    Ok(sampling)
}

/// Whole texts out of pieces: a piece that continues nothing is a text of its own; pieces that do are one
/// text up to the end of their segment.
struct Texts {
    input: Input<Text>,
    open: Option<(Header, String)>,
}

impl Texts {
    fn next(&mut self) -> Result<Option<(Header, String)>> {
        loop {
            match self.input.next()? {
                Incoming::Data(item) if !item.value.delta => {
                    return Ok(Some((item.header, item.value.text.to_string())));
                }
                Incoming::Data(item) => {
                    self.open.get_or_insert((item.header, String::new())).1.push_str(&item.value.text);
                }
                Incoming::Mark(Mark::SegmentEnd { cancelled: true, .. } | Mark::Flush(_)) => self.open = None,
                Incoming::Mark(Mark::SegmentEnd { .. }) if self.open.is_some() => return Ok(self.open.take()),
                Incoming::Gap(_) | Incoming::Mark(_) => {}
                Incoming::End(_) => return Ok(self.open.take()),
            }
        }
    }
}

/// The outputs of a node, and one answer into them.
struct Voice<'a> {
    io: &'a Io,
    text: Output<Text>,
    thinking: Output<Text>,
    events: Output<Event>,
}

impl<'a> Voice<'a> {
    fn declare(setup: &mut Setup) {
        setup.output("text", PortType::Text);
        setup.output("thinking", PortType::Text);
        setup.output("events", PortType::Event);
        setup.cancellable();
        setup.memory(1 << 20);
    }

    fn new(io: &'a Io) -> Result<Self> {
        Ok(Self { io, text: io.output("text")?, thinking: io.output("thinking")?, events: io.output("events")? })
    }

    /// Runs a request; the pieces go out as segment `id`. What was answered is in `answer` however it ends.
    fn answer(
        &self,
        session: &mut Session<Llm>,
        generate: Generate,
        at: Header,
        id: u64,
        answer: &mut String,
    ) -> Result<Option<LlmDone>> {
        self.text.mark(Mark::SegmentStart(id))?;
        let mut done = None;
        let mut sent = Ok(());
        let mut call = session.call(LlmRequest::Generate(Box::new(generate)))?;
        while let Some(reply) = call.next() {
            match reply {
                Ok(LlmReply::Text { text, thinking }) => {
                    if !thinking {
                        answer.push_str(&text);
                    }
                    // A cancel is met when sending: what the model still says belongs to the answer.
                    if sent.is_ok() {
                        let output = if thinking { &self.thinking } else { &self.text };
                        sent = output.send(Timed::at(at.pts, 0, Text { text, delta: true }));
                    }
                }
                Ok(LlmReply::Prompt { dropped, cached, ids, .. }) => {
                    self.io.count("prompt tokens", ids.len() as u64);
                    self.io.count("prompt tokens cached", cached as u64);
                    if dropped > 0 {
                        self.io.count("turns forgotten", dropped as u64);
                    }
                }
                Ok(LlmReply::Done(end)) => done = Some(*end),
                Ok(_) => {}
                Err(error) => {
                    sent = sent.and(Err(error));
                    break;
                }
            }
            if sent.is_err() {
                // Nobody takes the answer any more; its end still comes.
                call.cancel();
            }
        }
        if let Some(done) = &done {
            self.io.count("tokens", done.stats.tokens as u64);
            self.io.report("answer", serde_json::to_value(&done.stats).unwrap_or_default());
        }
        sent?;
        self.text.mark(Mark::SegmentEnd { id, cancelled: false })?;
        if let Some(done) = &done {
            let data = json!({"kind": "answer", "segment": id, "finish": done.finish, "stats": done.stats});
            self.events.send(Timed::at(at.pts, 0, Event { kind: "turn".into(), data: Arc::new(data) }))?;
            if done.finish == Finish::Context {
                self.io.note("an answer was cut: the context is full; raise `context` or ask for shorter ones".into());
            }
        }
        Ok(done)
    }
}

/// Answers every text by itself.
pub struct LlmGenerate {
    options: LlmGenerateOptions,
    sampling: Sampling,
    grammar: Option<Grammar>,
    model: ModelRef<Llm>,
    turn: u64,
}

impl Node for LlmGenerate {
    const KIND: &'static str = "llm.generate";
    const ABOUT: &'static str =
        "Answers every text by itself: summaries, translations, rewriting; nothing is remembered.";
    type Options = LlmGenerateOptions;

    fn new(options: LlmGenerateOptions, setup: &mut Setup) -> Result<Self> {
        if !options.prompt.contains("{text}") {
            bail!("`prompt` of node `{}` has no `{{text}}`: the input's text would not be in it", setup.name());
        }
        setup.input("prompt", PortType::Text);
        Voice::declare(setup);
        let sampling = sampling(&options.sampling, options.temperature)?;
        let grammar = crate::grammar::of_options(options.json_schema.as_ref(), options.regex.as_deref())?;
        Ok(Self { options, sampling, grammar, model: setup.model()?, turn: 0 })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let voice = Voice::new(io)?;
        let open = OpenLlm { context: self.options.context, ..OpenLlm::default() };
        let mut session = self.model.open(open)?;
        let mut texts = Texts { input: io.input("prompt")?, open: None };
        while let Some((header, text)) = texts.next()? {
            let text = self.options.prompt.replace("{text}", &text);
            let prompt = if self.options.raw {
                Prompt::Text(text)
            } else {
                let mut messages = Vec::new();
                if !self.options.system.is_empty() {
                    messages.push(message("system", &self.options.system));
                }
                messages.push(message("user", &text));
                Prompt::Chat(Chat { messages: messages.into(), think: self.options.think, ..Chat::default() })
            };
            let generate = Generate {
                prompt,
                sampling: self.sampling.clone(),
                max_tokens: Some(self.options.max_tokens),
                stop: self.options.stop.clone(),
                grammar: self.grammar.clone(),
                ..Generate::default()
            };
            self.turn += 1;
            match voice.answer(&mut session, generate, header, self.turn, &mut String::new()) {
                Err(error) if !error.is_cancelled() => io.item_error(error)?,
                result => drop(result?),
            }
        }
        Ok(())
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Holds a conversation.
pub struct LlmChat {
    options: LlmChatOptions,
    sampling: Sampling,
    grammar: Option<Grammar>,
    model: ModelRef<Llm>,
    /// Kept over cancels: an answer that was interrupted is remembered as far as it got.
    session: Option<Session<Llm>>,
    messages: Vec<Value>,
    turn: u64,
    /// The last answer was cut short, and its text may not have been heard to its end.
    cut: bool,
}

impl Node for LlmChat {
    const KIND: &'static str = "llm.chat";
    const ABOUT: &'static str =
        "Holds a conversation: every text is a turn. A cancelled answer is remembered as far as it was heard.";
    type Options = LlmChatOptions;

    fn new(options: LlmChatOptions, setup: &mut Setup) -> Result<Self> {
        setup.input("turn", PortType::Text);
        setup.optional_input("heard", PortType::Event);
        Voice::declare(setup);
        let sampling = sampling(&options.sampling, options.temperature)?;
        let grammar = crate::grammar::of_options(options.json_schema.as_ref(), options.regex.as_deref())?;
        Ok(Self {
            options,
            sampling,
            grammar,
            model: setup.model()?,
            session: None,
            messages: Vec::new(),
            turn: 0,
            cut: false,
        })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let voice = Voice::new(io)?;
        let heard: Option<Input<Event>> = io.optional_input("heard")?;
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.model.open(self.open())?,
        };
        let texts = Texts { input: io.input("turn")?, open: None };
        let ended = self.converse(&voice, heard.as_ref(), texts, &mut session);
        self.session = Some(session);
        ended
    }
}

/// The text offset of answer `turn` that was heard last, if anybody told.
fn latest(heard: &Input<Event>, turn: u64) -> Result<Option<usize>> {
    let mut offset = None;
    while let Some(incoming) = heard.try_next()? {
        match incoming {
            Incoming::Data(item) => {
                let data = &item.value.data;
                let mine = data["segment"].as_u64().is_none_or(|segment| segment == turn);
                if let Some(at) = data["text_offset"].as_u64().filter(|_| mine) {
                    offset = usize::try_from(at).ok();
                }
            }
            Incoming::End(_) => break,
            Incoming::Gap(_) | Incoming::Mark(_) => {}
        }
    }
    Ok(offset)
}

impl LlmChat {
    fn open(&self) -> OpenLlm {
        let context = self.options.history.tokens.map(|tokens| tokens.saturating_add(self.options.max_tokens));
        OpenLlm { context, full: ContextFull::DropOldest }
    }

    fn converse(
        &mut self,
        voice: &Voice<'_>,
        heard: Option<&Input<Event>>,
        mut texts: Texts,
        session: &mut Session<Llm>,
    ) -> Result<()> {
        while let Some(turn) = texts.next()? {
            if let Some(heard) = heard {
                let offset = latest(heard, self.turn)?;
                self.forget_unheard(session, offset)?;
            }
            self.answer(voice, session, turn)?;
        }
        Ok(())
    }

    fn answer(&mut self, voice: &Voice<'_>, session: &mut Session<Llm>, turn: (Header, String)) -> Result<()> {
        let (header, text) = turn;
        self.messages.push(message("user", &text));
        if let Some(most) = self.options.history.turns {
            let turns: Vec<usize> = (0..self.messages.len()).filter(|&i| self.messages[i]["role"] == "user").collect();
            // The turn that is being answered is not one of those kept.
            if let Some(first) = turns.len().checked_sub(most.saturating_add(1)) {
                self.messages.drain(..turns[first]);
            }
        }
        let system = (!self.options.system.is_empty()).then(|| message("system", &self.options.system));
        let messages: Vec<Value> = system.into_iter().chain(self.messages.iter().cloned()).collect();
        let generate = Generate {
            prompt: Prompt::Chat(Chat { messages: messages.into(), think: self.options.think, ..Chat::default() }),
            sampling: self.sampling.clone(),
            max_tokens: Some(self.options.max_tokens),
            stop: self.options.stop.clone(),
            grammar: self.grammar.clone(),
            ..Generate::default()
        };
        self.turn += 1;
        let mut answer = String::new();
        let result = voice.answer(session, generate, header, self.turn, &mut answer);
        self.cut = matches!(&result, Err(error) if error.is_cancelled());
        match result {
            Err(error) if !error.is_cancelled() => {
                // A turn that could not be answered is not part of the conversation.
                self.messages.pop();
                voice.io.item_error(error)
            }
            result => {
                self.messages.push(message("assistant", &answer));
                result.map(drop)
            }
        }
    }

    /// What was said after the interruption was not heard: the conversation goes on from what was.
    fn forget_unheard(&mut self, session: &mut Session<Llm>, offset: Option<usize>) -> Result<()> {
        let (true, Some(offset), Some(last)) = (std::mem::take(&mut self.cut), offset, self.messages.last_mut()) else {
            return Ok(());
        };
        let Some(text) = last["content"].as_str().filter(|text| offset < text.len()) else { return Ok(()) };
        let mut offset = offset;
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        last["content"] = text[..offset].into();
        match session.ask(LlmRequest::TruncateAnswer { bytes: offset }) {
            Err(Error::Cancelled) => Err(Error::Cancelled),
            // Nothing to cut: then nothing has to be computed again either.
            _ => Ok(()),
        }
    }
}
