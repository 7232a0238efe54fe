//! The one error type of the runtime and of node code.

use std::fmt;

/// Result of node and runtime code.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as one sentence a person can act on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The scope, graph or request was cancelled: unwinds with `?`, is never a failure.
    #[error("cancelled")]
    Cancelled,
    /// A sentence: what, where, what to do.
    #[error("{0}")]
    Message(String),
    /// A quota is used up (sessions or requests of a model): the same call may succeed later.
    #[error("{0}")]
    Busy(String),
}

impl Error {
    /// An error from a sentence.
    pub fn msg(text: impl fmt::Display) -> Self {
        Self::Message(text.to_string())
    }

    /// Is this the unwinding of a cancel and not a failure?
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled)
    }

    /// Is this a refusal for want of room, which may succeed later?
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Message(error.to_string())
    }
}

/// `bail!("sentence {x}")`: return early with an [`Error`].
#[macro_export]
macro_rules! bail {
    ($($arg:tt)*) => { return ::std::result::Result::Err($crate::Error::msg(format_args!($($arg)*))) };
}
