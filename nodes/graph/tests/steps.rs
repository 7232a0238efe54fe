//! Shutdown at every step of the engine: graceful and hard, over graphs of every kind of waiting.

mod common;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use common::*;
use oxiline_graph::payload::Text;
use oxiline_graph::plan::*;
use oxiline_graph::{Io, Outcome, RunOptions, Runtime, Span, StopAt, Summary, Timed};

/// fork → slow, fast → join → sink: every edge fills, the slow branch sleeps, the join waits on bounds.
fn diamond(full: Full, log: &Log) -> Plan {
    let fork = node("fork", &["in"], &["x", "y"], |io| {
        let (input, x, y) = (io.input::<Text>("in")?, io.output::<Text>("x")?, io.output::<Text>("y")?);
        while let Some(item) = input.recv()? {
            x.send(item.clone())?;
            y.send(item)?;
        }
        Ok(())
    });
    let slow = node("slow", &["in"], &["out"], |io| {
        let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
        while let Some(item) = input.recv()? {
            io.sleep(Span::ms(7))?;
            out.send(item)?;
        }
        Ok(())
    });
    let join = node("join", &["l", "r"], &["out"], |io: &Io| {
        let out = io.output::<Text>("out")?;
        while let Some((_, item)) = io.recv_any()? {
            if let oxiline_graph::Item::Data(header, oxiline_graph::Payload::Text(value)) = item {
                out.send(Timed { header, value })?;
            }
        }
        Ok(())
    });
    plan(
        vec![source("a", 8), fork, slow, pass("fast"), join, sink("end", log)],
        vec![
            edge((0, 0), (1, 0), 1, Full::Block),
            edge((1, 0), (2, 0), 1, full),
            edge((1, 1), (3, 0), 2, Full::Block),
            edge((2, 0), (4, 0), 1, Full::Block),
            edge((3, 0), (4, 1), 2, Full::Block),
            edge((4, 0), (5, 0), 1, Full::Block),
        ],
    )
}

fn stopped(full: Full, step: u64, hard: bool) -> (Summary, Vec<String>, u64) {
    let (log, steps) = (Log::default(), Arc::new(AtomicU64::new(0)));
    let stop_at = Some(StopAt { step, hard, steps: steps.clone() });
    let runtime = Runtime::isolated(RunOptions { threads: Some(1), stop_at, ..RunOptions::default() });
    let summary = runtime.start(diamond(full, &log)).expect("starts").wait();
    (summary, lines(&log), steps.load(SeqCst))
}

#[test]
fn shutdown_at_every_engine_step_ends_conserves_and_tells() {
    for full in [Full::Block, Full::DropOldest] {
        let (whole, all, steps) = stopped(full, u64::MAX, false);
        assert_eq!(whole.outcome, Outcome::Complete, "{whole}");
        assert!(steps > 100, "{steps} steps");
        for (step, hard) in (0..steps).flat_map(|step| [(step, false), (step, true)]) {
            let (summary, got, _) = stopped(full, step, hard);
            let place = format!("{full:?}, step {step} of {steps}, hard: {hard}: {summary}");
            assert!(summary.conserved, "{place}");
            assert_ne!(summary.outcome, Outcome::Failed, "{place}");
            assert!(summary.stats.nodes.iter().all(|n| ["complete", "stopped"].contains(&n.state)), "{place}");
            let ends = got.iter().filter(|l| l.starts_with("Eos")).count();
            if hard {
                // A sink that is cancelled may not see the end; it sees no second one and nothing after it.
                assert!(ends <= 1, "{place}");
            } else {
                assert_eq!(ends, 1, "{place}: {got:?}");
            }
            assert!(ends == 0 || got.last().is_some_and(|l| l.starts_with("Eos")), "{place}: {got:?}");
            let complete = got.last().is_some_and(|l| l == "Eos(Complete)");
            // Nobody is told that a part is the whole.
            assert!(!complete || got == all, "{place}: {got:?}");
            assert_eq!(summary.exit_code, if summary.outcome == Outcome::Complete { 0 } else { 130 }, "{place}");
            if summary.outcome == Outcome::Complete {
                assert_eq!(got, all, "{place}");
            }
        }
    }
}
