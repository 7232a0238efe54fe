//! Runs checked graphs for a verb: progress, Ctrl-C, statistics, exit code.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oxiline::graph::plan::Plan;
use oxiline::graph::run::{RunHandle, RunOptions, Runtime};
use oxiline::graph::stats::Outcome as GraphOutcome;
use oxiline::graph::{Error, Result, Summary};
use serde_json::{Value, json};

use super::args::{Common, Stats};
use super::progress::Bar;
use super::{Outcome, interrupt, memory, quiet, say};

/// Graphs of one process, run beside each other.
pub struct Session {
    runtime: Runtime,
    bar: Bar,
    stats: Option<Stats>,
    quiet: bool,
    /// Notes say which graph they are about.
    named: bool,
    began: Instant,
}

impl Session {
    /// `progress`: a bar may be drawn; `show` picks the node whose progress is the job's.
    pub fn new(common: &Common, progress: bool, show: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        let quiet = quiet(common);
        let bar = Bar::new(progress && !quiet);
        let stats = common.stats.is_some();
        let options = RunOptions { stats, observer: Some(bar.observer(show)), ..RunOptions::default() };
        Self { runtime: Runtime::new(options), bar, stats: common.stats, quiet, named: false, began: Instant::now() }
    }

    /// Notes begin with the name of their graph, for there are several.
    pub fn naming(self, named: bool) -> Self {
        Self { named, ..self }
    }

    /// Runs the graphs beside each other to their ends and says what a person should know.
    pub fn run(&self, plans: Vec<Plan>, strict: bool) -> Result<Outcome> {
        let handles = plans.into_iter().map(|plan| self.runtime.start(plan)).collect::<Result<Vec<_>>>()?;
        let stoppers: Vec<_> = handles.iter().map(RunHandle::stopper).collect();
        let guard = interrupt::on_interrupt(move |n| {
            if n == 1 {
                say("stopping; Ctrl-C again stops at once");
            }
            stoppers.iter().for_each(|stopper| stopper.stop());
        });
        let over = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            if self.stats == Some(Stats::Json) {
                let (handles, over) = (&handles, over.clone());
                scope.spawn(move || every_second(handles, &over));
            }
            while !handles.iter().all(RunHandle::is_finished) {
                std::thread::sleep(Duration::from_millis(2));
            }
            over.store(true, Ordering::Relaxed);
        });
        let summaries: Vec<Summary> = handles.into_iter().map(RunHandle::wait).collect();
        drop(guard);
        self.bar.finish();
        self.conclude(&summaries, strict)
    }

    fn conclude(&self, summaries: &[Summary], strict: bool) -> Result<Outcome> {
        let mut outcome = Outcome::Done;
        for summary in summaries {
            match self.stats {
                Some(Stats::Json) => say(end_line(summary, self.began.elapsed().as_secs_f64())),
                Some(Stats::Summary) => say(table(summary)),
                None if self.quiet => {}
                // A note that quotes the name says it already.
                None if self.named => summary.notes.iter().for_each(|note| match note.contains(&summary.graph) {
                    true => say(note),
                    false => say(format_args!("{}: {note}", summary.graph)),
                }),
                None => summary.notes.iter().for_each(say),
            }
            if !summary.conserved {
                return Err(Error::msg(format_args!(
                    "graph `{}` lost count of its items (sent = received + dropped + queued does not hold); \
                     please report this with --stats json",
                    summary.graph
                )));
            }
            match (summary.outcome, &summary.error) {
                (GraphOutcome::Failed, Some(error)) => {
                    say(format_args!("oxiline: {error}"));
                    outcome = Outcome::Failed;
                }
                (GraphOutcome::Failed, None) => outcome = Outcome::Failed,
                (GraphOutcome::Stopped, _) if !matches!(outcome, Outcome::Failed) => outcome = Outcome::Stopped,
                _ => {}
            }
            if summary.outcome == GraphOutcome::Complete && summary.exit_code != 0 {
                say(format_args!("oxiline: graph `{}` ended without a node that had to give up", summary.graph));
                outcome = Outcome::Failed;
            }
            if strict && let Some(loss) = loss(summary) {
                say(format_args!("oxiline: {loss} (--strict)"));
                outcome = Outcome::Failed;
            }
        }
        Ok(outcome)
    }
}

/// The first thing that was lost, as a sentence.
fn loss(summary: &Summary) -> Option<String> {
    let node = summary.stats.nodes.iter().find(|n| n.item_errors > 0);
    if let Some(node) = node {
        return Some(format!("node `{}` skipped {} damaged items", node.name, node.item_errors));
    }
    for node in &summary.stats.nodes {
        for (what, name) in [("overrun_frames", "captured"), ("lost_frames", "unheard")] {
            if let Some(n) = node.counters.get(what).filter(|n| **n > 0) {
                return Some(format!("node `{}` lost {n} {name} frames", node.name));
            }
        }
    }
    let edge = summary.stats.edges.iter().find(|e| e.dropped.values().any(|n| *n > 0))?;
    let lost: u64 = edge.dropped.values().sum();
    Some(format!("edge `{}` dropped {lost} of {} items", edge.name, edge.sent))
}

fn every_second(handles: &[RunHandle], over: &AtomicBool) {
    let mut next = Instant::now() + Duration::from_secs(1);
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
        if Instant::now() < next {
            continue;
        }
        next += Duration::from_secs(1);
        for handle in handles {
            say(json!({ "event": "stats", "stats": handle.stats() }));
        }
    }
}

/// What a model's node measured of itself.
fn measured(summary: &Summary, key: &str) -> f64 {
    summary.stats.nodes.iter().flat_map(|n| n.reports.values()).filter_map(|r| r.get(key)?.as_f64()).sum()
}

fn end_line(summary: &Summary, total: f64) -> Value {
    let audio = measured(summary, "audio_s");
    let mut line = json!({
        "event": "end",
        "graph": summary.graph,
        "outcome": summary.outcome,
        "load_s": summary.stats.models.iter().map(|m| m.load_s).sum::<f64>(),
        "features_s": measured(summary, "features_s"),
        "encode_s": measured(summary, "encode_s"),
        "decode_s": measured(summary, "decode_s"),
        "total_s": total,
        "audio_s": audio,
        "speed": if total > 0.0 { audio / total } else { 0.0 },
        "peak_memory_bytes": memory::peak_bytes(),
    });
    if let (Some(line), Ok(Value::Object(rest))) = (line.as_object_mut(), serde_json::to_value(summary)) {
        for (key, value) in rest {
            line.entry(key).or_insert(value);
        }
    }
    line
}

/// Two columns: the middle and the slowest of a hundred.
fn milliseconds(measured: Option<oxiline::graph::stats::Percentiles>) -> String {
    measured.map_or(String::new(), |p| format!(" {:>9.3} {:>9.3}", p.p50 * 1e3, p.p99 * 1e3))
}

fn table(summary: &Summary) -> String {
    use std::fmt::Write;
    let mut text = summary.to_string();
    let _ = write!(
        text,
        "\n  {:<20} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9}",
        "node", "busy s", "in s", "out s", "model s", "items", "p50 ms", "p99 ms"
    );
    for n in &summary.stats.nodes {
        let _ = write!(
            text,
            "\n  {:<20} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>8}{}",
            n.name,
            n.busy_s,
            n.wait_in_s,
            n.wait_out_s,
            n.wait_model_s,
            n.items_in.max(n.items_out),
            milliseconds(n.service)
        );
    }
    let _ = write!(
        text,
        "\n  {:<40} {:>8} {:>8} {:>8} {:>9} {:>9} {:>9}",
        "edge", "sent", "received", "deepest", "blocked s", "age p50", "p99 ms"
    );
    for e in &summary.stats.edges {
        let _ = write!(
            text,
            "\n  {:<40} {:>8} {:>8} {:>8} {:>9.3}{}",
            e.name,
            e.sent,
            e.received,
            e.max_items,
            e.blocked_s,
            milliseconds(e.age)
        );
    }
    for m in &summary.stats.models {
        let _ = write!(
            text,
            "\n  model {} ({}): {:.0} MB, loaded in {:.2} s",
            m.name,
            m.kind,
            m.memory as f64 / 1e6,
            m.load_s
        );
    }
    if let Some(peak) = memory::peak_bytes() {
        let _ = write!(text, "\n  peak memory {:.0} MB", peak as f64 / 1e6);
    }
    text
}
