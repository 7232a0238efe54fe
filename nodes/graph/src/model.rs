//! Model actors: one loaded model, any number of sessions.

use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// What clients and a model actor say to each other.
pub trait Protocol: 'static {
    /// Its name, for messages ("node asr needs a `transcribe` model").
    const NAME: &'static str;
    /// What opening a session takes.
    type Open: Send + 'static;
    /// A request.
    type Request: Send + 'static;
    /// One of the replies streamed back.
    type Reply: Send + 'static;
}

/// A model that can be an actor. It owns weights and scratch, never per-stream state.
pub trait Model: Send + Sized + 'static {
    /// The name in graph files: `use = "whisper"`.
    const KIND: &'static str;
    /// One sentence for the schema and `docs/nodes.md`.
    const ABOUT: &'static str;
    /// Options of `[models.NAME]` beside the runtime's own keys.
    type Options: DeserializeOwned + JsonSchema;
    /// The protocol it speaks.
    type Protocol: Protocol;
    /// Per-stream state.
    type Session: Send + 'static;

    /// What makes two declarations one actor, beside `use`: weights' place and digest, device,
    /// numeric options, as a string. Cheap (no weights are read; sizes and names will do).
    fn identity(options: &Self::Options) -> Result<String>;

    /// Reads the weights. May take long; report through `load`.
    fn load(options: Self::Options, load: &Load) -> Result<Self>;

    /// Opens a session.
    fn open(&mut self, open: <Self::Protocol as Protocol>::Open) -> Result<Self::Session>;

    /// Advances every job by one step of at most about 20 ms where it can, as one batch.
    /// A job that is done says so with [`Job::finish`]; the others are scheduled again.
    fn step(&mut self, jobs: &mut [Job<'_, Self>]);

    /// Bytes of weights and scratch, for statistics and the memory bound.
    fn memory(&self) -> u64 {
        0
    }
}

/// What a loading model may use.
pub struct Load {
    // runtime fields
}

impl Load {
    /// How far loading is.
    pub fn progress(&self, _done: u64, _total: u64) {
        todo!()
    }
    /// Err([`Error::Cancelled`]) when nobody wants the model any more.
    pub fn check(&self) -> Result<()> {
        todo!()
    }
}

/// One request being served.
pub struct Job<'a, M: Model> {
    /// The stream it belongs to.
    pub session: &'a mut M::Session,
    /// The request.
    pub request: &'a <M::Protocol as Protocol>::Request,
    // runtime fields
    _m: PhantomData<M>,
}

impl<M: Model> Job<'_, M> {
    /// Streams a reply. Never waits: replies are bounded by what the client asked for.
    pub fn reply(&mut self, _reply: <M::Protocol as Protocol>::Reply) {
        todo!()
    }
    /// The job is done, with or without an error. The session stays usable.
    pub fn finish(&mut self, _result: Result<()>) {
        todo!()
    }
    /// Did the client give up? The model should finish the job with [`Error::Cancelled`]
    /// (after sending what is already whole).
    pub fn cancelled(&self) -> bool {
        todo!()
    }
    /// Is this the job's first step?
    pub fn first(&self) -> bool {
        todo!()
    }
}

/// A model kind with its types erased, as registry, loader and runtime hold it.
pub trait AnyModelKind: Send + Sync {
    /// [`Model::KIND`].
    fn kind(&self) -> &'static str;
    /// [`Model::ABOUT`].
    fn about(&self) -> &'static str;
    /// [`Protocol::NAME`] of its protocol.
    fn protocol(&self) -> &'static str;
    /// JSON schema of its options.
    fn schema(&self) -> schemars::Schema;
    /// [`Model::identity`] of these options.
    fn identity(&self, options: &serde_json::Value) -> Result<String>;
    // The runtime adds: load these options into a running actor behind a type-erased handle.
}

/// The place where a loaded model will be: made by the loader for every `[models.NAME]`,
/// filled by the runtime in `prepare`.
pub struct ModelSlot {
    /// Name in the graph.
    pub name: std::sync::Arc<str>,
    /// Its kind.
    pub kind: std::sync::Arc<dyn AnyModelKind>,
    // The runtime adds: the handle of the running actor.
}

/// A model named by a node, not yet loaded.
pub struct ModelRef<P: Protocol> {
    _p: PhantomData<P>,
}

impl<P: Protocol> ModelRef<P> {
    /// Checks that the slot's model speaks `P`.
    pub(crate) fn from_slot(slot: std::sync::Arc<ModelSlot>, node: &str) -> Result<Self> {
        if slot.kind.protocol() != P::NAME {
            return Err(Error::msg(format_args!(
                "node `{node}` needs a model that speaks `{}`, but `[models.{}]` is a `{}`, which speaks `{}`",
                P::NAME,
                slot.name,
                slot.kind.kind(),
                slot.kind.protocol()
            )));
        }
        Ok(Self { _p: PhantomData })
    }
    /// Opens a session; the model is loaded by now.
    pub fn open(&self, _open: P::Open) -> Result<Session<P>> {
        todo!()
    }
}

/// A client's stream on a model actor. Dropping it closes the session.
pub struct Session<P: Protocol> {
    _p: PhantomData<P>,
}

impl<P: Protocol> Session<P> {
    /// Sends a request; waits for room in the actor's queue.
    pub fn call(&mut self, _request: P::Request) -> Result<Call<'_, P>> {
        todo!()
    }
    /// Sends a request and collects the replies.
    pub fn ask(&mut self, request: P::Request) -> Result<Vec<P::Reply>> {
        self.call(request)?.collect()
    }
}

/// The replies of one request. Dropping it abandons the request.
pub struct Call<'a, P: Protocol> {
    _p: PhantomData<(&'a (), P)>,
}

impl<P: Protocol> Call<'_, P> {
    /// Gives the request up; replies already made still come.
    pub fn cancel(&self) {
        todo!()
    }
}

impl<P: Protocol> Iterator for Call<'_, P> {
    type Item = Result<P::Reply>;
    fn next(&mut self) -> Option<Self::Item> {
        let _ = Error::Cancelled;
        todo!()
    }
}
