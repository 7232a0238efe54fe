//! Archives made by torch, and archives made by an attacker, against what torch itself read.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use oxiline_weights::{Checkpoint, ErrorKind, Mode, Result};
use proptest::prelude::*;
use serde_json::Value;

/// Counts the largest single request: a file must not make us ask for more than it has.
struct Watch;
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn hold(size: usize) {
    let now = HELD.fetch_add(size, Ordering::Relaxed) + size;
    PEAK.fetch_max(now, Ordering::Relaxed);
}
// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        hold(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        hold(size);
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(at, layout, size) }
    }
}
#[global_allocator]
static WATCH: Watch = Watch;
const LIMIT: usize = 64 << 20;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/archives")
}

/// Our own copy, and every variant of the kit that lies beside the checkout.
fn folders() -> Vec<PathBuf> {
    let mut out = vec![fixtures()];
    if let Some(shared) = common::shared("ref/quant") {
        let all = fs::read_dir(shared).unwrap().flatten().map(|e| e.path());
        out.extend(all.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("archives_"))));
    }
    out
}

fn case(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("case.json")).unwrap()).unwrap()
}

/// Opens a file and reads every tensor in full.
/// Name, shape and bytes of each tensor.
type Tensors = Vec<(String, Vec<usize>, Vec<u8>)>;

fn read(path: &Path) -> Result<Tensors> {
    let c = Checkpoint::open(path, Mode::Read)?;
    c.names().map(|n| Ok((n.to_string(), c.info(n)?.shape, c.bytes(n)?.into_owned()))).collect()
}

#[test]
fn good_archives_give_the_values_torch_gives() {
    for folder in folders() {
        good(&folder);
    }
}

fn good(folder: &Path) {
    let golden = Checkpoint::open(&folder.join("golden.safetensors"), Mode::Read).unwrap();
    let mut compared = 0;
    for (file, names) in case(folder)["good"].as_object().unwrap() {
        if file == "deflated.bin" {
            let error = read(&folder.join("good").join(file)).unwrap_err();
            assert!(error.to_string().contains("compressed"), "{error}");
            continue;
        }
        let c = Checkpoint::open(&folder.join("good").join(file), Mode::Mmap).unwrap();
        let mut found: Vec<&str> = c.names().collect();
        found.sort_unstable();
        let names: Vec<&str> = names.as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        assert_eq!(found, names, "{file}");
        for name in names {
            let (have, want) = (c.info(name).unwrap(), golden.info(&format!("{file}/{name}")).unwrap());
            assert_eq!((have.dtype, have.shape), (want.dtype, want.shape), "{file}/{name}");
            assert_eq!(c.bytes(name).unwrap(), golden.bytes(&format!("{file}/{name}")).unwrap(), "{file}/{name}");
            compared += 1;
        }
    }
    assert!(compared > 80, "only {compared} tensors compared");
}

#[test]
fn sharded_archives_come_through_their_index() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"]
    {
        fs::copy(fixtures().join("good").join(name), dir.path().join(name)).unwrap();
    }
    let c = Checkpoint::open(dir.path(), Mode::Read).unwrap();
    assert_eq!(c.names().len(), 9);
    assert_eq!(c.f32("layer.weight").unwrap().len(), 30);
}

#[test]
fn bad_files_give_one_sentence() {
    let mut wrong = Vec::new();
    for folder in folders() {
        bad(&folder, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(LARGEST.load(Ordering::Relaxed) < LIMIT, "asked for {} bytes", LARGEST.load(Ordering::Relaxed));
    assert!(PEAK.load(Ordering::Relaxed) < 4 * LIMIT, "held {} bytes", PEAK.load(Ordering::Relaxed));
}

fn bad(folder: &Path, wrong: &mut Vec<String>) {
    let case = case(folder);
    for (file, verdict) in case["bad"].as_object().unwrap() {
        let path = folder.join("bad").join(file);
        match read(&path) {
            Ok(got) => {
                // "may be read" is always about a tensor w of 0, 1, 2, 3.
                let w: Vec<u8> = [0f32, 1.0, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
                let fine = verdict.get("may_read").is_some() && got.len() == 1 && got[0].2 == w;
                if !fine {
                    wrong.push(format!("{file} was read: {}", verdict["why"]));
                }
            }
            Err(error) => {
                let text = error.to_string();
                if !text.contains(file.as_str()) || text.contains('\n') || text.len() > 600 + path.as_os_str().len() {
                    wrong.push(format!("{file}: {text}"));
                }
            }
        }
    }
}

#[test]
fn an_attack_is_named() {
    for (file, word) in [
        ("os_system_p2.bin", "posix.system"),
        ("eval.bin", "eval"),
        ("newobj.bin", "subprocess.Popen"),
        ("inst_opcode.bin", "protocol 0"),
        ("obj_opcode.bin", "os.system"),
        ("storage_traversal.bin", "no storage's name"),
        ("zip_bomb_64m.bin", "compressed"),
        ("lfs_pointer.safetensors", "Git LFS"),
        ("magic.gguf", "not with GGUF"),
    ] {
        let error = read(&fixtures().join("bad").join(file)).unwrap_err();
        assert!(error.to_string().contains(word), "{file}: {error}");
        assert!(matches!(error.kind(), ErrorKind::Malformed | ErrorKind::Unsupported));
    }
}

#[test]
fn flipped_bytes_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    for folder in folders() {
        flips(&folder, dir.path());
    }
}

fn flips(folder: &Path, dir: &Path) {
    for flip in case(folder)["flips"].as_array().unwrap() {
        let name = Path::new(flip["file"].as_str().unwrap());
        let mut bytes = fs::read(folder.join(name)).unwrap();
        bytes[flip["offset"].as_u64().unwrap() as usize] ^= flip["xor"].as_u64().unwrap() as u8;
        let path = dir.join(name.file_name().unwrap());
        fs::write(&path, bytes).unwrap();
        let _ = read(&path);
    }
}

/// A file spoilt by overwriting, cutting out and doubling stretches of it.
fn spoil(mut bytes: Vec<u8>, edits: &[(usize, u8, u8)]) -> Vec<u8> {
    for &(at, kind, value) in edits {
        if bytes.is_empty() {
            break;
        }
        let at = at % bytes.len();
        let end = (at + usize::from(value) % 16).min(bytes.len());
        match kind % 6 {
            0..=2 => bytes[at] = value,
            3 => bytes[at] = [0, 0x7f, 0x80, 0xff][usize::from(value) % 4],
            4 => drop(bytes.drain(at..end)),
            _ => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn spoilt_files_never_panic(
        which in 0usize..8,
        edits in prop::collection::vec((any::<usize>(), any::<u8>(), any::<u8>()), 1..6),
    ) {
        let name = ["good/views.bin", "good/proto4.bin", "good/legacy_views.pt", "good/module_state_dict.pt",
            "good/nested.ckpt", "good/proto2.bin", "good/handmade.bin", "golden.safetensors"][which];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Path::new(name).file_name().unwrap());
        fs::write(&path, spoil(fs::read(fixtures().join(name)).unwrap(), &edits)).unwrap();
        let _ = read(&path);
        prop_assert!(LARGEST.load(Ordering::Relaxed) < LIMIT);
    }
}
