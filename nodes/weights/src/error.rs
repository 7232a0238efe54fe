//! What went wrong with a model file, as one sentence for its user.

use std::path::Path;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure, for a caller that wants to react to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model, file or tensor isn't there.
    NotFound,
    /// The file breaks the rules of its format.
    Malformed,
    /// The file is in order, but of a kind this version doesn't read.
    Unsupported,
    /// The operating system refused (disk, permissions).
    Io,
    /// The network or a server failed.
    Network,
    /// The server wants a token, or refuses the one it got.
    Denied,
    /// The caller cancelled.
    Cancelled,
}

/// A failure: one sentence that says what, where and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of a kind with its sentence.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: line(message.into()) }
    }
    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Malformed, message)
    }
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }
    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }
    pub(crate) fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let path = path.display();
        match error.kind() {
            Io::NotFound => Self::missing(format!("{path}: cannot {doing}: there is no such file")),
            Io::PermissionDenied => {
                Self::new(ErrorKind::Io, format!("{path}: cannot {doing}: permission denied; check who owns it"))
            }
            Io::StorageFull | Io::QuotaExceeded => {
                Self::new(ErrorKind::Io, format!("{path}: cannot {doing}: the disk is full; free some space"))
            }
            _ => Self::new(ErrorKind::Io, format!("{path}: cannot {doing}: {error}")),
        }
    }
    /// The same error with `place` (a file) named at its front.
    pub(crate) fn at(mut self, place: &Path) -> Self {
        self.message = line(format!("{}: {}", place.display(), self.message));
        self
    }
}

/// Longest message, in characters: other crates' errors quote what they read.
const LONGEST: usize = 5000;

/// One line of printable characters, whatever of a file is quoted in it.
fn line(message: String) -> String {
    if message.len() <= LONGEST && !message.contains(char::is_control) {
        return message;
    }
    let mut out = String::new();
    for c in message.chars().take(LONGEST) {
        if c.is_control() { out.extend(c.escape_debug()) } else { out.push(c) }
    }
    out
}

/// `text` short and printable: names from a hostile file go into sentences.
pub(crate) fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        out.push_str("...");
    }
    out
}
