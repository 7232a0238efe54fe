//! The connections of a running node: [`Io`], [`Input`], [`Output`].

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::engine::{Engine, NodeInfo, Taken};
use crate::error::{Error, Result};
use crate::item::{EosReason, Gap, GapReason, Header, Item, Mark};
use crate::node::PortDecl;
use crate::payload::{Payload, PayloadType, PortType};
use crate::run::Progress;
use crate::time::{Nanos, Span};

/// What a node may use while preparing.
pub struct Prepare<'a> {
    engine: &'a Engine,
    inputs: Vec<(&'static str, Option<PortType>)>,
    outputs: Vec<(&'static str, PortType)>,
}

impl<'a> Prepare<'a> {
    pub(crate) fn of(engine: &'a Engine, me: usize) -> Self {
        let info = &engine.nodes[me];
        let inputs = info.declared.inputs.iter().map(|p| p.name).zip(info.input_types.iter().cloned());
        let outputs = info.declared.outputs.iter().map(|p| p.name).zip(info.output_types.iter().cloned());
        Self { engine, inputs: inputs.collect(), outputs: outputs.collect() }
    }
    /// Media comes in from now on: graph time begins here, and not when the nodes start.
    pub fn begin_time(&self) {
        self.engine.clock.begin();
    }
    /// Graph time now: 0 until it begins.
    pub fn now(&self) -> Nanos {
        self.engine.clock.now()
    }
    /// The negotiated type of an input port; `None` when it is unconnected or was not declared.
    pub fn input_type(&self, port: &str) -> Option<PortType> {
        self.inputs.iter().find(|(name, _)| *name == port).and_then(|(_, ty)| ty.clone())
    }
    /// The negotiated type of an output port.
    pub fn output_type(&self, port: &str) -> Option<PortType> {
        self.outputs.iter().find(|(name, _)| *name == port).map(|(_, ty)| ty.clone())
    }
}

/// A payload with its stamp.
#[derive(Debug, Clone)]
pub struct Timed<T> {
    /// The stamp.
    pub header: Header,
    /// The payload.
    pub value: T,
}

impl<T> Timed<T> {
    /// A value at media time `pts` lasting `dur`.
    pub fn at(pts: Nanos, dur: Nanos, value: T) -> Self {
        Self { header: Header::at(pts, dur), value }
    }
}

/// What an input hands over, in order.
#[derive(Debug, Clone)]
pub enum Incoming<T> {
    /// A payload.
    Data(Timed<T>),
    /// Time without data.
    Gap(Gap),
    /// A mark; [`Mark::Eos`] arrives as [`Incoming::End`].
    Mark(Mark),
    /// The end of this input. After it only `End` comes.
    End(EosReason),
}

/// The connections of a running node.
pub struct Io {
    pub(crate) engine: Arc<Engine>,
    pub(crate) me: usize,
}

impl Io {
    fn info(&self) -> &NodeInfo {
        &self.engine.nodes[self.me]
    }

    fn find<T: PayloadType>(&self, ports: &[PortDecl], what: &str, port: &str) -> Result<usize> {
        let node = &self.info().name;
        let Some(at) = ports.iter().position(|p| p.name == port) else {
            let known: Vec<&str> = ports.iter().map(|p| p.name).collect();
            return Err(Error::msg(format_args!(
                "node `{node}` asks for its {what} `{port}`, which it did not declare; it declared: {}",
                if known.is_empty() { "none".to_string() } else { known.join(", ") }
            )));
        };
        let declared = &ports[at].ty;
        let any = T::TYPE == PortType::Any || *declared == PortType::Any;
        if !any && T::TYPE.name() != declared.name() {
            return Err(Error::msg(format_args!(
                "node `{node}` asks for its {what} `{port}` as `{}`, but declared it as `{}`",
                T::TYPE.name(),
                declared.name()
            )));
        }
        Ok(at)
    }

    /// A typed input. Error when the port was not declared, has another type or is unconnected.
    pub fn input<T: PayloadType>(&self, port: &str) -> Result<Input<T>> {
        self.optional_input(port)?.ok_or_else(|| {
            Error::msg(format_args!(
                "input `{port}` of node `{}` is not connected: connect it, or declare it with `optional_input`",
                self.info().name
            ))
        })
    }
    /// A typed optional input: `None` when unconnected.
    pub fn optional_input<T: PayloadType>(&self, port: &str) -> Result<Option<Input<T>>> {
        let at = self.find::<T>(&self.info().declared.inputs, "input", port)?;
        if self.info().inputs[at].is_empty() {
            return Ok(None);
        }
        Ok(Some(Input { engine: self.engine.clone(), me: self.me, port: at, _t: PhantomData }))
    }
    /// A typed output (unconnected outputs swallow).
    pub fn output<T: PayloadType>(&self, port: &str) -> Result<Output<T>> {
        let at = self.find::<T>(&self.info().declared.outputs, "output", port)?;
        Ok(Output { engine: self.engine.clone(), me: self.me, port: at, _t: PhantomData })
    }
    /// The next item of any input (index in declaration order, and the item): the smallest media
    /// time, then declaration order. Waits until no open input can still bring an earlier one:
    /// gaps and [`Mark::Bound`] advance an input that has no data. The end of an input comes as
    /// [`Mark::Eos`]; `None` when all ended. For joins.
    pub fn recv_any(&self) -> Result<Option<(usize, Item)>> {
        loop {
            match self.engine.take(self.me, None, false)? {
                Taken::Item(port, Item::Mark(Mark::Eos(_))) => {
                    if let Some(reason) = port_end(&self.engine, self.me, port) {
                        return Ok(Some((port, Item::Mark(Mark::Eos(reason)))));
                    }
                }
                Taken::Item(port, item) => return Ok(Some((port, item))),
                Taken::Ended | Taken::Nothing => return Ok(None),
            }
        }
    }
    /// Err([`Error::Cancelled`]) when the node's scope or the graph was cancelled, and for a source
    /// (a node without connected inputs) also when the graph is being stopped gracefully, unless
    /// it has seen that through [`Io::stopping`]. Call it at least every 20 ms of work; it takes
    /// no lock.
    pub fn check(&self) -> Result<()> {
        self.engine.check(self.me)
    }
    /// Has the graph been asked to stop gracefully? Sources send their tail and end then;
    /// asking makes the runtime trust the source to do so (until the drain deadline).
    pub fn stopping(&self) -> bool {
        let stopping = self.engine.stopping.load(SeqCst);
        if stopping {
            self.info().stop_seen.store(true, SeqCst);
        }
        stopping
    }
    /// Graph time now.
    pub fn now(&self) -> Nanos {
        self.engine.clock.now()
    }
    /// Is the graph's time that of this node's device? Then the node says how fast it runs with
    /// [`Io::steer_clock`]; every other device is resampled to graph time.
    pub fn is_clock_master(&self) -> bool {
        self.engine.master == Some(self.me)
    }
    /// The master device: so many of its seconds pass in one second of the monotonic clock.
    pub fn steer_clock(&self, rate: f64) {
        if self.is_clock_master() {
            self.engine.clock.steer(rate);
        }
    }
    /// Sleeps on the graph's clock (virtual clocks do not wait), waking early when cancelled.
    pub fn sleep(&self, span: Span) -> Result<()> {
        self.sleep_until(self.now().saturating_add(span.nanos()))
    }
    /// Waits until graph time `at`; paced sources use it.
    pub fn sleep_until(&self, at: Nanos) -> Result<()> {
        self.engine.sleep_until(self.me, at)
    }
    /// An item failed: skips it with a counted gap (`on_item_error = "skip"`) or returns the error.
    pub fn item_error(&self, error: Error) -> Result<()> {
        if error.is_cancelled() || !self.info().skip_errors {
            return Err(error);
        }
        let (first, last) = {
            let mut st = self.engine.lock();
            let node = &mut st.nodes[self.me];
            node.item_errors += 1;
            (node.item_errors == 1, node.last)
        };
        if first {
            self.note(format!("node `{}` skipped a damaged item: {error}", self.info().name));
        }
        if let Some(header) = last {
            let to = header.pts.saturating_add(header.dur.max(0));
            self.to_all(&Item::Gap(Gap { from: header.pts, to, reason: GapReason::DecodeError }))?;
        }
        Ok(())
    }
    /// Adds to a named counter of the node, shown in statistics and the exit summary.
    pub fn count(&self, what: &'static str, n: u64) {
        *self.engine.lock().nodes[self.me].counters.entry(what).or_default() += n;
    }
    /// A sentence for the exit summary ("muted 95 % of the input: check threshold").
    pub fn note(&self, sentence: String) {
        if let Some(observer) = &self.engine.observer {
            observer(Progress::Note { node: &self.info().name, sentence: &sentence });
        }
        let mut st = self.engine.lock();
        // Notes are for people: a node that repeats itself must not fill memory.
        if st.nodes[self.me].notes.len() < 100 {
            st.nodes[self.me].notes.push(sentence);
        }
    }
    /// A value for `--stats json` and the summary, under the node's name.
    pub fn report(&self, key: &'static str, value: serde_json::Value) {
        self.engine.lock().nodes[self.me].reports.insert(key, value);
    }
    /// How far a source or long job is: seconds done, of how many.
    pub fn progress(&self, done: f64, total: Option<f64>) {
        self.engine.lock().nodes[self.me].progress = Some((done, total));
        if let Some(observer) = &self.engine.observer {
            observer(Progress::Node { node: &self.info().name, done, total });
        }
    }
    /// Bumps the epoch of a scope named in the node's `cancels`: queued data of the scope becomes
    /// stale, its members get [`Error::Cancelled`] at their next step and start over.
    pub fn cancel_scope(&self, scope: &str) -> Result<()> {
        self.engine.cancel_scope(self.may_cancel(scope)?);
        Ok(())
    }
    /// Pauses a scope named in the node's `cancels`: its members stop at their next item until
    /// [`Io::resume_scope`], a cancel of the scope, or the end of this node. Nothing is lost.
    pub fn pause_scope(&self, scope: &str) -> Result<()> {
        self.engine.pause_scope(self.may_cancel(scope)?, true, Some(self.me));
        Ok(())
    }
    /// Lets a paused scope go on.
    pub fn resume_scope(&self, scope: &str) -> Result<()> {
        self.engine.pause_scope(self.may_cancel(scope)?, false, Some(self.me));
        Ok(())
    }
    fn may_cancel(&self, scope: &str) -> Result<usize> {
        let info = self.info();
        let mut mine = info.cancels.iter().copied();
        mine.find(|&s| *self.engine.scopes[s].0 == *scope).ok_or_else(|| {
            Error::msg(format_args!(
                "node `{}` may not cancel the scope `{scope}`: name it in the node's `cancels`",
                info.name
            ))
        })
    }
    /// Is the node's scope paused? For nodes that declared [`Setup::handles_pause`].
    ///
    /// [`Setup::handles_pause`]: crate::node::Setup::handles_pause
    pub fn paused(&self) -> bool {
        self.engine.is_paused(self.me)
    }
    /// New values of options declared settable since the last call. Takes no lock when there are none.
    pub fn settings(&self) -> Vec<(&'static str, serde_json::Value)> {
        self.engine.settings(self.me)
    }
    /// A token for code that runs elsewhere on the node's behalf: is it cancelled?
    pub fn cancel_token(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let (engine, me) = (self.engine.clone(), self.me);
        Arc::new(move || engine.check(me).is_err())
    }

    /// Sends an item to every output.
    pub(crate) fn to_all(&self, item: &Item) -> Result<()> {
        (0..self.info().outputs.len()).try_for_each(|port| self.engine.emit(self.me, port, item.clone()))
    }
}

/// How a port ended, once all edges into it have.
fn port_end(engine: &Engine, me: usize, port: usize) -> Option<EosReason> {
    let st = engine.lock();
    let mut ends = engine.nodes[me].inputs[port].iter().map(|&l| st.links[l].end().cloned());
    ends.try_fold(EosReason::Complete, |worst, end| end.map(|e| worst.worse(e)))
}

/// A typed input port.
pub struct Input<T> {
    engine: Arc<Engine>,
    me: usize,
    port: usize,
    _t: PhantomData<fn() -> T>,
}

impl<T: PayloadType> Input<T> {
    /// The next payload; gaps and marks on the way are forwarded to every output of the node
    /// in order (a change of form only to outputs declared `like` this input). `None` at the end
    /// of the stream.
    pub fn recv(&self) -> Result<Option<Timed<T>>> {
        loop {
            match self.next()? {
                Incoming::Data(timed) => return Ok(Some(timed)),
                Incoming::Gap(gap) => self.forward(&Item::Gap(gap), false)?,
                Incoming::Mark(mark) => {
                    let caps = matches!(mark, Mark::Caps(_));
                    self.forward(&Item::Mark(mark), caps)?;
                }
                Incoming::End(_) => return Ok(None),
            }
        }
    }

    fn forward(&self, item: &Item, only_like: bool) -> Result<()> {
        let declared = &self.engine.nodes[self.me].declared;
        let name = declared.inputs[self.port].name;
        for (port, output) in declared.outputs.iter().enumerate() {
            if !only_like || output.like == Some(name) {
                self.engine.emit(self.me, port, item.clone())?;
            }
        }
        Ok(())
    }

    /// The next item as it is; nothing is forwarded.
    pub fn next(&self) -> Result<Incoming<T>> {
        loop {
            if let Some(incoming) = self.sort(self.engine.take(self.me, Some(self.port), false)?)? {
                return Ok(incoming);
            }
        }
    }
    /// The same without waiting: `None` when nothing is there now. On a virtual clock "now" is
    /// the moment when every node waits, so that the answer does not depend on the machine.
    pub fn try_next(&self) -> Result<Option<Incoming<T>>> {
        loop {
            match self.engine.take(self.me, Some(self.port), true)? {
                Taken::Nothing => return Ok(None),
                taken => {
                    if let Some(incoming) = self.sort(taken)? {
                        return Ok(Some(incoming));
                    }
                }
            }
        }
    }

    fn sort(&self, taken: Taken) -> Result<Option<Incoming<T>>> {
        Ok(Some(match taken {
            Taken::Item(_, Item::Data(header, payload)) => {
                let base = payload.base();
                let value = T::from_payload(payload).ok_or_else(|| {
                    let info = &self.engine.nodes[self.me];
                    Error::msg(format_args!(
                        "node `{}` received `{}` on its input `{}`, which takes `{}`",
                        info.name,
                        base.name(),
                        info.declared.inputs[self.port].name,
                        T::TYPE.name()
                    ))
                })?;
                Incoming::Data(Timed { header, value })
            }
            Taken::Item(_, Item::Gap(gap)) => Incoming::Gap(gap),
            // Other edges may still be open; the end of all comes as `Ended`.
            Taken::Item(_, Item::Mark(Mark::Eos(_))) | Taken::Nothing => return Ok(None),
            Taken::Item(_, Item::Mark(mark)) => Incoming::Mark(mark),
            Taken::Ended => Incoming::End(port_end(&self.engine, self.me, self.port).unwrap_or(EosReason::Complete)),
        }))
    }

    /// The negotiated type.
    pub fn port_type(&self) -> PortType {
        let info = &self.engine.nodes[self.me];
        info.input_types[self.port].clone().unwrap_or_else(|| info.declared.inputs[self.port].ty.clone())
    }
}

/// A typed output port; clones go to every connected edge.
pub struct Output<T> {
    engine: Arc<Engine>,
    me: usize,
    port: usize,
    _t: PhantomData<fn() -> T>,
}

impl<T: PayloadType> Output<T> {
    /// Sends a payload. Waits for room on edges whose policy is `block`. The port stamps `seq`,
    /// `epoch` and (where 0) `born`; media time that goes backwards is corrected and counted.
    /// [`Error::Cancelled`] also when every consumer of the node has ended.
    pub fn send(&self, item: Timed<T>) -> Result<()> {
        self.engine.emit(self.me, self.port, Item::Data(item.header, item.value.into_payload()))
    }
    /// Sends payloads in order.
    pub fn send_all(&self, items: impl IntoIterator<Item = Timed<T>>) -> Result<()> {
        for item in items {
            self.send(item)?;
        }
        Ok(())
    }
    /// Sends a gap.
    pub fn gap(&self, gap: Gap) -> Result<()> {
        self.engine.emit(self.me, self.port, Item::Gap(gap))
    }
    /// Sends a mark (not [`Mark::Eos`]: returning from `run` sends it).
    pub fn mark(&self, mark: Mark) -> Result<()> {
        if let Mark::Eos(_) = mark {
            let node = &self.engine.nodes[self.me].name;
            return Err(Error::msg(format_args!(
                "node `{node}` sent an end of stream itself: return from `run` instead"
            )));
        }
        self.engine.emit(self.me, self.port, Item::Mark(mark))
    }
    /// Is anything connected? Work for an unconnected port can be left out.
    pub fn connected(&self) -> bool {
        !self.engine.nodes[self.me].outputs[self.port].is_empty()
    }
    /// The negotiated type.
    pub fn port_type(&self) -> PortType {
        self.engine.nodes[self.me].output_types[self.port].clone()
    }
}

/// Any payload, for nodes that only pass items on (tee, gate, tap).
pub type AnyOutput = Output<Payload>;
