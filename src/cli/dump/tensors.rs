//! `oxiline dump tensors`: what a checkpoint holds.

use oxiline::graph::{Error, Result};
use oxiline::weights::{Checkpoint, Mode};
use serde_json::json;

use super::file::{self, Out};
use crate::cli::args::DumpTensors;

pub fn run(args: DumpTensors) -> Result<()> {
    let path = oxiline::models::resolve(&args.model)?;
    let checkpoint = Checkpoint::open(&path, Mode::Mmap).map_err(Error::msg)?;
    let (Some(name), Some(output)) = (&args.tensor, &args.output) else {
        let mut names: Vec<&str> = checkpoint.names().collect();
        names.sort_unstable();
        let list = names
            .into_iter()
            .map(|name| {
                let info = checkpoint.info(name).map_err(Error::msg)?;
                let file = info.file.file_name().map(|f| f.to_string_lossy().into_owned());
                Ok(json!({
                    "name": name, "shape": info.shape, "dtype": info.dtype.name(), "file": file, "bytes": info.bytes,
                }))
            })
            .collect::<Result<Vec<_>>>()?;
        let text = serde_json::to_string_pretty(&list).map_err(Error::msg)?;
        return crate::cli::print(text);
    };
    let info = checkpoint.info(name).map_err(Error::msg)?;
    file::apart(&info.file, output)?;
    let values = checkpoint.f32(name).map_err(Error::msg)?;
    file::write(output, &[Out::f32(name, &info.shape, &values)], Vec::new())
}
