//! What lies in the cache folders.

use std::fs;
use std::path::{Path, PathBuf};

use super::{HubOptions, Repo, gguf};
use crate::blob::read_small;
use crate::error::{Error, Result, shown};

/// A model in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// `org/name`, or the short name of a model made from packages.
    pub name: String,
    /// Folder to open.
    pub folder: PathBuf,
    /// Commit, when it came from the hub.
    pub revision: Option<String>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Its files.
    pub files: Vec<CachedFile>,
    /// Are its weights there?
    pub complete: bool,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFile {
    /// Name inside the model's folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// Does a folder hold a whole checkpoint, as far as its names tell?
pub(super) fn has_weights(folder: &Path) -> bool {
    ["model.safetensors", "pytorch_model.bin"].iter().any(|name| {
        let index = folder.join(format!("{name}.index.json"));
        if folder.join(name).is_file() {
            return true;
        }
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: std::collections::HashMap<String, String>,
        }
        let parsed = read_small(&index, 256 << 20).ok().and_then(|b| serde_json::from_slice::<Index>(&b).ok());
        parsed.is_some_and(|i| !i.weight_map.is_empty() && i.weight_map.values().all(|f| folder.join(f).is_file()))
    })
}

/// Commit a revision of a model in a cache stands for.
pub(super) fn commit(model: &Path, revision: &str) -> Option<String> {
    let reference = model.join("refs").join(revision);
    let text = match read_small(&reference, 200) {
        Ok(bytes) => String::from_utf8(bytes).ok()?.trim().to_string(),
        Err(_) => revision.to_string(),
    };
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
    (plain && model.join("snapshots").join(&text).is_dir()).then_some(text)
}

/// The whole snapshot of a model in one cache.
pub(super) fn snapshot(repo: &Repo, cache: &Path, revision: Option<&str>) -> Option<PathBuf> {
    let model = repo.folder(cache);
    let commit = commit(&model, revision.unwrap_or("main"))?;
    let root = model.join("snapshots").join(commit);
    let folder = repo.subdir.as_ref().map_or(root.clone(), |s| root.join(s));
    whole(&folder, repo)
}

/// What to open in a folder, if what was asked for is there whole: the folder, or a GGUF file.
pub(super) fn whole(folder: &Path, repo: &Repo) -> Option<PathBuf> {
    if repo.quant.is_none() && has_weights(folder) {
        return Some(folder.to_path_buf());
    }
    let files = files_under(folder);
    let models = gguf::models(files.iter().map(|f| f.name.as_str()));
    gguf::pick(&models, repo.quant.as_deref(), &repo.id).ok().map(|m| folder.join(m.first))
}

fn has_gguf(files: &[CachedFile]) -> bool {
    gguf::models(files.iter().map(|f| f.name.as_str())).iter().any(|m| m.complete)
}

fn files_under(folder: &Path) -> Vec<CachedFile> {
    let mut out = Vec::new();
    let mut open = vec![(folder.to_path_buf(), String::new(), 0)];
    while let Some((dir, prefix, depth)) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            // Follows the links of the layout; a link to a folder is not entered.
            let Ok(meta) = fs::metadata(entry.path()) else { continue };
            if meta.is_file() {
                out.push(CachedFile { name, bytes: meta.len() });
            } else if depth < 4 && entry.file_type().is_ok_and(|t| t.is_dir()) {
                open.push((entry.path(), format!("{name}/"), depth + 1));
            }
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

fn describe(name: String, folder: PathBuf, revision: Option<String>) -> CachedModel {
    let files = files_under(&folder);
    let bytes = files.iter().map(|f| f.bytes).sum();
    CachedModel { name, complete: has_weights(&folder) || has_gguf(&files), folder, revision, bytes, files }
}

/// Every model in the caches, by name.
///
/// # Errors
/// None now; caches that aren't there are empty.
pub fn list(options: &HubOptions) -> Result<Vec<CachedModel>> {
    let mut out = Vec::new();
    for cache in &options.caches {
        for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(id) = name.strip_prefix("models--").and_then(|n| n.split_once("--")) else { continue };
            let id = format!("{}/{}", id.0, id.1);
            if let Some(commit) = commit(&entry.path(), "main") {
                out.push(describe(id, entry.path().join("snapshots").join(&commit), Some(commit)));
            }
        }
    }
    for entry in options.packages.iter().flat_map(fs::read_dir).flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().is_dir() {
            out.push(describe(name, entry.path(), None));
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

/// One model of the caches.
///
/// # Errors
/// It isn't there.
pub fn show(model: &str, options: &HubOptions) -> Result<CachedModel> {
    let id = Repo::parse(model)?.id;
    let found = list(options)?.into_iter().find(|m| m.name == id || m.name == model);
    found.ok_or_else(|| Error::missing(format!("{}: not in any cache; `oxiline models list` shows them", shown(model))))
}

/// Removes a model from the caches; returns the bytes it took.
///
/// # Errors
/// It isn't there, or the system refuses.
pub fn remove(model: &str, options: &HubOptions) -> Result<u64> {
    let repo = Repo::parse(model)?;
    if repo.quant.is_some() {
        return Err(Error::unsupported(format!(
            "{}: models are removed whole; leave the part after the colon out",
            shown(model)
        )));
    }
    let hub = options.caches.iter().map(|c| repo.folder(c));
    let package = options.packages.iter().map(|p| p.join(model.rsplit('/').next().unwrap_or(model)));
    let mut freed = None;
    for folder in hub.chain(package).filter(|f| f.is_dir()) {
        // Links are not followed: each blob counts once, and nothing outside is touched.
        let size = files_size(&folder);
        fs::remove_dir_all(&folder).map_err(|e| Error::io("remove it", &folder, &e))?;
        freed = Some(freed.unwrap_or(0) + size);
    }
    freed.ok_or_else(|| Error::missing(format!("{}: not in any cache; `oxiline models list` shows them", shown(model))))
}

fn files_size(folder: &Path) -> u64 {
    let mut total = 0;
    let mut open = vec![folder.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(t) if t.is_dir() => open.push(entry.path()),
                Ok(t) if t.is_file() => total += entry.metadata().map_or(0, |m| m.len()),
                _ => {}
            }
        }
    }
    total
}
