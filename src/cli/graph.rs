//! `oxiline graph check | show | dot | mermaid` and `oxiline schema`.

use oxiline::graph::{Error, Result};

use super::args::{Graph, GraphFile, GraphVerb, Schema};
use super::{Outcome, print};

/// `key=value` pairs.
pub fn sets(pairs: &[String]) -> Result<Vec<(String, String)>> {
    pairs
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_string(), value.to_string())),
            _ => Err(Error::msg(format_args!("`--set {pair}` is not KEY=VALUE; write it like --set input=talk.mp3"))),
        })
        .collect()
}
