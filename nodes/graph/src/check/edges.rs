//! Names to ports: who is connected to whom, what is left open, how much fits in between.

use super::build::Wiring;
use super::{Edge, Work, input_index, waits};
use crate::load::draft::{DraftInput, Endpoint, From};
use crate::load::message::{Reports, Spot, clip, list, suggest};
use crate::payload::PortType;
use crate::plan::{Cap, Full, PlannedEdge};
use crate::time::Span;

/// Resolves every input; reports what is unconnected or unused.
pub(crate) fn connect(work: &mut Work<'_>, wiring: &Wiring, reports: &mut Reports) {
    let mut used: Vec<Vec<bool>> = work.nodes.iter().map(|n| vec![false; n.declared.outputs.len()]).collect();
    for (to, inputs) in wiring.inputs.iter().enumerate() {
        if reports.flooded() {
            return;
        }
        let mut fed = vec![false; work.nodes[to].declared.inputs.len()];
        let mut why_absent = None;
        for input in inputs {
            let Some(port) = input_port(work, to, input, reports) else {
                // Told already; do not complain about the same input again.
                fed.fill(true);
                continue;
            };
            if fed[port] {
                reports.error(
                    input.spot,
                    format!(
                        "the input `{}` is connected twice; join the producers in a list",
                        work.in_name((to, port))
                    ),
                );
            }
            for edge in &input.edges {
                let end = match &edge.from {
                    From::End(end) => end,
                    From::Absent(why) => {
                        why_absent = Some((edge.spot, why.clone()));
                        continue;
                    }
                };
                fed[port] = true;
                let Some(from) = output_port(work, end, edge.spot, reports) else { continue };
                used[from.0][from.1] = true;
                let twin =
                    work.edges.iter().rev().take(64).any(|e| e.planned.from == from && e.planned.to == (to, port));
                if twin {
                    reports.error(
                        edge.spot,
                        format!("`{}` is connected to `{}` twice", work.out_name(from), work.in_name((to, port))),
                    );
                    continue;
                }
                if let Some(spot) = edge.by_turn.filter(|_| !work.nodes[to].declared.joins_turns) {
                    let text = format!(
                        "`{}` cannot join its inputs by turn, as node `{}` is asked to; leave `sync` out",
                        work.nodes[to].kind, work.nodes[to].name
                    );
                    reports.error(spot, text);
                }
                let planned = PlannedEdge {
                    from,
                    to: (to, port),
                    cap: edge.cap.unwrap_or_default(),
                    full: edge.full.unwrap_or_default(),
                    feedback: edge.feedback,
                    by_turn: edge.by_turn.is_some(),
                    ty: work.nodes[from.0].declared.outputs[from.1].ty.clone(),
                };
                let own_cap = edge.cap.is_some();
                work.edges.push(Edge {
                    planned,
                    spot: edge.spot,
                    own_cap,
                    convert: edge.convert,
                    via: edge.via.clone(),
                });
            }
            // An input fed by a list that came out empty was told where the list went wrong.
            fed[port] |= input.edges.is_empty();
        }
        open_inputs(work, to, &fed, why_absent, reports);
    }
    for (end, spot) in &wiring.exported {
        if let Some(from) = output_port(work, end, *spot, reports) {
            used[from.0][from.1] = true;
        }
    }
    for (i, node) in work.nodes.iter().enumerate() {
        let wanted = node.declared.outputs.iter().any(|port| !port.optional);
        if wanted && !used[i].iter().any(|u| *u) {
            let names: Vec<String> = (0..used[i].len()).map(|o| work.out_name((i, o))).collect();
            let what = if names.len() == 1 { "is" } else { "are" };
            reports.warn(
                work.spots[i],
                format!(
                    "{} {what} never used: `{}` works for nothing; connect it or remove the node",
                    list(&names),
                    node.name
                ),
            );
        }
    }
}

fn open_inputs(work: &Work<'_>, to: usize, fed: &[bool], absent: Option<(Spot, String)>, reports: &mut Reports) {
    for (i, port) in work.nodes[to].declared.inputs.iter().enumerate() {
        if fed[i] || port.optional {
            continue;
        }
        if let Some((spot, why)) = &absent {
            reports.error(*spot, why.clone());
            continue;
        }
        let makers = work
            .nodes
            .iter()
            .enumerate()
            .filter(|(n, _)| *n != to)
            .flat_map(|(n, node)| node.declared.outputs.iter().enumerate().map(move |(o, p)| (n, o, p)))
            .filter(|(.., p)| p.ty.name() == port.ty.name())
            .map(|(n, o, _)| work.out_name((n, o)))
            .next();
        let example = makers.unwrap_or_else(|| "NODE.PORT".into());
        let write = match work.nodes[to].declared.inputs.len() {
            1 => format!("`in = \"{example}\"`"),
            _ => format!("`in = {{ {} = \"{example}\" }}`", port.name),
        };
        reports.error(
            work.spots[to],
            format!("the input `{}` ({}) is not connected; add {write}", work.in_name((to, i)), port.ty.name()),
        );
    }
}

fn input_port(work: &Work<'_>, to: usize, input: &DraftInput, reports: &mut Reports) -> Option<usize> {
    let node = &work.nodes[to];
    let declared = &node.declared;
    let names: Vec<&str> = declared.inputs.iter().map(|p| p.name).collect();
    match &input.port {
        Some(name) => input_index(declared, name).or_else(|| {
            let hint =
                if names.is_empty() { "; it has no inputs".into() } else { suggest(name, names.iter().copied()) };
            reports.error(
                input.spot,
                format!("node `{}` (`{}`) has no input `{}`{hint}", node.name, node.kind, clip(name)),
            );
            None
        }),
        None => {
            let required: Vec<usize> = (0..names.len()).filter(|&i| !declared.inputs[i].optional).collect();
            match (names.len(), required.as_slice()) {
                (1, _) => Some(0),
                (_, [only]) => Some(*only),
                (0, _) => {
                    reports.error(
                        input.spot,
                        format!("node `{}` (`{}`) has no inputs; remove `in`", node.name, node.kind),
                    );
                    None
                }
                _ => {
                    reports.error(
                        input.spot,
                        format!(
                            "node `{}` has several inputs, {}; name one: `in = {{ {} = ... }}`",
                            node.name,
                            list(&names),
                            names[0]
                        ),
                    );
                    None
                }
            }
        }
    }
}

fn output_port(work: &Work<'_>, end: &Endpoint, spot: Spot, reports: &mut Reports) -> Option<(usize, usize)> {
    let Some(&node) = work.by_name.get(&end.node) else {
        let hint = suggest(&end.node, work.nodes.iter().take(2_000).map(|n| &*n.name));
        reports.error(spot, format!("there is no node `{}`{hint}", clip(&end.node)));
        return None;
    };
    let declared = &work.nodes[node].declared;
    let names: Vec<&str> = declared.outputs.iter().map(|p| p.name).collect();
    match &end.port {
        Some(name) => match names.iter().position(|n| n == name) {
            Some(port) => Some((node, port)),
            None => {
                let hint =
                    if names.is_empty() { "; it has no outputs".into() } else { suggest(name, names.iter().copied()) };
                reports.error(
                    spot,
                    format!("node `{}` (`{}`) has no output `{}`{hint}", end.node, work.nodes[node].kind, clip(name)),
                );
                None
            }
        },
        None => match names.len() {
            1 => Some((node, 0)),
            0 => {
                reports.error(
                    spot,
                    format!("node `{}` (`{}`) has no outputs to take from", end.node, work.nodes[node].kind),
                );
                None
            }
            _ => {
                reports.error(
                    spot,
                    format!(
                        "node `{}` has several outputs, {}; name one: `{}.{}`",
                        end.node,
                        list(&names),
                        end.node,
                        names[0]
                    ),
                );
                None
            }
        },
    }
}

/// Feedback edges must not wait: two nodes that wait for each other never go on.
pub(crate) fn feedback(work: &Work<'_>, reports: &mut Reports) {
    for edge in work.edges.iter().filter(|e| e.planned.feedback && waits(e.planned.full)) {
        reports.error(
            edge.spot,
            format!(
                "the feedback edge `{}` → `{}` has `full = \"block\"`, so its circle could wait for itself forever; use \"latest\" or \"drop-oldest\"",
                work.out_name(edge.planned.from),
                work.in_name(edge.planned.to)
            ),
        );
    }
}

/// Capacity of an edge that says nothing (graph.md 2.3).
pub(crate) fn default_cap(ty: &PortType) -> Cap {
    let items = |n| Cap { items: Some(n), time: None, bytes: None };
    match ty {
        PortType::Audio { .. } | PortType::Packet | PortType::Video => {
            Cap { items: Some(8), time: Some(Span::ms(500)), bytes: None }
        }
        PortType::Text | PortType::Tokens | PortType::Codes | PortType::Transcript => items(256),
        PortType::Event => items(64),
        PortType::Image | PortType::Tensor | PortType::Embed => items(8),
        PortType::Any => items(64),
    }
}

/// Fills in capacities that stand nowhere.
pub(crate) fn default_caps(work: &mut Work<'_>) {
    for edge in &mut work.edges {
        if !edge.own_cap {
            edge.planned.cap = match edge.planned.full {
                Full::Latest => Cap { items: Some(1), ..Cap::default() },
                _ => default_cap(&edge.planned.ty),
            };
        }
    }
}
