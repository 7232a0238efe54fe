//! `oxiline dump embed`: texts to token ids, hidden states and vectors.

use std::io::Read;

use oxiline::EmbedOptions;
use oxiline::graph::{Error, Result};
use oxiline::kernels::Pool;
use oxiline::language::embed::{Prepared, TextEmbedder};
use oxiline::language::encoder::LoadOptions;

use super::file::{self, Out};
use crate::cli::args::DumpEmbed;

pub fn run(args: DumpEmbed) -> Result<()> {
    let mut input = Vec::new();
    std::io::stdin()
        .read_to_end(&mut input)
        .map_err(|e| Error::msg(format_args!("cannot read standard input: {e}")))?;
    let texts: Vec<String> = serde_json::from_slice(&input)
        .map_err(|e| Error::msg(format_args!("standard input is not a JSON array of texts: {e}")))?;
    if texts.is_empty() {
        return Err(Error::msg("standard input is an empty array; give at least one text"));
    }
    let path = oxiline::models::resolve(&args.model)?;
    let model = TextEmbedder::load(&path, &LoadOptions::default(), &mut |_, _| Ok(()))?;
    let options = EmbedOptions { prompt_name: args.prompt_name, dim: args.dim, ..EmbedOptions::default() };
    model.check(&options)?;
    let prepared: Vec<Prepared> = texts.iter().map(|t| model.prepare(t, &options)).collect::<Result<_>>()?;
    let (width, pool) = (model.encoder().spec().hidden, Pool::global());
    let longest = prepared.iter().map(Prepared::tokens).max().unwrap_or(0);
    let rows = texts.len() * longest;
    let (mut ids, mut mask, mut hidden) = (vec![0; rows], vec![0; rows], vec![0.0; rows * width]);
    let mut vectors = Vec::new();
    for (i, text) in prepared.iter().enumerate() {
        let (tokens, at) = (&text.pieces[0], i * longest);
        ids[at..at + tokens.ids.len()].copy_from_slice(&tokens.ids);
        mask[at..at + tokens.ids.len()].fill(1);
        let states = model.encoder().forward(pool, &[tokens])?;
        hidden[at * width..at * width + states.len()].copy_from_slice(&states);
        vectors.extend(model.run(pool, &[text], &options)?.remove(0).dense);
    }
    let dim = vectors.len() / texts.len();
    let tensors = [
        Out::ids("ids", &ids).shaped(&[texts.len(), longest]),
        Out::ids("mask", &mask).shaped(&[texts.len(), longest]),
        Out::f32("hidden", &[texts.len(), longest, width], &hidden),
        Out::f32("embeddings", &[texts.len(), dim], &vectors),
    ];
    file::write(&args.output, &tensors, Vec::new())
}
