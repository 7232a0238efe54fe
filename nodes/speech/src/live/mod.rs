//! Transcripts of speech that is still going on.
//!
//! Speech is transcribed again and again while it grows; a policy says what of a hypothesis is certain. What is
//! certain only grows, whatever the model says later.

mod figures;
mod node;
mod policy;

pub use node::{AsrStream, AsrStreamOptions};
pub use policy::{Agreement, Policy};
