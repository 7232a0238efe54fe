//! Local AI as streaming media pipelines.
//!
//! Every stage is an actor node, nodes are joined by bounded channels, a graph is a TOML file, and a loaded
//! model is an actor that any number of nodes and graphs share.
//!
//! - [`Engine`]: a conversation with a language model in a few lines, without a graph.
//! - [`Transcriber`]: speech to text in a few lines, without a graph.
//! - [`Embedder`], [`Reranker`]: texts to vectors, and scores of texts against a query.
//! - [`graphs`]: the built-in graphs, and running graphs from files or code.
//! - [`registry`]: every node and model kind of this build; add your own and run graphs with them.
//! - [`models`]: models by folder, `org/name` or known name.
//!
//! ```no_run
//! use oxiline::{TranscribeOptions, Transcriber};
//!
//! let mut transcriber = Transcriber::load("whisper-base")?;
//! # #[cfg(feature = "media")] {
//! let result = transcriber.transcribe_file("talk.mp3", &TranscribeOptions::default(), |segment| {
//!     println!("{:7.2} {}", segment.start, segment.text);
//! })?;
//! println!("{}", result.text());
//! # }
//! # Ok::<(), oxiline::Error>(())
//! ```

mod cancel;
mod embedder;
pub mod engine;
pub mod graphs;
pub mod models;
#[cfg(feature = "cli")]
pub mod terminal;
mod transcriber;

pub use cancel::CancelHandle;
pub use embedder::{Embedder, Reranker, cosine};
pub use engine::{Engine, EngineOptions, Event, Flow, Turn};

pub use oxiline_backends as backends;
pub use oxiline_graph as graph;
pub use oxiline_graph::protocol::embed::{EmbedAbout, EmbedOptions, Embedded, Scored};
pub use oxiline_graph::protocol::speech::{Segment, Task, TranscribeOptions, TranscribeStats, Word};
pub use oxiline_graph::{Error, Result};
pub use oxiline_index as index;
pub use oxiline_kernels as kernels;
pub use oxiline_language as language;
pub use oxiline_language::tools;
#[cfg(feature = "media")]
pub use oxiline_media as media;
pub use oxiline_speech as speech;
pub use oxiline_weights as weights;
#[cfg(feature = "media")]
pub use transcriber::load_audio;
pub use transcriber::{LoadSettings, Transcriber, Transcription};

/// Every node and model kind of this build.
pub fn registry() -> graph::Registry {
    let mut registry = graph::Registry::new();
    #[cfg(feature = "media")]
    media::register(&mut registry);
    speech::register(&mut registry);
    language::register(&mut registry);
    index::register(&mut registry);
    #[cfg(feature = "cli")]
    terminal::register(&mut registry);
    registry
}

/// Sets the number of compute threads of this process. False when the pool already runs.
pub fn set_threads(threads: usize) -> bool {
    kernels::Pool::init_global(threads)
}
