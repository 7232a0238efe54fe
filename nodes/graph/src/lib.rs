//! The actor runtime: nodes joined by bounded channels, graphs in TOML.
//!
//! A *node* is one stage with typed ports; an *edge* is a bounded channel from an
//! output port to an input port, declared at the consumer; what travels is one totally
//! ordered sequence of [`Item`]s: data, gaps and marks. A *model actor* is a loaded
//! model that nodes of any number of graphs open sessions on.
//!
//! This crate knows nothing of any model: it knows waiting, queues, threads and time.

pub mod error;
pub mod item;
pub mod model;
pub mod node;
#[cfg(feature = "oxideav")]
pub mod oxideav;
pub mod payload;
pub mod plan;
pub mod protocol;
pub mod registry;
pub mod time;

pub use error::{Error, Result};
pub use item::{EosReason, Gap, GapReason, Header, Item, Mark};
pub use model::{Call, Job, Load, Model, ModelRef, Protocol, Session};
pub use node::{Incoming, Input, Io, Node, Output, Prepare, Setup, Timed};
pub use payload::{Payload, PayloadType, PortType};
pub use registry::Registry;
pub use time::{Nanos, Span};
