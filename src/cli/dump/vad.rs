//! `oxiline dump vad`: probabilities of speech, 512 samples a frame.

use oxiline::graph::Result;
use oxiline::kernels::Pool;
use oxiline::speech::vad::{Silero, State};

use super::file::{self, Out};
use crate::cli::args::DumpVad;

pub fn run(args: DumpVad) -> Result<()> {
    file::apart(&args.io.input, &args.io.output)?;
    let samples = file::read_samples(&args.io.input, "samples")?;
    let silero = match &args.model {
        Some(path) => Silero::load(path)?,
        None => Silero::bundled()?,
    };
    let (pool, mut state) = (Pool::global(), State::default());
    let mut probabilities = silero.push(pool, &mut state, &samples);
    probabilities.extend(silero.finish(pool, &mut state));
    file::write(&args.io.output, &[Out::f32("probabilities", &[probabilities.len()], &probabilities)], Vec::new())
}
