//! Downloads of whole models into the hub's cache layout.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::http::{Client, Failure};
use super::{HubOptions, Progress, Repo, cache, gguf};
use crate::error::{Error, ErrorKind, Result, shown};

/// Fetches what is missing of a model; returns its folder.
pub(super) fn model(repo: &Repo, endpoint: &str, token: Option<&str>, options: &HubOptions) -> Result<PathBuf> {
    #[derive(serde::Deserialize)]
    struct Info {
        sha: String,
        siblings: Vec<Sibling>,
    }
    #[derive(serde::Deserialize)]
    struct Sibling {
        rfilename: String,
    }
    let cache =
        options.caches.first().ok_or_else(|| Error::missing("no folder to keep models in; set OXILINE_CACHE"))?;
    let client = Client::new(endpoint, token, options);
    let revision = options.revision.as_deref().unwrap_or("main");
    let plain = |text: &str, more: &[u8]| {
        !text.is_empty()
            && !text.starts_with('.')
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || more.contains(&b))
            && !text.contains("..")
    };
    if !plain(revision, b"._-/") {
        return Err(Error::missing(format!("{}: {} is no revision", repo.id, shown(revision))));
    }
    let path = format!("/api/models/{}/revision/{}", repo.id, revision.replace('/', "%2F"));
    let text = client.text(&path, &repo.id, 64 << 20)?;
    let broken = |why: &str| Error::new(ErrorKind::Network, format!("{}: {} answers {why}", repo.id, client.host()));
    let info: Info = serde_json::from_str(&text).map_err(|_| broken("something that is no description of a model"))?;
    if !plain(&info.sha, b"") {
        return Err(broken("no commit"));
    }
    let names: Vec<String> = info.siblings.into_iter().map(|s| s.rfilename).collect();
    let plain = select(&names, repo.subdir.as_deref());
    let inside = inside(&names, repo.subdir.as_deref());
    let models = gguf::models(inside.iter().copied());
    let at_host = |e: Error| Error::new(e.kind(), format!("{}: {e} (on {})", repo.id, client.host()));
    // Files named by their end, or nothing else to be had.
    let chosen = match &repo.quant {
        None if !plain.is_empty() => None,
        None if models.is_empty() => {
            return Err(Error::missing(format!(
                "{}: no safetensors, no .bin weights and no GGUF files in it on {}",
                repo.id,
                client.host()
            )));
        }
        quant => Some(gguf::pick(&models, quant.as_deref(), &repo.id).map_err(at_host)?),
    };
    let wanted = chosen.map_or(plain, |m| m.files.clone());
    let folder = repo.folder(cache);
    let snapshot = folder.join("snapshots").join(&info.sha);
    // Configurations come first, so that weights mean a whole model.
    for name in wanted {
        one(&client, repo, &info.sha, name, &folder, &snapshot, options)?;
    }
    if revision != info.sha {
        let reference = folder.join("refs").join(revision);
        write_whole(&reference, info.sha.as_bytes())?;
    }
    if let Some(model) = chosen {
        return Ok(snapshot.join(model.first));
    }
    let out = repo.subdir.as_ref().map_or(snapshot.clone(), |s| snapshot.join(s));
    if cache::has_weights(&out) {
        Ok(out)
    } else {
        Err(Error::missing(format!("{}: its list of shards names files that are not on {}", repo.id, client.host())))
    }
}

/// The files of a repository in a folder of it, those whose names can be files.
fn inside<'a>(names: &'a [String], subdir: Option<&str>) -> Vec<&'a str> {
    let prefix = subdir.map_or(String::new(), |s| format!("{s}/"));
    names
        .iter()
        .map(String::as_str)
        .filter(|n| n.starts_with(&prefix) && Path::new(n).components().all(|c| matches!(c, Component::Normal(_))))
        .filter(|n| !n.contains(['\\', ':', '%', '?', '#']))
        .collect()
}

/// The files of a repository that a model needs, weights last.
fn select<'a>(names: &'a [String], subdir: Option<&str>) -> Vec<&'a str> {
    let prefix = subdir.map_or(String::new(), |s| format!("{s}/"));
    let inside = inside(names, subdir);
    let local = |n: &str| n[prefix.len()..].to_string();
    let has = |name: &str| inside.iter().any(|n| local(n) == name);
    let shard = |stem: &str, end: &str, n: &str| {
        n.strip_prefix(stem).and_then(|n| n.strip_suffix(end)).is_some_and(|middle| {
            middle.split_once("-of-").is_some_and(|(a, b)| {
                a.strip_prefix('-').is_some_and(|a| a.bytes().all(|c| c.is_ascii_digit()))
                    && b.bytes().all(|c| c.is_ascii_digit())
            })
        })
    };
    let (whole, stem, end) = if has("model.safetensors") || has("model.safetensors.index.json") {
        ("model.safetensors", "model", ".safetensors")
    } else {
        ("pytorch_model.bin", "pytorch_model", ".bin")
    };
    let is_weight = |n: &str| if has(whole) { n == whole } else { shard(stem, end, n) };
    let is_config = |n: &str| {
        let top = !n.contains('/')
            && [".json", ".txt", ".model", ".jinja"].iter().any(|e| n.ends_with(e))
            && (!n.ends_with(".index.json") || n == format!("{whole}.index.json"));
        // Modules of sentence-transformers: `1_Pooling/config.json`, and heads of BGE-M3.
        let module = n.matches('/').count() == 1 && n.starts_with(|c: char| c.is_ascii_digit());
        let of_module = module && ["config.json", "model.safetensors"].iter().any(|e| n.ends_with(&format!("/{e}")));
        top || of_module || matches!(n, "sparse_linear.pt" | "colbert_linear.pt")
    };
    let weights: Vec<&str> = inside.iter().copied().filter(|n| is_weight(&local(n))).collect();
    if weights.is_empty() {
        return weights;
    }
    inside.iter().copied().filter(|n| is_config(&local(n))).chain(weights).collect()
}

fn one(
    client: &Client<'_>,
    repo: &Repo,
    commit: &str,
    name: &str,
    folder: &Path,
    snapshot: &Path,
    options: &HubOptions,
) -> Result<()> {
    let link = snapshot.join(name);
    if link.is_file() {
        return Ok(());
    }
    let what = format!("{}/{name}", repo.id);
    let path = format!("/{}/resolve/{commit}/{}", repo.id, name.replace(' ', "%20"));
    let (etag, size) = client.repeat(|| {
        let answer = client.send(&path, true, 0, true)?;
        if let Some(failure) = client.judge(answer.response.status().as_u16(), &what) {
            return Err(failure);
        }
        let tag = answer.header("x-linked-etag").or_else(|| answer.header("etag")).unwrap_or_default();
        let tag = tag.trim_start_matches("W/").trim_matches('"').to_string();
        let size = answer.header("x-linked-size").or_else(|| answer.header("content-length"));
        let fine = !tag.is_empty() && tag.len() <= 128 && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        match size.and_then(|s| s.parse::<u64>().ok()).filter(|_| fine) {
            Some(size) => Ok((tag, size)),
            None => Err(Failure::Lasting(Error::new(
                ErrorKind::Network,
                format!("{what}: {} does not say its size and tag", client.host()),
            ))),
        }
    })?;
    let blobs = folder.join("blobs");
    let blob = blobs.join(&etag);
    make(&blobs)?;
    if !fs::metadata(&blob).is_ok_and(|m| m.len() == size) {
        let part = blobs.join(format!("{etag}.incomplete"));
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&part);
        let mut file = file.map_err(|e| Error::io("write it", &part, &e))?;
        // Another program at the same file: wait, then see what it left.
        file.lock().map_err(|e| Error::io("lock it", &part, &e))?;
        if !fs::metadata(&blob).is_ok_and(|m| m.len() == size) {
            let done = transfer(client, &path, &what, &etag, size, &mut file, options);
            if let Err(error) = done {
                // What is on a full disk is in the way; anything else is worth keeping.
                if error.kind() == ErrorKind::Io {
                    drop(fs::remove_file(&part));
                }
                return Err(error);
            }
            fs::rename(&part, &blob).map_err(|e| Error::io("rename it", &part, &e))?;
        }
    }
    make(link.parent().unwrap_or(snapshot))?;
    attach(&blob, &link, name)
}

/// Fills `file` up to `size` bytes, going on where it ends, and checks the hash.
fn transfer(
    client: &Client<'_>,
    path: &str,
    what: &str,
    etag: &str,
    size: u64,
    file: &mut File,
    options: &HubOptions,
) -> Result<()> {
    let place = PathBuf::from(what);
    let disk = |e: &io::Error| Failure::Lasting(Error::io("write it to the cache", &place, e));
    for attempt in 0..2 {
        client.repeat(|| {
            let mut have = file.seek(SeekFrom::End(0)).map_err(|e| disk(&e))?;
            if have > size {
                file.set_len(0).map_err(|e| disk(&e))?;
                have = 0;
            }
            if have == size {
                return Ok(());
            }
            let mut answer = client.send(path, false, have, false)?;
            let status = answer.response.status().as_u16();
            let resumed = status == 206
                && answer.response.headers().get("content-range").and_then(|v| v.to_str().ok()).is_some_and(|v| {
                    v.strip_prefix("bytes ").and_then(|v| v.split_once('-')).is_some_and(|(a, _)| a == have.to_string())
                });
            if have > 0 && (!resumed || status == 416) {
                file.set_len(0).map_err(|e| disk(&e))?;
                have = 0;
                if status == 206 || status == 416 {
                    return Err(Failure::Passing(format!("{what}: the server can't continue it")));
                }
            }
            if let Some(failure) = client.judge(status, what) {
                return Err(failure);
            }
            file.seek(SeekFrom::Start(have)).map_err(|e| disk(&e))?;
            let mut body = answer.response.body_mut().as_reader().take(size - have);
            let mut buffer = vec![0; 128 << 10];
            loop {
                let n = body.read(&mut buffer).map_err(|e| Failure::Passing(format!("{what}: {e}")))?;
                if n == 0 {
                    break;
                }
                file.write_all(&buffer[..n]).map_err(|e| disk(&e))?;
                have += n as u64;
                if !options.progress.as_ref().is_none_or(|p| p(Progress { file: what, done: have, total: size })) {
                    return Err(Failure::Lasting(Error::new(
                        ErrorKind::Cancelled,
                        format!("{what}: stopped at {have} of {size} bytes; the next pull goes on from there"),
                    )));
                }
            }
            if have < size {
                return Err(Failure::Passing(format!("{what}: the connection ended at {have} of {size} bytes")));
            }
            Ok(())
        })?;
        file.sync_data().map_err(|e| Error::io("write it to the cache", &place, &e))?;
        if right(file, etag, size).map_err(|e| Error::io("read it back", &place, &e))? {
            return Ok(());
        }
        file.set_len(0).map_err(|e| Error::io("write it to the cache", &place, &e))?;
        if attempt == 0 {
            client.pause(0);
        }
    }
    Err(Error::new(
        ErrorKind::Network,
        format!(
            "{what}: what {} sends does not have the hash it announces (twice); try another network",
            client.host()
        ),
    ))
}

/// Does the file have the hash its tag stands for? 64 digits: SHA-256; 40: git's blob SHA-1.
fn right(file: &mut File, etag: &str, size: u64) -> io::Result<bool> {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let is_hex = etag.bytes().all(|b| b.is_ascii_hexdigit());
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; 1 << 20];
    let mut feed = |update: &mut dyn FnMut(&[u8])| -> io::Result<()> {
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                n => update(&buffer[..n]),
            }
        }
    };
    match etag.len() {
        64 if is_hex => {
            let mut hash = Sha256::new();
            feed(&mut |b| hash.update(b))?;
            Ok(hex(&hash.finalize()) == etag.to_ascii_lowercase())
        }
        40 if is_hex => {
            let mut hash = Sha1::new();
            hash.update(format!("blob {size}\0"));
            feed(&mut |b| hash.update(b))?;
            Ok(hex(&hash.finalize()) == etag.to_ascii_lowercase())
        }
        // Other tags (of mirrors) aren't hashes; the size was checked.
        _ => Ok(true),
    }
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| Error::io("make this folder", folder, &e))
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    make(path.parent().unwrap_or(Path::new(".")))?;
    let part = path.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&part, bytes).and_then(|()| fs::rename(&part, path)).map_err(|e| Error::io("write it", path, &e))
}

/// Makes a blob visible in a snapshot: a relative link, as the hub's own tools make it.
fn attach(blob: &Path, link: &Path, name: &str) -> Result<()> {
    if link.is_file() {
        return Ok(());
    }
    // A broken link from an earlier life.
    if fs::symlink_metadata(link).is_ok() {
        fs::remove_file(link).map_err(|e| Error::io("replace it", link, &e))?;
    }
    #[cfg(unix)]
    let made = {
        let up = "../".repeat(2 + name.matches('/').count());
        let tag = blob.file_name().unwrap_or_default();
        std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(tag), link)
    };
    #[cfg(not(unix))]
    let made = {
        let _ = name;
        fs::hard_link(blob, link).or_else(|_| fs::copy(blob, link).map(drop))
    };
    match made {
        Err(e) if !link.is_file() => Err(Error::io("link it", link, &e)),
        _ => Ok(()),
    }
}
