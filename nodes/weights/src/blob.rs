//! The bytes of a file, read into memory or mapped.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// How the bytes of a checkpoint get into memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Map the file: starts at once, pages come in when they are touched. The file must not be
    /// changed while it is used: a shortened file ends the process.
    Mmap,
    /// Read the whole file into memory first: slower to start, independent of the file later.
    #[default]
    Read,
}

/// Bytes of a file or of an unpacked record.
pub(crate) enum Blob {
    Map(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl std::ops::Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Map(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Blob {
    pub(crate) fn open(path: &Path, mode: Mode) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io("open it", path, &e))?;
        let meta = file.metadata().map_err(|e| Error::io("read its size", path, &e))?;
        if !meta.is_file() {
            return Err(Error::malformed(format!("{}: not a file; give a model's file or folder", path.display())));
        }
        // An empty file cannot be mapped.
        if mode == Mode::Mmap && meta.len() > 0 {
            return map::map(&file).map(Self::Map).map_err(|e| Error::io("map it", path, &e));
        }
        read_all(file, meta.len(), path).map(Self::Owned)
    }

    /// Says that these bytes won't be needed soon. Pages of a map count as this process's memory
    /// once touched, beside the copy that was made of them; the file stays in the system's cache.
    pub(crate) fn release(&self, range: std::ops::Range<usize>) {
        if let Self::Map(map) = self
            && !range.is_empty()
        {
            map::release(map, range);
        }
    }
}

fn read_all(file: File, size: u64, path: &Path) -> Result<Vec<u8>> {
    let no_room =
        || Error::new(ErrorKind::Io, format!("{}: {size} bytes do not fit in memory; open it mapped", path.display()));
    let size_hint = usize::try_from(size).map_err(|_| no_room())?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size_hint).map_err(|_| no_room())?;
    // `take`: a file that grows while it is read must not grow the buffer.
    file.take(size).read_to_end(&mut bytes).map_err(|e| Error::io("read it", path, &e))?;
    if bytes.len() as u64 != size {
        return Err(Error::malformed(format!(
            "{}: got {} of {size} bytes: it became shorter while it was read; try again",
            path.display(),
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// A small text file (a configuration), at most `limit` bytes.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| Error::io("open it", path, &e))?;
    let size = file.metadata().map_err(|e| Error::io("read its size", path, &e))?.len();
    if size > limit {
        return Err(Error::malformed(format!("{}: {size} bytes; at most {limit} are accepted", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(|e| Error::io("read it", path, &e))?;
    Ok(bytes)
}

mod map {
    #![allow(unsafe_code)]
    use std::fs::File;

    pub(super) fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
        // SAFETY: the map is read-only and private to this process. Another process that writes
        // into the file changes bytes under us, which no reader here relies on for memory safety:
        // tensors are plain numbers and every offset was checked against the map's own length.
        // Shortening the file raises SIGBUS (the process ends; no wrong memory is read), which
        // `Mode::Mmap` documents; `Mode::Read` is the default.
        unsafe { memmap2::Mmap::map(file) }
    }

    #[cfg(unix)]
    pub(super) fn release(map: &memmap2::Mmap, range: std::ops::Range<usize>) {
        // SAFETY: the pages of a read-only map of a file come back with the same bytes when they are
        // touched again, so references into them stay valid; nothing was written that could be lost.
        let done = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
        // Only memory is at stake: a system that refuses keeps the pages.
        drop(done);
    }

    #[cfg(not(unix))]
    pub(super) fn release(_: &memmap2::Mmap, _: std::ops::Range<usize>) {}
}
