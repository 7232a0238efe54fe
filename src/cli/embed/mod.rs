//! `oxiline embed`: a vector a text, of input of any size.

pub mod args;
mod input;
pub mod rerank;

use std::fmt::Write as _;
use std::io::{BufWriter, Write};
use std::time::Instant;

use oxiline::graph::{Error, Result};
use oxiline::{EmbedOptions, Embedded, Embedder, cosine};
use serde_json::json;

use super::args::{Common, Stats};
use super::progress::Bar;
use super::{Outcome, interrupt, memory, models, quiet, say};
use args::Embed;
use input::{Item, Texts};

/// Texts read before they are computed together, and their bytes.
const WINDOW: usize = 512;
const WINDOW_BYTES: usize = 1 << 20;
/// Most texts of a matrix of cosines.
const MATRIX: usize = 4096;
/// Texts whose loss by `--quant` is measured.
const SAMPLE: usize = 32;

/// What is printed in the place of a text that cannot be computed.
const NOTHING: &str = "null";

/// Standard output; `false` once nobody reads it any more.
struct Out(BufWriter<std::io::Stdout>);

impl Out {
    fn new() -> Self {
        Self(BufWriter::with_capacity(1 << 16, std::io::stdout()))
    }

    fn done(result: std::io::Result<()>) -> Result<()> {
        match result {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
            Err(e) => Err(Error::msg(format_args!("cannot write to standard output: {e}"))),
            Ok(()) => Ok(()),
        }
    }

    fn line(&mut self, line: &str) -> Result<()> {
        Self::done(self.0.write_all(line.as_bytes()).and_then(|()| self.0.write_all(b"\n")))
    }

    fn flush(&mut self) -> Result<()> {
        Self::done(self.0.flush())
    }
}

/// What was counted on the way.
#[derive(Default)]
struct Counts {
    texts: u64,
    tokens: u64,
    cut: u64,
    bad: u64,
    first_bad: Option<String>,
}

impl Counts {
    fn bad(&mut self, why: String) {
        self.bad += 1;
        self.first_bad.get_or_insert(why);
    }

    fn took(&mut self, tokens: usize, cut: usize) {
        self.texts += 1;
        self.tokens += tokens as u64;
        self.cut += u64::from(cut > 0);
    }

    /// Says what must be known of the run, and how it ended.
    fn end(&self, common: &Common, began: Instant, hint: &str) -> Outcome {
        if self.cut > 0 && !quiet(common) {
            say(format_args!("note: {} texts were longer than the model reads and were cut{hint}", self.cut));
        }
        let seconds = began.elapsed().as_secs_f64();
        match common.stats {
            Some(Stats::Json) => say(json!({
                "texts": self.texts, "tokens": self.tokens, "cut": self.cut, "skipped": self.bad, "seconds": seconds,
                "texts_per_s": self.texts as f64 / seconds, "peak_rss": memory::peak_bytes(),
            })),
            Some(Stats::Summary) => say(format_args!(
                "{} texts, {} tokens in {seconds:.2} s: {:.1} texts/s; peak memory {:.0} MB",
                self.texts,
                self.tokens,
                self.texts as f64 / seconds,
                memory::peak_bytes().unwrap_or(0) as f64 / 1e6
            )),
            None => {}
        }
        match &self.first_bad {
            Some(first) => {
                say(format_args!(
                    "oxiline: {} texts were skipped ({NOTHING} stands in their place): {first}",
                    self.bad
                ));
                Outcome::Failed
            }
            None => Outcome::Done,
        }
    }
}

/// The next texts of a source, bounded in number and bytes; whether there may be more.
fn window(texts: &mut Texts) -> Result<(Vec<Item>, bool)> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    while items.len() < WINDOW && bytes < WINDOW_BYTES {
        match texts.next()? {
            None => return Ok((items, false)),
            Some(item) => {
                bytes += if let Item::Text(text) = &item { text.len() } else { 0 };
                items.push(item);
            }
        }
    }
    Ok((items, true))
}

/// Runs the verb.
pub fn run(args: Embed, common: &Common) -> Result<Outcome> {
    let options = args.wanted.options();
    let place = models::fetch(&args.model, common)?;
    let place = place.to_string_lossy();
    let mut texts = match &args.prompt {
        Some(_) => None,
        None => Some(Texts::open(&args.source)?),
    };
    let mut embedder = Embedder::load_with(&place, args.weights.precision())?;
    // A mistake in the options is told before anything is read.
    embedder.embed::<&str>(&[], &options)?;
    let cancel = embedder.cancel_handle();
    let _guard = interrupt::on_interrupt(move |_| cancel.cancel());
    let bar = Bar::new(!quiet(common));
    let (began, mut counts, mut out) = (Instant::now(), Counts::default(), Out::new());
    let mut matrix: Vec<Vec<f32>> = Vec::new();
    let mut sample: Vec<(String, Vec<f32>)> = Vec::new();
    loop {
        let (items, more) = match &mut texts {
            Some(texts) => window(texts)?,
            None => (vec![Item::Text(args.prompt.clone().unwrap_or_default())], false),
        };
        let good: std::sync::Arc<[String]> =
            items.iter().filter_map(|i| if let Item::Text(text) = i { Some(text.clone()) } else { None }).collect();
        let (mut waiting, mut line, mut at, mut failed) = (items.into_iter().peekable(), String::new(), 0, Ok(()));
        let bad = |counts: &mut Counts, out: &mut Out, why: String, matrix: &[Vec<f32>]| {
            counts.bad(why);
            // A matrix has no place for what is missing.
            if args.similarity && matrix.len() < MATRIX { Ok(()) } else { out.line(NOTHING) }
        };
        let result = embedder.embed_each(good.clone(), &options, |one| {
            let take = || {
                while let Some(Item::Bad(why)) = waiting.next_if(|i| matches!(i, Item::Bad(_))) {
                    bad(&mut counts, &mut out, why, &matrix)?;
                }
                waiting.next();
                counts.took(one.tokens, one.cut);
                if args.weights.quant.is_some() && sample.len() < SAMPLE {
                    sample.push((good[at].clone(), one.dense.clone()));
                }
                at += 1;
                if args.similarity {
                    matrix.push(one.dense);
                    return Ok(());
                }
                line.clear();
                print(&mut line, &one, &options, args.json)?;
                out.line(&line)
            };
            if failed.is_ok() {
                failed = take();
            }
        });
        failed?;
        match result {
            Err(error) if error.is_cancelled() => {
                out.flush()?;
                bar.finish();
                say("oxiline: stopped before the end; what was written is a part");
                return Ok(Outcome::Stopped);
            }
            result => result?,
        }
        for item in waiting {
            if let Item::Bad(why) = item {
                bad(&mut counts, &mut out, why, &matrix)?;
            }
        }
        out.flush()?;
        if let Some(texts) = &texts {
            bar.download("texts", texts.done, texts.total);
        }
        if args.similarity && matrix.len() > MATRIX {
            return Err(Error::msg(format_args!("--similarity compares at most {MATRIX} texts with one another")));
        }
        if !more {
            break;
        }
    }
    bar.finish();
    if args.similarity {
        similarity(&matrix, args.json, &mut out)?;
        out.flush()?;
    }
    let outcome = counts.end(common, began, " (--chunk embeds all of them, in pieces)");
    if !sample.is_empty() && !quiet(common) {
        drop(embedder);
        loss(&place, &options, &sample)?;
    }
    Ok(outcome)
}

/// One result as a line.
fn print(line: &mut String, one: &Embedded, options: &EmbedOptions, json: bool) -> Result<()> {
    if one.dense.iter().any(|v| !v.is_finite()) {
        return Err(Error::msg("a vector holds what is no number; are the weights whole?"));
    }
    if options.sparse || options.colbert {
        line.push_str("{\"dense\":");
        numbers(line, &one.dense);
        if options.sparse {
            line.push_str(",\"sparse\":{");
            for (i, (id, weight)) in one.sparse.iter().enumerate() {
                let _ = write!(line, "{}\"{id}\":{weight:.6e}", if i > 0 { "," } else { "" });
            }
            line.push('}');
        }
        if options.colbert {
            line.push_str(",\"colbert\":[");
            for (i, vector) in one.colbert.iter().enumerate() {
                line.push_str(if i > 0 { "," } else { "" });
                numbers(line, vector);
            }
            line.push(']');
        }
        line.push('}');
    } else if json {
        numbers(line, &one.dense);
    } else {
        for (i, v) in one.dense.iter().enumerate() {
            let _ = write!(line, "{}{v:.6e}", if i > 0 { " " } else { "" });
        }
    }
    Ok(())
}

/// Seven significant digits each.
fn numbers(line: &mut String, values: &[f32]) {
    line.push('[');
    for (i, v) in values.iter().enumerate() {
        let _ = write!(line, "{}{v:.6e}", if i > 0 { "," } else { "" });
    }
    line.push(']');
}

fn similarity(vectors: &[Vec<f32>], json: bool, out: &mut Out) -> Result<()> {
    for a in vectors {
        let row: Vec<String> = vectors.iter().map(|b| format!("{:.4}", cosine(a, b))).collect();
        out.line(&if json { format!("[{}]", row.join(",")) } else { row.join(" ") })?;
    }
    Ok(())
}

/// How far the quantised model's vectors are from the float model's.
fn loss(place: &str, options: &EmbedOptions, sample: &[(String, Vec<f32>)]) -> Result<()> {
    let mut floats = Embedder::load(place)?;
    let texts: Vec<&str> = sample.iter().map(|(text, _)| text.as_str()).collect();
    let exact = floats.embed(&texts, options)?;
    let cosines: Vec<f32> = exact.iter().zip(sample).map(|(e, (_, q))| cosine(&e.dense, q)).collect();
    let mean = cosines.iter().sum::<f32>() / cosines.len() as f32;
    let least = cosines.iter().copied().fold(f32::INFINITY, f32::min);
    say(format_args!(
        "--quant: cosine with the float model's vectors {mean:.6} on average, {least:.6} at least (first {} texts)",
        cosines.len()
    ));
    Ok(())
}
