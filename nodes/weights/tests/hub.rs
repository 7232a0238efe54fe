//! Downloads from a server in this file that speaks the hub's protocol, well and badly.
#![cfg(feature = "hub")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oxiline_weights::hub::{self, HubOptions};
use oxiline_weights::{Checkpoint, ErrorKind, Mode};
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Default)]
struct State {
    files: HashMap<String, Vec<u8>>,
    /// Requests seen: method, path, and headers in lower case.
    seen: Mutex<Vec<(String, String, String)>>,
    connections: AtomicUsize,
    /// So many answers end in the middle of the body.
    drops: AtomicUsize,
    /// So many answers are this status.
    failures: Mutex<(usize, u16)>,
    wrong_bytes: AtomicBool,
    ignore_ranges: AtomicBool,
    /// Weights are redirected here.
    store: Mutex<Option<String>>,
    need_token: AtomicBool,
}

struct Server {
    url: String,
    state: Arc<State>,
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn serve(files: &[(&str, &[u8])]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let files = files.iter().map(|(n, b)| ((*n).to_string(), b.to_vec())).collect();
    let state = Arc::new(State { files, ..State::default() });
    let shared = state.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            shared.connections.fetch_add(1, Ordering::SeqCst);
            let shared = shared.clone();
            std::thread::spawn(move || drop(answer(stream, &shared)));
        }
    });
    Server { url, state }
}

/// Takes one from a counter; false when it is empty.
fn take(counter: &AtomicUsize) -> bool {
    counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

fn answer(mut stream: TcpStream, state: &State) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut headers) = (String::new(), String::new());
    reader.read_line(&mut line)?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? < 3 {
            break;
        }
        headers += &header.to_ascii_lowercase();
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or("").to_string(), words.next().unwrap_or("").to_string());
    state.seen.lock().unwrap().push((method.clone(), path.clone(), headers.clone()));
    let mut send = |status: &str, more: &str, body: &[u8], cut: bool| -> std::io::Result<()> {
        write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{more}\r\n", body.len())?;
        if method != "HEAD" {
            stream.write_all(&body[..if cut { body.len() / 2 } else { body.len() }])?;
        }
        stream.flush()
    };
    {
        let mut failures = state.failures.lock().unwrap();
        if failures.0 > 0 {
            failures.0 -= 1;
            return send(&format!("{} No", failures.1), "", b"", false);
        }
    }
    if state.need_token.load(Ordering::SeqCst) && !headers.contains("authorization: bearer secret") {
        return send("401 Unauthorized", "", b"", false);
    }
    if path == "/api/models/org/name/revision/main" {
        let siblings: Vec<_> = state.files.keys().map(|n| serde_json::json!({"rfilename": n})).collect();
        let body = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
        return send("200 OK", "", body.as_bytes(), false);
    }
    let name = path.rsplit_once(COMMIT).map_or(path.as_str(), |(_, n)| n).trim_start_matches('/');
    let Some(body) = state.files.get(name) else { return send("404 Not Found", "", b"", false) };
    let tag = format!("etag: \"{}\"\r\nx-repo-commit: {COMMIT}\r\n", hex(body));
    if let (Some(store), true) = (&*state.store.lock().unwrap(), name.ends_with(".safetensors")) {
        let more = format!(
            "location: {store}/{name}\r\nx-linked-etag: \"{}\"\r\nx-linked-size: {}\r\n",
            hex(body),
            body.len()
        );
        return send("302 Found", &more, b"", false);
    }
    let mut body = body.clone();
    if state.wrong_bytes.load(Ordering::SeqCst) {
        body[0] ^= 1;
    }
    let from =
        headers.lines().find_map(|l| l.strip_prefix("range: bytes=")?.trim_end().strip_suffix('-')?.parse().ok());
    let cut = method == "GET" && name.ends_with(".safetensors") && take(&state.drops);
    match from.filter(|_| !state.ignore_ranges.load(Ordering::SeqCst)) {
        Some(from) => {
            let range = format!("{tag}content-range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
            let body: &[u8] = &body[from..];
            send("206 Partial Content", &range, body, cut)
        }
        None => send("200 OK", &tag, &body, cut),
    }
}

fn weights() -> Vec<u8> {
    let header = r#"{"w":{"dtype":"U8","shape":[300000],"data_offsets":[0,300000]}}"#;
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.extend((0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8));
    out
}

fn model() -> Server {
    serve(&[
        ("model.safetensors", &weights()),
        ("pytorch_model.bin", b"not wanted"),
        ("config.json", b"{\"a\":1}"),
        ("1_Pooling/config.json", b"{}"),
        ("README.md", b"not wanted"),
        ("onnx/config.json", b"not wanted"),
        ("../escape.json", b"never"),
    ])
}

fn options(server: &Server, dir: &tempfile::TempDir) -> HubOptions {
    HubOptions {
        caches: vec![dir.path().join("hub")],
        endpoints: vec![server.url.clone()],
        retry_wait: Duration::from_millis(1),
        read_timeout: Duration::from_secs(10),
        ..HubOptions::default()
    }
}

fn bodies(server: &Server, end: &str) -> usize {
    let seen = server.state.seen.lock().unwrap();
    seen.iter().filter(|(m, p, _)| m == "GET" && p.ends_with(end)).count()
}

#[test]
fn a_model_is_laid_in_the_hubs_own_layout_and_found_again() {
    let (server, dir) = (model(), tempfile::tempdir().unwrap());
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut o = options(&server, &dir);
    let tell = told.clone();
    o.progress = Some(Arc::new(move |p| {
        tell.lock().unwrap().push((p.file.to_string(), p.done, p.total));
        true
    }));
    let folder = hub::resolve("org/name", &o).unwrap();
    let root = dir.path().join("hub/models--org--name");
    assert_eq!(folder, root.join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read(root.join("blobs").join(hex(&weights()))).unwrap(), weights());
    let c = Checkpoint::open(&folder, Mode::Read).unwrap();
    assert_eq!(c.config("config.json").unwrap()["a"], 1);
    assert!(folder.join("1_Pooling/config.json").is_file());
    for not in ["pytorch_model.bin", "README.md", "onnx/config.json"] {
        assert!(!folder.join(not).exists(), "{not}");
    }
    assert!(!dir.path().join("hub/models--org--name/snapshots/escape.json").exists());
    let size = weights().len() as u64;
    assert_eq!(told.lock().unwrap().last().unwrap(), &("org/name/model.safetensors".to_string(), size, size));
    // The second time nothing is asked.
    let before = server.state.connections.load(Ordering::SeqCst);
    assert_eq!(hub::resolve("org/name", &o).unwrap(), folder);
    assert_eq!(server.state.connections.load(Ordering::SeqCst), before);
    let all = hub::list(&o).unwrap();
    assert_eq!((all.len(), all[0].name.as_str(), all[0].complete), (1, "org/name", true));
    assert_eq!(hub::show("org/name", &o).unwrap().revision.as_deref(), Some(COMMIT));
    assert!(hub::remove("org/name", &o).unwrap() >= size);
    assert_eq!(hub::show("org/name", &o).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn offline_opens_no_connection() {
    let (server, dir) = (model(), tempfile::tempdir().unwrap());
    let o = HubOptions { offline: true, ..options(&server, &dir) };
    let error = hub::resolve("org/name", &o).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("--offline"), "{error}");
    // A path never asks, offline or not, and neither does a model made from packages.
    let online = HubOptions { packages: Some(dir.path().join("models")), ..options(&server, &dir) };
    assert_eq!(hub::resolve(dir.path().to_str().unwrap(), &online).unwrap(), dir.path());
    let packaged = dir.path().join("models/whisper-base");
    fs::create_dir_all(&packaged).unwrap();
    fs::write(packaged.join("model.safetensors"), weights()).unwrap();
    assert_eq!(hub::resolve("whisper-base", &online).unwrap(), packaged);
    assert_eq!(hub::resolve("openai/whisper-base", &online).unwrap(), packaged);
    assert_eq!(server.state.connections.load(Ordering::SeqCst), 0);
}

#[test]
fn drops_are_continued_where_they_happened() {
    let (server, dir) = (model(), tempfile::tempdir().unwrap());
    server.state.drops.store(2, Ordering::SeqCst);
    hub::resolve("org/name", &options(&server, &dir)).unwrap();
    assert_eq!(bodies(&server, "model.safetensors"), 3);
    let seen = server.state.seen.lock().unwrap();
    let ranges = seen.iter().filter(|(_, _, h)| h.contains("range: bytes=")).count();
    assert_eq!(ranges, 2);
}

#[test]
fn a_server_without_ranges_starts_again() {
    let (server, dir) = (model(), tempfile::tempdir().unwrap());
    server.state.drops.store(1, Ordering::SeqCst);
    server.state.ignore_ranges.store(true, Ordering::SeqCst);
    let folder = hub::resolve("org/name", &options(&server, &dir)).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_stopped_download_goes_on_next_time() {
    let (server, dir) = (model(), tempfile::tempdir().unwrap());
    let mut o = options(&server, &dir);
    o.progress = Some(Arc::new(|p| p.total < 1000 || p.done < 1000));
    let error = hub::resolve("org/name", &o).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let part = dir.path().join("hub/models--org--name/blobs").join(format!("{}.incomplete", hex(&weights())));
    let have = fs::metadata(&part).unwrap().len();
    assert!(have > 0 && have < weights().len() as u64, "{have}");
    o.progress = None;
    hub::resolve("org/name", &o).unwrap();
    assert!(!part.exists());
    let seen = server.state.seen.lock().unwrap();
    assert!(seen.iter().any(|(_, _, h)| h.contains(&format!("range: bytes={have}-"))));
}

#[test]
fn wrong_bytes_are_noticed_and_nothing_is_kept() {
    let (server, dir) = (model(), tempfile::tempdir().unwrap());
    server.state.wrong_bytes.store(true, Ordering::SeqCst);
    let error = hub::resolve("org/name", &options(&server, &dir)).unwrap_err();
    assert!(error.to_string().contains("hash"), "{error}");
    let blobs = dir.path().join("hub/models--org--name/blobs");
    for entry in fs::read_dir(blobs).unwrap().flatten() {
        assert_eq!(entry.metadata().unwrap().len(), 0, "{entry:?}");
    }
    server.state.wrong_bytes.store(false, Ordering::SeqCst);
    hub::resolve("org/name", &options(&server, &dir)).unwrap();
}

#[test]
fn refusals_are_sentences_and_passing_failures_are_repeated() {
    let (server, dir) = (model(), tempfile::tempdir().unwrap());
    let o = options(&server, &dir);
    for (status, kind) in [(401, ErrorKind::Denied), (403, ErrorKind::Denied), (404, ErrorKind::NotFound)] {
        *server.state.failures.lock().unwrap() = (1, status);
        let error = hub::resolve("org/name", &o).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with("org/name: "), "{error}");
    }
    *server.state.failures.lock().unwrap() = (100, 503);
    let error = hub::resolve("org/name", &o).unwrap_err();
    assert!(error.kind() == ErrorKind::Network && error.to_string().contains("5 tries"), "{error}");
    *server.state.failures.lock().unwrap() = (3, 502);
    hub::resolve("org/name", &o).unwrap();
    // Nobody listens here: a known name tells the other way to get it.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = HubOptions { endpoints: vec![format!("http://{closed}")], ..o };
    let error = hub::resolve("whisper-base", &nobody).unwrap_err();
    assert!(error.kind() == ErrorKind::Network && error.to_string().contains("fetch_model.py"), "{error}");
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let (server, store, mirror, dir) = (model(), model(), serve(&[]), tempfile::tempdir().unwrap());
    server.state.need_token.store(true, Ordering::SeqCst);
    *server.state.store.lock().unwrap() = Some(store.url.clone());
    let mut o = options(&server, &dir);
    assert_eq!(hub::resolve("org/name", &o).unwrap_err().kind(), ErrorKind::Denied);
    o.token = Some("secret".into());
    o.endpoints.insert(0, mirror.url.clone());
    hub::resolve("org/name", &o).unwrap();
    assert_eq!(bodies(&store, "model.safetensors"), 1);
    for other in [&store, &mirror] {
        let seen = other.state.seen.lock().unwrap();
        assert!(!seen.is_empty());
        assert!(seen.iter().all(|(_, _, h)| !h.contains("authorization") && !h.contains("secret")), "{seen:?}");
    }
}

#[test]
fn a_silent_server_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        for mut stream in listener.incoming().flatten() {
            drop(stream.read(&mut [0; 16]));
            open.push(stream);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let o = HubOptions {
        caches: vec![dir.path().into()],
        endpoints: vec![url],
        read_timeout: Duration::from_millis(50),
        retry_wait: Duration::from_millis(1),
        ..HubOptions::default()
    };
    assert_eq!(hub::resolve("org/name", &o).unwrap_err().kind(), ErrorKind::Network);
}

/// Writes to `/dev/full` fail as on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_sentence_and_leaves_nothing() {
    let (server, dir) = (model(), tempfile::tempdir().unwrap());
    let blobs = dir.path().join("hub/models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.incomplete", hex(&weights())));
    std::os::unix::fs::symlink("/dev/full", &part).unwrap();
    let error = hub::resolve("org/name", &options(&server, &dir)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(fs::symlink_metadata(&part).is_err());
    hub::resolve("org/name", &options(&server, &dir)).unwrap();
}

fn quants() -> Server {
    serve(&[
        ("m-Q4_K_M.gguf", b"GGUF four"),
        ("m-IQ4_XS.gguf", b"GGUF i"),
        ("m-Q8_0-00001-of-00002.gguf", b"GGUF one"),
        ("m-Q8_0-00002-of-00002.gguf", b"GGUF two"),
        ("big/m-BF16.gguf", b"GGUF big"),
        ("mmproj-m-Q8_0.gguf", b"GGUF eye"),
        ("config.json", b"{}"),
    ])
}

#[test]
fn a_gguf_file_is_named_by_the_end_of_its_name() {
    let (server, dir) = (quants(), tempfile::tempdir().unwrap());
    let o = options(&server, &dir);
    let snapshot = dir.path().join("hub/models--org--name/snapshots").join(COMMIT);
    let error = hub::resolve("org/name", &o).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let text = error.to_string();
    assert!(text.contains("org/name:BF16, org/name:IQ4_XS, org/name:Q4_K_M, org/name:Q8_0"), "{text}");
    assert!(hub::resolve("org/name:Q5_K", &o).unwrap_err().to_string().contains("org/name:Q4_K_M"));
    assert!(!snapshot.exists(), "nothing was fetched so far");
    assert_eq!(hub::resolve("org/name:Q4_K_M", &o).unwrap(), snapshot.join("m-Q4_K_M.gguf"));
    assert_eq!(bodies(&server, ".gguf"), 1);
    // All parts of a split model come; the first is what is opened.
    assert_eq!(hub::resolve("org/name:q8_0", &o).unwrap(), snapshot.join("m-Q8_0-00001-of-00002.gguf"));
    assert!(snapshot.join("m-Q8_0-00002-of-00002.gguf").is_file() && !snapshot.join("mmproj-m-Q8_0.gguf").exists());
    assert_eq!(hub::resolve("org/name/big:BF16", &o).unwrap(), snapshot.join("big/m-BF16.gguf"));
    assert_eq!(hub::resolve("org/name/big", &o).unwrap(), snapshot.join("big/m-BF16.gguf"));
    // What is there needs no network, and nothing is asked.
    let before = server.state.connections.load(Ordering::SeqCst);
    let offline = HubOptions { offline: true, ..o };
    assert_eq!(hub::resolve("org/name:Q4_K_M", &offline).unwrap(), snapshot.join("m-Q4_K_M.gguf"));
    fs::remove_file(snapshot.join("m-Q8_0-00002-of-00002.gguf")).unwrap();
    assert!(hub::resolve("org/name:Q8_0", &offline).is_err(), "half a split model");
    assert_eq!(server.state.connections.load(Ordering::SeqCst), before);
    assert!(hub::show("org/name", &offline).unwrap().complete);
}
