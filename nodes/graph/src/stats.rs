//! Statistics and the summary of a run, for people (`Display`) and programs (`Serialize`).

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::engine::{Engine, NodeEnd, State, Status};
use crate::histogram::Histogram;
pub use crate::histogram::Percentiles;
use crate::link::DROP_REASONS;

/// What one node has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NodeStats {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// `"running"`, `"waiting"`, `"ready"`, `"complete"`, `"stopped"`, `"failed"`, `"bypassed"`.
    pub state: &'static str,
    /// Why it failed or was bypassed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Data items taken from all inputs.
    pub items_in: u64,
    /// Data items sent (counted once, however many edges an output has).
    pub items_out: u64,
    /// Seconds of its thread that were spent working (not waiting).
    pub busy_s: f64,
    /// Seconds waited for input.
    pub wait_in_s: f64,
    /// Seconds waited for room on an output.
    pub wait_out_s: f64,
    /// Seconds waited for a model.
    pub wait_model_s: f64,
    /// Seconds slept or waited for a turn.
    pub sleep_s: f64,
    /// Restarts after failures.
    pub restarts: u32,
    /// Items skipped after an error.
    pub item_errors: u64,
    /// Items whose media time went backwards and was corrected.
    pub clamped: u64,
    /// The node's own counters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counters: BTreeMap<&'static str, u64>,
    /// The node's own values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reports: BTreeMap<&'static str, serde_json::Value>,
    /// Real time from taking an item to asking for the next (with statistics on).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Percentiles>,
    /// Heap allocations of the node's thread and their bytes, once it has ended (only in programs built
    /// with the feature `count-allocations`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations: Option<(u64, u64)>,
    /// Seconds done and in all, when the node reports progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<(f64, Option<f64>)>,
}

/// What passed over one edge.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EdgeStats {
    /// `sender.port → receiver.port`.
    pub name: String,
    /// Data items sent, received and still queued.
    pub sent: u64,
    /// Data items received.
    pub received: u64,
    /// Data items queued now.
    pub queued: u64,
    /// Data items not delivered, by reason (only reasons that occurred).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dropped: BTreeMap<&'static str, u64>,
    /// Payload bytes sent.
    pub bytes: u64,
    /// Gaps received.
    pub gaps: u64,
    /// Marks received.
    pub marks: u64,
    /// Most data items, bytes and nanoseconds of media queued at once.
    pub max_items: u64,
    /// Most payload bytes queued at once.
    pub max_bytes: u64,
    /// Most media time queued at once, nanoseconds.
    pub max_time: i64,
    /// How often the sender waited for room.
    pub blocked: u64,
    /// Seconds the sender waited for room.
    pub blocked_s: f64,
    /// Seconds since the oldest queued item was born.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_age_s: Option<f64>,
    /// Ages of received items, from their birth at a source to here (with statistics on). On an edge
    /// into a sink that is the latency of the whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age: Option<Percentiles>,
}

/// Requests of one class at a model actor.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ClassStats {
    /// Requests begun.
    pub requests: u64,
    /// Requests ended by the model.
    pub finished: u64,
    /// Of these with an error other than a cancel.
    pub failed: u64,
    /// Steps served.
    pub steps: u64,
    /// Seconds from request to first step, summed.
    pub wait_s: f64,
    /// The longest of these.
    pub wait_max_s: f64,
    /// Seconds of steps.
    pub service_s: f64,
}

/// What a model actor has done since it was loaded, for all its graphs together.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ModelStats {
    /// Name in the graph that loaded it.
    pub name: String,
    /// Kind.
    pub kind: String,
    /// Bytes of weights and scratch.
    pub memory: u64,
    /// Seconds it took to load.
    pub load_s: f64,
    /// Sessions opened so far.
    pub sessions: u64,
    /// Steps by number of jobs in them (index = jobs).
    pub batches: Vec<u64>,
    /// Interactive, live, batch.
    pub classes: [ClassStats; 3],
}

/// A look at a graph.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Nodes in plan order.
    pub nodes: Vec<NodeStats>,
    /// Edges in plan order.
    pub edges: Vec<EdgeStats>,
    /// Models in plan order.
    pub models: Vec<ModelStats>,
}

/// How a graph ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Everything was processed.
    Complete,
    /// Somebody stopped it: results are a part.
    Stopped,
    /// A node, a model or the graph itself failed.
    Failed,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The graph's name.
    pub graph: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The sentence, when it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// 0 complete, 1 failed, 3 complete with a bypassed node, 130 stopped.
    pub exit_code: u8,
    /// Does `sent = received + dropped + queued` hold on every edge?
    pub conserved: bool,
    /// Real seconds from start (loading included) to end.
    pub wall_s: f64,
    /// Sentences worth reading: notes of the plan, the nodes and the runtime.
    pub notes: Vec<String>,
    /// What was done.
    #[serde(flatten)]
    pub stats: Stats,
}

impl Summary {
    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&NodeStats> {
        self.stats.nodes.iter().find(|node| node.name == name)
    }

    /// The edge of this name (`a.x → b.y`).
    pub fn edge(&self, name: &str) -> Option<&EdgeStats> {
        self.stats.edges.iter().find(|edge| edge.name == name)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.outcome {
            Outcome::Complete => "complete",
            Outcome::Stopped => "stopped; results are a part",
            Outcome::Failed => "failed",
        };
        write!(f, "{}: {how} after {:.2} s", self.graph, self.wall_s)?;
        if let Some(error) = &self.error {
            write!(f, "\n  error: {error}")?;
        }
        for node in &self.stats.nodes {
            if let ("bypassed", Some(error)) = (node.state, &node.error) {
                write!(f, "\n  bypassed: {error}")?;
            }
            if node.restarts > 0 {
                write!(f, "\n  node `{}` was restarted {} times", node.name, node.restarts)?;
            }
            if node.item_errors > 0 {
                write!(f, "\n  node `{}` skipped {} damaged items", node.name, node.item_errors)?;
            }
        }
        for edge in &self.stats.edges {
            // Unread items are normal when a consumer ends early; stale ones when it was cancelled.
            let lost: u64 = ["evicted", "refused"].iter().filter_map(|r| edge.dropped.get(r)).sum();
            if lost > 0 {
                write!(f, "\n  edge `{}` dropped {lost} of {} items", edge.name, edge.sent)?;
            }
        }
        for note in &self.notes {
            write!(f, "\n  {note}")?;
        }
        Ok(())
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 * 1e-9
}

/// Nodes and edges as they are now.
pub(crate) fn collect(engine: &Engine, state: &State) -> Stats {
    let nodes = engine.nodes.iter().zip(&state.nodes).map(|(info, node)| {
        let (name, error) = match &node.end {
            Some(NodeEnd::Complete) => ("complete", None),
            Some(NodeEnd::Stopped) => ("stopped", None),
            Some(NodeEnd::Bypassed(error)) => ("bypassed", Some(error.clone())),
            Some(NodeEnd::Failed(error)) => ("failed", Some(error.clone())),
            None => match node.status {
                Status::Running => ("running", None),
                Status::Ready => ("ready", None),
                Status::Waiting | Status::Done => ("waiting", None),
            },
        };
        let [wait_in, wait_out, wait_model, sleep] = node.waited;
        let alive = match (node.started_at, node.ended_at) {
            (Some(from), Some(to)) => to.saturating_duration_since(from).as_secs_f64(),
            (Some(from), None) => from.elapsed().as_secs_f64(),
            _ => 0.0,
        };
        NodeStats {
            name: info.name.to_string(),
            kind: info.kind.to_string(),
            state: name,
            error,
            items_in: node.items_in,
            items_out: node.items_out,
            busy_s: (alive - seconds(wait_in + wait_out + wait_model + sleep)).max(0.0),
            wait_in_s: seconds(wait_in),
            wait_out_s: seconds(wait_out),
            wait_model_s: seconds(wait_model),
            sleep_s: seconds(sleep),
            restarts: node.restarts,
            item_errors: node.item_errors,
            clamped: node.clamped,
            counters: node.counters.clone(),
            reports: node.reports.clone(),
            service: node.service.as_ref().and_then(Histogram::percentiles),
            allocations: node.allocations,
            progress: node.progress,
        }
    });
    let edges = engine.edges.iter().zip(&state.links).map(|(info, link)| {
        let counts = link.counts();
        let dropped = DROP_REASONS.iter().zip(counts.dropped).filter(|(_, n)| *n > 0);
        EdgeStats {
            name: info.name.clone(),
            sent: counts.sent,
            received: counts.received,
            queued: link.queued(),
            dropped: dropped.map(|(reason, n)| (*reason, n)).collect(),
            bytes: counts.bytes,
            gaps: counts.gaps,
            marks: counts.marks,
            max_items: counts.max_items,
            max_bytes: counts.max_bytes,
            max_time: counts.max_time,
            blocked: counts.blocked,
            blocked_s: seconds(counts.blocked_ns),
            head_age_s: link.oldest().map(|born| engine.clock.now().saturating_sub(born).max(0) as f64 * 1e-9),
            age: link.ages(),
        }
    });
    Stats { nodes: nodes.collect(), edges: edges.collect(), models: Vec::new() }
}
