//! The life of one node on its thread: run, unwind, start over, restart, bypass, end.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::actor::panic_text;
use crate::engine::{Engine, NodeEnd, Taken};
use crate::error::{Error, Result};
use crate::io::{Io, Prepare};
use crate::item::{EosReason, Gap, GapReason, Item, Mark};
use crate::model::ModelSlot;
use crate::node::{Device, DynNode, Setup};
use crate::plan::{Bypass, MakeNode, Restart};
use crate::time::{Nanos, Span};

/// What the thread of a node needs beside the engine.
pub(crate) struct Worker {
    pub node: Box<dyn DynNode>,
    pub make: MakeNode,
    pub slot: Option<Arc<ModelSlot>>,
    pub restart: Option<Restart>,
    pub bypass: Option<Bypass>,
}

enum Ran {
    Done,
    Cancelled,
    Failed(String),
}

/// Calls node code; a panic is a failure with its text.
fn guarded(engine: &Engine, me: usize, what: &str, call: impl FnOnce() -> Result<()>) -> Ran {
    let (verb, text) = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Ran::Done,
        Ok(Err(Error::Cancelled)) => return Ran::Cancelled,
        Ok(Err(error)) => ("failed", error.to_string()),
        Err(panic) => ("panicked", panic_text(&*panic)),
    };
    let last = engine.lock().nodes[me].last;
    let place = last.map_or_else(String::new, |h| format!(" at item {} ({:.3} s)", h.seq, h.pts as f64 * 1e-9));
    Ran::Failed(format!("node `{}` {verb}{what}{place}: {text}", engine.nodes[me].name))
}

/// [`crate::Node::listen`], guarded; the error is a sentence.
pub(crate) fn listen(engine: &Engine, me: usize, node: &mut dyn DynNode) -> Result<()> {
    settled(guarded(engine, me, " while starting to listen", || node.listen(&Prepare::of(engine, me))))
}

/// [`crate::Node::prepare`], guarded; the error is a sentence.
pub(crate) fn prepare(engine: &Engine, me: usize, node: &mut dyn DynNode) -> Result<()> {
    settled(guarded(engine, me, " while preparing", || node.prepare(&Prepare::of(engine, me))))
}

fn settled(ran: Ran) -> Result<()> {
    match ran {
        Ran::Done => Ok(()),
        Ran::Cancelled => Err(Error::Cancelled),
        Ran::Failed(sentence) => Err(Error::Message(sentence)),
    }
}

/// Runs a node to its end. The caller's thread has its first slot.
pub(crate) fn run(engine: &Arc<Engine>, me: usize, mut worker: Worker) {
    let io = Io { engine: engine.clone(), me };
    let mut restarts: VecDeque<Nanos> = VecDeque::new();
    loop {
        let node = &mut worker.node;
        let mut ran = guarded(engine, me, "", || node.run(&io));
        let sentence = loop {
            match ran {
                Ran::Done => return complete(engine, me),
                Ran::Cancelled if renewed(engine, me) => {
                    ran = again(engine, me, &mut worker, Span::default(), "a member of its scope failed");
                    if let Ran::Done = ran {
                        break None;
                    }
                }
                Ran::Cancelled => match unwind(engine, me) {
                    Some((reason, end)) => return finish(engine, me, &reason, end),
                    None => break None,
                },
                Ran::Failed(sentence) => {
                    match worker.restart.filter(|restart| may_restart(engine, &mut restarts, restart)) {
                        None => break Some(sentence),
                        Some(restart) => {
                            engine.renew_companions(me);
                            ran = again(engine, me, &mut worker, pause(&restart, restarts.len()), &sentence);
                        }
                    }
                    if let Ran::Done = ran {
                        break None;
                    }
                }
            }
        };
        let Some(sentence) = sentence else { continue };
        let Some(bypass) = worker.bypass else { return engine.fail(me, &sentence) };
        // The failed node's resources must not be held by what replaces it.
        worker.node = Box::new(Gone);
        io.note(format!("{sentence}; it is bypassed and the graph goes on"));
        return match stand_in(&io, bypass) {
            Ok(()) | Err(Error::Cancelled) => {
                let reason = engine.lock().inherited(me);
                finish(engine, me, &reason, NodeEnd::Bypassed(sentence));
            }
            Err(error) => engine.fail(me, &format!("{sentence}; then its bypass failed: {error}")),
        };
    }
}

/// What is left of a node that gave up.
struct Gone;

impl DynNode for Gone {
    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        Ok(())
    }
    fn run(&mut self, _: &Io) -> Result<()> {
        Ok(())
    }
}

fn finish(engine: &Engine, me: usize, reason: &EosReason, end: NodeEnd) {
    engine.lock().finish(me, reason, end);
}

/// `run` returned.
fn complete(engine: &Engine, me: usize) {
    let mut st = engine.lock();
    let mut reason = st.inherited(me);
    let info = &engine.nodes[me];
    // What comes from a device ends by being stopped: there is no other whole.
    let endless = info.declared.device == Some(Device::Capture);
    if info.source && !endless && info.stop_seen.load(SeqCst) {
        reason = reason.worse(EosReason::Stopped);
    }
    let end = if reason == EosReason::Complete { NodeEnd::Complete } else { NodeEnd::Stopped };
    st.finish(me, &reason, end);
}

/// `run` unwound with [`Error::Cancelled`]: how the node ends, or `None` when its scope was
/// cancelled and it starts over in the new epoch.
fn unwind(engine: &Engine, me: usize) -> Option<(EosReason, NodeEnd)> {
    let info = &engine.nodes[me];
    let mut st = engine.lock();
    let ending = engine.cancelled.load(SeqCst) || (info.source && engine.stopping.load(SeqCst));
    if !ending && engine.scope_cancelled(me) {
        st.close_segments(me, true);
        let epoch = engine.epoch(info.scope).unwrap_or(0);
        info.epoch.store(epoch, SeqCst);
        // What the node had taken comes to nothing: joins need not wait for it.
        if let Some(header) = st.nodes[me].last {
            let bound = Mark::Bound(header.pts.saturating_add(header.dur.max(0)));
            (0..info.outputs.len()).for_each(|port| st.push_mark(me, port, &bound));
        }
        // Time may start anew in a new epoch.
        st.nodes[me].outs.iter_mut().for_each(|out| out.last_pts = None);
        return None;
    }
    if !ending && st.nodes[me].pipe_broken {
        return Some((EosReason::Complete, NodeEnd::Complete));
    }
    Some((EosReason::Stopped.worse(st.inherited(me)), NodeEnd::Stopped))
}

/// Counts a restart, unless there were too many of late.
fn may_restart(engine: &Engine, restarts: &mut VecDeque<Nanos>, restart: &Restart) -> bool {
    let now = engine.clock.now();
    while restarts.front().is_some_and(|at| now.saturating_sub(*at) > restart.within.nanos()) {
        restarts.pop_front();
    }
    let allowed = restarts.len() < restart.max as usize;
    if allowed {
        restarts.push_back(now);
    }
    allowed
}

/// Is the node to be made again because a companion failed? An end of the graph comes first.
fn renewed(engine: &Engine, me: usize) -> bool {
    let info = &engine.nodes[me];
    let ending = engine.cancelled.load(SeqCst) || (info.source && engine.stopping.load(SeqCst));
    info.renew.swap(false, SeqCst) && !ending
}

/// How long to wait before the `nth` restart.
fn pause(restart: &Restart, nth: usize) -> Span {
    let doubled = restart.backoff.0.saturating_mul(1 << (nth.saturating_sub(1)).min(20));
    Span(doubled.min(restart.backoff_max.0))
}

/// Makes the node again after a pause; tells the neighbours to start over.
fn again(engine: &Arc<Engine>, me: usize, worker: &mut Worker, pause: Span, why: &str) -> Ran {
    let io = Io { engine: engine.clone(), me };
    io.note(format!("{why}; restarted"));
    {
        let mut st = engine.lock();
        st.nodes[me].restarts += 1;
        st.nodes[me].serving = None;
    }
    worker.node = Box::new(Gone);
    let (make, slot) = (worker.make.clone(), worker.slot.clone());
    let node = &mut worker.node;
    guarded(engine, me, " while restarting", || {
        io.sleep(pause)?;
        let mut setup = Setup::new(engine.nodes[me].name.clone(), slot);
        *node = make(&mut setup)?;
        node.prepare(&Prepare::of(engine, me))?;
        let last = {
            let mut st = engine.lock();
            st.close_segments(me, true);
            st.nodes[me].last
        };
        io.to_all(&Item::Mark(Mark::Flush(engine.nodes[me].epoch.load(SeqCst))))?;
        if let Some(header) = last {
            let to = header.pts.saturating_add(header.dur.max(0));
            io.to_all(&Item::Gap(Gap { from: header.pts, to, reason: GapReason::Dropped }))?;
        }
        Ok(())
    })
}

/// Does the work of a bypassed node: passes its input on, or sends muted time.
fn stand_in(io: &Io, bypass: Bypass) -> Result<()> {
    let info = &io.engine.nodes[io.me];
    let pass = match (&info.declared.inputs[..], &info.declared.outputs[..]) {
        ([input], [output]) => bypass == Bypass::Pass && input.ty.name() == output.ty.name(),
        _ => false,
    };
    loop {
        let item = match io.engine.take(io.me, None, false) {
            Ok(Taken::Item(_, item)) => item,
            Ok(Taken::Ended | Taken::Nothing) => return Ok(()),
            // A cancelled scope: the stand-in keeps no state, so it just goes on.
            Err(Error::Cancelled) if !io.engine.cancelled.load(SeqCst) && io.engine.scope_cancelled(io.me) => {
                let epoch = io.engine.epoch(info.scope).unwrap_or(0);
                info.epoch.store(epoch, SeqCst);
                continue;
            }
            Err(error) => return Err(error),
        };
        match item {
            Item::Mark(Mark::Eos(_)) => {}
            item if pass => io.to_all(&item)?,
            Item::Data(header, _) => {
                let to = header.pts.saturating_add(header.dur.max(0));
                io.to_all(&Item::Gap(Gap { from: header.pts, to, reason: GapReason::Muted }))?;
            }
            Item::Gap(gap) => io.to_all(&Item::Gap(gap))?,
            Item::Mark(Mark::Bound(at)) => io.to_all(&Item::Mark(Mark::Bound(at)))?,
            Item::Mark(_) => {}
        }
    }
}
