//! Passages of text and speech, found again by word and by meaning.
//!
//! An [`Index`] is a folder: a full-text index (tantivy's) whose documents also keep their vector. What
//! belongs to one file is written as one commit, so that an index that was killed at any moment opens and
//! is complete up to the last file that was finished.
#![deny(unsafe_code)]

mod node;
mod passage;
mod store;

pub use node::{IndexWrite, IndexWriteOptions};
pub use passage::{Passage, Passages, Place};
pub use store::{About, Hit, Index};

/// Adds the nodes of this crate.
pub fn register(registry: &mut oxiline_graph::Registry) {
    registry.node::<IndexWrite>();
}
