//! Who runs next: slots, waiting, virtual time, deadlock, the end of a node.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::{Engine, Locked, NodeEnd, NodeState, Status, Want};
use crate::item::{EosReason, Item, Mark};
use crate::time::Nanos;

impl<'a> Locked<'a> {
    pub fn engine(&self) -> &'a Engine {
        self.engine
    }

    /// The supervisor's wait for news.
    pub fn wait_supervisor(mut self, timeout: Option<Duration>) -> Self {
        self.supervisor = false;
        self.notify();
        if let Some(guard) = self.guard.take() {
            let cv = &self.engine.supervisor;
            self.guard = Some(match timeout {
                None => cv.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(rest) => cv.wait_timeout(guard, rest).unwrap_or_else(PoisonError::into_inner).0,
            });
        }
        self
    }

    pub(super) fn notify(&mut self) {
        for node in self.wakes.drain(..) {
            self.engine.wake[node].notify_one();
        }
        for call in self.calls.drain(..) {
            call();
        }
        if std::mem::take(&mut self.supervisor) {
            self.engine.supervisor.notify_all();
        }
    }

    /// Makes a waiting node ready.
    pub fn ready(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        if state.status == Status::Waiting && state.want != Want::Model {
            state.status = Status::Ready;
            self.ready += 1;
        }
    }

    /// Something was pushed to link `l`.
    pub(super) fn arrived(&mut self, l: usize) {
        let (node, port) = self.engine.edges[l].to;
        let state = &self.nodes[node];
        if state.status == Status::Waiting
            && matches!(state.want, Want::Input(p) | Want::Poll(p) if p.is_none_or(|p| p == port))
        {
            self.ready(node);
            self.schedule();
        }
    }

    /// Something was taken from link `l`. Its sender may wait for this link or for a sibling; it
    /// tries all that still lack its item.
    pub(super) fn room(&mut self, l: usize) {
        let node = self.engine.edges[l].from.0;
        let state = &self.nodes[node];
        if state.status == Status::Waiting && matches!(state.want, Want::Output(Some(_), _)) {
            self.ready(node);
            self.schedule();
        }
    }

    fn key(&self, node: usize) -> Nanos {
        match self.nodes[node].want {
            Want::Start | Want::Model | Want::Resume => Nanos::MIN,
            Want::Output(_, at) | Want::Sleep(at) => at,
            Want::Poll(_) => Nanos::MAX,
            Want::Input(port) => {
                let info = &self.engine.nodes[node];
                let links = port.map_or(&info.all_inputs, |p| &info.inputs[p]);
                links.iter().filter_map(|&l| self.links[l].head_time()).min().unwrap_or(Nanos::MIN)
            }
        }
    }

    /// Hands free slots to ready nodes; when nobody runs and nobody can, moves time on or
    /// reports the deadlock.
    pub fn schedule(&mut self) {
        if !self.started {
            return;
        }
        loop {
            while self.ready > 0 && self.running < self.engine.slots {
                let ready = (0..self.nodes.len()).filter(|&n| self.nodes[n].status == Status::Ready);
                let next = if self.engine.slots == usize::MAX {
                    ready.into_iter().next()
                } else {
                    ready.min_by_key(|&n| (self.key(n), n))
                };
                let Some(next) = next else { break };
                self.nodes[next].status = Status::Running;
                self.ready -= 1;
                self.running += 1;
                self.wakes.push(next);
            }
            if self.running > 0 || self.external > 0 || self.live == 0 || !self.quiesce() {
                return;
            }
        }
    }

    /// A port of several edges that has come further than the node was told, and how far.
    pub(super) fn behind(&self, me: usize, port: Option<usize>) -> Option<(usize, Nanos)> {
        let inputs = &self.engine.nodes[me].inputs;
        let asked = port.map_or(0..inputs.len(), |p| p..p + 1);
        asked.filter(|&p| inputs[p].len() > 1).find_map(|p| {
            let open = inputs[p].iter().map(|&l| &self.links[l]).filter(|link| link.end().is_none());
            let bound = open.map(|link| link.head_time().unwrap_or(link.bound())).min()?;
            (bound > self.nodes[me].told[p]).then_some((p, bound))
        })
    }

    /// Nobody runs. Returns whether somebody became ready.
    fn quiesce(&mut self) -> bool {
        let nodes = 0..self.nodes.len();
        let telling: Vec<usize> = nodes
            .clone()
            .filter(|&n| match self.nodes[n] {
                NodeState { status: Status::Waiting, want: Want::Input(port), .. } => self.behind(n, port).is_some(),
                _ => false,
            })
            .collect();
        if !telling.is_empty() {
            for n in telling {
                self.nodes[n].tell = true;
                self.ready(n);
            }
            return true;
        }
        let polling: Vec<usize> = nodes
            .clone()
            .filter(|&n| self.nodes[n].status == Status::Waiting && matches!(self.nodes[n].want, Want::Poll(_)))
            .collect();
        if !polling.is_empty() {
            polling.into_iter().for_each(|n| self.ready(n));
            return true;
        }
        let sleepers: Vec<(Nanos, usize)> = nodes
            .filter_map(|n| match self.nodes[n] {
                NodeState { status: Status::Waiting, want: Want::Sleep(at), .. } => Some((at, n)),
                _ => None,
            })
            .collect();
        if let Some(&(next, _)) = sleepers.iter().min() {
            if !self.engine.clock.is_virtual() {
                return false;
            }
            if !self.engine.cancelled.load(SeqCst) && self.drain_at.is_some_and(|at| at < next) {
                self.cancel_all();
                return true;
            }
            self.engine.clock.jump(next);
            let now = self.engine.clock.now();
            sleepers.into_iter().filter(|&(at, _)| at <= now).for_each(|(_, n)| self.ready(n));
            return true;
        }
        let paused = self.nodes.iter().any(|n| n.status == Status::Waiting && n.want == Want::Resume);
        if paused && self.drain_at.is_some() && !self.engine.cancelled.load(SeqCst) {
            // A stop drains: what is paused goes on, for nobody is left to say so.
            (0..self.engine.scopes.len()).for_each(|scope| self.set_paused(scope, false));
            return self.ready > 0;
        }
        if paused || self.engine.cancelled.load(SeqCst) {
            return false;
        }
        let report = crate::diagnose::deadlock(self.engine, self);
        self.failure.get_or_insert(report);
        self.cancel_all();
        self.ready > 0
    }

    /// Cancels everything: all nodes unwind at their next step.
    pub fn cancel_all(&mut self) {
        self.engine.stopping.store(true, SeqCst);
        self.engine.cancelled.store(true, SeqCst);
        self.deadline = Some(Instant::now() + crate::run::GRACE);
        self.supervisor = true;
        for n in 0..self.nodes.len() {
            self.ready(n);
            let waker = self.nodes[n].waker.clone();
            self.calls.extend(waker);
        }
    }

    /// Sources end; the rest drains until the deadline.
    pub fn stop_gracefully(&mut self) {
        if self.engine.stopping.swap(true, SeqCst) {
            return;
        }
        let drain = self.engine.drain;
        let nanos = Nanos::try_from(drain.as_nanos()).unwrap_or(Nanos::MAX);
        self.drain_at = Some(self.engine.clock.now().saturating_add(nanos));
        // A deadline beyond the clock's range is no deadline.
        self.deadline = Instant::now().checked_add(drain);
        self.supervisor = true;
        for n in 0..self.nodes.len() {
            if self.engine.nodes[n].source {
                self.ready(n);
                let waker = self.nodes[n].waker.clone();
                self.calls.extend(waker);
            }
        }
        self.schedule();
    }

    /// Gives the slot up and waits until the scheduler gives one back.
    pub fn suspend(mut self, me: usize, status: Status, want: Want, timeout: Option<Duration>) -> Self {
        let since = Instant::now();
        self.nodes[me].want = want;
        self.nodes[me].status = status;
        self.running -= 1;
        if status == Status::Ready {
            self.ready += 1;
        }
        self.schedule();
        self = self.park(me, timeout.and_then(|t| since.checked_add(t)));
        let kind = match want {
            Want::Output(..) => 1,
            Want::Model => 2,
            Want::Sleep(_) | Want::Start | Want::Resume => 3,
            Want::Input(_) | Want::Poll(_) => 0,
        };
        let waited = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nodes[me].waited[kind] += waited;
        self
    }

    /// Waits until this node has a slot. After `until` it asks for one.
    pub fn park(mut self, me: usize, mut until: Option<Instant>) -> Self {
        // Being its own successor is common in lockstep: then nothing is woken and nothing waits.
        if self.nodes[me].status == Status::Running {
            self.wakes.retain(|&n| n != me);
            return self;
        }
        self.notify();
        while self.nodes[me].status != Status::Running {
            let Some(guard) = self.guard.take() else { break };
            let cv = &self.engine.wake[me];
            match until.map(|t| t.saturating_duration_since(Instant::now())) {
                None => self.guard = Some(cv.wait(guard).unwrap_or_else(PoisonError::into_inner)),
                Some(rest) => {
                    let (guard, timed_out) = cv.wait_timeout(guard, rest).unwrap_or_else(PoisonError::into_inner);
                    self.guard = Some(guard);
                    if timed_out.timed_out() {
                        until = None;
                        self.ready(me);
                        self.schedule();
                        self.wakes.retain(|&n| n != me);
                        self.notify();
                    }
                }
            }
        }
        self
    }

    /// Lockstep only: lets a node with smaller media time go first.
    pub(super) fn give_way(self, me: usize, want: Want) -> Self {
        self.suspend(me, Status::Ready, want, None)
    }

    /// Ends a node: its outputs get the end of stream, its inputs close.
    pub fn finish(&mut self, me: usize, reason: &EosReason, end: NodeEnd) {
        self.engine.step(self);
        self.close_segments(me, *reason != EosReason::Complete);
        let info = &self.engine.nodes[me];
        for &l in info.outputs.iter().flatten() {
            self.links[l].push(Item::Mark(Mark::Eos(reason.clone())));
            self.arrived(l);
        }
        for &l in &info.all_inputs {
            self.links[l].close();
            self.room(l);
        }
        for scope in std::mem::take(&mut self.nodes[me].pausing) {
            self.set_paused(scope, false);
        }
        self.nodes[me].end = Some(end);
        self.nodes[me].ended_at = Some(Instant::now());
        self.nodes[me].status = Status::Done;
        self.running -= 1;
        self.live -= 1;
        self.supervisor = true;
        self.schedule();
    }

    /// Ends the segments a node has open on its outputs.
    pub fn close_segments(&mut self, me: usize, cancelled: bool) {
        for port in 0..self.nodes[me].outs.len() {
            for id in std::mem::take(&mut self.nodes[me].outs[port].open) {
                self.push_mark(me, port, &Mark::SegmentEnd { id, cancelled });
            }
        }
    }

    /// Sends a mark that never waits.
    pub fn push_mark(&mut self, me: usize, port: usize, mark: &Mark) {
        for &l in &self.engine.nodes[me].outputs[port] {
            self.links[l].push(Item::Mark(mark.clone()));
            self.arrived(l);
        }
    }

    /// How the inputs of a node ended, the worst of them.
    pub fn inherited(&self, me: usize) -> EosReason {
        let links = &self.engine.nodes[me].all_inputs;
        links.iter().filter_map(|&l| self.links[l].end().cloned()).fold(EosReason::Complete, EosReason::worse)
    }
}
