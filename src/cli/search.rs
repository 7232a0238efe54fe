//! `oxiline index` and `oxiline search`: passages of files, found by word and by meaning.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use oxiline::graph::{Error, Result};
use oxiline::index::{About, Index, Passage, Passages, Place};
use oxiline::{CancelHandle, EmbedOptions, Embedder, Reranker, TranscribeOptions, Transcriber};
use serde_json::json;

use super::args::{Common, IndexArgs, SearchArgs};
use super::{Outcome, interrupt, models, print, quiet, say};

/// Largest text file indexed.
const LARGEST: u64 = 256 << 20;
/// Passages a reranker is shown.
const RERANKED: usize = 32;

/// Name of the first of these prompts that the model has.
fn prompt(embedder: &Embedder, names: &[&str]) -> EmbedOptions {
    let known = |name: &&&str| embedder.about().prompts.iter().any(|(known, _)| known == **name);
    EmbedOptions { prompt_name: names.iter().find(known).map(|n| (*n).into()), ..EmbedOptions::default() }
}

/// `oxiline index`
pub fn index(args: IndexArgs, common: &Common) -> Result<Outcome> {
    let model = models::fetch(&args.model, common)?;
    let mut embedder = Embedder::load(&model.to_string_lossy())?;
    let options = prompt(&embedder, &["document", "passage"]);
    let index = Index::create(&args.folder, &About::new(&args.model, embedder.about().dim))?;
    let known = index.files()?;
    // Ctrl-C stops what runs: an embedding, or a transcription once there is something to transcribe.
    let running = Arc::new(Mutex::new(vec![embedder.cancel_handle()]));
    let handles = Arc::clone(&running);
    let _guard = interrupt::on_interrupt(move |_| {
        handles.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(CancelHandle::cancel);
    });
    let mut transcriber = None;
    let (mut failed, mut new, mut same) = (0, 0, 0);
    for file in &args.files {
        let name = file.display().to_string();
        let one = (|| {
            let stamp = stamp(file)?;
            if known.get(&name) == Some(&stamp) {
                return Ok(None);
            }
            let passages = passages(file, &args, common, &mut transcriber, &running)?;
            let texts: Vec<&str> = passages.iter().map(|p| p.text.as_str()).collect();
            let vectors: Vec<Vec<f32>> = embedder.embed(&texts, &options)?.into_iter().map(|one| one.dense).collect();
            index.put(&name, &stamp, &passages, &vectors)?;
            Ok(Some(passages.len()))
        })();
        match one {
            Ok(Some(count)) => {
                new += 1;
                if !quiet(common) {
                    say(format_args!("{name}: {count} passages"));
                }
            }
            Ok(None) => same += 1,
            Err(Error::Cancelled) => {
                say(format_args!("oxiline: stopped; the index is complete up to the file before {name}"));
                return Ok(Outcome::Stopped);
            }
            Err(error) => {
                failed += 1;
                say(format_args!("oxiline: {name} was not indexed: {error}"));
            }
        }
    }
    if !quiet(common) {
        say(format_args!("{new} files indexed, {same} had not changed"));
    }
    Ok(if failed > 0 { Outcome::Failed } else { Outcome::Done })
}

/// What tells whether a file has changed.
fn stamp(file: &Path) -> Result<String> {
    let failed = |e: &dyn std::fmt::Display| Error::msg(format_args!("it cannot be read: {e}"));
    let meta = file.metadata().map_err(|e| failed(&e))?;
    if !meta.is_file() {
        return Err(failed(&"it is not a file"));
    }
    let changed = meta.modified().map_err(|e| failed(&e))?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{} bytes, changed {}.{:09}", meta.len(), changed.as_secs(), changed.subsec_nanos()))
}

/// The passages of a text file, or of what is said in a media file.
fn passages(
    file: &Path,
    args: &IndexArgs,
    common: &Common,
    transcriber: &mut Option<Transcriber>,
    running: &Mutex<Vec<CancelHandle>>,
) -> Result<Vec<Passage>> {
    let failed = |e: &dyn std::fmt::Display| Error::msg(format_args!("it cannot be read: {e}"));
    let meta = file.metadata().map_err(|e| failed(&e))?;
    let text = if meta.len() <= LARGEST {
        let bytes = std::fs::read(file).map_err(|e| failed(&e))?;
        // Media files hold zeros near their beginning; texts have none.
        if bytes.iter().take(4096).any(|b| *b == 0) { None } else { String::from_utf8(bytes).ok() }
    } else {
        None
    };
    if let Some(text) = text {
        return Ok(Passages::of_text(&text));
    }
    let loaded = match transcriber.take() {
        Some(loaded) => loaded,
        None => {
            let loaded = Transcriber::load(&models::fetch(&args.transcriber, common)?.to_string_lossy())?;
            running.lock().unwrap_or_else(PoisonError::into_inner).push(loaded.cancel_handle());
            loaded
        }
    };
    let loaded = transcriber.insert(loaded);
    let options = TranscribeOptions { timestamps: true, ..TranscribeOptions::default() };
    let mut passages = Passages::default();
    let done =
        loaded.transcribe_file(file, &options, |segment| passages.push(Place::Time(segment.start), &segment.text));
    match done {
        Ok(result) if result.stats.stopped => Err(Error::Cancelled),
        Ok(_) => Ok(passages.finish()),
        Err(error) => Err(Error::msg(format_args!("it is neither UTF-8 text nor media that can be read: {error}"))),
    }
}

/// `oxiline search`
pub fn search(args: SearchArgs, common: &Common) -> Result<Outcome> {
    if args.question.trim().is_empty() {
        return Err(Error::msg("the question is empty: say what to look for"));
    }
    let index = Index::open(&args.folder)?;
    let model = models::fetch(args.model.as_deref().unwrap_or(&index.about().model), common)?;
    let mut embedder = Embedder::load(&model.to_string_lossy())?;
    let options = prompt(&embedder, &["query"]);
    let question = embedder.embed(&[&args.question], &options)?.remove(0);
    let most = if args.rerank.is_some() { RERANKED.max(args.top) } else { args.top };
    let mut hits = index.search(&args.question, &question.dense, most)?;
    if let Some(reranker) = &args.rerank {
        let place = models::fetch(reranker, common)?;
        let mut reranker = Reranker::load(&place.to_string_lossy())?;
        let texts: Vec<&str> = hits.iter().map(|h| h.text.as_str()).collect();
        let ranked = reranker.rank(&args.question, &texts)?;
        hits = ranked.into_iter().map(|(at, score)| oxiline::index::Hit { score, ..hits[at].clone() }).collect();
    }
    hits.truncate(args.top);
    for hit in &hits {
        if args.json {
            let (line, time) = match hit.place {
                Place::Line(line) => (Some(line), None),
                Place::Time(time) => (None, Some(time)),
            };
            print(json!({
                "file": hit.file, "line": line, "time": time, "text": hit.text, "score": hit.score, "cosine": hit.cosine,
            }))?;
            continue;
        }
        match hit.place {
            Place::Line(line) => print(format_args!("{}:{line}: {}", hit.file, hit.text))?,
            Place::Time(time) => print(format_args!("{} at {}: {}", hit.file, clock(time), hit.text))?,
        }
    }
    Ok(Outcome::Done)
}

/// `0:01:02.5`
fn clock(seconds: f64) -> String {
    let tenths = (seconds * 10.0).round() as u64;
    format!("{}:{:02}:{:02}.{}", tenths / 36_000, tenths / 600 % 60, tenths / 10 % 60, tenths % 10)
}
