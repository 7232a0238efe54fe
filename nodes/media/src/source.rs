//! Where bytes come from: a path, a `file:` URL, or standard input spooled to disk.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use oxiline_graph::{Error, Result};

/// Standard input larger than this is refused unless the caller says otherwise (8 GiB).
pub const STDIN_LIMIT: u64 = 8 << 30;

/// An open, seekable input with the name messages use.
#[derive(Debug)]
pub struct Source {
    /// The file, or the spooled standard input.
    pub file: File,
    /// What messages call it.
    pub name: String,
}

impl Source {
    /// Opens `uri`: a path, a `file:` URL, or `-` for standard input, which is copied to a
    /// temporary file (containers need seeking) of at most `stdin_limit` bytes.
    ///
    /// # Errors
    /// A sentence when it is missing, a directory, unreadable or too large.
    pub fn open(uri: &str, stdin_limit: u64) -> Result<Self> {
        if uri == "-" {
            return spool(&mut std::io::stdin().lock(), "standard input", stdin_limit);
        }
        Self::open_path(&path_of(uri)?)
    }

    /// Is there something under this name? For programs that look before a long job begins; whether it
    /// can be read shows when it is opened.
    ///
    /// # Errors
    /// The sentence of [`Source::open`] when it is missing or a directory.
    pub fn exists(uri: &str) -> Result<()> {
        if uri == "-" {
            return Ok(());
        }
        let path = path_of(uri)?;
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => Err(directory(&path.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(missing(&path.display())),
            _ => Ok(()),
        }
    }

    /// Opens a file by its path.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open_path(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => missing(&name),
            std::io::ErrorKind::PermissionDenied => {
                Error::msg(format_args!("`{name}` may not be read by this user: check its permissions"))
            }
            _ => Error::msg(format_args!("`{name}` cannot be opened: {e}")),
        })?;
        let meta = file.metadata().map_err(|e| Error::msg(format_args!("`{name}` cannot be examined: {e}")))?;
        if meta.is_dir() {
            return Err(directory(&name));
        }
        if !meta.is_file() {
            // Pipes and devices cannot seek.
            return spool(&mut &file, &name, STDIN_LIMIT);
        }
        Ok(Self { file, name })
    }
}

fn missing(name: &dyn std::fmt::Display) -> Error {
    Error::msg(format_args!("`{name}` does not exist: check the path"))
}

fn directory(name: &dyn std::fmt::Display) -> Error {
    Error::msg(format_args!("`{name}` is a directory: name the media files in it"))
}

fn spool(from: &mut dyn Read, name: &str, limit: u64) -> Result<Source> {
    let mut file = tempfile::tempfile().map_err(|e| {
        Error::msg(format_args!("no temporary file for {name} can be made: {e}; set TMPDIR to a writable place"))
    })?;
    let copied = std::io::copy(&mut from.take(limit.saturating_add(1)), &mut file)
        .map_err(|e| Error::msg(format_args!("{name} cannot be copied to a temporary file: {e}")))?;
    if copied > limit {
        return Err(Error::msg(format_args!(
            "{name} is larger than {limit} bytes: save it to a file first, or raise `stdin_limit`"
        )));
    }
    file.flush()
        .and_then(|()| complete_wav(&mut file, copied))
        .and_then(|()| file.seek(SeekFrom::Start(0)))
        .map_err(|e| Error::msg(format_args!("{name} cannot be copied to a temporary file: {e}")))?;
    Ok(Source { file, name: name.to_string() })
}

/// Puts the real sizes into a WAV that was written to a pipe. Its writer could not go back to the
/// header and left a placeholder: 0, or about 2 or 4 GiB. Other sizes are left as they are.
fn complete_wav(file: &mut File, len: u64) -> std::io::Result<()> {
    let mut head = [0; 12];
    file.seek(SeekFrom::Start(0))?;
    if len < 12 || file.read_exact(&mut head).is_err() || &head[..4] != b"RIFF" || &head[8..] != b"WAVE" {
        return Ok(());
    }
    let mut at = 12u64;
    // The data chunk comes after a few small ones; a file of nothing but chunks is not one of ours.
    for _ in 0..64 {
        let mut chunk = [0; 8];
        file.seek(SeekFrom::Start(at))?;
        if file.read_exact(&mut chunk).is_err() {
            return Ok(());
        }
        let size = u32::from_le_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]);
        let body = at + 8;
        if &chunk[..4] == b"data" {
            let there = len.saturating_sub(body);
            if (size == 0 || size >= 0x7fff_0000)
                && there != u64::from(size)
                && let (Ok(data), Ok(riff)) = (u32::try_from(there), u32::try_from(len - 8))
            {
                file.seek(SeekFrom::Start(at + 4))?;
                file.write_all(&data.to_le_bytes())?;
                file.seek(SeekFrom::Start(4))?;
                file.write_all(&riff.to_le_bytes())?;
            }
            return Ok(());
        }
        at = body + u64::from(size) + u64::from(size % 2);
    }
    Ok(())
}

/// The path a URI names.
fn path_of(uri: &str) -> Result<PathBuf> {
    if let Some(rest) = uri.strip_prefix("file:") {
        let path = match rest.strip_prefix("//") {
            Some(after) => match after.find('/') {
                Some(0) => after,
                Some(slash) if &after[..slash] == "localhost" => &after[slash..],
                _ => {
                    return Err(Error::msg(format_args!(
                        "`{uri}` names a file on another machine: write file:///PATH or just the path"
                    )));
                }
            },
            None => rest,
        };
        return Ok(PathBuf::from(percent_decode(path)));
    }
    if let Some((scheme, _)) = uri.split_once("://")
        && !scheme.is_empty()
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    {
        return Err(Error::msg(format_args!(
            "`{uri}` is read over the network, which `media.read` does not do: download it first, or pipe it in with `-`"
        )));
    }
    Ok(PathBuf::from(uri))
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = (bytes[i] == b'%')
            .then(|| text.get(i + 1..i + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()))
            .flatten();
        out.push(code.unwrap_or(bytes[i]));
        i += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_become_paths() {
        assert_eq!(path_of("a b.wav").unwrap(), PathBuf::from("a b.wav"));
        assert_eq!(path_of("file:///x/a%20b.wav").unwrap(), PathBuf::from("/x/a b.wav"));
        assert_eq!(path_of("file://localhost/x%").unwrap(), PathBuf::from("/x%"));
        assert_eq!(path_of("file:rel.wav").unwrap(), PathBuf::from("rel.wav"));
        assert!(path_of("file://server/x").is_err());
        assert!(path_of("https://example.org/a.mp3").unwrap_err().to_string().contains("download it first"));
    }

    #[test]
    fn a_piped_wav_gets_its_real_sizes() {
        let wav = |riff: u32, data: u32| {
            let mut bytes = b"RIFF".to_vec();
            bytes.extend(riff.to_le_bytes());
            bytes.extend(b"WAVEfmt \x04\0\0\0abcddata");
            bytes.extend(data.to_le_bytes());
            bytes.extend([7; 10]);
            bytes
        };
        let spooled = |bytes: Vec<u8>| {
            let mut found = Vec::new();
            spool(&mut &bytes[..], "pipe", 1000).unwrap().file.read_to_end(&mut found).unwrap();
            found
        };
        for placeholder in [0, 0x7fff_f000, u32::MAX] {
            assert_eq!(spooled(wav(placeholder, placeholder)), wav(34, 10));
        }
        // A size that is no placeholder is the writer's word.
        assert_eq!(spooled(wav(34, 500)), wav(34, 500));
    }

    #[test]
    fn spooling_stops_at_the_limit() {
        assert!(
            spool(&mut &[7u8; 10][..], "standard input", 9).unwrap_err().to_string().contains("larger than 9 bytes")
        );
        let mut source = spool(&mut &[7u8; 10][..], "standard input", 10).unwrap();
        let mut back = Vec::new();
        source.file.read_to_end(&mut back).unwrap();
        assert_eq!(back, [7u8; 10]);
    }
}
