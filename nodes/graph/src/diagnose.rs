//! Sentences about a graph that does not move: the wait-for graph and the watchdog's line.

use crate::engine::{Engine, State, Status, Want};

fn doing(engine: &Engine, state: &State, node: usize) -> String {
    let name = &engine.nodes[node].name;
    let at = &state.nodes[node];
    match (at.status, at.want) {
        (Status::Done, _) => format!("{name} has ended"),
        (Status::Ready | Status::Running, Want::Model) | (Status::Waiting, Want::Model) => {
            format!("{name} waits for its model")
        }
        (Status::Running, _) => format!("{name} runs"),
        (Status::Ready, _) => format!("{name} is ready"),
        (Status::Waiting, Want::Output(Some(l), _)) => {
            format!("{name} waits for space on {} ({})", engine.edges[l].name, state.links[l].depth())
        }
        (Status::Waiting, Want::Input(port) | Want::Poll(port)) => {
            let info = &engine.nodes[node];
            let links = port.map_or(&info.all_inputs, |p| &info.inputs[p]);
            let empty: Vec<&str> = links
                .iter()
                .filter(|&&l| state.links[l].is_empty() && state.links[l].end().is_none())
                .map(|&l| engine.edges[l].name.as_str())
                .collect();
            format!("{name} waits for input on {}", empty.join(", "))
        }
        (Status::Waiting, Want::Resume) => format!("{name} is paused"),
        (Status::Waiting, Want::Sleep(_)) => format!("{name} sleeps"),
        (Status::Waiting, Want::Start | Want::Output(None, _)) => format!("{name} waits for its turn"),
    }
}

/// Whom a node waits for.
fn waits_for(engine: &Engine, state: &State, node: usize) -> Vec<usize> {
    if state.nodes[node].status != Status::Waiting {
        return Vec::new();
    }
    match state.nodes[node].want {
        Want::Output(Some(l), _) => vec![engine.edges[l].to.0],
        Want::Input(port) | Want::Poll(port) => {
            let info = &engine.nodes[node];
            let links = port.map_or(&info.all_inputs, |p| &info.inputs[p]);
            let empty = links.iter().filter(|&&l| state.links[l].is_empty() && state.links[l].end().is_none());
            empty.map(|&l| engine.edges[l].from.0).collect()
        }
        _ => Vec::new(),
    }
}

/// The deadlock, as a cycle of waiting nodes.
pub(crate) fn deadlock(engine: &Engine, state: &State) -> String {
    // Every waiting node waits for another: following the first one of each must close a circle,
    // unless one waits for a node that has ended (then that chain is the report).
    let mut path: Vec<usize> = Vec::new();
    let mut at = (0..state.nodes.len()).find(|&n| state.nodes[n].status == Status::Waiting);
    let mut cycle = false;
    while let Some(node) = at {
        if let Some(start) = path.iter().position(|&n| n == node) {
            path.drain(..start);
            cycle = true;
            break;
        }
        path.push(node);
        at = waits_for(engine, state, node).into_iter().find(|&n| state.nodes[n].status == Status::Waiting);
    }
    let steps: Vec<String> = path.iter().map(|&n| doing(engine, state, n)).collect();
    format!(
        "the graph `{}` cannot go on: {}: {}; give the full edge a larger `cap`, or mark the edge that closes the \
         circle `feedback = true` with a policy that drops",
        engine.name,
        if cycle { "cycle" } else { "waiting" },
        steps.join("; ")
    )
}

/// One line about everything, for a node that makes no progress.
pub(crate) fn stall(engine: &Engine, state: &State, node: usize, seconds: f64) -> String {
    let others: Vec<String> = (0..state.nodes.len()).filter(|&n| n != node).map(|n| doing(engine, state, n)).collect();
    let inputs: Vec<String> = engine.nodes[node]
        .all_inputs
        .iter()
        .map(|&l| format!("{} ({})", engine.edges[l].name, state.links[l].depth()))
        .collect();
    format!(
        "node `{}` has made no progress for {seconds:.1} s with input waiting: {}; its inputs: {}; others: {}",
        engine.nodes[node].name,
        doing(engine, state, node),
        inputs.join(", "),
        others.join("; ")
    )
}
