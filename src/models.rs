//! Models by folder, `org/name` or known name.

use std::path::{Path, PathBuf};

use oxiline_graph::{Error, Result};
use oxiline_weights::hub;
pub use oxiline_weights::hub::{CachedModel, HubOptions, KNOWN, OnProgress, Progress};

/// Sets where models are kept and whether the network may be used, for all of this process.
/// `cache_dir`: `None` leaves the environment's choice (`OXILINE_CACHE`, else the hub's own cache).
pub fn set_defaults(cache_dir: Option<&Path>, offline: bool) {
    let mut options = HubOptions::from_env();
    if let Some(dir) = cache_dir {
        options = options.with_cache_dir(dir);
    }
    options.offline |= offline;
    hub::set_process_options(options);
}

/// The folder of `model`: an existing path itself, else from the cache, else downloaded.
pub fn resolve(model: &str) -> Result<PathBuf> {
    resolve_with(model, None)
}

/// The same, telling how downloads go.
pub fn resolve_with(model: &str, progress: Option<OnProgress>) -> Result<PathBuf> {
    if model.is_empty() {
        return Err(Error::msg("the name of the model is empty; give a model's folder, org/name, or a known name"));
    }
    let options = HubOptions { progress, ..hub::process_options() };
    hub::resolve(model, &options).map_err(Error::msg)
}

/// What is in the cache.
pub fn list() -> Result<Vec<CachedModel>> {
    hub::list(&hub::process_options()).map_err(Error::msg)
}

/// One cached model.
pub fn show(model: &str) -> Result<CachedModel> {
    hub::show(model, &hub::process_options()).map_err(Error::msg)
}

/// Removes a model from the cache; the bytes freed.
pub fn remove(model: &str) -> Result<u64> {
    hub::remove(model, &hub::process_options()).map_err(Error::msg)
}
