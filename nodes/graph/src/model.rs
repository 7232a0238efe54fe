//! Model actors: one loaded model, any number of sessions.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::actor::{self, ActorConfig, ActorHandle, AnyActor, Replies, Shared};
use crate::error::{Error, Result};
use crate::plan::Class;

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

    /// Whether the weights are on this machine, told by `graph check` and before a run. Cheap, and
    /// it opens no connection.
    fn whereabouts(_options: &Self::Options) -> Result<Whereabouts> {
        Ok(Whereabouts::Here)
    }

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

/// Where a model's weights are before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whereabouts {
    /// On this machine, or the model needs none.
    Here,
    /// Not here; loading fetches what has this name.
    Fetched(String),
    /// Not here, and loading may not fetch what has this name.
    Missing(String),
}

/// What a loading model may use.
pub struct Load {
    progress: Box<dyn Fn(u64, u64) + Send + Sync>,
    cancelled: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Load {
    /// For callers that load a model themselves: nobody watches and nobody cancels.
    pub fn quiet() -> Self {
        Self::watched(|_, _| {}, || false)
    }
    /// Progress goes to `progress` (done, total); loading gives up when `cancelled` says so.
    pub fn watched(
        progress: impl Fn(u64, u64) + Send + Sync + 'static,
        cancelled: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { progress: Box::new(progress), cancelled: Box::new(cancelled) }
    }
    /// How far loading is.
    pub fn progress(&self, done: u64, total: u64) {
        (self.progress)(done, total);
    }
    /// Err([`Error::Cancelled`]) when nobody wants the model any more.
    pub fn check(&self) -> Result<()> {
        if (self.cancelled)() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

/// One request being served.
pub struct Job<'a, M: Model> {
    /// The stream it belongs to.
    pub session: &'a mut M::Session,
    /// The request.
    pub request: &'a <M::Protocol as Protocol>::Request,
    pub(crate) replies: &'a Replies<<M::Protocol as Protocol>::Reply>,
    pub(crate) done: &'a mut Option<Result<()>>,
    pub(crate) first: bool,
    pub(crate) waited: std::time::Duration,
}

impl<M: Model> Job<'_, M> {
    /// Streams a reply. Never waits: a job with [`actor::WINDOW`] unread replies is not
    /// stepped until its client has read some.
    pub fn reply(&mut self, reply: <M::Protocol as Protocol>::Reply) {
        self.replies.push(reply);
    }
    /// The job is done, with or without an error. The session stays usable.
    pub fn finish(&mut self, result: Result<()>) {
        *self.done = Some(result);
    }
    /// Did the client give up? The model should finish the job with [`Error::Cancelled`]
    /// (after sending what is already whole).
    pub fn cancelled(&self) -> bool {
        self.replies.cancelled.load(SeqCst)
    }
    /// A token for work inside a step: does the client still want it?
    pub fn cancel_token(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let flag = self.replies.cancelled.clone();
        Arc::new(move || flag.load(SeqCst))
    }
    /// How long the request waited for its first step.
    pub fn waited(&self) -> std::time::Duration {
        self.waited
    }
    /// Is this the job's first step?
    pub fn first(&self) -> bool {
        self.first
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
    /// [`Model::whereabouts`] of these options.
    fn whereabouts(&self, _options: &serde_json::Value) -> Result<Whereabouts> {
        Ok(Whereabouts::Here)
    }
    /// Loads the model and starts its actor.
    fn start(&self, options: &serde_json::Value, config: ActorConfig, load: &Load) -> Result<Arc<dyn AnyActor>>;
}

/// [`AnyModelKind`] of a [`Model`] type.
pub struct ModelKind<M>(PhantomData<fn() -> M>);

impl<M: Model> ModelKind<M> {
    /// The kind of `M`.
    pub fn new() -> Self {
        Self(PhantomData)
    }

    fn options(options: &serde_json::Value) -> Result<M::Options> {
        serde_json::from_value(options.clone())
            .map_err(|e| Error::msg(format_args!("options of a `{}` model: {e}", M::KIND)))
    }
}

impl<M: Model> Default for ModelKind<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Model> AnyModelKind for ModelKind<M> {
    fn kind(&self) -> &'static str {
        M::KIND
    }
    fn about(&self) -> &'static str {
        M::ABOUT
    }
    fn protocol(&self) -> &'static str {
        M::Protocol::NAME
    }
    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(M::Options)
    }
    fn identity(&self, options: &serde_json::Value) -> Result<String> {
        M::identity(&Self::options(options)?)
    }
    fn whereabouts(&self, options: &serde_json::Value) -> Result<Whereabouts> {
        M::whereabouts(&Self::options(options)?)
    }
    fn start(&self, options: &serde_json::Value, config: ActorConfig, load: &Load) -> Result<Arc<dyn AnyActor>> {
        Ok(actor::start::<M>(Self::options(options)?, config, load)?)
    }
}

/// The place where a loaded model will be: made by the loader for every `[models.NAME]`,
/// filled by the runtime before `prepare` and emptied when the graph has ended.
pub struct ModelSlot {
    /// Name in the graph.
    pub name: Arc<str>,
    /// Its kind.
    pub kind: Arc<dyn AnyModelKind>,
    actor: Mutex<Option<(Arc<dyn AnyActor>, Class)>>,
}

impl ModelSlot {
    /// An empty slot.
    pub fn new(name: Arc<str>, kind: Arc<dyn AnyModelKind>) -> Self {
        Self { name, kind, actor: Mutex::new(None) }
    }

    /// Puts a running actor in (or takes it out); sessions opened through the slot are of `class`.
    pub(crate) fn fill(&self, actor: Option<(Arc<dyn AnyActor>, Class)>) {
        let mut place = self.actor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((new, _)) = &actor {
            new.retain();
        }
        if let Some((old, _)) = std::mem::replace(&mut *place, actor) {
            old.release();
        }
    }
}

impl Drop for ModelSlot {
    fn drop(&mut self) {
        self.fill(None);
    }
}

/// A model named by a node, not yet loaded.
pub struct ModelRef<P: Protocol> {
    slot: Arc<ModelSlot>,
    /// The node's own class, where it has one.
    class: Option<Class>,
    _p: PhantomData<fn() -> P>,
}

impl<P: Protocol> Clone for ModelRef<P> {
    fn clone(&self) -> Self {
        Self { slot: self.slot.clone(), class: self.class, _p: PhantomData }
    }
}

impl<P: Protocol> ModelRef<P> {
    /// Checks that the slot's model speaks `P`.
    pub(crate) fn from_slot(slot: Arc<ModelSlot>, node: &str, class: Option<Class>) -> Result<Self> {
        if slot.kind.protocol() != P::NAME {
            return Err(Error::msg(format_args!(
                "node `{node}` needs a model that speaks `{}`, but `[models.{}]` is a `{}`, which speaks `{}`",
                P::NAME,
                slot.name,
                slot.kind.kind(),
                slot.kind.protocol()
            )));
        }
        Ok(Self { slot, class, _p: PhantomData })
    }
    /// Opens a session; the model is loaded by now.
    /// Error::Busy when the model has as many sessions as it may have.
    pub fn open(&self, open: P::Open) -> Result<Session<P>> {
        self.handle()?.open(open)
    }
    /// A handle of the model's actor.
    pub fn handle(&self) -> Result<ActorHandle<P>> {
        let place = self.slot.actor.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((actor, class)) = place.as_ref() else {
            return Err(Error::msg(format_args!(
                "model `{}` is not loaded: sessions can be opened from `prepare` on, not in `new`",
                self.slot.name
            )));
        };
        let shared = actor
            .clone()
            .into_any()
            .downcast::<Shared<P>>()
            .map_err(|_| Error::msg(format_args!("model `{}` does not speak `{}`", self.slot.name, P::NAME)))?;
        Ok(ActorHandle::of(shared, self.class.unwrap_or(*class)))
    }
}

/// A client's stream on a model actor. Dropping it closes the session.
pub struct Session<P: Protocol> {
    pub(crate) handle: ActorHandle<P>,
    pub(crate) id: u64,
}

impl<P: Protocol> Session<P> {
    /// Sends a request; waits for room in the actor's queue.
    pub fn call(&mut self, request: P::Request) -> Result<Call<'_, P>> {
        let replies = self.handle.shared.submit(self.id, request, true)?;
        Ok(Call { session: self, replies, finished: false })
    }
    /// Sends a request, or refuses with [`Error::Busy`] when the actor's queue is full.
    pub fn try_call(&mut self, request: P::Request) -> Result<Call<'_, P>> {
        let replies = self.handle.shared.submit(self.id, request, false)?;
        Ok(Call { session: self, replies, finished: false })
    }
    /// Sends a request and collects the replies.
    pub fn ask(&mut self, request: P::Request) -> Result<Vec<P::Reply>> {
        self.call(request)?.collect()
    }
}

impl<P: Protocol> Drop for Session<P> {
    fn drop(&mut self) {
        self.handle.shared.close(self.id);
    }
}

/// The replies of one request. Dropping it abandons the request.
pub struct Call<'a, P: Protocol> {
    session: &'a Session<P>,
    replies: Arc<Replies<P::Reply>>,
    finished: bool,
}

impl<P: Protocol> Call<'_, P> {
    /// Gives the request up; replies already made still come.
    pub fn cancel(&self) {
        self.canceller()();
    }

    /// The same as a function for other threads; after the request's end it does nothing.
    pub fn canceller(&self) -> impl Fn() + Send + 'static {
        let (replies, shared) = (self.replies.clone(), self.session.handle.shared.clone());
        move || {
            replies.cancelled.store(true, SeqCst);
            shared.nudge();
        }
    }
}

impl<P: Protocol> Iterator for Call<'_, P> {
    type Item = Result<P::Reply>;
    /// The next reply. When the calling node is cancelled, the request is given up, what the
    /// model still sends comes, and then [`Error::Cancelled`].
    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let reply = self.session.handle.shared.next_reply(&self.replies);
        self.finished = !matches!(reply, Some(Ok(_)));
        reply
    }
}

impl<P: Protocol> Drop for Call<'_, P> {
    fn drop(&mut self) {
        if !self.finished {
            self.cancel();
        }
    }
}
