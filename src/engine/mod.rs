//! A conversation with a language model without a graph: a thin client of the same model actor that
//! graphs use.
//!
//! ```no_run
//! use oxiline::{Engine, EngineOptions, Event, Flow};
//!
//! let mut options = EngineOptions::new();
//! options.set("temperature", "0.7")?.set("system", "Answer in one sentence.")?;
//! let mut engine = Engine::load("model.gguf", options)?;
//! let turn = engine.send("Why is the sky blue?", |event| {
//!     if let Event::Text(text) = event {
//!         print!("{text}");
//!     }
//!     Flow::Continue
//! })?;
//! println!("\n{:.1} tokens/s", turn.stats.decode_tok_s());
//! # Ok::<(), oxiline::Error>(())
//! ```

mod conversation;
mod facts;
mod options;
mod turn;

use std::path::Path;

use oxiline_graph::plan::Class;
use oxiline_graph::protocol::llm::{
    Chat, Generate, Llm, LlmMark, LlmReply, LlmRequest, OpenLlm, Prompt, TokenInfo, ToolCall,
};
use oxiline_graph::{ActorHandle, Error, Model, Result, Session};
use serde_json::Value;

use crate::CancelHandle;
pub use conversation::Conversation;
pub use facts::{Parameters, chat_template, load_options, parameters, tokenizer};
pub use options::{EngineOptions, KEYS, Key};
pub use turn::{Turn, TurnStats};

/// Rounds of tool calls in one turn before it is ended: a model that calls for ever is stopped.
const MAX_ROUNDS: usize = 8;

/// What happens while an answer is made.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The prompt is known: its text with special tokens, and its tokens.
    Prompt {
        /// Its text.
        text: &'a str,
        /// Its ids.
        ids: &'a [u32],
        /// Of these, already computed by an earlier turn.
        cached: usize,
        /// Turns left out because the context was full.
        dropped: usize,
    },
    /// So many of the prompt's tokens are computed.
    Progress {
        /// Tokens done.
        done: usize,
        /// Tokens in all.
        total: usize,
    },
    /// More of the answer: whole characters.
    Text(&'a str),
    /// More of the model's thinking.
    Thinking(&'a str),
    /// A token, special ones included (option `show_tokens` or `logprobs`).
    Token(&'a TokenInfo),
    /// The model calls a tool.
    ToolCall(&'a ToolCall),
    /// What the tool gave back, when the engine has tools.
    ToolResult(&'a ToolCall, &'a str),
}

/// Go on with the answer?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Yes.
    Continue,
    /// No: what was told so far is the answer, and stays in the conversation.
    Stop,
}

/// Runs a tool: what it gives back goes to the model as text. An error does too, as a sentence.
pub type ToolFn = Box<dyn FnMut(&ToolCall) -> Result<String> + Send>;

/// A loaded language model with one conversation of its own. [`Engine::another`] makes more on the same
/// weights.
pub struct Engine {
    handle: ActorHandle<Llm>,
    session: Session<Llm>,
    options: EngineOptions,
    conversation: Conversation,
    tools: Vec<Value>,
    call_tool: Option<ToolFn>,
    cancel: CancelHandle,
}

impl Engine {
    /// Loads a model: a GGUF file, a folder, `org/name`, `org/name:QUANT`, or a known name.
    ///
    /// # Errors
    /// What cannot be found, fetched, read or run, as one sentence.
    pub fn load(model: &str, options: EngineOptions) -> Result<Self> {
        let weights = crate::models::resolve(model)?;
        Self::load_path(&weights, options, &oxiline_graph::Load::quiet())
    }

    /// Loads a model from a path on this machine; `load` sees the progress and may give up.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_path(weights: &Path, options: EngineOptions, load: &oxiline_graph::Load) -> Result<Self> {
        Self::load_as::<oxiline_language::llm::LlmModel>(weights, options, load)
    }

    /// Loads a model of a kind of your own that speaks the language models' protocol. Its options get
    /// `weights` and what [`EngineOptions::set`] and [`EngineOptions::set_model`] set for the model.
    ///
    /// # Errors
    /// As [`Engine::load`], and options the kind does not have.
    pub fn load_as<M: Model<Protocol = Llm>>(
        weights: &Path,
        options: EngineOptions,
        load: &oxiline_graph::Load,
    ) -> Result<Self> {
        if let Some(threads) = options.threads() {
            crate::set_threads(threads);
        }
        let handle = options::start::<M>(weights, &options, load)?;
        Self::on(handle, options)
    }

    /// A conversation on a model that is already an actor.
    ///
    /// # Errors
    /// The model has as many sessions as it may have, or no such context.
    pub fn on(handle: ActorHandle<Llm>, options: EngineOptions) -> Result<Self> {
        let session = handle.open(options.open())?;
        let conversation = Conversation::new(options.system().map(String::from), options.raw());
        let cancel = CancelHandle::default();
        Ok(Self { handle, session, options, conversation, tools: Vec::new(), call_tool: None, cancel })
    }

    /// One more conversation on the same loaded weights, for another thread. It has no tools yet.
    ///
    /// # Errors
    /// The model has as many sessions as it may have.
    pub fn another(&self) -> Result<Self> {
        Self::on(self.handle.clone(), self.options.clone())
    }

    /// Gives the model tools: `schemas` as a chat template takes them (`{"type": "function",
    /// "function": {...}}`), `call` runs one.
    pub fn with_tools(
        mut self,
        schemas: Vec<Value>,
        call: impl FnMut(&ToolCall) -> Result<String> + Send + 'static,
    ) -> Self {
        self.tools = schemas;
        self.call_tool = Some(Box::new(call));
        self
    }

    /// What cancels from another thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// The options; those of sampling and of the answer may be changed between turns.
    pub fn options_mut(&mut self) -> &mut EngineOptions {
        &mut self.options
    }

    /// The options.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// The conversation so far.
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// Takes a conversation over; what the cache holds of it is not computed again.
    pub fn set_conversation(&mut self, conversation: Conversation) {
        self.conversation = conversation;
    }

    /// Answers `prompt` as the next turn of the conversation. `each` is told what happens and says
    /// whether to go on. A cancel is no error: the turn says so.
    ///
    /// # Errors
    /// A prompt that does not fit the context, a template that refuses the conversation, or a failure
    /// inside the model. The conversation is then what it was before.
    pub fn send(&mut self, prompt: &str, mut each: impl FnMut(Event<'_>) -> Flow) -> Result<Turn> {
        let before = self.conversation.clone();
        self.conversation.ask(prompt);
        let turn = self.answer(&mut each);
        self.cancel.clear();
        if turn.is_err() {
            self.conversation = before;
        }
        turn
    }

    /// One turn: an answer, and after tool calls their results and the next answer.
    fn answer(&mut self, each: &mut dyn FnMut(Event<'_>) -> Flow) -> Result<Turn> {
        let mut all: Option<Turn> = None;
        for round in 1.. {
            let request = self.options.generate(self.prompt());
            let turn = self.run(request, each)?;
            let stopped = turn.stopped();
            self.conversation.answered(&turn);
            let calls = turn.tool_calls.clone();
            let turn = match all.take() {
                Some(before) => before.then(turn),
                None => turn,
            };
            let Some(call_tool) = self.call_tool.as_mut().filter(|_| !calls.is_empty() && !stopped) else {
                return Ok(turn);
            };
            if round == MAX_ROUNDS {
                return Err(Error::msg(format_args!(
                    "the model called tools {MAX_ROUNDS} times without an answer; ask in another way or leave the \
                     tools out"
                )));
            }
            let mut go_on = Flow::Continue;
            for call in &calls {
                let result = call_tool(call).unwrap_or_else(|error| format!("error: {error}"));
                if each(Event::ToolResult(call, &result)) == Flow::Stop {
                    go_on = Flow::Stop;
                }
                self.conversation.tool_result(&call.name, &result);
            }
            if go_on == Flow::Stop || self.cancel.is_asked() {
                return Ok(turn);
            }
            all = Some(turn);
        }
        all.ok_or_else(|| Error::msg("the model gave no answer"))
    }

    /// The conversation as the model is given it.
    fn prompt(&self) -> Prompt {
        match self.conversation.raw_text() {
            Some(text) => Prompt::Text(text.to_string()),
            None => Prompt::Chat(Chat {
                messages: self.conversation.messages().to_vec().into(),
                tools: self.tools.clone().into(),
                think: self.options.think(),
                ..Chat::default()
            }),
        }
    }

    /// Runs one request as it is, past the conversation: any prompt, any settings.
    ///
    /// # Errors
    /// As [`Engine::send`].
    pub fn generate(&mut self, request: Generate, mut each: impl FnMut(Event<'_>) -> Flow) -> Result<Turn> {
        let turn = self.run(request, &mut each);
        self.cancel.clear();
        turn
    }

    fn run(&mut self, request: Generate, each: &mut dyn FnMut(Event<'_>) -> Flow) -> Result<Turn> {
        let call = self.session.call(LlmRequest::Generate(Box::new(request)))?;
        let mut turn = turn::Collect::default();
        turn.told_to_stop = self.cancel.begin(&call);
        let mut outcome = Ok(());
        let canceller = call.canceller();
        for reply in call {
            match reply {
                // What comes after a stop was not told to anybody: it is no part of the answer.
                Ok(reply) if !turn.told_to_stop => {
                    if turn.take(reply, each) == Flow::Stop {
                        turn.told_to_stop = true;
                        canceller();
                    }
                }
                Ok(reply) => turn.after_stop(reply),
                Err(Error::Cancelled) => turn.cancelled = true,
                Err(error) => outcome = Err(error),
            }
        }
        self.cancel.end();
        outcome.map(|()| turn.finish())
    }

    /// The next turn's prompt as text and ids, without computing it.
    ///
    /// # Errors
    /// A template that refuses the conversation.
    pub fn render(&mut self, prompt: &str) -> Result<(String, Vec<u32>)> {
        let before = self.conversation.clone();
        self.conversation.ask(prompt);
        let prompt = self.prompt();
        self.conversation = before;
        self.render_prompt(prompt)
    }

    /// Any prompt as text and ids, without computing it.
    ///
    /// # Errors
    /// A template that refuses the conversation.
    pub fn render_prompt(&mut self, prompt: Prompt) -> Result<(String, Vec<u32>)> {
        for reply in self.session.ask(LlmRequest::Render(Box::new(prompt)))? {
            if let LlmReply::Prompt { text, ids, .. } = reply {
                return Ok((text.to_string(), ids.to_vec()));
            }
        }
        Err(Error::msg("the model did not say what the prompt is; please report this"))
    }

    /// Forgets the conversation, except for the system message.
    ///
    /// # Errors
    /// A failure inside the model.
    pub fn reset(&mut self) -> Result<()> {
        self.conversation.clear();
        self.session.ask(LlmRequest::Reset).map(|_| ())
    }

    /// Sets the system message of the conversation; `None`: none.
    pub fn set_system(&mut self, system: Option<&str>) {
        self.conversation.set_system(system);
    }

    /// Writes the conversation as JSON; the file appears when it is whole.
    ///
    /// # Errors
    /// A sentence when it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.conversation.save(path.as_ref())
    }

    /// Goes on with a conversation that [`Engine::save`] wrote.
    ///
    /// # Errors
    /// A sentence when it cannot be read or is no conversation; the engine's own stays.
    pub fn restore(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.conversation = Conversation::load(path.as_ref())?;
        Ok(())
    }

    /// The session below, for everything the protocol has.
    pub fn session(&mut self) -> &mut Session<Llm> {
        &mut self.session
    }

    /// A fresh session on the same weights.
    ///
    /// # Errors
    /// The model has as many sessions as it may have.
    pub fn open(&self, open: OpenLlm) -> Result<Session<Llm>> {
        self.handle.open(open)
    }

    /// The actor of the loaded model.
    pub fn handle(&self) -> &ActorHandle<Llm> {
        &self.handle
    }

    /// Remembers where the session is.
    ///
    /// # Errors
    /// A failure inside the model.
    pub fn mark(&mut self) -> Result<LlmMark> {
        self.marked(LlmRequest::Mark)
    }

    /// Back to a mark of this session.
    ///
    /// # Errors
    /// A mark the session does not have any more.
    pub fn rollback(&mut self, mark: LlmMark) -> Result<LlmMark> {
        self.marked(LlmRequest::Rollback(mark))
    }

    fn marked(&mut self, request: LlmRequest) -> Result<LlmMark> {
        let replies = self.session.ask(request)?;
        let mark = replies.into_iter().find_map(|reply| match reply {
            LlmReply::Marked(mark) => Some(mark),
            _ => None,
        });
        mark.ok_or_else(|| Error::msg("the model did not say where the session is; please report this"))
    }
}

/// The class sessions of a person's conversation are served in.
pub(crate) const CLASS: Class = Class::Interactive;
