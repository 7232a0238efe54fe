//! What a file or folder is, by its content.

use std::path::{Path, PathBuf};

use crate::blob::Blob;
use crate::checkpoint::Entry;
use crate::error::{Error, Result, shown};
use crate::{gguf, safetensors, torch};

/// Reads whatever format the first bytes show.
pub(crate) fn sniff(blob: &Blob, path: &Path) -> Result<Vec<(String, Entry)>> {
    let named = |end: &str| path.extension().is_some_and(|e| e == end);
    if blob.starts_with(b"version https://git-lfs") {
        return Err(Error::malformed("a Git LFS pointer, not the model itself; fetch it with `git lfs pull`"));
    }
    if named("safetensors") {
        return safetensors::parse(blob);
    }
    if blob.starts_with(torch::ZIP) {
        return torch::parse_zip(blob);
    }
    if blob.starts_with(torch::PICKLE) {
        return torch::parse_legacy(blob);
    }
    if ["bin", "pt", "pth", "ckpt", "pkl"].into_iter().any(named) {
        return Err(Error::malformed("neither a zip archive nor a pickle of torch.save; download it again"));
    }
    // Safetensors by content: a length, then an object.
    if blob.get(8) == Some(&b'{') {
        return safetensors::parse(blob);
    }
    Err(Error::unsupported(format!(
        "{}; models are read from safetensors, GGUF and torch files (.bin, .pt), and from folders of them",
        looks_like(blob)
    )))
}

/// What a file that is no checkpoint looks like.
fn looks_like(bytes: &[u8]) -> String {
    const KNOWN: &[(&[u8], usize, &str)] = &[
        (b"\x89PNG", 0, "a PNG picture"),
        (b"\xff\xd8\xff", 0, "a JPEG picture"),
        (b"RIFF", 0, "a RIFF file (WAV, AVI, WebP)"),
        (b"ID3", 0, "an MP3 file"),
        (b"OggS", 0, "an Ogg file"),
        (b"fLaC", 0, "a FLAC file"),
        (b"ftyp", 4, "an MP4 file"),
        (b"\x89HDF", 0, "an HDF5 file (Keras)"),
        (b"TFL3", 4, "a TensorFlow Lite model"),
        (b"\x93NUMPY", 0, "a numpy array"),
        (b"\x1f\x8b", 0, "a gzip archive; unpack it"),
        (b"\xfd7zXZ", 0, "an xz archive; unpack it"),
        (b"\x28\xb5\x2f\xfd", 0, "a Zstandard archive; unpack it"),
        (b"7z\xbc\xaf", 0, "a 7z archive; unpack it"),
        (b"ustar", 257, "a tar archive; unpack it"),
        (b"%PDF", 0, "a PDF document"),
        (b"\x7fELF", 0, "a program"),
        (b"lmgg", 0, "a file of the format before GGUF"),
        (b"tjgg", 0, "a file of the format before GGUF"),
    ];
    if let Some((_, _, what)) = KNOWN.iter().find(|(m, at, _)| bytes.get(*at..).is_some_and(|b| b.starts_with(m))) {
        return format!("it looks like {what}");
    }
    let head = &bytes[..bytes.len().min(512)];
    let text = head.utf8_chunks().next().map_or("", |c| c.valid());
    match text.trim_start().chars().next() {
        _ if bytes.is_empty() => "the file is empty".into(),
        // A character may be cut at the end of what is looked at.
        Some('<') if text.len() + 4 > head.len() => "it looks like a web page (a failed download?)".into(),
        Some('{' | '[') if text.len() + 4 > head.len() => "it looks like JSON".into(),
        Some(_) if text.len() + 4 > head.len() && !text.contains('\0') => "it looks like text".into(),
        _ => format!("no known kind of file (it starts with \"{}\")", bytes[..bytes.len().min(8)].escape_ascii()),
    }
}

/// The only GGUF model of a folder; parts of one model count once, projectors of a vision model
/// (`mmproj...`) not at all.
pub(crate) fn only_gguf(folder: &Path) -> Result<Option<PathBuf>> {
    let files = std::fs::read_dir(folder).map_err(|e| Error::io("list it", folder, &e))?;
    let mut names: Vec<String> = files
        .flatten()
        .map(|f| f.file_name().to_string_lossy().into_owned())
        .filter(|n| n.to_ascii_lowercase().ends_with(".gguf") && folder.join(n).is_file())
        .collect();
    if names.len() > 1 {
        names.retain(|n| !n.to_ascii_lowercase().starts_with("mmproj"));
    }
    names.sort();
    names.dedup_by(|b, a| match (gguf::Parts::of(a), gguf::Parts::of(b)) {
        (Some(a), Some(b)) => a.stem == b.stem && a.count == b.count,
        _ => false,
    });
    match &names[..] {
        [] => Ok(None),
        [one] => Ok(Some(folder.join(one))),
        _ => {
            let shown: Vec<String> = names.iter().take(12).map(|n| shown(n)).collect();
            Err(Error::missing(format!(
                "{}: {} GGUF models are in this folder; name one of them: {}{}",
                folder.display(),
                names.len(),
                shown.join(", "),
                if names.len() > shown.len() { " ..." } else { "" }
            )))
        }
    }
}

/// A few words on what a folder without a checkpoint holds instead.
pub(crate) fn hint(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = files.map(|f| f.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    match names.iter().find(|n| n.ends_with(".safetensors") || n.ends_with(".gguf") || n.ends_with(".bin")) {
        Some(name) => format!("; name the file itself to open {}", shown(name)),
        None if names.is_empty() => "; it is empty".into(),
        None => String::new(),
    }
}
