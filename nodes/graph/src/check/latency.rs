//! Worst-case latency along paths, and forks whose branches could starve their join.

use std::collections::{HashMap, HashSet};

use super::{Work, waits};
use crate::load::message::{Reports, Spot};
use crate::plan::Plan;
use crate::time::Span;

/// The slowest way to one sink.
#[derive(Debug, Clone, PartialEq)]
pub struct PathLatency {
    /// The sink.
    pub sink: String,
    /// Sum of the least latencies along the way.
    pub min: Span,
    /// Sum of the most.
    pub max: Span,
    /// The nodes on the way that add something, with what they add at most.
    pub parts: Vec<(String, Span)>,
}

struct Graph<'a> {
    names: Vec<&'a str>,
    latency: Vec<(Span, Span)>,
    edges: Vec<(usize, usize)>,
}

fn add(a: Span, b: Span) -> Span {
    Span(a.0.saturating_add(b.0))
}

fn paths(graph: &Graph<'_>, order: &[usize]) -> Vec<PathLatency> {
    let n = graph.names.len();
    let mut best: Vec<(Span, Option<usize>)> = vec![(Span::default(), None); n];
    let mut into: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut sink = vec![true; n];
    for &(from, to) in &graph.edges {
        into[to].push(from);
        sink[from] = false;
    }
    for &node in order {
        for &from in &into[node] {
            if best[node].1.is_none() || best[from].0 > best[node].0 {
                best[node] = (best[from].0, Some(from));
            }
        }
        best[node].0 = add(best[node].0, graph.latency[node].1);
    }
    (0..n)
        .filter(|&i| sink[i])
        .map(|i| {
            let (mut parts, mut min, mut at) = (Vec::new(), Span::default(), Some(i));
            while let Some(node) = at {
                min = add(min, graph.latency[node].0);
                if !graph.latency[node].1.0.is_zero() {
                    parts.push((graph.names[node].to_string(), graph.latency[node].1));
                }
                at = best[node].1;
            }
            parts.reverse();
            PathLatency { sink: graph.names[i].into(), min, max: best[i].0, parts }
        })
        .collect()
}

/// The slowest way to every sink of a plan.
pub fn of_plan(plan: &Plan) -> Vec<PathLatency> {
    let edges: Vec<(usize, usize)> = plan.edges.iter().filter(|e| !e.feedback).map(|e| (e.from.0, e.to.0)).collect();
    let Ok(order) = super::order::sort(plan.nodes.len(), &edges) else { return Vec::new() };
    let graph = Graph {
        names: plan.nodes.iter().map(|n| &*n.name).collect(),
        latency: plan.nodes.iter().map(|n| n.declared.latency).collect(),
        edges,
    };
    paths(&graph, &order)
}

/// `latency_budget`.
pub(crate) fn check(work: &Work<'_>, order: &[usize], budget: Option<(Span, Spot)>, reports: &mut Reports) {
    let Some((budget, spot)) = budget else { return };
    let graph = Graph {
        names: work.nodes.iter().map(|n| &*n.name).collect(),
        latency: work.nodes.iter().map(|n| n.declared.latency).collect(),
        edges: work.edges.iter().filter(|e| !e.planned.feedback).map(|e| (e.planned.from.0, e.planned.to.0)).collect(),
    };
    let Some(worst) = paths(&graph, order).into_iter().max_by_key(|p| p.max) else { return };
    if worst.max <= budget {
        return;
    }
    let mut parts = worst.parts;
    parts.sort_by_key(|(_, span)| std::cmp::Reverse(*span));
    let most: Vec<String> = parts.iter().take(4).map(|(name, span)| format!("`{name}` {span}")).collect();
    reports.error(
        spot,
        format!(
            "what reaches `{}` may be {} late, more than `latency_budget = \"{budget}\"`: {}; make the largest smaller or raise the budget",
            worst.sink,
            worst.max,
            most.join(", ")
        ),
    );
}

/// Graphs are small; this bounds what a hostile one costs.
const MOST_STEPS: usize = 2_000_000;

/// One way back from a join.
#[derive(Clone, Copy)]
struct Way {
    /// What the nodes on the slowest way hold back before they give anything.
    holds: Span,
    /// What the edges and nodes of the way can keep; `None`: no limit in time, or it never waits.
    keeps: Option<Span>,
}

/// A join waits for all its inputs; if one branch holds back more time than another can keep,
/// the fork waits for the full branch and the slow one never gets its data.
pub(crate) fn forks(work: &Work<'_>, order: &[usize], reports: &mut Reports) {
    let mut into: Vec<Vec<usize>> = vec![Vec::new(); work.nodes.len()];
    let mut rank = vec![0; work.nodes.len()];
    for (i, &node) in order.iter().enumerate() {
        rank[node] = i;
    }
    for (i, edge) in work.edges.iter().enumerate().filter(|(_, e)| !e.planned.feedback) {
        into[edge.planned.to.0].push(i);
    }
    let mut steps = 0;
    for &join in order.iter().filter(|&&n| into[n].len() > 1) {
        let mut ways: Vec<(usize, HashMap<usize, Way>)> = Vec::new();
        for &edge in &into[join] {
            ways.push((edge, back(work, edge, &into, &rank, &mut steps)));
            if steps > MOST_STEPS {
                reports.note(
                    work.spots[join],
                    "the graph is too large to check every fork for starving joins; the runtime still reports them",
                );
                return;
            }
        }
        'pairs: for (slow_edge, slow) in &ways {
            for (fast_edge, fast) in ways.iter().filter(|(e, _)| e != slow_edge) {
                let common: HashSet<usize> = slow.keys().filter(|n| fast.contains_key(n)).copied().collect();
                // The nearest fork decides: further ones only add what both branches share.
                let Some(fork) = common.into_iter().max_by_key(|&n| rank[n]) else { continue };
                let (slow_way, fast_way) = (slow[&fork], fast[&fork]);
                let Some(keeps) = fast_way.keeps else { continue };
                if slow_way.holds <= keeps {
                    continue;
                }
                let missing = Span(slow_way.holds.0 - keeps.0);
                let edge = &work.edges[*fast_edge];
                let slow_name = work.in_name(work.edges[*slow_edge].planned.to);
                reports.error(
                    edge.spot,
                    format!(
                        "`{}` could starve: what reaches `{slow_name}` from `{}` comes up to {} late, but the branch to `{}` keeps only {keeps}; raise a `cap` on it by {missing}",
                        work.nodes[join].name,
                        work.nodes[fork].name,
                        slow_way.holds,
                        work.in_name(edge.planned.to)
                    ),
                );
                break 'pairs;
            }
        }
    }
}

/// All nodes behind `edge`, with what the way to each holds and keeps.
fn back(work: &Work<'_>, edge: usize, into: &[Vec<usize>], rank: &[usize], steps: &mut usize) -> HashMap<usize, Way> {
    let mut ways: HashMap<usize, Way> = HashMap::new();
    let mut open = std::collections::BTreeSet::new();
    let visit = |node: usize,
                 way: Way,
                 open: &mut std::collections::BTreeSet<(usize, usize)>,
                 ways: &mut HashMap<usize, Way>| {
        let old = ways.entry(node).or_insert(way);
        old.holds = old.holds.max(way.holds);
        // Of two ways through the same branch the roomier one counts: only certain starving is told.
        old.keeps = match (old.keeps, way.keeps) {
            (Some(a), Some(b)) => Some(a.max(b)),
            _ => None,
        };
        open.insert((rank[node], node));
    };
    let step = |i: usize, way: Way| {
        let planned = &work.edges[i].planned;
        let time = planned.cap.time.filter(|_| waits(planned.full));
        let keeps = match (way.keeps, time) {
            (Some(a), Some(b)) => Some(add(a, b)),
            _ => None,
        };
        Way { holds: way.holds, keeps }
    };
    let start = Way { holds: Span::default(), keeps: Some(Span::default()) };
    visit(work.edges[edge].planned.from.0, step(edge, start), &mut open, &mut ways);
    while let Some((_, node)) = open.pop_last() {
        let way = ways[&node];
        let (least, most) = work.nodes[node].declared.latency;
        let through = Way { holds: add(way.holds, most), keeps: way.keeps.map(|k| add(k, least)) };
        for &i in &into[node] {
            *steps += 1;
            visit(work.edges[i].planned.from.0, step(i, through), &mut open, &mut ways);
        }
        if *steps > MOST_STEPS {
            break;
        }
    }
    ways
}
