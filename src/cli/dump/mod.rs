//! `oxiline dump`: exact tensors in, exact tensors out. See docs/dump.md.

mod embed;
mod file;
mod input;
mod quant;
mod resample;
mod sample;
mod tensors;
mod text;
mod tokens;
mod vad;
mod whisper;

use oxiline::graph::Result;

use super::Outcome;
use super::args::{Dump, DumpVerb};

/// Runs a dump.
pub fn run(args: Dump) -> Result<Outcome> {
    match args.what {
        DumpVerb::Whisper(args) => whisper::run(*args)?,
        DumpVerb::Text(args) => text::run(args)?,
        DumpVerb::Embed(args) => embed::run(args)?,
        DumpVerb::Sample(args) => sample::run(*args)?,
        DumpVerb::Vad(args) => vad::run(args)?,
        DumpVerb::Resample(args) => resample::run(args)?,
        DumpVerb::Tensors(args) => tensors::run(args)?,
        DumpVerb::Tokens(args) => tokens::run(args)?,
        DumpVerb::Dequantize(args) => quant::dequantize(args)?,
        DumpVerb::Quantize(args) => quant::quantize(args)?,
        DumpVerb::Matvec(args) => quant::matvec(args)?,
    }
    Ok(Outcome::Done)
}
