//! Where a node's output goes: a file that appears under its name only when it is whole, or a device.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use oxiline_graph::{Error, Result};

/// An open file and the name it gets when it is whole.
pub(crate) struct Place {
    /// The file to write.
    pub file: File,
    /// Final and temporary name; `None` for a device or pipe, which is written itself.
    pub names: Option<(PathBuf, PathBuf)>,
}

impl Place {
    /// Opens `to` for writing as `NAME.partial`; `what` ("captions") is what messages say cannot be written.
    ///
    /// # Errors
    /// A sentence when the file cannot be made, is a directory, or is a recording that would be lost.
    pub fn open(what: &str, to: &str) -> Result<Self> {
        let path = target(what, to)?;
        if std::fs::metadata(&path).is_ok_and(|m| m.is_file())
            && let Ok(mut old) = File::open(&path)
            && crate::sniff::sniff(&mut old, to).is_ok()
        {
            return Err(Error::msg(format_args!(
                "{what} cannot be written to `{to}`: it is an audio or video file, which would be replaced; \
                 give the {what} another name"
            )));
        }
        Self::replace(what, to)
    }

    /// The same for a file that may replace a recording.
    ///
    /// # Errors
    /// A sentence when the file cannot be made or is a directory.
    pub fn replace(what: &str, to: &str) -> Result<Self> {
        let path = target(what, to)?;
        let there = std::fs::metadata(&path).ok();
        if there.as_ref().is_some_and(|m| !m.is_file()) {
            // A device or pipe is written itself: renaming would put a file in its place.
            let file = File::options().write(true).open(&path).map_err(|e| {
                Error::msg(format_args!("{what} cannot be written to `{to}`: {e}; is it the right place?"))
            })?;
            return Ok(Self { file, names: None });
        }
        let partial = partial_name(&path);
        let file = File::create(&partial).map_err(|e| cannot(what, to, &path, &e))?;
        Ok(Self { file, names: Some((path, partial)) })
    }

    /// Opens `to` for writing at its end, under its own name.
    ///
    /// # Errors
    /// A sentence when the file cannot be opened.
    pub fn append(what: &str, to: &str) -> Result<Self> {
        let path = target(what, to)?;
        let file = File::options().append(true).create(true).open(&path).map_err(|e| cannot(what, to, &path, &e))?;
        Ok(Self { file, names: None })
    }
}

/// The path behind links, which is no directory.
fn target(what: &str, to: &str) -> Result<PathBuf> {
    let mut path = PathBuf::from(to);
    if path.is_symlink() {
        // The file a link leads to is replaced, not the link.
        path = path.canonicalize().unwrap_or(path);
    }
    if path.is_dir() || path.file_name().is_none() {
        return Err(Error::msg(format_args!("{what} cannot be written to `{to}`: it is a directory; name a file")));
    }
    Ok(path)
}

fn cannot(what: &str, to: &str, path: &Path, e: &io::Error) -> Error {
    let place = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.display().to_string(),
        _ => "the current directory".into(),
    };
    let advice = match e.kind() {
        io::ErrorKind::NotFound => format!("make the directory {place} first"),
        io::ErrorKind::PermissionDenied => format!("{place} may not be written by this user"),
        _ => format!("is {place} writable?"),
    };
    Error::msg(format_args!("{what} cannot be written to `{to}`: {e}; {advice}"))
}

/// Gives a whole file its name; `what` is as in "captions are".
pub(crate) fn rename(what: &str, partial: &Path, path: &Path) -> Result<()> {
    std::fs::rename(partial, path).map_err(|e| {
        let (partial, path) = (partial.display(), path.display());
        Error::msg(format_args!("the {what} whole in `{partial}` but cannot be renamed to `{path}`: {e}"))
    })
}

/// The sentence of a write that failed.
pub(crate) fn full(what: &str, partial: &Path, e: &io::Error) -> Error {
    let advice = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space and run it again",
        _ => "what was written before is there",
    };
    Error::msg(format_args!("{what} cannot be written to `{}`: {e}; {advice}", partial.display()))
}

fn partial_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    path.with_file_name(name)
}
