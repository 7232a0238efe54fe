//! The language model as a model actor.

use std::path::Path;
use std::time::Duration;

use oxiline_graph::protocol::llm::{Llm, LlmReply, LlmRequest, OpenLlm};
use oxiline_graph::{Error, Job, Load, Model, Result, Whereabouts};
use oxiline_weights::{Checkpoint, Mode, Tokenizer, hub};

use super::core::{Budget, Chats, Core, Limits, Task};
use super::options::LlmOptions;
use super::session::LlmSession;
use crate::chat::{ChatTemplate, OutputFormat, Variables};
use crate::decoder::{CausalLm, Decoder, State};

/// Bytes of prompts kept for other sessions when nothing else is said.
const PREFIXES: u64 = 256 << 20;

/// A loaded language model, shared by any number of sessions.
pub struct LlmModel {
    core: Core<Decoder>,
}

struct JobTask<'a, 'b>(&'a mut Job<'b, LlmModel>);

impl Task<State> for JobTask<'_, '_> {
    fn session(&mut self) -> &mut LlmSession<State> {
        self.0.session
    }
    fn request(&self) -> &LlmRequest {
        self.0.request
    }
    fn reply(&mut self, reply: LlmReply) {
        self.0.reply(reply);
    }
    fn finish(&mut self, result: Result<()>) {
        self.0.finish(result);
    }
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
    fn first(&self) -> bool {
        self.0.first()
    }
    fn waited(&self) -> Duration {
        self.0.waited()
    }
}

impl Model for LlmModel {
    const KIND: &'static str = "llm";
    const ABOUT: &'static str =
        "A language model from a GGUF file or a checkpoint's folder: any number of sessions, one batch.";
    type Options = LlmOptions;
    type Protocol = Llm;
    type Session = LlmSession<State>;

    fn identity(options: &LlmOptions) -> Result<String> {
        options.check()?;
        let place = hub::place(&options.weights, &hub::process_options()).map_err(Error::msg)?;
        let rest = LlmOptions { weights: String::new(), device: None, ..options.clone() };
        Ok(format!("{} {}", place.display(), serde_json::to_string(&rest).map_err(Error::msg)?))
    }

    fn whereabouts(options: &LlmOptions) -> Result<Whereabouts> {
        let hub = hub::process_options();
        let name = options.weights.clone();
        Ok(match hub::local(&name, &hub).map_err(Error::msg)? {
            Some(_) => Whereabouts::Here,
            None if hub.fetches() => Whereabouts::Fetched(name),
            None => Whereabouts::Missing(name),
        })
    }

    fn load(options: LlmOptions, load: &Load) -> Result<Self> {
        options.check()?;
        let place = hub::resolve(&options.weights, &hub::process_options()).map_err(Error::msg)?;
        let checkpoint = Checkpoint::open(&place, Mode::Mmap).map_err(Error::msg)?;
        // What is small comes first: a mistake there costs nobody the time of the weights.
        let tokenizer = tokenizer(&checkpoint)?;
        let template = template(&checkpoint, &options)?;
        let model = Decoder::from_checkpoint(&checkpoint, &options.load(), &mut |done, total| {
            load.progress(done, total);
            load.check()
        })?;
        let format = template.as_ref().map_or_else(OutputFormat::default, |t| OutputFormat::of(t.source()));
        let kv = &options.kv;
        let budget = Budget {
            per_session: kv.per_session.map(|size| size.0),
            total: kv.total.map(|size| size.0),
            sessions: kv.sessions,
            evict: kv.evict,
        };
        let prefixes = kv.prefixes.map_or(PREFIXES, |size| size.0).min(budget.total.unwrap_or(u64::MAX));
        let limits = Limits { budget, prefixes, chunk: options.prefill_chunk, context: options.context };
        Ok(Self { core: Core::new(model, tokenizer, Chats { template, format }, limits)? })
    }

    fn open(&mut self, open: OpenLlm) -> Result<LlmSession<State>> {
        self.core.open(open)
    }

    fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
        let mut tasks: Vec<JobTask<'_, '_>> = jobs.iter_mut().map(JobTask).collect();
        let mut tasks: Vec<&mut dyn Task<State>> = tasks.iter_mut().map(|t| t as &mut dyn Task<State>).collect();
        self.core.step(&mut tasks);
    }

    fn memory(&self) -> u64 {
        self.core.model.memory() + self.core.cache_bytes()
    }
}

/// The tokenizer of a checkpoint: out of a GGUF file's metadata, or from the files beside the weights.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    match checkpoint.gguf() {
        Some(metadata) => Tokenizer::from_gguf(metadata).map_err(Error::msg),
        None => Tokenizer::load(checkpoint.folder()).map_err(Error::msg),
    }
}

/// The chat template: the one the options name, else the checkpoint's own.
fn template(checkpoint: &Checkpoint, options: &LlmOptions) -> Result<Option<ChatTemplate>> {
    let own = match checkpoint.gguf() {
        Some(metadata) => ChatTemplate::from_gguf(metadata)?,
        None => ChatTemplate::load(checkpoint.folder())?,
    };
    let Some(path) = &options.template else { return Ok(own) };
    let source = std::fs::read_to_string(Path::new(path))
        .map_err(|e| Error::msg(format_args!("the chat template {path} cannot be read: {e}")))?;
    let variables = own.map_or_else(Variables::new, |own| own.variables().clone());
    ChatTemplate::from_source(&source, variables).map(Some)
}
