//! A graph with its sub-graphs put in: names resolved as far as the files alone can.

use std::sync::Arc;
use std::time::Duration;

use super::document::GraphKeys;
use super::message::Spot;
use super::value::{Table, Value};
use crate::payload::PortType;
use crate::plan::{Bypass, Cap, Class, Full, Group, Restart};

/// A flattened graph.
pub(crate) struct Draft {
    pub name: String,
    pub spot: Spot,
    pub graph: GraphKeys,
    pub nodes: Vec<DraftNode>,
    pub models: Vec<DraftModel>,
    pub scopes: Vec<DraftScope>,
    /// Inputs of the graph itself, when it is made to be a part of another.
    pub ports_in: Vec<(String, PortType, Spot)>,
    /// Outputs other graphs may use: they count as used.
    pub ports_out: Vec<(Endpoint, Spot)>,
}

pub(crate) struct DraftNode {
    pub name: Arc<str>,
    pub spot: Spot,
    pub kind: String,
    pub kind_spot: Spot,
    pub options: Table,
    pub inputs: Vec<DraftInput>,
    pub model: Option<usize>,
    pub scope: Option<(usize, Spot)>,
    pub cancels: Vec<usize>,
    pub restart: Option<Restart>,
    pub bypass: Option<(Bypass, Spot)>,
    pub skip_item_errors: Option<bool>,
    pub stall: Option<Duration>,
    /// `threads`, `cpu`, `priority`, `class`: options when the kind knows them.
    pub placement: Vec<(super::value::Key, Value)>,
}

/// What one input is fed by.
pub(crate) struct DraftInput {
    /// `None`: the node's sole input.
    pub port: Option<String>,
    pub spot: Spot,
    pub edges: Vec<DraftEdge>,
}

#[derive(Clone)]
pub(crate) struct DraftEdge {
    pub from: From,
    pub spot: Spot,
    pub cap: Option<Cap>,
    pub full: Option<Full>,
    pub feedback: bool,
    pub by_turn: Option<Spot>,
    pub convert: Option<bool>,
    /// Sub-graph inputs on the way: name for messages and the type they promise.
    pub via: Vec<(String, PortType)>,
}

#[derive(Clone)]
pub(crate) enum From {
    End(Endpoint),
    /// An input port of a sub-graph that nobody connected: its sentence.
    Absent(String),
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    pub node: String,
    /// `None`: the node's sole output.
    pub port: Option<String>,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.port {
            Some(port) => write!(f, "{}.{port}", self.node),
            None => write!(f, "{}", self.node),
        }
    }
}

pub(crate) struct DraftModel {
    pub name: Arc<str>,
    pub spot: Spot,
    pub kind: String,
    pub kind_spot: Spot,
    pub options: Table,
    pub keys: ModelKeys,
    /// Declared for others to use, or named in an option (`"model:NAME"`): no word when unused.
    pub quiet: bool,
    pub used: bool,
}

/// The runtime's own keys of a model.
#[derive(Clone)]
pub(crate) struct ModelKeys {
    pub class: Class,
    pub share: [u32; 3],
    pub max_sessions: usize,
    pub queue: usize,
    pub batch_max: usize,
    pub batch_wait: Duration,
    pub keep: Duration,
}

impl Default for ModelKeys {
    fn default() -> Self {
        Self {
            class: Class::Live,
            share: [4, 2, 1],
            max_sessions: 64,
            queue: 64,
            batch_max: 8,
            batch_wait: Duration::ZERO,
            keep: Duration::from_secs(300),
        }
    }
}

pub(crate) struct DraftScope {
    pub name: Arc<str>,
    pub spot: Spot,
    pub declared: bool,
    pub members: usize,
    pub group: Group,
}
