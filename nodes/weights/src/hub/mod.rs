//! Models by name: a folder, `org/name` on the model hub, or a known short name.
//!
//! Downloads are kept in the hub's own cache layout (`models--org--name/{blobs,refs,snapshots}`),
//! so models other programs fetched are found and ours are found by them.

mod cache;
#[cfg(feature = "hub")]
mod download;
mod gguf;
#[cfg(feature = "hub")]
mod http;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use cache::{CachedFile, CachedModel, list, remove, show};

use crate::error::{Error, ErrorKind, Result, shown};

/// The hub asked when nothing else is said.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Short names of models: the name, its repository.
pub const KNOWN: &[(&str, &str)] = &[
    ("whisper-tiny", "openai/whisper-tiny"),
    ("whisper-tiny.en", "openai/whisper-tiny.en"),
    ("whisper-base", "openai/whisper-base"),
    ("whisper-base.en", "openai/whisper-base.en"),
    ("whisper-small", "openai/whisper-small"),
    ("whisper-small.en", "openai/whisper-small.en"),
    ("whisper-medium", "openai/whisper-medium"),
    ("whisper-medium.en", "openai/whisper-medium.en"),
    ("whisper-large-v2", "openai/whisper-large-v2"),
    ("whisper-large-v3", "openai/whisper-large-v3"),
    ("whisper-large-v3-turbo", "openai/whisper-large-v3-turbo"),
    ("distil-large-v3", "distil-whisper/distil-large-v3"),
    ("smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ("all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
    ("all-mpnet-base-v2", "sentence-transformers/all-mpnet-base-v2"),
    ("bge-m3", "BAAI/bge-m3"),
    ("bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"),
    ("multilingual-e5-small", "intfloat/multilingual-e5-small"),
    ("embeddinggemma-300m", "google/embeddinggemma-300m"),
    ("qwen3-embedding-0.6b", "Qwen/Qwen3-Embedding-0.6B"),
];

/// How far the download of one file is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The file.
    pub file: &'a str,
    /// Bytes there.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Called as bytes arrive; `false` stops the download (what is there is kept).
pub type OnProgress = Arc<dyn Fn(Progress<'_>) -> bool + Send + Sync>;

/// Where models come from and where they are kept.
#[derive(Clone)]
pub struct HubOptions {
    /// Folders in the hub's cache layout; the first one is written, all are looked at.
    pub caches: Vec<PathBuf>,
    /// Where `tools/fetch_model.py` lays the models it makes from packages.
    pub packages: Option<PathBuf>,
    /// Open no connection at all.
    pub offline: bool,
    /// Servers asked one after the other, base URLs; all speak the hub's protocol.
    pub endpoints: Vec<String>,
    /// Token for the last endpoint's own host; never sent elsewhere, a redirect's target included.
    pub token: Option<String>,
    /// Branch, tag or commit; `main` when `None`.
    pub revision: Option<String>,
    /// Told of the progress of downloads.
    pub progress: Option<OnProgress>,
    /// Longest wait for a connection, and for bytes on one.
    pub connect_timeout: Duration,
    /// Longest silence of a server.
    pub read_timeout: Duration,
    /// Pause before the first repetition of a failed request; doubles each time.
    pub retry_wait: Duration,
}

impl std::fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("HubOptions")
            .field("caches", &self.caches)
            .field("offline", &self.offline)
            .field("endpoints", &self.endpoints)
            .field("revision", &self.revision)
            .field("token", &self.token.as_ref().map(|_| "..."))
            .finish_non_exhaustive()
    }
}

impl Default for HubOptions {
    /// No cache folder, no token, the default hub: for callers that set everything themselves.
    fn default() -> Self {
        Self {
            caches: Vec::new(),
            packages: None,
            offline: false,
            endpoints: vec![DEFAULT_ENDPOINT.into()],
            token: None,
            revision: None,
            progress: None,
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(30),
            retry_wait: Duration::from_millis(500),
        }
    }
}

impl HubOptions {
    /// What the environment says: `OXILINE_CACHE`, `OXILINE_HUB` (`hf`, `mirror` or a base URL),
    /// `OXILINE_MIRROR` (a base URL asked first), `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`,
    /// `HF_HUB_OFFLINE`, `HF_TOKEN`, `HF_TOKEN_PATH`, `XDG_CACHE_HOME`.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
    }

    fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let path = |name: &str| var(name).map(PathBuf::from);
        let home = path("HOME").or_else(|| path("USERPROFILE")).unwrap_or_default();
        let base = path("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hf_home = path("HF_HOME").unwrap_or_else(|| base.join("huggingface"));
        let hf_cache = path("HF_HUB_CACHE").unwrap_or_else(|| hf_home.join("hub"));
        let hub = var("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        let mirror = var("OXILINE_MIRROR");
        let endpoints = match var("OXILINE_HUB").as_deref() {
            Some("hf") => vec![hub],
            Some("mirror") => mirror.into_iter().collect(),
            Some(url) if url.contains("://") => vec![url.to_string()],
            _ => mirror.into_iter().chain([hub]).collect(),
        };
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
        let token = var("HF_TOKEN")
            .or_else(|| std::fs::read_to_string(token_file).ok())
            .map(|t| t.trim().to_string())
            .filter(|t| !t.is_empty());
        let out = Self {
            caches: vec![hf_cache],
            packages: Some(base.join("oxiline/models")),
            offline: var("HF_HUB_OFFLINE").is_some_and(|v| v != "0"),
            endpoints,
            token,
            ..Self::default()
        };
        match path("OXILINE_CACHE") {
            Some(dir) => out.with_cache_dir(&dir),
            None => out,
        }
    }

    /// May models be fetched, and is there a server to ask?
    pub fn fetches(&self) -> bool {
        cfg!(feature = "hub") && !self.offline && !self.endpoints.is_empty()
    }

    /// Keeps models under `dir`; the folders known so far are still looked at.
    #[must_use]
    pub fn with_cache_dir(mut self, dir: &Path) -> Self {
        self.caches.insert(0, dir.join("hub"));
        self.packages = Some(dir.join("models"));
        self
    }
}

/// A model as asked for: `org/name`, perhaps a folder in it or a GGUF file by its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repo {
    /// `org/name`.
    pub id: String,
    pub subdir: Option<String>,
    /// What the name of its GGUF file ends with.
    pub quant: Option<String>,
}

impl Repo {
    fn parse(model: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::missing(format!(
                "{}: {why}; give a model's folder, org/name, or a known name ({} ...)",
                shown(model),
                KNOWN.iter().step_by(KNOWN.len().div_ceil(4)).map(|(n, _)| *n).collect::<Vec<_>>().join(", ")
            ))
        };
        let (model, quant) = match model.split_once(':') {
            Some((model, quant)) => (model, Some(quant)),
            None => (model, None),
        };
        let word = |q: &str| {
            !q.is_empty()
                && q.len() <= 128
                && q.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        if quant.is_some_and(|q| !word(q)) {
            return Err(bad("the part after the colon must be the end of a GGUF file's name, such as Q4_K_M"));
        }
        let quant = quant.map(str::to_string);
        if let Some((_, id)) = KNOWN.iter().find(|(name, _)| *name == model) {
            return Ok(Self { id: (*id).into(), subdir: None, quant });
        }
        let parts: Vec<&str> = model.split('/').collect();
        let fine = |part: &&str| {
            !part.is_empty()
                && part.len() <= 128
                && !part.starts_with('.')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        if parts.len() < 2 || !parts.iter().all(fine) {
            return Err(bad("no such file or folder, and not the name of a model"));
        }
        let subdir = (parts.len() > 2).then(|| parts[2..].join("/"));
        Ok(Self { id: parts[..2].join("/"), subdir, quant })
    }

    /// Folder of this model in a cache.
    fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(format!("models--{}", self.id.replace('/', "--")))
    }
}

static PROCESS: Mutex<Option<HubOptions>> = Mutex::new(None);

/// Sets what [`process_options`] gives: said once by a program, for every place that names a model.
pub fn set_process_options(options: HubOptions) {
    *PROCESS.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
}

/// The options of this process: those set, else [`HubOptions::from_env`].
pub fn process_options() -> HubOptions {
    let set = PROCESS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    set.unwrap_or_else(HubOptions::from_env)
}

/// The folder (of a GGUF model, the file) of `model` if it is on this machine: an existing path itself, else from the caches,
/// else from the models made of packages. Opens no connection.
///
/// # Errors
/// What is neither a path nor can be the name of a model.
pub fn local(model: &str, options: &HubOptions) -> Result<Option<PathBuf>> {
    let path = Path::new(model);
    if !model.is_empty() && path.exists() {
        return Ok(Some(path.to_path_buf()));
    }
    Ok(kept(&Repo::parse(model)?, options))
}

/// One spelling of where `model` is: two names of one place are one model. What is not on this machine is
/// known by its name. Opens no connection.
///
/// # Errors
/// As [`local`].
pub fn place(model: &str, options: &HubOptions) -> Result<PathBuf> {
    let place = local(model, options)?.unwrap_or_else(|| PathBuf::from(model));
    Ok(place.canonicalize().unwrap_or(place))
}

fn kept(repo: &Repo, options: &HubOptions) -> Option<PathBuf> {
    let revision = options.revision.as_deref();
    if let Some(found) = options.caches.iter().find_map(|cache| cache::snapshot(repo, cache, revision)) {
        return Some(found);
    }
    let folder = options.packages.as_ref()?.join(known(repo, options)?);
    cache::whole(&folder, repo)
}

/// The short name of a repository, when its newest state is wanted.
fn known(repo: &Repo, options: &HubOptions) -> Option<&'static str> {
    let asked = KNOWN.iter().find(|(_, id)| *id == repo.id && options.revision.is_none());
    asked.map(|(name, _)| *name)
}

/// The folder of `model`, of a GGUF model the file to open (`org/name:Q4_K_M` names the one of a
/// repository whose name ends so): [`local`], else downloaded.
///
/// A path never touches the network; neither does a model that is already there.
///
/// # Errors
/// Unknown names, models that can't be had, and what the network or the disk say.
pub fn resolve(model: &str, options: &HubOptions) -> Result<PathBuf> {
    if let Some(folder) = local(model, options)? {
        return Ok(folder);
    }
    let repo = Repo::parse(model)?;
    if options.offline {
        let places: Vec<String> = options.caches.iter().map(|c| c.display().to_string()).collect();
        return Err(Error::missing(format!(
            "{}: not on this machine (looked in {}) and the network is not to be used; pull it once without --offline",
            shown(model),
            places.join(", ")
        )));
    }
    fetch(&repo, options).map_err(|e| match (known(&repo, options), e.kind()) {
        (Some(name), ErrorKind::Network) => Error::new(
            e.kind(),
            format!("{e}; without the hub, tools/fetch_model.py {name} in a checkout makes some models from packages"),
        ),
        _ => e,
    })
}

#[cfg(feature = "hub")]
fn fetch(repo: &Repo, options: &HubOptions) -> Result<PathBuf> {
    let mut last = Error::new(ErrorKind::Network, format!("{}: no hub is configured; set OXILINE_HUB", repo.id));
    for (i, endpoint) in options.endpoints.iter().enumerate() {
        // The token is the hub's; a mirror before it gets none.
        let token = options.token.as_deref().filter(|_| i + 1 == options.endpoints.len());
        match download::model(repo, endpoint, token, options) {
            Ok(folder) => return Ok(folder),
            // A full disk or a cancelled download won't get better elsewhere.
            Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Cancelled) => return Err(e),
            Err(e) => last = e,
        }
    }
    Err(last)
}

#[cfg(not(feature = "hub"))]
fn fetch(repo: &Repo, _: &HubOptions) -> Result<PathBuf> {
    Err(Error::unsupported(format!(
        "{}: not on this machine, and this build can't download (feature `hub`); give a folder",
        repo.id
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let id = |m: &str| Repo::parse(m).map(|r| (r.id, r.subdir));
        assert_eq!(id("whisper-base").unwrap(), ("openai/whisper-base".into(), None));
        assert_eq!(id("a/b").unwrap(), ("a/b".into(), None));
        assert_eq!(id("a/b/c/d").unwrap(), ("a/b".into(), Some("c/d".into())));
        assert_eq!(Repo::parse("a/b/c:Q4_K").unwrap().quant.as_deref(), Some("Q4_K"));
        for bad in ["", "nothing", "../x", "a/..", "a//b", "/etc/nothing", "a/b?c", "a/ü", "a/b:", "a/b:c/d", "a/b:c:d"]
        {
            assert_eq!(id(bad).unwrap_err().kind(), ErrorKind::NotFound, "{bad}");
        }
    }

    #[test]
    fn the_environment_is_read() {
        let vars = |set: &'static [(&str, &str)]| {
            HubOptions::from_vars(move |n| set.iter().find(|(k, _)| *k == n).map(|(_, v)| (*v).to_string()))
        };
        let plain = vars(&[("HOME", "/h")]);
        assert_eq!(plain.caches, [PathBuf::from("/h/.cache/huggingface/hub")]);
        assert_eq!(plain.endpoints, [DEFAULT_ENDPOINT]);
        let all = vars(&[
            ("HF_HOME", "/f"),
            ("OXILINE_CACHE", "/c"),
            ("OXILINE_MIRROR", "http://m"),
            ("HF_TOKEN", " t\n"),
            ("HF_HUB_OFFLINE", "1"),
        ]);
        assert_eq!(all.caches, [PathBuf::from("/c/hub"), PathBuf::from("/f/hub")]);
        assert_eq!(all.packages, Some(PathBuf::from("/c/models")));
        assert_eq!(all.endpoints, ["http://m", DEFAULT_ENDPOINT]);
        assert_eq!((all.token.as_deref(), all.offline), (Some("t"), true));
        assert!(!format!("{all:?}").contains("Some(\"t\")"));
        assert_eq!(vars(&[("OXILINE_HUB", "http://x")]).endpoints, ["http://x"]);
        assert_eq!(vars(&[("OXILINE_HUB", "hf"), ("OXILINE_MIRROR", "http://m")]).endpoints, [DEFAULT_ENDPOINT]);
    }
}
