//! Model actors at work: the mailbox that sessions share and the thread that serves them.
//!
//! One thread owns the model and every session's state. It works in *steps*: a step advances
//! up to `batch_max` jobs of one class by a bounded amount of work, so a request of a higher
//! class gets in between two steps of a long one. Classes take turns by stride scheduling with
//! the weights of `share`; within a class the session served longest ago comes first.
//!
//! Nothing here grows without bound: sessions are at most `max_sessions`, waiting requests
//! at most `queue`, and a job with [`WINDOW`] unread replies is not stepped until its client
//! has read some, so replies never block the actor and never pile up beyond the window plus what
//! the protocol lets one step reply.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::context::{self, Cancel};
use crate::error::{Error, Result};
use crate::model::{Load, Model, Protocol, Session};
use crate::plan::Class;
use crate::stats::ModelStats;

mod serve;

/// Unread replies at which a job is no longer stepped.
pub const WINDOW: usize = 64;

/// How an actor serves.
#[derive(Debug, Clone)]
pub struct ActorConfig {
    /// Name for messages, thread and statistics.
    pub name: Arc<str>,
    /// Weights of interactive, live and batch (0 counts as 1).
    pub share: [u32; 3],
    /// At most so many sessions.
    pub max_sessions: usize,
    /// At most so many requests waiting.
    pub queue: usize,
    /// At most so many jobs in one step.
    pub batch_max: usize,
    /// How long to wait (real time) for a fuller batch after the first request.
    pub batch_wait: Duration,
    /// How long the actor outlives its last user.
    pub keep: Duration,
}

impl Default for ActorConfig {
    fn default() -> Self {
        Self {
            name: Arc::from("model"),
            share: [4, 2, 1],
            max_sessions: 64,
            queue: 64,
            batch_max: 8,
            batch_wait: Duration::ZERO,
            keep: Duration::ZERO,
        }
    }
}

/// Replies of one request on their way to the client.
pub(crate) struct Replies<R> {
    state: Mutex<ReplyState<R>>,
    arrived: Condvar,
    pub cancelled: Arc<AtomicBool>,
}

struct ReplyState<R> {
    queue: VecDeque<R>,
    done: Option<Result<()>>,
}

impl<R> Replies<R> {
    fn new() -> Arc<Self> {
        let state = Mutex::new(ReplyState { queue: VecDeque::new(), done: None });
        Arc::new(Self { state, arrived: Condvar::new(), cancelled: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, ReplyState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, reply: R) {
        self.lock().queue.push_back(reply);
        self.arrived.notify_all();
    }

    fn finish(&self, result: Result<()>) {
        self.lock().done.get_or_insert(result);
        self.arrived.notify_all();
    }

    /// Wakes a client so that it looks at its cancel state; under the lock, so that it
    /// cannot be between looking and waiting.
    fn wake(&self) {
        let _state = self.lock();
        self.arrived.notify_all();
    }
}

struct Pending<P: Protocol> {
    session: u64,
    request: P::Request,
    replies: Arc<Replies<P::Reply>>,
    arrived: Instant,
}

struct Opening<P: Protocol> {
    id: u64,
    open: P::Open,
    class: Class,
    answer: Arc<Replies<()>>,
}

struct Mail<P: Protocol> {
    opens: VecDeque<Opening<P>>,
    requests: VecDeque<Pending<P>>,
    closes: Vec<u64>,
    /// Requests not yet served, in `requests` or at their sessions.
    waiting: usize,
    sessions: usize,
    users: usize,
    dead: Option<Error>,
}

/// What clients of an actor and its thread share.
pub struct Shared<P: Protocol> {
    config: ActorConfig,
    mail: Mutex<Mail<P>>,
    wake: Condvar,
    room: Condvar,
    next: AtomicU64,
    stats: Mutex<ModelStats>,
}

/// A running actor with its types erased.
pub trait AnyActor: Send + Sync {
    /// For the downcast to its protocol.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    /// One user more.
    fn retain(&self);
    /// One user less: after `keep` without users the actor ends and its weights are freed.
    fn release(&self);
    /// One user more, unless the actor has ended.
    fn try_retain(&self) -> bool;
    /// Statistics up to now.
    fn stats(&self) -> ModelStats;
}

impl<P: Protocol> AnyActor for Shared<P> {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
    fn retain(&self) {
        self.lock().users += 1;
    }
    fn release(&self) {
        self.lock().users -= 1;
        self.wake.notify_all();
    }
    fn try_retain(&self) -> bool {
        let mut mail = self.lock();
        if mail.dead.is_none() {
            mail.users += 1;
        }
        mail.dead.is_none()
    }
    fn stats(&self) -> ModelStats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<P: Protocol> Shared<P> {
    fn lock(&self) -> MutexGuard<'_, Mail<P>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the actor look at its jobs.
    pub(crate) fn nudge(&self) {
        let _mail = self.lock();
        self.wake.notify_all();
    }

    pub(crate) fn close(&self, session: u64) {
        let mut mail = self.lock();
        mail.closes.push(session);
        self.wake.notify_all();
    }

    /// Queues a request.
    pub(crate) fn submit(
        self: &Arc<Self>,
        session: u64,
        request: P::Request,
        patient: bool,
    ) -> Result<Arc<Replies<P::Reply>>> {
        let replies = Replies::new();
        let mut request = Some(request);
        let waker = {
            let shared = self.clone();
            move || -> crate::engine::Waker {
                Arc::new(move || {
                    let _mail = shared.lock();
                    shared.room.notify_all();
                })
            }
        };
        context::wait(&self.mail, &self.room, waker, |mail, cancel| {
            if let Some(error) = &mail.dead {
                return Some(Err(error.clone()));
            }
            if cancel != Cancel::No {
                return Some(Err(Error::Cancelled));
            }
            if mail.waiting >= self.config.queue.max(1) {
                return (!patient).then(|| {
                    Err(Error::Busy(format!(
                        "model `{}` has {} requests waiting, which is its limit; try later or raise `queue`",
                        self.config.name, mail.waiting
                    )))
                });
            }
            let request = request.take()?;
            mail.waiting += 1;
            mail.requests.push_back(Pending { session, request, replies: replies.clone(), arrived: Instant::now() });
            self.wake.notify_all();
            Some(Ok(()))
        })?;
        Ok(replies)
    }

    /// The next reply of a call.
    pub(crate) fn next_reply(self: &Arc<Self>, replies: &Arc<Replies<P::Reply>>) -> Option<Result<P::Reply>> {
        let mut give_up = false;
        let waker = || -> crate::engine::Waker {
            let (replies, shared) = (replies.clone(), self.clone());
            Arc::new(move || {
                replies.cancelled.store(true, SeqCst);
                replies.wake();
                shared.nudge();
            })
        };
        let mut was_full = false;
        let reply = context::wait(&replies.state, &replies.arrived, waker, |state, cancel| {
            if cancel != Cancel::No && state.done.is_none() {
                give_up |= !replies.cancelled.swap(true, SeqCst);
            }
            if cancel == Cancel::Hard {
                return Some(Some(Err(Error::Cancelled)));
            }
            if let Some(reply) = state.queue.pop_front() {
                was_full = state.queue.len() + 1 >= WINDOW;
                return Some(Some(Ok(reply)));
            }
            match state.done.take() {
                Some(Ok(())) => Some(None),
                Some(Err(error)) => Some(Some(Err(error))),
                None => None,
            }
        });
        if was_full || give_up {
            self.nudge();
        }
        reply
    }
}

/// A typed handle of a running actor: opens sessions. The library's own front ends use it
/// without any graph.
pub struct ActorHandle<P: Protocol> {
    pub(crate) shared: Arc<Shared<P>>,
    class: Class,
}

impl<P: Protocol> Clone for ActorHandle<P> {
    fn clone(&self) -> Self {
        Self::of(self.shared.clone(), self.class)
    }
}

impl<P: Protocol> Drop for ActorHandle<P> {
    fn drop(&mut self) {
        self.shared.release();
    }
}

impl<P: Protocol> ActorHandle<P> {
    pub(crate) fn of(shared: Arc<Shared<P>>, class: Class) -> Self {
        shared.retain();
        Self { shared, class }
    }

    /// Loads a model of its own (not shared by identity) and starts its actor.
    pub fn load<M: Model<Protocol = P>>(options: M::Options, class: Class) -> Result<Self> {
        let config = ActorConfig { name: Arc::from(M::KIND), ..ActorConfig::default() };
        Self::load_with::<M>(options, class, config, &Load::quiet())
    }

    /// The same with its own configuration and progress.
    pub fn load_with<M: Model<Protocol = P>>(
        options: M::Options,
        class: Class,
        config: ActorConfig,
        load: &Load,
    ) -> Result<Self> {
        Ok(Self::of(start::<M>(options, config, load)?, class))
    }

    /// The same actor, sessions of another class.
    pub fn with_class(&self, class: Class) -> Self {
        Self::of(self.shared.clone(), class)
    }

    /// Opens a session. [`Error::Busy`] when there are `max_sessions` already.
    pub fn open(&self, open: P::Open) -> Result<Session<P>> {
        let shared = &self.shared;
        let answer = Replies::new();
        let id = shared.next.fetch_add(1, SeqCst);
        {
            let mut mail = shared.lock();
            if let Some(error) = &mail.dead {
                return Err(error.clone());
            }
            if mail.sessions >= shared.config.max_sessions {
                return Err(Error::Busy(format!(
                    "model `{}` has {} sessions open, which is its limit; close one or raise `max_sessions`",
                    shared.config.name, mail.sessions
                )));
            }
            mail.sessions += 1;
            mail.opens.push_back(Opening { id, open, class: self.class, answer: answer.clone() });
            shared.wake.notify_all();
        }
        // Made first: dropping it closes the session also when waiting was given up.
        let session = Session { handle: self.clone(), id };
        let waker = || -> crate::engine::Waker {
            let answer = answer.clone();
            Arc::new(move || answer.wake())
        };
        context::wait(&answer.state, &answer.arrived, waker, |state, cancel| match state.done.take() {
            None if cancel != Cancel::No => Some(Err(Error::Cancelled)),
            done => done,
        })?;
        Ok(session)
    }

    /// Statistics up to now.
    pub fn stats(&self) -> ModelStats {
        self.shared.stats()
    }
}

struct Work<P: Protocol> {
    request: P::Request,
    replies: Arc<Replies<P::Reply>>,
    arrived: Instant,
    started: Option<Instant>,
}

struct Seat<M: Model> {
    state: M::Session,
    class: Class,
    jobs: VecDeque<Work<M::Protocol>>,
    served: u64,
}

struct Serving<M: Model> {
    shared: Arc<Shared<M::Protocol>>,
    seats: BTreeMap<u64, Seat<M>>,
    /// Stride scheduling: where each class stands, and where the last one served stood.
    pass: [u64; 3],
    global: u64,
    turn: u64,
}

/// Loads a model and starts its actor. The returned actor has no users yet; it ends `keep`
/// after the last of them has gone (but not before the first has come).
pub(crate) fn start<M: Model>(
    options: M::Options,
    config: ActorConfig,
    load: &Load,
) -> Result<Arc<Shared<M::Protocol>>> {
    let name = config.name.clone();
    let began = Instant::now();
    let model = catch_unwind(AssertUnwindSafe(|| M::load(options, load))).unwrap_or_else(|panic| {
        Err(Error::msg(format_args!("model `{name}` panicked while loading: {}", panic_text(&*panic))))
    })?;
    let stats = ModelStats {
        name: name.to_string(),
        kind: M::KIND.to_string(),
        memory: model.memory(),
        load_s: began.elapsed().as_secs_f64(),
        ..ModelStats::default()
    };
    let mail = Mail {
        opens: VecDeque::new(),
        requests: VecDeque::new(),
        closes: Vec::new(),
        waiting: 0,
        sessions: 0,
        users: 0,
        dead: None,
    };
    let shared = Arc::new(Shared {
        config,
        mail: Mutex::new(mail),
        wake: Condvar::new(),
        room: Condvar::new(),
        next: AtomicU64::new(1),
        stats: Mutex::new(stats),
    });
    let serving = Serving::<M> { shared: shared.clone(), seats: BTreeMap::new(), pass: [0; 3], global: 0, turn: 0 };
    std::thread::Builder::new()
        .name(format!("model {name}"))
        .spawn(move || serving.run(model))
        .map_err(|e| Error::msg(format_args!("cannot start the thread of model `{name}`: {e}")))?;
    Ok(shared)
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
