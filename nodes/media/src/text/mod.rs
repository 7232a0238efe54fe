//! Text in and out, and text cut into the pieces that later stages want.

mod print;
mod read;
mod sentences;
mod split;
mod window;
mod write;

use oxiline_graph::Registry;

pub use print::{Screen, TextPrint, TextPrintOptions, printable};
pub use read::{By, TextRead, TextReadOptions};
pub use sentences::{TextSentences, TextSentencesOptions};
pub use split::{Splitter, SplitterOptions};
pub use window::{TextWindow, TextWindowOptions};
pub use write::{TextWrite, TextWriteOptions};

/// Adds the text nodes.
pub(crate) fn register(registry: &mut Registry) {
    registry.node::<TextRead>();
    registry.node::<TextWrite>();
    registry.node::<TextPrint>();
    registry.node::<TextSentences>();
    registry.node::<TextWindow>();
}
