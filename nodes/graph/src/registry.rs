//! The kinds of nodes and models a program knows, by name.

use crate::model::Model;
use crate::node::Node;

/// Kinds by name. Crates add theirs: `oxiline_media::register(&mut registry)`.
#[derive(Default)]
pub struct Registry {
    // kinds
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds a node kind.
    pub fn node<N: Node>(&mut self) {
        todo!()
    }
    /// Adds a model kind.
    pub fn model<M: Model>(&mut self) {
        todo!()
    }
}
