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

/// Runs `oxiline graph`.
pub fn run(args: Graph) -> Result<Outcome> {
    let registry = oxiline::registry();
    let plan = |file: &GraphFile| oxiline::graphs::plan_file(&file.graph, &registry, &sets(&file.sets)?);
    match &args.what {
        GraphVerb::Check(file) => {
            let plan = plan(file)?;
            print(plan.notes.join("\n"))?;
        }
        GraphVerb::Show(file) | GraphVerb::Dot(file) | GraphVerb::Mermaid(file) => {
            plan(file)?;
        }
    }
    Ok(Outcome::Done)
}

/// Runs `oxiline schema`.
pub fn schema(_args: Schema) -> Result<Outcome> {
    Ok(Outcome::Done)
}
