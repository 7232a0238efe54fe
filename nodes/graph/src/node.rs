//! What a node author sees: [`Node`], its [`Setup`], and the [`Io`] it runs on.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
pub use crate::io::{Incoming, Input, Io, Output, Prepare, Timed};
use crate::model::{ModelRef, Protocol};
use crate::payload::PortType;
use crate::plan::Class;
use crate::time::Span;

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

    /// Opens what must not wait for the models: a microphone that listens while weights load. Models are
    /// not loaded when this is called; most nodes have nothing to do here.
    fn listen(&mut self, _prepare: &Prepare) -> Result<()> {
        Ok(())
    }

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
    /// It may stay unconnected without a word.
    pub optional: bool,
    /// An output that takes its open parameters from this input.
    pub like: Option<&'static str>,
}

/// A device with a clock of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// It brings media in. It has no end but being stopped: it looks at [`Io::stopping`] itself (no call returns
    /// [`Error::Cancelled`] for a graceful stop), sends what it has, and its stream is complete then.
    Capture,
    /// It lets media out.
    Playback,
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
    /// What its memory grows with, when it has no bound.
    pub grows: Option<&'static str>,
    /// It can be a member of a cancel scope.
    pub cancellable: bool,
    /// It cannot follow a change of form mid-stream.
    pub fixed_caps: bool,
    /// Its default for `on_item_error` is `skip`.
    pub skips_item_errors: bool,
    /// It looks at [`Io::paused`] itself and is not kept at its next item.
    pub handles_pause: bool,
    /// It takes its inputs through [`Io::recv_any`] and can have them joined by turn.
    pub joins_turns: bool,
    /// Options that can be set while it runs.
    pub settable: Vec<&'static str>,
    /// The device it drives.
    pub device: Option<Device>,
}

/// Collects what a node declares about itself in [`Node::new`].
pub struct Setup {
    name: Arc<str>,
    model: Option<Arc<crate::model::ModelSlot>>,
    class: Option<Class>,
    declared: Declared,
}

impl Setup {
    /// For the loader: a setup for the node `name`, whose `model` key names `model`.
    pub fn new(name: Arc<str>, model: Option<Arc<crate::model::ModelSlot>>) -> Self {
        Self { name, model, class: None, declared: Declared::default() }
    }
    /// For the loader: sessions the node opens are of this class, whatever its model says.
    pub fn set_class(&mut self, class: Option<Class>) {
        self.class = class;
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
    /// An output that is a by-product: no word when nothing is connected to it.
    pub fn optional_output(&mut self, name: &'static str, ty: PortType) {
        self.declared.outputs.push(PortDecl { name, ty, optional: true, like: None });
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
        ModelRef::from_slot(slot.clone(), &self.name, self.class)
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
    /// The node's memory has no bound known before it runs; `with` says what it grows with, as in
    /// "64 kB a second of sound".
    pub fn memory_grows(&mut self, with: &'static str) {
        self.declared.memory = None;
        self.declared.grows = Some(with);
    }
    /// The node polls [`Io::check`] often enough to be a member of a cancel scope.
    pub fn cancellable(&mut self) {
        self.declared.cancellable = true;
    }
    /// The node cannot follow a change of audio form: a converter goes in front.
    pub fn fixed_caps(&mut self) {
        self.declared.fixed_caps = true;
    }
    /// The node looks at [`Io::paused`] itself: a loudspeaker fades out and plays silence, where other
    /// members of a paused scope just stop at their next item.
    pub fn handles_pause(&mut self) {
        self.declared.handles_pause = true;
    }
    /// The node takes its inputs through [`Io::recv_any`], so that `sync = "turn"` on an edge can join
    /// them by turn: items of an attachment's edge come before the items of the same segment on other
    /// edges, and those wait until that segment has ended on every joined edge.
    pub fn joins_turns(&mut self) {
        self.declared.joins_turns = true;
    }
    /// An option that can be set while the node runs: it asks [`Io::settings`] before every item.
    pub fn settable(&mut self, option: &'static str) {
        self.declared.settable.push(option);
    }
    /// The node drives a device. With `clock = "auto"` the graph's time is that of its first playback
    /// device, else of its first capture device ([`Io::is_clock_master`]).
    pub fn device(&mut self, device: Device) {
        self.declared.device = Some(device);
    }
    /// Without `on_item_error` in the graph file, a failed item is a counted gap.
    pub fn skips_item_errors(&mut self) {
        self.declared.skips_item_errors = true;
    }
}

/// A node of any kind, as the runtime holds it.
pub trait DynNode: Send {
    /// [`Node::listen`].
    fn listen(&mut self, _prepare: &Prepare) -> Result<()> {
        Ok(())
    }
    /// [`Node::prepare`].
    fn prepare(&mut self, prepare: &Prepare) -> Result<()>;
    /// [`Node::run`].
    fn run(&mut self, io: &Io) -> Result<()>;
}

impl<N: Node> DynNode for N {
    fn listen(&mut self, prepare: &Prepare) -> Result<()> {
        Node::listen(self, prepare)
    }
    fn prepare(&mut self, prepare: &Prepare) -> Result<()> {
        Node::prepare(self, prepare)
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        Node::run(self, io)
    }
}
