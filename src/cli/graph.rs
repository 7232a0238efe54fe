//! `oxiline graph check | show | dot | mermaid` and `oxiline schema`.

use oxiline::graph::plan::Plan;
use oxiline::graph::schema::{nodes_markdown, schema as json_schema};
use oxiline::graph::{Error, Result, show};

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
    let plan = |file: &GraphFile| oxiline::graphs::inspect_file(&file.graph, &registry, &sets(&file.sets)?);
    match &args.what {
        GraphVerb::Check(file) => check(&plan(file)?)?,
        GraphVerb::Show(file) => print(show::show(&plan(file)?).trim_end())?,
        GraphVerb::Dot(file) => print(show::dot(&plan(file)?).trim_end())?,
        GraphVerb::Mermaid(file) => print(show::mermaid(&plan(file)?).trim_end())?,
    }
    Ok(Outcome::Done)
}

/// What a person wants to know of a graph that is right: its limits, and that nothing is wrong.
fn check(plan: &Plan) -> Result<()> {
    print(show::show(plan).trim_end())?;
    print(format_args!("\n{}: no mistakes found", plan.name))
}

/// Runs `oxiline schema`.
pub fn schema(args: Schema) -> Result<Outcome> {
    let registry = oxiline::registry();
    if args.markdown {
        print(nodes_markdown(&registry).trim_end())?;
    } else {
        print(serde_json::to_string_pretty(&json_schema(&registry)).map_err(Error::msg)?)?;
    }
    Ok(Outcome::Done)
}
