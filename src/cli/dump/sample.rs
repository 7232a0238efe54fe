//! `oxiline dump sample`: logits to the distribution that tokens are drawn from.

use oxiline::EngineOptions;
use oxiline::graph::Result;
use oxiline::language::sample::Sampler;

use super::file::{self, Out};
use super::input::Input;
use crate::cli::args::DumpSample;

pub fn run(args: DumpSample) -> Result<()> {
    let mut options = EngineOptions::new();
    options.set("temperature", "1")?;
    for (key, value) in args.settings() {
        options.set(key, value)?;
    }
    let input = Input::open(&args.io.input)?;
    file::apart(&args.io.input, &args.io.output)?;
    let (shape, logits) = input.floats("logits")?;
    let Some(&vocab) = shape.last().filter(|v| **v > 0 && shape.len() <= 2) else {
        return Err(input.error(format_args!("tensor `logits` has shape {shape:?}; give [vocab] or [rows, vocab]")));
    };
    let previous = match args.previous {
        Some(ids) => ids,
        None => input.ids(&["previous", "context_ids"])?,
    };
    if let Some(id) = previous.iter().find(|id| **id as usize >= vocab) {
        return Err(input.error(format_args!("token {id} of the previous ones is outside the vocabulary of {vocab}")));
    }
    let mut sampler = Sampler::new(options.sampling())?;
    let (prompt, answer) = if args.answered { (&[][..], &previous[..]) } else { (&previous[..], &[][..]) };
    let mut probabilities = Vec::with_capacity(logits.len());
    for row in logits.chunks_exact(vocab) {
        probabilities.extend(sampler.probabilities(&mut row.to_vec(), prompt, answer));
    }
    file::write(&args.io.output, &[Out::f32("probabilities", &shape, &probabilities)], Vec::new())
}
