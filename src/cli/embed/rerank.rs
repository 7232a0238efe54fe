//! `oxiline rerank`: scores of texts against a query.

use std::time::Instant;

use oxiline::Reranker;
use oxiline::graph::{Error, Result};

use super::args::Rerank;
use super::input::{Item, Texts};
use super::{Counts, NOTHING, Out, numbers, window};
use crate::cli::args::Common;
use crate::cli::{Outcome, models};

/// Most texts that are sorted.
const SORTED: usize = 1 << 20;

/// Runs the verb.
pub fn run(args: Rerank, common: &Common) -> Result<Outcome> {
    let place = models::fetch(&args.model, common)?;
    let mut texts = Texts::open(&args.source)?;
    let mut reranker = Reranker::load_with(&place.to_string_lossy(), args.weights.precision())?;
    let (began, mut counts, mut out) = (Instant::now(), Counts::default(), Out::new());
    let mut sorted: Vec<(f32, String)> = Vec::new();
    loop {
        let (items, more) = window(&mut texts)?;
        let good: Vec<&str> =
            items.iter().filter_map(|i| if let Item::Text(text) = i { Some(text.as_str()) } else { None }).collect();
        let mut scored = reranker.score(&args.query, &good)?.into_iter();
        for item in items {
            let one = match item {
                Item::Bad(why) => {
                    counts.bad(why);
                    if args.json {
                        out.line(NOTHING)?;
                    }
                    continue;
                }
                Item::Text(text) => (scored.next(), text),
            };
            let (Some(one), text) = one else { return Err(Error::msg("the reranker gave fewer scores than texts")) };
            counts.took(one.tokens, one.cut);
            if !args.json {
                let score = one.scores.first().copied().unwrap_or(f32::NEG_INFINITY);
                sorted.push((score, text));
                continue;
            }
            let mut line = String::new();
            match one.scores[..] {
                [score] => line = format!("{score:.6e}"),
                _ => numbers(&mut line, &one.scores),
            }
            out.line(&line)?;
        }
        out.flush()?;
        if sorted.len() > SORTED {
            return Err(Error::msg("there are too many texts to sort; --json prints scores as they come"));
        }
        if !more {
            break;
        }
    }
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (score, text) in &sorted {
        out.line(&format!("{score:.6}\t{text}"))?;
    }
    out.flush()?;
    Ok(counts.end(common, began, ""))
}
