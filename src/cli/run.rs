//! `oxiline run`: graphs from files, all in one process.

use std::collections::HashMap;

use oxiline::graph::Result;

use super::args::{Common, Run};
use super::execute::Session;
use super::{Outcome, quiet, say};

/// Runs the verb.
pub fn run(args: Run, common: &Common) -> Result<Outcome> {
    let registry = oxiline::registry();
    let sets = super::graph::sets(&args.sets)?;
    let mut plans = Vec::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    for path in &args.graphs {
        let mut plan = oxiline::graphs::plan_file(path, &registry, &sets)?;
        // Two graphs of one name (one file twice) must stay apart in messages and statistics.
        let n = names.entry(plan.name.to_string()).or_default();
        *n += 1;
        if *n > 1 {
            plan.name = format!("{}-{n}", plan.name).into();
        }
        // Before the work, not after it.
        if !quiet(common) {
            std::mem::take(&mut plan.notes).iter().for_each(say);
        }
        plans.push(plan);
    }
    Session::new(common, true, |_| true).run(plans, args.strict)
}
