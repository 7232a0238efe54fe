//! Running plans: [`Runtime`], [`RunHandle`], and the life of a graph around its nodes.
//!
//! A graph is watched over by one thread: it loads the models, prepares the nodes in plan
//! order, starts one thread a node, waits, enforces the deadlines of a stop, watches for stalls
//! and makes the [`Summary`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::actor::AnyActor;
use crate::assemble::{Model, build};
use crate::context;
use crate::engine::{Engine, Locked, NodeEnd, Status, Want};
use crate::error::{Error, Result};
use crate::io::Io;
use crate::item::EosReason;
use crate::model::Load;
use crate::placement;
use crate::plan::Plan;
use crate::stats::{self, Outcome, Stats, Summary};
use crate::supervise::{self, Worker};

/// How long a cancelled node may take to its next step, and a model to finish what is whole,
/// before the graph ends without them.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// What a run tells while it goes on.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A model is being loaded.
    Load {
        /// Its name in the graph.
        model: &'a str,
        /// Units done, as the model counts them.
        done: u64,
        /// Units in all.
        total: u64,
    },
    /// A node reported how far it is.
    Node {
        /// The node.
        node: &'a str,
        /// Seconds done.
        done: f64,
        /// Seconds in all, when known.
        total: Option<f64>,
    },
    /// A node or the runtime has something to say.
    Note {
        /// The node (or the graph's name).
        node: &'a str,
        /// What.
        sentence: &'a str,
    },
}

/// Called from the threads of nodes and models: must not block.
pub type Observer = Arc<dyn Fn(Progress<'_>) + Send + Sync>;

/// How to run.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Measure ages of items (reads the clock for every item). Counters are always kept.
    pub stats: bool,
    /// At most so many nodes of a graph run at once; `None`: as many as can.
    pub threads: Option<usize>,
    /// Who is told about progress.
    pub observer: Option<Observer>,
    /// Fault injection: stops the graph at one of its steps.
    pub stop_at: Option<StopAt>,
}

/// Stops a graph at the moment when its engine makes step `step`: a send, a receive, a wait that is
/// over, the end of a node. With one thread the steps come in the same order in every run.
#[derive(Debug, Clone, Default)]
pub struct StopAt {
    /// Which step, from 0.
    pub step: u64,
    /// Cancel everything, instead of letting it drain.
    pub hard: bool,
    /// How many steps there have been.
    pub steps: Arc<AtomicU64>,
}

/// The model actors of a process, by identity.
#[derive(Default)]
struct Pool {
    entries: Mutex<HashMap<String, Arc<Entry>>>,
}

/// One identity; its lock is held while the model loads, so that others wait for it.
type Entry = Mutex<Option<Weak<dyn AnyActor>>>;

impl Pool {
    /// The running actor of this identity, or a new one; with one user more.
    fn acquire(&self, identity: &str, load: impl FnOnce() -> Result<Arc<dyn AnyActor>>) -> Result<Arc<dyn AnyActor>> {
        let entry = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.entry(identity.to_string()).or_default().clone()
        };
        let mut place = entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = place.as_ref().and_then(Weak::upgrade)
            && actor.try_retain()
        {
            return Ok(actor);
        }
        let actor = load()?;
        actor.retain();
        *place = Some(Arc::downgrade(&actor));
        Ok(actor)
    }
}

/// Runs graphs. Graphs of one runtime share model actors of equal identity.
#[derive(Clone)]
pub struct Runtime {
    pool: Arc<Pool>,
    options: RunOptions,
}

impl Default for Runtime {
    fn default() -> Self {
        Self::new(RunOptions::default())
    }
}

impl Runtime {
    /// A runtime that shares model actors with all others of this process made so.
    pub fn new(options: RunOptions) -> Self {
        static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
        Self { pool: POOL.get_or_init(Arc::default).clone(), options }
    }

    /// A runtime with model actors of its own (tests, tenants).
    pub fn isolated(options: RunOptions) -> Self {
        Self { pool: Arc::default(), options }
    }

    /// Starts a graph. What goes wrong while loading or running is in its [`Summary`].
    pub fn start(&self, plan: Plan) -> Result<RunHandle> {
        let stays = plan.stays;
        let (engine, workers, models) = build(plan, &self.options)?;
        let actors: Actors = Arc::default();
        let graph = Graph {
            engine: engine.clone(),
            stays,
            models,
            actors: actors.clone(),
            pool: self.pool.clone(),
            began: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("graph {}", engine.name))
            .spawn(move || graph.run(workers))
            .map_err(|e| Error::msg(format_args!("cannot start a thread for graph `{}`: {e}", engine.name)))?;
        Ok(RunHandle { stopper: Stopper { engine }, actors, thread })
    }

    /// Runs graphs beside each other to their ends.
    pub fn run(&self, plans: Vec<Plan>) -> Result<Vec<Summary>> {
        let mut handles = Vec::new();
        for plan in plans {
            match self.start(plan) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    handles.iter().for_each(RunHandle::cancel);
                    handles.into_iter().for_each(|handle| drop(handle.wait()));
                    return Err(error);
                }
            }
        }
        Ok(handles.into_iter().map(RunHandle::wait).collect())
    }
}

type Actors = Arc<Mutex<Vec<Arc<dyn AnyActor>>>>;

/// Stops a graph, from anywhere (a signal handler's thread, another node).
#[derive(Clone)]
pub struct Stopper {
    engine: Arc<Engine>,
}

impl Stopper {
    /// Stops gracefully: sources end, the rest drains until the graph's `drain` deadline, then
    /// everything is cancelled. A second call cancels at once; a third does not even wait for
    /// models to finish what is whole.
    pub fn stop(&self) {
        if self.engine.cancelled.load(SeqCst) {
            return kill(&mut self.engine.lock());
        }
        if self.engine.stopping.load(SeqCst) {
            return self.cancel();
        }
        self.engine.lock().stop_gracefully();
    }

    /// Cancels at once: every node unwinds at its next step.
    pub fn cancel(&self) {
        let mut st = self.engine.lock();
        if !self.engine.cancelled.load(SeqCst) {
            st.cancel_all();
            st.schedule();
        }
    }
}

/// A running graph.
pub struct RunHandle {
    stopper: Stopper,
    actors: Actors,
    thread: JoinHandle<Summary>,
}

impl RunHandle {
    /// See [`Stopper::stop`].
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// See [`Stopper::cancel`].
    pub fn cancel(&self) {
        self.stopper.cancel();
    }

    /// Pauses a scope: its nodes stop at their next item until [`Self::resume`] or a cancel; a graceful
    /// stop lets it go on, so that it can drain.
    ///
    /// # Errors
    /// The graph has no such scope.
    pub fn pause(&self, scope: &str) -> Result<()> {
        let engine = &self.stopper.engine;
        engine.pause_scope(engine.scope_named(scope)?, true, None);
        Ok(())
    }

    /// Lets a paused scope go on.
    ///
    /// # Errors
    /// The graph has no such scope.
    pub fn resume(&self, scope: &str) -> Result<()> {
        let engine = &self.stopper.engine;
        engine.pause_scope(engine.scope_named(scope)?, false, None);
        Ok(())
    }

    /// Gives a running node a new value of an option it has declared settable; it applies it before
    /// its next item. An older value it has not seen yet is replaced.
    ///
    /// # Errors
    /// No such node or no such option. What the node thinks of the value is in its notes.
    pub fn set(&self, node: &str, option: &str, value: serde_json::Value) -> Result<()> {
        self.stopper.engine.set(node, option, value)
    }

    /// What stops it from elsewhere while this handle waits.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Has it ended?
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Statistics up to now.
    pub fn stats(&self) -> Stats {
        let mut stats = stats::collect(&self.stopper.engine, &self.stopper.engine.lock());
        stats.models = model_stats(&self.actors);
        stats
    }

    /// Waits for the end.
    pub fn wait(self) -> Summary {
        let name = self.stopper.engine.name.to_string();
        self.thread.join().unwrap_or_else(|panic| Summary {
            graph: name,
            outcome: Outcome::Failed,
            error: Some(format!("the runtime panicked: {}", crate::actor::panic_text(&*panic))),
            exit_code: 1,
            conserved: false,
            wall_s: 0.0,
            notes: Vec::new(),
            stats: Stats::default(),
        })
    }
}

/// Runs the body of a node's thread; with the feature `count-allocations` counts what it allocates.
#[cfg(feature = "count-allocations")]
fn counted(engine: &Engine, me: usize, body: impl FnOnce()) {
    let counts = allocation_counter::measure(body);
    engine.lock().nodes[me].allocations = Some((counts.count_total, counts.bytes_total));
}

/// Runs the body of a node's thread.
#[cfg(not(feature = "count-allocations"))]
fn counted(_: &Engine, _: usize, body: impl FnOnce()) {
    body();
}

fn model_stats(actors: &Actors) -> Vec<stats::ModelStats> {
    actors.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|actor| actor.stats()).collect()
}

fn kill(st: &mut Locked<'_>) {
    st.engine().killed.store(true, SeqCst);
    st.cancel_all();
    st.schedule();
}

/// A graph from its supervisor's point of view.
struct Graph {
    engine: Arc<Engine>,
    stays: bool,
    models: Vec<Model>,
    actors: Actors,
    pool: Arc<Pool>,
    began: Instant,
}

impl Graph {
    fn run(self, mut workers: Vec<Worker>) -> Summary {
        let ready = self.listen(&mut workers).and_then(|()| self.load()).and_then(|()| self.prepare(&mut workers));
        if let Err(error) = ready {
            // Nothing ran: what was prepared is dropped, the edges have carried nothing.
            drop(workers);
            let mut st = self.engine.lock();
            if !error.is_cancelled() {
                st.failure = Some(error.to_string());
            }
            for node in &mut st.nodes {
                node.end = Some(NodeEnd::Stopped);
                node.status = Status::Done;
            }
            drop(st);
            return self.summary();
        }
        let threads = self.spawn(workers);
        {
            let mut st = self.engine.lock();
            self.engine.clock.start();
            st.started = true;
            // A stop during loading was graceful for nodes that had not begun.
            st.schedule();
        }
        let stuck = self.watch();
        for (node, thread) in threads {
            // A thread that does not leave must not keep the graph: it is left behind.
            if !stuck.contains(&node) {
                // A node's panic was caught in it; nothing else can panic there.
                let _ = thread.join();
            }
        }
        self.summary()
    }

    fn load(&self) -> Result<()> {
        for model in &self.models {
            let name = model.name.clone();
            let (engine, observer) = (self.engine.clone(), self.engine.observer.clone());
            let load = Load::watched(
                move |done, total| {
                    if let Some(observer) = &observer {
                        observer(Progress::Load { model: &name, done, total });
                    }
                },
                move || engine.stopping.load(SeqCst),
            );
            load.check()?;
            let actor = self
                .pool
                .acquire(&model.identity, || model.slot.kind.start(&model.options, model.config.clone(), &load))
                .map_err(|error| match error {
                    Error::Cancelled => Error::Cancelled,
                    error => Error::msg(format_args!("model `{}` cannot be loaded: {error}", model.name)),
                })?;
            model.slot.fill(Some((actor.clone(), model.class)));
            // The slot is a user now.
            actor.release();
            self.actors.lock().unwrap_or_else(PoisonError::into_inner).push(actor);
        }
        Ok(())
    }

    fn listen(&self, workers: &mut [Worker]) -> Result<()> {
        workers
            .iter_mut()
            .enumerate()
            .try_for_each(|(me, worker)| supervise::listen(&self.engine, me, &mut *worker.node))
    }

    fn prepare(&self, workers: &mut [Worker]) -> Result<()> {
        for (me, worker) in workers.iter_mut().enumerate() {
            if self.engine.stopping.load(SeqCst) {
                return Err(Error::Cancelled);
            }
            supervise::prepare(&self.engine, me, &mut *worker.node)?;
        }
        Ok(())
    }

    fn spawn(&self, workers: Vec<Worker>) -> Vec<(usize, JoinHandle<()>)> {
        let mut threads = Vec::new();
        for (me, worker) in workers.into_iter().enumerate() {
            let engine = self.engine.clone();
            let body = move || {
                context::enter(engine.clone(), me);
                let refused = placement::place(&engine.nodes[me].placement);
                if !refused.is_empty() {
                    let io = Io { engine: engine.clone(), me };
                    refused.iter().for_each(|why| io.note(format!("node `{}` {why}", engine.nodes[me].name)));
                }
                let mut st = engine.lock().park(me, None);
                st.nodes[me].started_at = Some(Instant::now());
                drop(st);
                counted(&engine, me, || supervise::run(&engine, me, worker));
            };
            match std::thread::Builder::new().name(self.engine.nodes[me].name.to_string()).spawn(body) {
                Ok(thread) => threads.push((me, thread)),
                Err(error) => {
                    // The engine needs somebody to take the slot: end the node here.
                    let sentence = format!("cannot start a thread for node `{}`: {error}", self.engine.nodes[me].name);
                    let mut st = self.engine.lock();
                    st.failure.get_or_insert_with(|| sentence.clone());
                    st.ready -= 1;
                    st.running += 1;
                    st.finish(me, &EosReason::Stopped, NodeEnd::Failed(sentence));
                    st.cancel_all();
                }
            }
        }
        threads
    }

    /// Waits until every node has ended; returns the nodes that did not, long after a cancel.
    fn watch(&self) -> Vec<usize> {
        let mut st = self.engine.lock();
        let shortest = self.engine.nodes.iter().filter_map(|n| n.stall).min();
        let tick = shortest.map(|stall| (stall / 4).max(Duration::from_millis(10)));
        while st.live > 0 || (self.stays && !self.engine.stopping.load(SeqCst)) {
            let now = Instant::now();
            if st.deadline.is_some_and(|deadline| deadline <= now) {
                if self.engine.killed.load(SeqCst) {
                    break;
                } else if self.engine.cancelled.load(SeqCst) {
                    kill(&mut st);
                } else {
                    let drain = crate::time::Span(self.engine.drain);
                    st.notes.push(format!("the graph did not drain within {drain} and was cut off"));
                    st.cancel_all();
                    st.schedule();
                }
            }
            self.look_for_stalls(&mut st, now);
            let rest = st.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = match (rest, tick) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if st.live > 0 || (self.stays && !self.engine.stopping.load(SeqCst)) {
                st = st.wait_supervisor(timeout);
            }
        }
        let stuck: Vec<usize> = (0..st.nodes.len()).filter(|&n| st.nodes[n].status != Status::Done).collect();
        for &node in &stuck {
            let name = &self.engine.nodes[node].name;
            let sentence = format!("node `{name}` did not stop within {} s of being cancelled", 2 * GRACE.as_secs());
            st.failure.get_or_insert_with(|| sentence.clone());
            st.nodes[node].end = Some(NodeEnd::Failed(sentence));
        }
        stuck
    }

    fn look_for_stalls(&self, st: &mut Locked<'_>, now: Instant) {
        for (n, info) in self.engine.nodes.iter().enumerate() {
            let Some(stall) = info.stall else { continue };
            let busy = match st.nodes[n].status {
                Status::Running => true,
                Status::Waiting => st.nodes[n].want == Want::Model,
                Status::Ready | Status::Done => false,
            };
            let fed = info.all_inputs.iter().any(|&l| !st.links[l].is_empty());
            let ops = st.nodes[n].ops;
            match st.nodes[n].watch {
                (seen, Some(since)) if busy && fed && seen == ops => {
                    let still = now.saturating_duration_since(since);
                    if still >= stall {
                        let line = crate::diagnose::stall(&self.engine, st, n, still.as_secs_f64());
                        tracing::warn!("{line}");
                        if let Some(observer) = &self.engine.observer {
                            observer(Progress::Note { node: &info.name, sentence: &line });
                        }
                        if st.notes.len() < 100 {
                            st.notes.push(line);
                        }
                        st.nodes[n].watch = (ops, Some(now));
                    }
                }
                _ => st.nodes[n].watch = (ops, Some(now)),
            }
        }
    }

    fn summary(&self) -> Summary {
        let st = self.engine.lock();
        let mut stats = stats::collect(&self.engine, &st);
        stats.models = model_stats(&self.actors);
        let mut notes = st.notes.clone();
        notes.extend(st.nodes.iter().flat_map(|node| node.notes.iter().cloned()));
        let unconserved: Vec<&str> = (0..st.links.len())
            .filter(|&l| !st.links[l].counts().conserved(st.links[l].queued()))
            .map(|l| self.engine.edges[l].name.as_str())
            .collect();
        let conserved = unconserved.is_empty();
        if !conserved {
            notes.push(format!("items were lost uncounted (a bug of the runtime) on: {}", unconserved.join(", ")));
        }
        let ends = || st.nodes.iter().filter_map(|node| node.end.as_ref());
        let outcome = match &st.failure {
            Some(_) => Outcome::Failed,
            None if ends().any(|end| *end == NodeEnd::Stopped) => Outcome::Stopped,
            None => Outcome::Complete,
        };
        let bypassed = ends().any(|end| matches!(end, NodeEnd::Bypassed(_)));
        let exit_code = match outcome {
            Outcome::Failed => 1,
            _ if !conserved => 1,
            Outcome::Stopped => 130,
            Outcome::Complete if bypassed => 3,
            Outcome::Complete => 0,
        };
        let error = st.failure.clone();
        drop(st);
        for model in &self.models {
            model.slot.fill(None);
        }
        Summary {
            graph: self.engine.name.to_string(),
            outcome,
            error,
            exit_code,
            conserved,
            wall_s: self.began.elapsed().as_secs_f64(),
            notes,
            stats,
        }
    }
}
