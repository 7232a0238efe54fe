//! A checked graph, ready to run: what the loader makes and the runtime executes.
//!
//! The loader (TOML or builder code) resolves names, negotiates types, inserts converters,
//! checks the rules of graph.md 2.3 and 2.9 and hands over a [`Plan`]; the runtime trusts it.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::model::{AnyModelKind, ModelSlot};
use crate::node::{Declared, DynNode, Setup};
use crate::payload::PortType;
pub use crate::placement::{Placement, Priority};
use crate::time::Span;

/// Which clock a graph runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockKind {
    /// Device if there is one, else monotonic; virtual for file-only graphs.
    #[default]
    Auto,
    /// No waiting; same results for any thread count.
    Virtual,
    /// Media time at wall-clock speed from files.
    Paced,
    /// The operating system's monotonic clock.
    Monotonic,
}

/// Capacity of an edge; the first limit reached counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cap {
    /// Data items.
    pub items: Option<u64>,
    /// Media time.
    pub time: Option<Span>,
    /// Payload bytes.
    pub bytes: Option<u64>,
}

/// What happens when an edge is full (graph.md 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Full {
    /// The sender waits.
    #[default]
    Block,
    /// The oldest data is evicted; one merged gap takes its place.
    DropOldest,
    /// New data is refused; a gap takes its place.
    DropNewest,
    /// Only the newest per key (transcript segment, else stream) is kept; finals are never replaced.
    Latest,
    /// The graph stops with an error that names the edge.
    Fail,
}

/// Restart policy of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// At most so many restarts ...
    pub max: u32,
    /// ... within this time.
    pub within: Span,
    /// First wait; doubles up to `backoff_max`.
    pub backoff: Span,
    /// Longest wait.
    pub backoff_max: Span,
}

/// What an optional node becomes when it gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bypass {
    /// Its (single) input is forwarded to its (single) output of the same type.
    Pass,
    /// Its outputs end; its inputs are swallowed.
    Mute,
}

/// Makes (and for a restart, makes again) a node.
pub type MakeNode = Arc<dyn Fn(&mut Setup) -> Result<Box<dyn DynNode>> + Send + Sync>;

/// A node of the plan.
pub struct PlannedNode {
    /// Unique name, sub-graph instances prefixed (`listen/asr`).
    pub name: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Inserted by `auto_convert`, not written by the user.
    pub inserted: bool,
    /// The node as made for the check; used for the first run.
    pub node: Box<dyn DynNode>,
    /// Makes it again after a failure.
    pub make: MakeNode,
    /// What it declared.
    pub declared: Declared,
    /// Negotiated types of the inputs, in declaration order (`None`: unconnected optional input).
    pub input_types: Vec<Option<PortType>>,
    /// Negotiated types of the outputs, in declaration order.
    pub output_types: Vec<PortType>,
    /// Index into [`Plan::models`].
    pub model: Option<usize>,
    /// Index into [`Plan::scopes`].
    pub scope: Option<usize>,
    /// Scopes it may cancel.
    pub cancels: Vec<usize>,
    /// Restart policy, if any.
    pub restart: Option<Restart>,
    /// Bypass, if any.
    pub bypass: Option<Bypass>,
    /// Item errors are counted gaps, not failures. `None`: the node kind's own default.
    pub skip_item_errors: Option<bool>,
    /// Watchdog time; `None`: off.
    pub stall: Option<Duration>,
    /// Where its thread runs.
    pub placement: Placement,
}

impl PlannedNode {
    /// A node by itself: made once, its open types as declared, no model, no scope, nothing that looks
    /// after it.
    pub fn bare(name: &str, kind: &str, node: Box<dyn DynNode>, declared: Declared) -> Self {
        Self {
            name: name.into(),
            kind: kind.into(),
            inserted: false,
            node,
            make: Arc::new(|_| Err(Error::msg("this node is made once"))),
            input_types: vec![None; declared.inputs.len()],
            output_types: declared.outputs.iter().map(|port| port.ty.clone()).collect(),
            declared,
            model: None,
            scope: None,
            cancels: Vec::new(),
            restart: None,
            bypass: None,
            skip_item_errors: None,
            stall: None,
            placement: Placement::default(),
        }
    }
}

/// An edge of the plan.
#[derive(Debug, Clone)]
pub struct PlannedEdge {
    /// Sending node and output index.
    pub from: (usize, usize),
    /// Receiving node and input index.
    pub to: (usize, usize),
    /// Capacity (at least one limit is set).
    pub cap: Cap,
    /// Policy.
    pub full: Full,
    /// Closes a cycle on purpose.
    pub feedback: bool,
    /// Joined by turn (`sync = "turn"`): its items of a turn come before those of other inputs.
    pub by_turn: bool,
    /// The negotiated type.
    pub ty: PortType,
}

impl PlannedEdge {
    /// An edge of `items` items.
    pub fn of(from: (usize, usize), to: (usize, usize), items: u64, full: Full, ty: PortType) -> Self {
        let cap = Cap { items: Some(items), ..Cap::default() };
        Self { from, to, cap, full, feedback: false, by_turn: false, ty }
    }
}

/// Class of a model's or node's requests: interactive before live before batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// A person waits.
    Interactive,
    /// Real time.
    #[default]
    Live,
    /// Whenever there is time.
    Batch,
}

/// A model of the plan; equal identities share one actor in a process.
pub struct PlannedModel {
    /// Name in the graph.
    pub name: Arc<str>,
    /// The kind (erased [`crate::Model`] type).
    pub kind: Arc<dyn AnyModelKind>,
    /// The slot its nodes' [`crate::ModelRef`]s point to; the runtime fills it before `prepare`.
    pub slot: Arc<ModelSlot>,
    /// Options, already checked against the kind's schema.
    pub options: serde_json::Value,
    /// Kind and identity string: the key for sharing.
    pub identity: String,
    /// Class of sessions opened through this declaration.
    pub class: Class,
    /// Weights of the classes (interactive, live, batch).
    pub share: [u32; 3],
    /// At most so many sessions.
    pub max_sessions: usize,
    /// At most so many requests waiting.
    pub queue: usize,
    /// At most so many jobs in one step.
    pub batch_max: usize,
    /// How long to wait for a fuller batch after the first request.
    pub batch_wait: Duration,
    /// How long the actor outlives its last session.
    pub keep: Duration,
}

/// Who is restarted with a failed member of a scope that has a restart policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Group {
    /// Nobody else.
    #[default]
    One,
    /// The members downstream of it.
    Rest,
    /// All members.
    All,
}

/// A cancel scope.
#[derive(Debug, Clone)]
pub struct PlannedScope {
    /// Name.
    pub name: Arc<str>,
    /// Who is restarted together.
    pub group: Group,
}

/// A checked graph.
pub struct Plan {
    /// The graph's name.
    pub name: Arc<str>,
    /// Clock.
    pub clock: ClockKind,
    /// How long a graceful stop may take.
    pub drain: Duration,
    /// Restart policy for nodes that have none (`on_failure = "restart"`).
    pub restart: Option<Restart>,
    /// Nodes.
    pub nodes: Vec<PlannedNode>,
    /// Edges.
    pub edges: Vec<PlannedEdge>,
    /// Models.
    pub models: Vec<PlannedModel>,
    /// Scopes.
    pub scopes: Vec<PlannedScope>,
    /// The graph goes on when its sources have ended, until it is stopped (`end = "never"`).
    pub stays: bool,
    /// Worst-case bytes: edges and node budgets, where known.
    pub worst_case_bytes: Option<u64>,
    /// Warnings and inserted converters, as sentences, already shown by `graph check`.
    pub notes: Vec<String>,
}

impl Plan {
    /// A graph of these nodes and edges on the virtual clock.
    pub fn of(name: &str, nodes: Vec<PlannedNode>, edges: Vec<PlannedEdge>) -> Self {
        Self {
            name: name.into(),
            clock: ClockKind::Virtual,
            drain: Duration::from_secs(10),
            restart: None,
            nodes,
            edges,
            models: Vec::new(),
            scopes: Vec::new(),
            stays: false,
            worst_case_bytes: None,
            notes: Vec::new(),
        }
    }
}
