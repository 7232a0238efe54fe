//! `oxiline dump resample`: the stage that `audio.resample` runs.

use oxiline::graph::Result;

use super::file::{self, Out};
use crate::cli::args::DumpResample;

pub fn run(args: DumpResample) -> Result<()> {
    file::apart(&args.io.input, &args.io.output)?;
    let samples = file::read_samples(&args.io.input, "samples")?;
    let samples = oxiline::media::resample::resample(&samples, args.rate_in, args.rate_out)?;
    file::write(&args.io.output, &[Out::f32("samples", &[samples.len()], &samples)], Vec::new())
}
