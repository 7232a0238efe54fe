//! The actor runtime: nodes joined by bounded channels, graphs in TOML.
//!
//! A *node* is one stage with typed ports; an *edge* is a bounded channel from an
//! output port to an input port, declared at the consumer; what travels is one totally
//! ordered sequence of [`Item`]s: data, gaps and marks. A *model actor* is a loaded
//! model that nodes of any number of graphs open sessions on.
//!
//! This crate knows nothing of any model: it knows waiting, queues, threads and time.

pub mod actor;
mod assemble;
pub mod builder;
mod check;
pub mod clock;
mod context;
mod diagnose;
mod engine;
pub mod error;
pub mod harness;
mod histogram;
pub mod io;
pub mod item;
pub mod link;
pub mod load;
pub mod model;
pub mod node;
#[cfg(feature = "oxideav")]
pub mod oxideav;
pub mod payload;
mod placement;
pub mod plan;
pub mod protocol;
pub mod registry;
pub mod run;
pub mod samples;
pub mod schema;
pub mod show;
pub mod stats;
mod supervise;
pub mod time;

pub use actor::{ActorConfig, ActorHandle};
pub use builder::GraphBuilder;
pub use error::{Error, Result};
pub use harness::{Harness, Outputs};
pub use item::{EosReason, Gap, GapReason, Header, Item, Mark};
pub use load::{LoadOptions, Message, Severity, check_file, check_text, plan_file, plan_text};
pub use model::{AnyModelKind, Call, Job, Load, Model, ModelKind, ModelRef, ModelSlot, Protocol, Session, Whereabouts};
pub use node::{Incoming, Input, Io, Node, Output, Prepare, Setup, Timed};
pub use payload::{Payload, PayloadType, PortType};
pub use registry::Registry;
pub use run::{Progress, RunHandle, RunOptions, Runtime, StopAt, Stopper};
pub use stats::{Outcome, Stats, Summary};
pub use time::{Nanos, Span};
