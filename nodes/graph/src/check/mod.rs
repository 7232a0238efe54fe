//! From a flat draft to a checked plan: kinds, edges, types, cycles, latency, memory.

mod build;
mod edges;
pub(crate) mod latency;
pub(crate) mod memory;
mod negotiate;
pub(crate) mod order;

pub(crate) use negotiate::say as say_type;

use std::collections::HashMap;

use crate::load::draft::Draft;
use crate::load::message::{Reports, Spot, list};
use crate::load::{LoadOptions, Message};
use crate::node::Declared;
use crate::payload::PortType;
use crate::plan::{ClockKind, Full, Plan, PlannedEdge, PlannedModel, PlannedNode, PlannedScope};
use crate::registry::Registry;

/// The graph while it is checked. `nodes[i]` stands at `spots[i]`.
pub(crate) struct Work<'a> {
    pub registry: &'a Registry,
    pub nodes: Vec<PlannedNode>,
    pub spots: Vec<Spot>,
    pub edges: Vec<Edge>,
    pub models: Vec<PlannedModel>,
    pub by_name: HashMap<String, usize>,
    pub auto_convert: bool,
}

/// An edge while it is checked.
pub(crate) struct Edge {
    pub planned: PlannedEdge,
    pub spot: Spot,
    /// `cap` stood in the file.
    pub own_cap: bool,
    pub convert: Option<bool>,
    pub via: Vec<(String, PortType)>,
}

impl Work<'_> {
    /// `node.port` of an output.
    pub fn out_name(&self, (node, port): (usize, usize)) -> String {
        format!("{}.{}", self.nodes[node].name, self.nodes[node].declared.outputs[port].name)
    }

    /// `node.port` of an input.
    pub fn in_name(&self, (node, port): (usize, usize)) -> String {
        format!("{}.{}", self.nodes[node].name, self.nodes[node].declared.inputs[port].name)
    }
}

/// Checks kinds and options only, for graphs that already have mistakes.
pub(crate) fn kinds(draft: Draft, registry: &Registry, options: &LoadOptions, reports: &mut Reports) {
    let mut work = work(registry, &draft);
    build::build(&mut work, draft, options, reports);
}

fn work<'a>(registry: &'a Registry, draft: &Draft) -> Work<'a> {
    Work {
        registry,
        nodes: Vec::with_capacity(draft.nodes.len()),
        spots: Vec::with_capacity(draft.nodes.len()),
        edges: Vec::new(),
        models: Vec::new(),
        by_name: HashMap::new(),
        auto_convert: draft.graph.auto_convert,
    }
}

/// Checks everything.
pub(crate) fn plan(
    draft: Draft,
    registry: &Registry,
    options: &LoadOptions,
    mut reports: Reports,
) -> Result<Plan, Vec<Message>> {
    let mut work = work(registry, &draft);
    let (name, spot, graph) = (draft.name.clone(), draft.spot, draft.graph.clone());
    let scopes: Vec<(PlannedScope, Spot)> =
        draft.scopes.iter().map(|s| (PlannedScope { name: s.name.clone(), group: s.group }, s.spot)).collect();
    for scope in draft.scopes.iter().filter(|s| s.members == 0 && s.declared) {
        reports.warn(
            scope.spot,
            format!("no node belongs to the scope `{}`; put `scope = \"{}\"` on its nodes", scope.name, scope.name),
        );
    }
    let wiring = build::build(&mut work, draft, options, &mut reports);
    if work.nodes.is_empty() && !reports.failed() {
        reports.error(spot, "the graph has no nodes; add a `[nodes.NAME]` table with `use = \"KIND\"`");
    }
    if reports.failed() {
        return Err(reports.into_messages());
    }
    edges::connect(&mut work, &wiring, &mut reports);
    if !reports.failed() {
        edges::feedback(&work, &mut reports);
    }
    // What follows walks the graph in order: without an order there is nothing to walk.
    let order = if reports.failed() { None } else { order::check(&work, &mut reports) };
    if let Some(order) = order {
        negotiate::negotiate(&mut work, &order, &mut reports);
        edges::default_caps(&mut work);
        writers(&work, &mut reports);
        devices(&work, graph.clock, &mut reports);
        if !reports.failed()
            && let Some(order) = order::check(&work, &mut reports)
        {
            latency::check(&work, &order, graph.budget, &mut reports);
            latency::forks(&work, &order, &mut reports);
        }
    }
    if reports.failed() {
        return Err(reports.into_messages());
    }
    let mut plan = Plan {
        name: name.as_str().into(),
        clock: graph.clock,
        drain: graph.drain,
        restart: graph.restart,
        stays: graph.stays,
        nodes: work.nodes,
        edges: work.edges.into_iter().map(|e| e.planned).collect(),
        models: work.models,
        scopes: scopes.into_iter().map(|(s, _)| s).collect(),
        worst_case_bytes: None,
        notes: Vec::new(),
    };
    plan.worst_case_bytes = memory::bound(&plan).total();
    plan.notes = reports.into_messages().iter().map(ToString::to_string).collect();
    Ok(plan)
}

/// A device on a clock that does not wait for it.
fn devices(work: &Work<'_>, clock: ClockKind, reports: &mut Reports) {
    if clock != ClockKind::Virtual {
        return;
    }
    for (node, spot) in work.nodes.iter().zip(&work.spots).filter(|(node, _)| node.declared.device.is_some()) {
        reports.error(
            *spot,
            format!(
                "node `{}` drives a device, which has a time of its own; set `clock = \"auto\"` in `[graph]`",
                node.name
            ),
        );
    }
}

/// Two nodes that write one file.
fn writers(work: &Work<'_>, reports: &mut Reports) {
    let mut seen: HashMap<std::path::PathBuf, usize> = HashMap::new();
    for (i, node) in work.nodes.iter().enumerate() {
        for path in &node.declared.writes {
            let tidy: std::path::PathBuf = path.components().filter(|c| *c != std::path::Component::CurDir).collect();
            match seen.insert(tidy, i) {
                Some(first) if first != i => {
                    let names = list(&[&*work.nodes[first].name, &*node.name]);
                    let what = if path.as_os_str() == "-" {
                        "standard output".into()
                    } else {
                        format!("`{}`", path.display())
                    };
                    reports.error(work.spots[i], format!("{names} both write {what}; give one of them another file"));
                }
                _ => {}
            }
        }
    }
}

/// A port's index by name.
pub(crate) fn input_index(declared: &Declared, name: &str) -> Option<usize> {
    declared.inputs.iter().position(|p| p.name == name)
}

/// Would a full queue here make its sender wait?
pub(crate) fn waits(full: Full) -> bool {
    full == Full::Block
}
