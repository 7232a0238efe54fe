//! The engine of one running graph: all links and node states under one lock.
//!
//! One lock a graph makes every question answerable at one instant: who may run, who waits
//! for what, whether nobody can ever run again, and to when virtual time may jump. It is held
//! for tens of nanoseconds an item; payloads are handles, so nothing is copied under it.
//!
//! Scheduling: every node has a thread; at most `slots` of them run at once. A graph whose
//! edges all block is a Kahn network: its results do not depend on the order of running, so its
//! threads run freely. Any other graph on the virtual clock runs in *lockstep*: one slot, handed
//! over at every send and receive to the node with the smallest media time (then the smallest
//! index), so that what an edge drops does not depend on the machine either.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::{Clock, Wait};
use crate::error::{Error, Result};
use crate::histogram::Histogram;
use crate::item::{EosReason, Header, Item, Mark};
use crate::link::{Link, Push};
use crate::node::{Declared, Device};
use crate::payload::PortType;
use crate::plan::Placement;
use crate::time::Nanos;

mod control;
mod schedule;
mod select;

pub(crate) use select::needs_lockstep;
use select::{Select, select, select_by_turn};

/// What does not change about a node while it runs, and what is read without the lock.
pub(crate) struct NodeInfo {
    pub name: Arc<str>,
    pub kind: Arc<str>,
    pub declared: Declared,
    pub input_types: Vec<Option<PortType>>,
    pub output_types: Vec<PortType>,
    /// Links of every input port and of every output port.
    pub inputs: Vec<Vec<usize>>,
    pub outputs: Vec<Vec<usize>>,
    pub all_inputs: Vec<usize>,
    pub source: bool,
    pub scope: Option<usize>,
    pub cancels: Vec<usize>,
    pub skip_errors: bool,
    pub stall: Option<Duration>,
    pub placement: Placement,
    /// An input of it is joined by turn.
    pub joins_turns: bool,
    /// The epoch of its scope that the node works in.
    pub epoch: AtomicU32,
    /// It has asked whether the graph is stopping and was told so.
    pub stop_seen: AtomicBool,
    /// There are new values for its settable options.
    pub settings: AtomicBool,
    /// Nodes that are restarted with it.
    pub companions: Vec<usize>,
    /// A companion failed: it is to be made again.
    pub renew: AtomicBool,
}

/// What does not change about an edge.
pub(crate) struct EdgeInfo {
    pub from: (usize, usize),
    pub to: (usize, usize),
    /// `a.x → b.y`
    pub name: String,
    /// The sender's scope: its epoch decides what is stale.
    pub scope: Option<usize>,
    /// It closes a cycle: it does not keep its consumer alive.
    pub feedback: bool,
    /// Its consumer joins it by turn.
    pub by_turn: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Ready,
    Running,
    Waiting,
    Done,
}

/// What a node that does not run is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Start,
    /// An item of this input port, or of any.
    Input(Option<usize>),
    /// Room on a link (none: it yields before sending) for an item of this media time.
    Output(Option<usize>, Nanos),
    Sleep(Nanos),
    /// An item, or to be told that none can come before time moves.
    Poll(Option<usize>),
    Model,
    /// That its scope goes on.
    Resume,
}

/// How a node ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeEnd {
    Complete,
    Stopped,
    Bypassed(String),
    Failed(String),
}

#[derive(Default)]
pub(crate) struct OutState {
    pub seq: u64,
    pub last_pts: Option<Nanos>,
    pub open: Vec<u64>,
}

pub(crate) type Waker = Arc<dyn Fn() + Send + Sync>;

pub(crate) struct NodeState {
    pub status: Status,
    pub want: Want,
    pub outs: Vec<OutState>,
    pub last: Option<Header>,
    pub pipe_broken: bool,
    pub ops: u64,
    pub items_in: u64,
    pub items_out: u64,
    /// Real nanoseconds waited for input, room, models, time.
    pub waited: [u64; 4],
    pub model_since: Option<Instant>,
    pub ended_at: Option<Instant>,
    pub started_at: Option<Instant>,
    pub restarts: u32,
    pub item_errors: u64,
    pub clamped: u64,
    pub counters: BTreeMap<&'static str, u64>,
    pub reports: BTreeMap<&'static str, serde_json::Value>,
    pub notes: Vec<String>,
    pub progress: Option<(f64, Option<f64>)>,
    pub waker: Option<Waker>,
    /// Media time of each input port fed by several edges, as far as the node knows; and whether
    /// it is to be told how far they have come.
    pub told: Vec<Nanos>,
    pub tell: bool,
    pub end: Option<NodeEnd>,
    /// When a running node last did anything, and the count it had (watchdog).
    pub watch: (u64, Option<Instant>),
    /// New values of settable options, the newest of each.
    pub settings: BTreeMap<&'static str, serde_json::Value>,
    /// Scopes that this node has paused.
    pub pausing: Vec<usize>,
    /// Real time from taking an item to asking for the next one, and the item being worked on
    /// (statistics).
    pub service: Option<Histogram>,
    pub serving: Option<(Instant, u64)>,
    /// Heap allocations of its thread and their bytes, once it has ended (where they are counted).
    pub allocations: Option<(u64, u64)>,
}

impl NodeState {
    pub fn new(inputs: usize, outputs: usize) -> Self {
        Self {
            status: Status::Ready,
            want: Want::Start,
            outs: (0..outputs).map(|_| OutState::default()).collect(),
            last: None,
            pipe_broken: false,
            ops: 0,
            items_in: 0,
            items_out: 0,
            waited: [0; 4],
            model_since: None,
            ended_at: None,
            started_at: None,
            restarts: 0,
            item_errors: 0,
            clamped: 0,
            counters: BTreeMap::new(),
            reports: BTreeMap::new(),
            notes: Vec::new(),
            progress: None,
            waker: None,
            told: vec![Nanos::MIN; inputs],
            tell: false,
            end: None,
            watch: (0, None),
            settings: BTreeMap::new(),
            pausing: Vec::new(),
            service: None,
            serving: None,
            allocations: None,
        }
    }
}

pub(crate) struct State {
    pub links: Vec<Link>,
    pub nodes: Vec<NodeState>,
    pub running: usize,
    pub ready: usize,
    /// Nodes that wait for a model without holding a slot.
    pub external: usize,
    pub live: usize,
    pub started: bool,
    pub failure: Option<String>,
    /// Graph time by which a graceful stop gives up (virtual clocks).
    pub drain_at: Option<Nanos>,
    /// Real time by which it gives up, and by which cancelled nodes must have left.
    pub deadline: Option<Instant>,
    pub notes: Vec<String>,
}

pub(crate) struct Engine {
    pub name: Arc<str>,
    pub nodes: Vec<NodeInfo>,
    pub edges: Vec<EdgeInfo>,
    pub scopes: Vec<(Arc<str>, AtomicU32)>,
    /// Is the scope paused?
    pub paused: Vec<AtomicBool>,
    pub clock: Box<dyn Clock>,
    /// The node whose device is the clock.
    pub master: Option<usize>,
    pub lockstep: bool,
    pub slots: usize,
    pub stats: bool,
    pub stop_at: Option<crate::run::StopAt>,
    pub drain: Duration,
    pub observer: Option<crate::run::Observer>,
    pub stopping: AtomicBool,
    pub cancelled: AtomicBool,
    /// Do not even wait for models to finish what is whole.
    pub killed: AtomicBool,
    pub state: Mutex<State>,
    pub wake: Vec<Condvar>,
    pub supervisor: Condvar,
}

/// The locked state, with the threads to wake once it is unlocked.
pub(crate) struct Locked<'a> {
    engine: &'a Engine,
    guard: Option<MutexGuard<'a, State>>,
    wakes: Vec<usize>,
    calls: Vec<Waker>,
    supervisor: bool,
}

impl Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        self.guard.as_ref().unwrap_or_else(|| unreachable!("the guard is only taken on drop"))
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.guard.as_mut().unwrap_or_else(|| unreachable!("the guard is only taken on drop"))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.guard = None;
        self.notify();
    }
}

pub(crate) enum Taken {
    /// Input port and item.
    Item(usize, Item),
    Ended,
    Nothing,
}

impl Engine {
    pub fn lock(&self) -> Locked<'_> {
        let guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { engine: self, guard: Some(guard), wakes: Vec::new(), calls: Vec::new(), supervisor: false }
    }

    /// The current epoch of a scope.
    pub fn epoch(&self, scope: Option<usize>) -> Option<u32> {
        scope.map(|s| self.scopes[s].1.load(SeqCst))
    }

    /// Was the scope of this node cancelled, and the node not yet told?
    pub fn scope_cancelled(&self, me: usize) -> bool {
        let info = &self.nodes[me];
        self.epoch(info.scope).is_some_and(|epoch| epoch != info.epoch.load(SeqCst))
    }

    /// Counts a step of the engine, and stops the graph there if that was asked for.
    pub fn step(&self, st: &mut Locked<'_>) {
        let Some(stop) = &self.stop_at else { return };
        if stop.steps.fetch_add(1, SeqCst) != stop.step || self.cancelled.load(SeqCst) {
            return;
        }
        if stop.hard {
            st.cancel_all();
            st.schedule();
        } else {
            st.stop_gracefully();
        }
    }

    /// Must this node unwind?
    pub fn check(&self, me: usize) -> Result<()> {
        let info = &self.nodes[me];
        // A capture device asks by itself: what it has captured so far still goes out.
        let told = info.stop_seen.load(SeqCst) || info.declared.device == Some(Device::Capture);
        let ending = info.source && self.stopping.load(SeqCst) && !told;
        if ending || self.cancelled.load(SeqCst) || info.renew.load(SeqCst) || self.scope_cancelled(me) {
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    /// The next item of one input port (or of any).
    pub fn take(&self, me: usize, port: Option<usize>, poll: bool) -> Result<Taken> {
        let info = &self.nodes[me];
        let order = port.map_or(&info.all_inputs, |p| &info.inputs[p]);
        let mut st = self.lock();
        let mut granted = !self.lockstep;
        let mut polled = false;
        if self.stats
            && let Some((since, seq)) = st.nodes[me].serving.take()
        {
            let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            st.nodes[me].service.get_or_insert_default().add(nanos, seq);
        }
        loop {
            self.step(&mut st);
            self.check(me)?;
            st = self.hold(st, me);
            self.check(me)?;
            for &l in order {
                if st.links[l].settle(self.epoch(self.edges[l].scope)) {
                    st.room(l);
                }
            }
            let next = match port {
                None if info.joins_turns => select_by_turn(&st.links, order, &self.edges),
                _ => select(&st.links, order),
            };
            match next {
                Select::Ended => return Ok(Taken::Ended),
                Select::Take(_) if !granted => {
                    granted = true;
                    st = st.give_way(me, Want::Input(port));
                }
                Select::Take(l) => {
                    let Some(mut item) = st.links[l].pop() else { continue };
                    st.nodes[me].ops += 1;
                    let joined = &info.inputs[self.edges[l].to.1];
                    if joined.len() > 1 && matches!(item, Item::Gap(_) | Item::Mark(Mark::Bound(_))) {
                        // Time without data on one of several edges is none for the port: only
                        // how far all of them have come is.
                        let open = joined.iter().filter(|&&j| st.links[j].end().is_none());
                        let bound = open.map(|&j| st.links[j].bound()).min().unwrap_or(Nanos::MIN);
                        item = Item::Mark(Mark::Bound(bound));
                    }
                    if let Some(time) = item.time() {
                        let told = &mut st.nodes[me].told[self.edges[l].to.1];
                        *told = time.max(*told);
                    }
                    if let Item::Data(header, _) = &item {
                        st.nodes[me].last = Some(*header);
                        st.nodes[me].items_in += 1;
                        if self.stats {
                            st.nodes[me].serving = Some((Instant::now(), header.seq));
                            st.links[l].measure(self.clock.now().saturating_sub(header.born), header.seq);
                        }
                    }
                    st.room(l);
                    return Ok(Taken::Item(self.edges[l].to.1, item));
                }
                Select::Wait if self.only_feedback(&st, me, order) => return Ok(Taken::Ended),
                Select::Wait if let Some((port, bound)) = self.untold(&mut st, me, port) => {
                    return Ok(Taken::Item(port, Item::Mark(Mark::Bound(bound))));
                }
                Select::Wait if poll => {
                    if polled || !self.clock.is_virtual() {
                        return Ok(Taken::Nothing);
                    }
                    polled = true;
                    st = st.suspend(me, Status::Waiting, Want::Poll(port), None);
                }
                Select::Wait => st = st.suspend(me, Status::Waiting, Want::Input(port), None),
            }
        }
    }

    /// A port fed by several edges that has come further than the node knows: it holds items back
    /// that it cannot order yet, but knows that nothing earlier comes. Without telling, a join
    /// further down could wait for this one, and this one for the fork before both. On virtual
    /// clocks only once everybody waits, so that it does not depend on timing.
    fn untold(&self, st: &mut Locked<'_>, me: usize, port: Option<usize>) -> Option<(usize, Nanos)> {
        let asked = std::mem::take(&mut st.nodes[me].tell);
        if self.clock.is_virtual() && !asked {
            return None;
        }
        let (port, bound) = st.behind(me, port)?;
        st.nodes[me].told[port] = bound;
        Some((port, bound))
    }

    /// Does the node wait on nothing but feedback, after its real inputs have ended? Then what it
    /// waits for would come only from what it sends itself.
    fn only_feedback(&self, st: &State, me: usize, order: &[usize]) -> bool {
        let open = |l: &usize| st.links[*l].end().is_none();
        let mut real = self.nodes[me].all_inputs.iter().filter(|&&l| !self.edges[l].feedback).peekable();
        order.iter().filter(|l| open(l)).all(|&l| self.edges[l].feedback && st.links[l].is_empty())
            && real.peek().is_some()
            && !real.any(open)
    }

    /// Sends an item to every edge of an output port.
    pub fn emit(&self, me: usize, port: usize, mut item: Item) -> Result<()> {
        let info = &self.nodes[me];
        if info.source
            && self.clock.paces()
            && let Item::Data(header, _) = &item
        {
            self.sleep_until(me, header.pts)?;
        }
        let mut st = self.lock();
        self.step(&mut st);
        self.check_emit(me, &item)?;
        st = self.hold(st, me);
        self.check_emit(me, &item)?;
        self.stamp(&mut st, me, port, &mut item);
        if self.lockstep {
            let at = item.time().or(st.nodes[me].outs[port].last_pts).unwrap_or(Nanos::MIN);
            st = st.give_way(me, Want::Output(None, at));
            self.check_emit(me, &item)?;
        }
        st.nodes[me].ops += 1;
        let links = &info.outputs[port];
        match &item {
            Item::Mark(Mark::SegmentStart(id)) => st.nodes[me].outs[port].open.push(*id),
            Item::Mark(Mark::SegmentEnd { id, .. }) => st.nodes[me].outs[port].open.retain(|open| open != id),
            Item::Data(..) => st.nodes[me].items_out += 1,
            _ => {}
        }
        let mut full = Vec::new();
        let mut rest = Some(item);
        for (n, &l) in links.iter().enumerate() {
            let last = n + 1 == links.len();
            let Some(one) = (if last { rest.take() } else { rest.clone() }) else { break };
            self.offer(&mut st, l, one, &mut full)?;
        }
        // A full branch keeps its item from no sibling: a join downstream may need the sibling's
        // before it can make room on the full one.
        while let Some((l, one)) = full.first() {
            let (l, at) = (*l, one.time().unwrap_or(Nanos::MIN));
            let since = Instant::now();
            st = st.suspend(me, Status::Waiting, Want::Output(Some(l), at), None);
            let counts = st.links[l].counts_mut();
            counts.blocked += 1;
            counts.blocked_ns += u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.step(&mut st);
            for (l, one) in std::mem::take(&mut full) {
                self.check_emit(me, &one)?;
                self.offer(&mut st, l, one, &mut full)?;
            }
        }
        let closed = |ports: &[Vec<usize>]| ports.iter().flatten().all(|&l| st.links[l].is_closed());
        if !links.is_empty() && closed(std::slice::from_ref(links)) && closed(&info.outputs) {
            // Nobody listens any more: the node ends as if its work were done.
            st.nodes[me].pipe_broken = true;
            return Err(Error::Cancelled);
        }
        Ok(())
    }

    /// Puts an item on a link, or gives it back through `full` when there is no room.
    fn offer(&self, st: &mut Locked<'_>, l: usize, item: Item, full: &mut Vec<(usize, Item)>) -> Result<()> {
        match st.links[l].push(item) {
            Push::Done => st.arrived(l),
            Push::Full(back) => full.push((l, back)),
            Push::Overflow => {
                return Err(Error::msg(format_args!(
                    "edge `{}` is full ({}) and its policy is `fail`; raise `cap` or choose another `full`",
                    self.edges[l].name,
                    st.links[l].depth()
                )));
            }
        }
        Ok(())
    }

    fn check_emit(&self, me: usize, item: &Item) -> Result<()> {
        let sticky = matches!(item, Item::Data(header, _) if header.flags & Header::STICKY != 0);
        if sticky && !self.cancelled.load(SeqCst) { Ok(()) } else { self.check(me) }
    }

    fn stamp(&self, st: &mut Locked<'_>, me: usize, port: usize, item: &mut Item) {
        let last = st.nodes[me].last;
        let node = &mut st.nodes[me];
        let out = &mut node.outs[port];
        match item {
            Item::Data(header, _) => {
                header.seq = out.seq;
                out.seq += 1;
                header.epoch = self.nodes[me].epoch.load(SeqCst);
                if header.born == 0 {
                    header.born = last.map_or_else(|| self.clock.now(), |h| h.born);
                }
                if let Some(before) = out.last_pts
                    && header.pts < before
                {
                    header.pts = before;
                    node.clamped += 1;
                }
                out.last_pts = Some(header.pts);
            }
            Item::Mark(Mark::Flush(_)) => out.last_pts = None,
            _ => {}
        }
    }

    /// Waits on the graph's clock.
    pub fn sleep_until(&self, me: usize, at: Nanos) -> Result<()> {
        let mut st = self.lock();
        loop {
            self.step(&mut st);
            self.check(me)?;
            st.nodes[me].ops += 1;
            let timeout = match self.clock.until(at) {
                Wait::Over => return Ok(()),
                Wait::Real(rest) => Some(rest),
                Wait::Jump => None,
            };
            st = st.suspend(me, Status::Waiting, Want::Sleep(at), timeout);
        }
    }

    /// A model is asked: in lockstep the node keeps its slot (what a model answers must not
    /// depend on what runs beside it); else others may run.
    pub fn model_begin(&self, me: usize, waker: Waker) {
        let mut st = self.lock();
        st.nodes[me].waker = Some(waker);
        st.nodes[me].model_since = Some(Instant::now());
        st.nodes[me].want = Want::Model;
        if !self.lockstep && st.nodes[me].status == Status::Running {
            st.nodes[me].status = Status::Waiting;
            st.running -= 1;
            st.external += 1;
            st.schedule();
        }
    }

    /// The model has answered.
    pub fn model_end(&self, me: usize) {
        let mut st = self.lock();
        st.nodes[me].waker = None;
        st.nodes[me].ops += 1;
        if let Some(since) = st.nodes[me].model_since.take() {
            st.nodes[me].waited[2] += u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        if !self.lockstep && st.nodes[me].status == Status::Waiting {
            st.external -= 1;
            st.nodes[me].status = Status::Ready;
            st.ready += 1;
            st.schedule();
            st = st.park(me, None);
        }
        drop(st);
    }

    /// Bumps the epoch of a scope and wakes its members.
    pub fn cancel_scope(&self, scope: usize) {
        let mut st = self.lock();
        self.scopes[scope].1.fetch_add(1, SeqCst);
        self.paused[scope].store(false, SeqCst);
        for (n, info) in self.nodes.iter().enumerate() {
            if info.scope == Some(scope) {
                st.ready(n);
                let waker = st.nodes[n].waker.clone();
                st.calls.extend(waker);
            }
        }
        // Stale data must not keep a sender waiting whose consumer waits elsewhere.
        for (l, edge) in self.edges.iter().enumerate() {
            if edge.scope == Some(scope) && st.links[l].settle(self.epoch(edge.scope)) {
                st.room(l);
            }
        }
        st.schedule();
    }

    /// A node failed for good: the graph stops gracefully and says why.
    pub fn fail(&self, me: usize, sentence: &str) {
        let mut st = self.lock();
        st.failure.get_or_insert_with(|| sentence.to_string());
        st.stop_gracefully();
        let reason = EosReason::Failed { node: self.nodes[me].name.clone(), error: Arc::from(sentence) };
        st.finish(me, &reason, NodeEnd::Failed(sentence.to_string()));
    }
}
