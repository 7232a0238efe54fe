//! The work of the LLM actor over any causal model: requests, batches, budgets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use oxiline_graph::protocol::llm::{
    Chat, ContextFull, Finish, Generate, Grammar, LlmReply, LlmRequest, OpenLlm, Prompt,
};
use oxiline_graph::{Error, Result, bail};
use oxiline_weights::Tokenizer;

use super::answer::{Answer, Tongue};
use super::options::Evict;
use super::prefix::Prefixes;
use super::session::{LlmSession, Slot};
use crate::chat::{ChatTemplate, OutputFormat};
use crate::decoder::{CausalLm, SequenceState, Span, Want};
use crate::grammar::{Constraint, Vocabulary};
use crate::sample;

/// A step gives others a turn after this long.
const STEP: Duration = Duration::from_millis(10);
/// Longest piece of a prompt while others decode, and while nobody does.
const SHARED: f64 = 0.1;
const ALONE: f64 = 1.0;
/// Fewest positions of a prompt computed at once.
const LEAST: usize = 16;
/// Tokens that wait to be computed and do not make a session a prefilling one.
const FEW: usize = 4;
/// In what stands for text a user wrote, this splits the names of control tokens.
const GUARD: char = '\u{f8f0}';

/// What bounds the caches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub per_session: Option<u64>,
    pub total: Option<u64>,
    pub sessions: Option<usize>,
    pub evict: Evict,
}

/// How a model converses.
pub(super) struct Chats {
    pub template: Option<ChatTemplate>,
    pub format: OutputFormat,
}

/// What bounds a model's work.
pub(super) struct Limits {
    pub budget: Budget,
    /// Bytes of prompts kept for other sessions.
    pub prefixes: u64,
    /// Positions of a prompt computed at once.
    pub chunk: usize,
    /// Most positions of a session; None: the model's.
    pub context: Option<usize>,
}

/// A model with what serves its sessions.
pub(super) struct Core<M: CausalLm> {
    pub model: M,
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    pub format: OutputFormat,
    pub budget: Budget,
    pub prefixes: Prefixes<M::State>,
    pub chunk: usize,
    /// Most positions of any session.
    pub context: usize,
    slots: Vec<Weak<Mutex<Slot<M::State>>>>,
    clock: u64,
    /// Positions of prompts computed a second, as measured.
    rate: Option<f64>,
    /// The vocabulary as grammars need it, once one was asked for.
    vocabulary: Option<Vocabulary>,
}

/// A request in a step, whatever carries it.
pub(super) trait Task<S> {
    fn session(&mut self) -> &mut LlmSession<S>;
    fn request(&self) -> &LlmRequest;
    fn reply(&mut self, reply: LlmReply);
    fn finish(&mut self, result: Result<()>);
    fn cancelled(&self) -> bool;
    fn first(&self) -> bool;
    fn waited(&self) -> Duration;
}

fn lock<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: CausalLm> Core<M> {
    pub fn new(model: M, tokenizer: Tokenizer, chat: Chats, limits: Limits) -> Result<Self> {
        if tokenizer.max_id() as usize >= model.vocab() {
            bail!(
                "the tokenizer has ids up to {}, but the model's embedding has {} rows; do they belong together?",
                tokenizer.max_id(),
                model.vocab()
            );
        }
        let Limits { budget, prefixes, chunk, context } = limits;
        let context = match context {
            Some(wanted) if wanted > model.context() => {
                bail!("`context` is {wanted}, but the model was made for {} positions", model.context())
            }
            Some(wanted) => wanted,
            None => model.context(),
        };
        Ok(Self {
            model,
            tokenizer,
            template: chat.template,
            format: chat.format,
            budget,
            prefixes: Prefixes::new(prefixes),
            chunk,
            context,
            slots: Vec::new(),
            clock: 0,
            rate: None,
            vocabulary: None,
        })
    }

    /// Opens a session.
    pub fn open(&mut self, open: OpenLlm) -> Result<LlmSession<M::State>> {
        self.slots.retain(|slot| slot.strong_count() > 0);
        if let Some(most) = self.budget.sessions.filter(|most| self.slots.len() >= *most) {
            return Err(Error::Busy(format!(
                "the model has {most} sessions open, which is its limit; close one or raise `kv.sessions`"
            )));
        }
        let mut limit = match open.context {
            Some(0) => bail!("`context` is 0; a session needs room for a prompt and an answer"),
            Some(wanted) if wanted > self.context => {
                bail!("a context of {wanted} was asked for, but the model's sessions have {} positions", self.context)
            }
            Some(wanted) => wanted,
            None => self.context,
        };
        if let Some(bytes) = self.budget.per_session {
            let positions = usize::try_from(bytes).unwrap_or(usize::MAX) / self.model.bytes_per_position().max(1);
            if positions == 0 {
                bail!(
                    "`kv.per_session` is {bytes} bytes, less than the {} of one position; raise it",
                    self.model.bytes_per_position()
                );
            }
            limit = limit.min(positions);
        }
        let session = LlmSession::new(self.model.new_state(), limit, open.full);
        self.slots.push(Arc::downgrade(&session.slot));
        Ok(session)
    }

    /// Moves all requests on.
    pub fn step(&mut self, tasks: &mut [&mut dyn Task<M::State>]) {
        let end = Instant::now() + STEP;
        self.clock += 1;
        for task in tasks.iter_mut() {
            if task.first() {
                task.session().work = None;
                if let Err(error) = self.begin(&mut **task) {
                    Self::fail(&mut **task, error);
                }
            }
        }
        let mut open: Vec<usize> = (0..tasks.len()).filter(|&i| tasks[i].session().work.is_some()).collect();
        while !open.is_empty() {
            for &i in &open {
                if tasks[i].cancelled() {
                    Self::end(&mut *tasks[i], Finish::Cancelled);
                }
            }
            open.retain(|&i| tasks[i].session().work.is_some());
            self.sweep(tasks, &open);
            open.retain(|&i| tasks[i].session().work.is_some());
            if Instant::now() >= end {
                break;
            }
        }
    }

    /// The first step of a request.
    fn begin(&mut self, task: &mut dyn Task<M::State>) -> Result<()> {
        let marked = match task.request() {
            LlmRequest::Generate(generate) => {
                let generate = generate.clone();
                return self.begin_answer(task, &generate);
            }
            LlmRequest::Render(prompt) => {
                let prompt = prompt.clone();
                let session = task.session();
                let (ids, text, dropped) = self.prompt(&prompt, session)?;
                let cached = super::prefix::common(&session.lock().tokens, &ids);
                task.reply(LlmReply::Prompt { text: text.into(), ids: ids.into(), cached, dropped });
                task.finish(Ok(()));
                return Ok(());
            }
            LlmRequest::Mark => Ok(()),
            LlmRequest::Rollback(mark) => {
                let mark = *mark;
                task.session().rollback(mark)
            }
            LlmRequest::TruncateAnswer { bytes } => {
                let bytes = *bytes;
                let tokenizer = self.tokenizer.clone();
                let encode = |text: &str| tokenizer.encode_plain(text).map_err(Error::msg);
                task.session().truncate_answer(bytes, encode)
            }
            LlmRequest::Reset => {
                task.session().reset();
                Ok(())
            }
        };
        marked?;
        let mark = task.session().mark();
        task.reply(LlmReply::Marked(mark));
        task.finish(Ok(()));
        Ok(())
    }

    fn begin_answer(&mut self, task: &mut dyn Task<M::State>, generate: &Generate) -> Result<()> {
        sample::check(&generate.sampling)?;
        let constraint = generate.grammar.as_ref().map(|grammar| self.constraint(grammar)).transpose()?;
        let wait = task.waited().as_secs_f64();
        let session = task.session();
        let (ids, text, dropped) = self.prompt(&generate.prompt, session)?;
        if ids.is_empty() {
            bail!("the prompt is empty; give at least one token");
        }
        let mut slot = session.lock();
        slot.set(ids.clone());
        let held = slot.state.len();
        // The last token is computed in any case: its logits are not kept.
        if let Some(state) = self.prefixes.find(&ids, held, ids.len() - 1) {
            slot.state = state;
        }
        let most = slot.state.len().min(ids.len() - 1);
        slot.state.truncate(most);
        (slot.used, slot.busy) = (self.clock, true);
        let cached = slot.state.len();
        drop(slot);
        let tongue = Tongue { tokenizer: &self.tokenizer, format: self.format };
        let answer = Answer::new(generate, &tongue, constraint, &ids, cached, wait)?;
        session.turn += 1;
        session.last = None;
        let nothing = answer.wants_nothing();
        session.work = Some(answer);
        task.reply(LlmReply::Prompt { text: text.into(), ids: ids.into(), cached, dropped });
        if nothing {
            Self::end(task, Finish::Length);
        }
        Ok(())
    }

    fn constraint(&mut self, grammar: &Grammar) -> Result<Constraint> {
        let vocabulary = match self.vocabulary.take() {
            Some(vocabulary) => vocabulary,
            None => Vocabulary::new(&self.tokenizer, self.model.vocab())?,
        };
        Constraint::new(grammar, self.vocabulary.insert(vocabulary))
    }

    /// Ids and text of the whole context a prompt asks for, and how many turns were left out.
    fn prompt(&self, prompt: &Prompt, session: &LlmSession<M::State>) -> Result<(Vec<u32>, String, usize)> {
        let text_of = |ids: &[u32]| self.tokenizer.decode(ids, false).map_err(Error::msg);
        let encode = |text: &str| self.tokenizer.encode(text, true).map_err(Error::msg);
        let (ids, text) = match prompt {
            Prompt::Append(more) => {
                let mut ids = session.lock().tokens.clone();
                ids.extend(more);
                let text = text_of(&ids)?;
                (ids, text)
            }
            Prompt::Ids(ids) => (ids.clone(), text_of(ids)?),
            Prompt::Text(text) => (encode(text)?, text.clone()),
            Prompt::Chat(chat) => return self.chat(chat, session),
        };
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.model.vocab()) {
            bail!("token {id} of the prompt is outside the model's vocabulary of {}", self.model.vocab());
        }
        if ids.len() >= session.limit {
            bail!(
                "the prompt has {} tokens and leaves no room for an answer in a context of {}; shorten it or raise `context`",
                ids.len(),
                session.limit
            );
        }
        Ok((ids, text, 0))
    }

    /// A conversation as a prompt; in a session that drops its oldest turns, as many of them as fit.
    fn chat(&self, chat: &Chat, session: &LlmSession<M::State>) -> Result<(Vec<u32>, String, usize)> {
        let Some(template) = &self.template else {
            bail!(
                "the model has no chat template: it is not made for conversations; give the prompt as raw text, or a template"
            )
        };
        let mut chat = chat.clone();
        let mut dropped = 0;
        loop {
            let ids = self.tokens_of(template, &chat)?;
            // Room for an answer is more than a token: an eighth of the context.
            let room =
                if session.full == ContextFull::DropOldest { session.limit - session.limit / 8 } else { session.limit };
            if ids.len() < room {
                let text = template.render(&chat, true)?;
                return Ok((ids, text, dropped));
            }
            let shorter = (session.full == ContextFull::DropOldest).then(|| without_oldest(&chat.messages)).flatten();
            let Some(messages) = shorter else {
                bail!(
                    "the conversation has {} tokens and leaves no room for an answer in a context of {}; {}",
                    ids.len(),
                    session.limit,
                    if session.full == ContextFull::DropOldest {
                        "its last message alone is too long"
                    } else {
                        "begin a new one, raise `context`, or choose to drop the oldest turns"
                    }
                );
            };
            chat.messages = messages.into();
            dropped += 1;
        }
    }

    /// Ids of a rendered conversation. Names of control tokens in what users and tools wrote stay text.
    fn tokens_of(&self, template: &ChatTemplate, chat: &Chat) -> Result<Vec<u32>> {
        let mut guarded = chat.clone();
        guarded.messages = chat.messages.iter().map(|message| self.guard(message)).collect();
        let text = template.render(&guarded, true)?;
        self.tokenizer.encode_guarded(&text, GUARD).map_err(Error::msg)
    }

    fn guard(&self, message: &serde_json::Value) -> serde_json::Value {
        let mut message = message.clone();
        // What the model itself wrote may hold its own control tokens.
        if message["role"] != "assistant"
            && let Some(content) = message.get_mut("content")
        {
            self.guard_texts(content);
        }
        message
    }

    fn guard_texts(&self, value: &mut serde_json::Value) {
        match value {
            serde_json::Value::String(text) => *text = self.tokenizer.guard_literals(text, GUARD),
            serde_json::Value::Array(parts) => parts.iter_mut().for_each(|part| self.guard_texts(part)),
            serde_json::Value::Object(part) => {
                if let Some(text) = part.get_mut("text") {
                    self.guard_texts(text);
                }
            }
            _ => {}
        }
    }

    /// One batch: the next token of all that decode, and a piece of the oldest prompt.
    fn sweep(&mut self, tasks: &mut [&mut dyn Task<M::State>], open: &[usize]) {
        // (task, tokens of it, whether these are the last that wait)
        let mut parts: Vec<(usize, usize, bool)> = Vec::new();
        let mut prompts = Vec::new();
        for &i in open {
            let pending = tasks[i].session().lock().pending();
            if pending <= FEW { parts.push((i, pending, true)) } else { prompts.push((i, pending)) }
        }
        // Requests come in the order they were served: the first is the one that waits longest.
        let mut piece = 0;
        if let Some(&(i, pending)) = prompts.first() {
            piece = pending.min(self.piece(open.len() > 1));
            parts.push((i, piece, piece == pending));
        }
        parts.retain(|&(i, count, _)| match self.reserve(tasks[i].session(), count) {
            Ok(true) => true,
            Ok(false) => {
                Self::end(&mut *tasks[i], Finish::Context);
                false
            }
            Err(error) => {
                Self::fail(&mut *tasks[i], error);
                false
            }
        });
        parts.sort_unstable();
        if parts.is_empty() {
            return;
        }
        let slots: Vec<_> = parts.iter().map(|&(i, ..)| tasks[i].session().slot.clone()).collect();
        let mut guards: Vec<_> = slots.iter().map(|slot| lock(slot)).collect();
        let mut spans: Vec<Span<'_, M::State>> = guards
            .iter_mut()
            .zip(&parts)
            .map(|(guard, &(_, count, last))| {
                let Slot { state, tokens, used, .. } = &mut **guard;
                *used = self.clock;
                let at = state.len();
                Span::new(state, &tokens[at..at + count], if last { Want::Last } else { Want::Nothing })
            })
            .collect();
        let began = Instant::now();
        let outcome = self.model.forward(&mut spans);
        if piece > LEAST {
            let rate = piece as f64 / began.elapsed().as_secs_f64().max(1e-9);
            self.rate = Some(self.rate.map_or(rate, |old| 0.5 * (old + rate)));
        }
        let logits: Vec<Vec<f32>> = spans.into_iter().map(|span| span.logits).collect();
        drop(guards);
        for (&(i, _, last), logits) in parts.iter().zip(logits) {
            let task = &mut *tasks[i];
            let result = match &outcome {
                Ok(()) => self.advance(task, last.then_some(logits)),
                Err(error) => Err(error.clone()),
            };
            if let Err(error) = result {
                Self::fail(task, error);
            }
        }
    }

    /// Positions of a prompt to compute at once, so that a step does not take too long.
    fn piece(&self, shared: bool) -> usize {
        let longest = if shared { SHARED } else { ALONE };
        let measured = self.rate.map_or(LEAST * 2, |rate| (rate * longest) as usize);
        measured.clamp(LEAST, self.chunk.max(LEAST)).min(self.chunk)
    }

    /// What follows a batch for one request: more of the prompt, or the next token.
    fn advance(&mut self, task: &mut dyn Task<M::State>, logits: Option<Vec<f32>>) -> Result<()> {
        let session = task.session();
        let limit = session.limit;
        let Some(mut answer) = session.work.take() else { return Ok(()) };
        let slot = session.slot.clone();
        let mut keep = false;
        let mut slot = lock(&slot);
        if answer.prefilling() {
            let (done, total) = (slot.state.len(), answer.prompt_len());
            if done >= total {
                self.prefixes.keep(&slot.tokens[..total], &slot.state);
                keep = true;
            }
            task.reply(LlmReply::Progress { done, total });
        }
        let Some(logits) = logits else {
            task.session().work = Some(answer);
            return Ok(());
        };
        let finish = answer.next(logits, &mut slot.tokens, limit, &self.tokenizer, &mut |reply| task.reply(reply))?;
        drop(slot);
        task.session().work = Some(answer);
        // What is kept for others comes last: it goes again where there is no room for both.
        while keep && self.budget.total.is_some_and(|total| self.cache_bytes() > total) && self.prefixes.forget() {}
        if let Some(finish) = finish {
            Self::end(task, finish);
        }
        Ok(())
    }

    /// Ends an answer: its last replies, and where it is in the session.
    fn end(task: &mut dyn Task<M::State>, finish: Finish) {
        let Some(answer) = task.session().work.take() else { return };
        let position = {
            let mut slot = task.session().lock();
            slot.busy = false;
            if answer.prefilling() {
                // A prompt that was given up: what is computed of it stays.
                let held = slot.state.len();
                slot.tokens.truncate(held);
            }
            slot.tokens.len()
        };
        let written = answer.finish(finish, position, &mut |reply| task.reply(reply));
        task.session().last = (written.start <= position).then_some(written);
        task.finish(Ok(()));
    }

    /// Gives a request up; its session stays usable.
    fn fail(task: &mut dyn Task<M::State>, error: Error) {
        let session = task.session();
        session.work = None;
        session.lock().busy = false;
        task.finish(Err(error));
    }

    /// Makes room for `count` more positions of a session. False: it is as full as it may be.
    fn reserve(&mut self, session: &LlmSession<M::State>, count: usize) -> Result<bool> {
        let Some(total) = self.budget.total else { return Ok(true) };
        let need = (count * self.model.bytes_per_position()) as u64;
        loop {
            self.slots.retain(|slot| slot.strong_count() > 0);
            let slots: Vec<_> = self.slots.iter().filter_map(Weak::upgrade).collect();
            let held: u64 = slots.iter().map(|slot| lock(slot).state.bytes() as u64).sum();
            if held + self.prefixes.bytes() + need <= total || self.prefixes.forget() {
                if held + self.prefixes.bytes() + need <= total {
                    return Ok(true);
                }
                continue;
            }
            let idle = slots.iter().filter(|slot| {
                let slot = lock(slot);
                !slot.busy && !slot.state.is_empty()
            });
            let oldest = idle.min_by_key(|slot| lock(slot).used).filter(|_| self.budget.evict == Evict::IdleOldest);
            if let Some(slot) = oldest {
                // Its tokens stay: it computes them again when it goes on.
                lock(slot).state = self.model.new_state();
                continue;
            }
            let answering = session.work.as_ref().is_some_and(|work| !work.prefilling());
            if answering {
                return Ok(false);
            }
            bail!(
                "the caches of this model are full: {held} of {total} bytes are in use and {need} more are needed; \
                 close sessions, shorten the prompt or raise `kv.total`"
            );
        }
    }

    /// Bytes of caches held.
    pub fn cache_bytes(&self) -> u64 {
        let slots = self.slots.iter().filter_map(Weak::upgrade);
        slots.map(|slot| lock(&slot).state.bytes() as u64).sum::<u64>() + self.prefixes.bytes()
    }
}

/// The messages without the oldest turn: the first message that is no system message, and all behind it up
/// to the next of a user. None when only one turn is left.
fn without_oldest(messages: &[serde_json::Value]) -> Option<Vec<serde_json::Value>> {
    let system = |m: &serde_json::Value| m["role"] == "system" || m["role"] == "developer";
    let first = messages.iter().position(|m| !system(m))?;
    let next = messages[first + 1..].iter().position(|m| m["role"] == "user")? + first + 1;
    Some(messages[..first].iter().chain(&messages[next..]).cloned().collect())
}
