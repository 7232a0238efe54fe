//! Conversations as text: a checkpoint's own template makes the prompt, and what the model writes is
//! taken apart again into thinking, answer and tool calls.

mod jinja;
mod output;
mod python;
mod template;

pub use output::{OutputFormat, OutputParser, Piece};
pub use template::{ChatTemplate, Variables};
