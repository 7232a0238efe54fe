//! What a node author sees: [`Node`], its [`Setup`], and the [`Io`] it runs on.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::item::{Gap, Header, Item, Mark};
use crate::model::{ModelRef, Protocol};
use crate::payload::{PayloadType, PortType};
use crate::time::{Nanos, Span};

/// One stage of a graph: an ordinary loop over typed inputs and outputs.
pub trait Node: Send + Sized + 'static {
    /// The name in graph files: `"audio.resample"`.
    const KIND: &'static str;
    /// One sentence for `oxiline graph show`, the schema and `docs/nodes.md`.
    const ABOUT: &'static str;
    /// Options from the graph file. `#[serde(deny_unknown_fields)]`, documented fields.
    type Options: DeserializeOwned + JsonSchema;

    /// Declares ports, models, files and latency. Cheap: no I/O, no weights, runs in `graph check`.
    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self>;

    /// Opens files and devices, allocates. Models are loaded when this is called.
    fn prepare(&mut self, _prepare: &Prepare) -> Result<()> {
        Ok(())
    }

    /// Runs until the inputs end. Returning closes the outputs; `?` on
    /// [`Error::Cancelled`] unwinds a shutdown.
    fn run(&mut self, io: &Io) -> Result<()>;
}

/// One declared port.
#[derive(Debug, Clone, PartialEq)]
pub struct PortDecl {
    /// Name.
    pub name: &'static str,
    /// Type with what is accepted or offered.
    pub ty: PortType,
    /// An input that may stay unconnected.
    pub optional: bool,
    /// An output that takes its open parameters from this input.
    pub like: Option<&'static str>,
}

/// What a node declared in [`Node::new`].
#[derive(Debug, Clone, Default)]
pub struct Declared {
    /// Inputs in order.
    pub inputs: Vec<PortDecl>,
    /// Outputs in order.
    pub outputs: Vec<PortDecl>,
    /// Protocol name of the model it needs, if any.
    pub protocol: Option<&'static str>,
    /// Files it writes.
    pub writes: Vec<PathBuf>,
    /// Latency it adds, least and most.
    pub latency: (Span, Span),
    /// Bytes it may hold beside its edges (`None`: did not say).
    pub memory: Option<u64>,
    /// It can be a member of a cancel scope.
    pub cancellable: bool,
    /// It cannot follow a change of form mid-stream.
    pub fixed_caps: bool,
    /// Its default for `on_item_error` is `skip`.
    pub skips_item_errors: bool,
}

/// Collects what a node declares about itself in [`Node::new`].
pub struct Setup {
    name: Arc<str>,
    model: Option<Arc<crate::model::ModelSlot>>,
    declared: Declared,
}

impl Setup {
    /// For the loader: a setup for the node `name`, whose `model` key names `model`.
    pub fn new(name: Arc<str>, model: Option<Arc<crate::model::ModelSlot>>) -> Self {
        Self { name, model, declared: Declared::default() }
    }
    /// For the loader: what was declared.
    pub fn into_declared(self) -> Declared {
        self.declared
    }
    /// Name of the node in its graph.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// An input port that must be connected.
    pub fn input(&mut self, name: &'static str, ty: PortType) {
        self.declared.inputs.push(PortDecl { name, ty, optional: false, like: None });
    }
    /// An input port that may stay unconnected.
    pub fn optional_input(&mut self, name: &'static str, ty: PortType) {
        self.declared.inputs.push(PortDecl { name, ty, optional: true, like: None });
    }
    /// An output port.
    pub fn output(&mut self, name: &'static str, ty: PortType) {
        self.declared.outputs.push(PortDecl { name, ty, optional: false, like: None });
    }
    /// An output whose audio parameters are those of an input where `ty` says `Any`.
    pub fn output_like(&mut self, name: &'static str, ty: PortType, input: &'static str) {
        self.declared.outputs.push(PortDecl { name, ty, optional: false, like: Some(input) });
    }
    /// The model named by the node's `model` key, speaking protocol `P`. Nothing is loaded yet.
    /// Error when the node has no `model` key or the model speaks another protocol.
    pub fn model<P: Protocol>(&mut self) -> Result<ModelRef<P>> {
        self.declared.protocol = Some(P::NAME);
        let Some(slot) = &self.model else {
            return Err(Error::msg(format_args!(
                "node `{}` needs a model that speaks `{}`: add `model = \"NAME\"` and a `[models.NAME]` table",
                self.name,
                P::NAME
            )));
        };
        ModelRef::from_slot(slot.clone(), &self.name)
    }
    /// A file this node will write ("-" is standard output): two writers of one file are an error.
    pub fn writes(&mut self, path: PathBuf) {
        self.declared.writes.push(path);
    }
    /// Latency this node adds, least and most.
    pub fn latency(&mut self, min: Span, max: Span) {
        self.declared.latency = (min, max);
    }
    /// Memory the node may hold beside its edges, bytes.
    pub fn memory(&mut self, bytes: u64) {
        self.declared.memory = Some(bytes);
    }
    /// The node polls [`Io::check`] often enough to be a member of a cancel scope.
    pub fn cancellable(&mut self) {
        self.declared.cancellable = true;
    }
    /// The node cannot follow a change of audio form: a converter goes in front.
    pub fn fixed_caps(&mut self) {
        self.declared.fixed_caps = true;
    }
    /// Without `on_item_error` in the graph file, a failed item is a counted gap.
    pub fn skips_item_errors(&mut self) {
        self.declared.skips_item_errors = true;
    }
}

/// A node of any kind, as the runtime holds it.
pub trait DynNode: Send {
    /// [`Node::prepare`].
    fn prepare(&mut self, prepare: &Prepare) -> Result<()>;
    /// [`Node::run`].
    fn run(&mut self, io: &Io) -> Result<()>;
}

impl<N: Node> DynNode for N {
    fn prepare(&mut self, prepare: &Prepare) -> Result<()> {
        Node::prepare(self, prepare)
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        Node::run(self, io)
    }
}

/// What a node may use while preparing.
pub struct Prepare {
    // runtime fields
}

impl Prepare {
    /// The negotiated type of an input port.
    pub fn input_type(&self, _port: &str) -> Option<PortType> {
        todo!()
    }
    /// The negotiated type of an output port.
    pub fn output_type(&self, _port: &str) -> Option<PortType> {
        todo!()
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
    /// The end of this input, once. After it only `End` comes.
    End(crate::item::EosReason),
}

/// The connections of a running node.
pub struct Io {
    // runtime fields
}

impl Io {
    /// A typed input. Error when the port was not declared or has another type.
    pub fn input<T: PayloadType>(&self, _port: &str) -> Result<Input<T>> {
        todo!()
    }
    /// A typed optional input: `None` when unconnected.
    pub fn optional_input<T: PayloadType>(&self, _port: &str) -> Result<Option<Input<T>>> {
        todo!()
    }
    /// A typed output (unconnected outputs swallow).
    pub fn output<T: PayloadType>(&self, _port: &str) -> Result<Output<T>> {
        todo!()
    }
    /// The next item of any input: waits until every open input has one or ended, then takes
    /// the smallest media time, then declaration order. `None` when all ended. For joins.
    pub fn recv_any(&self) -> Result<Option<(usize, Item)>> {
        todo!()
    }
    /// Err([`Error::Cancelled`]) when the graph is being stopped or the node's scope was
    /// cancelled; call it at least every 20 ms of work.
    pub fn check(&self) -> Result<()> {
        todo!()
    }
    /// Has the graph been asked to stop gracefully? Sources end their stream then.
    pub fn stopping(&self) -> bool {
        todo!()
    }
    /// Graph time now.
    pub fn now(&self) -> Nanos {
        todo!()
    }
    /// Sleeps on the graph's clock (virtual clocks do not wait), waking early when cancelled.
    pub fn sleep(&self, _span: Span) -> Result<()> {
        todo!()
    }
    /// Waits until graph time `at`; paced sources use it.
    pub fn sleep_until(&self, _at: Nanos) -> Result<()> {
        todo!()
    }
    /// An item failed: skips it with a counted gap (`on_item_error = "skip"`) or returns the error.
    pub fn item_error(&self, _error: Error) -> Result<()> {
        todo!()
    }
    /// Adds to a named counter of the node, shown in statistics and the exit summary.
    pub fn count(&self, _what: &'static str, _n: u64) {
        todo!()
    }
    /// A sentence for the exit summary ("muted 95 % of the input: check threshold").
    pub fn note(&self, _sentence: String) {
        todo!()
    }
    /// A value for `--stats json` and the summary, under the node's name.
    pub fn report(&self, _key: &'static str, _value: serde_json::Value) {
        todo!()
    }
    /// How far a source or long job is: seconds done, of how many.
    pub fn progress(&self, _done: f64, _total: Option<f64>) {
        todo!()
    }
    /// Bumps the epoch of a scope named in the node's `cancels`.
    pub fn cancel_scope(&self, _scope: &str) -> Result<()> {
        todo!()
    }
    /// A token for code that runs elsewhere on the node's behalf.
    pub fn cancel_token(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        todo!()
    }
}

/// A typed input port.
pub struct Input<T> {
    _t: std::marker::PhantomData<T>,
}

impl<T: PayloadType> Input<T> {
    /// The next payload; gaps and marks on the way are forwarded to every output of the node
    /// in order. `None` at the end of the stream.
    pub fn recv(&self) -> Result<Option<Timed<T>>> {
        todo!()
    }
    /// The next item as it is; nothing is forwarded.
    pub fn next(&self) -> Result<Incoming<T>> {
        todo!()
    }
    /// The same without waiting: `None` when nothing is there now.
    pub fn try_next(&self) -> Result<Option<Incoming<T>>> {
        todo!()
    }
    /// The negotiated type.
    pub fn port_type(&self) -> PortType {
        todo!()
    }
}

/// A typed output port; clones go to every connected edge.
pub struct Output<T> {
    _t: std::marker::PhantomData<T>,
}

impl<T: PayloadType> Output<T> {
    /// Sends a payload. Waits for room on edges whose policy is `block`.
    pub fn send(&self, _item: Timed<T>) -> Result<()> {
        todo!()
    }
    /// Sends payloads in order.
    pub fn send_all(&self, items: impl IntoIterator<Item = Timed<T>>) -> Result<()> {
        for item in items {
            self.send(item)?;
        }
        Ok(())
    }
    /// Sends a gap.
    pub fn gap(&self, _gap: Gap) -> Result<()> {
        todo!()
    }
    /// Sends a mark (not [`Mark::Eos`]: returning from `run` sends it).
    pub fn mark(&self, _mark: Mark) -> Result<()> {
        todo!()
    }
    /// Is anything connected? Work for an unconnected port can be left out.
    pub fn connected(&self) -> bool {
        todo!()
    }
}
