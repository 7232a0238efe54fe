//! The one encoder skeleton of all families: embedding, layers, norms, over texts packed without padding.

mod families;
mod load;
mod model;
pub mod names;
mod relative;
pub mod spec;

pub use families::describe;
pub use load::LoadOptions;
pub(crate) use load::{Linear, head};
pub(crate) use model::project;
pub use model::{Encoder, Tokens};
pub use spec::Spec;
