//! A person at a terminal: line editing, and the graph node around it.

mod editor;
mod node;

pub use editor::{Editor, Typed};
pub use node::{ChatTerminal, ChatTerminalOptions};

/// Adds the terminal's nodes.
pub(crate) fn register(registry: &mut oxiline_graph::Registry) {
    registry.node::<ChatTerminal>();
}
