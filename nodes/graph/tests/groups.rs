//! Who is restarted together, and graphs that outlive their sources.

mod common;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::*;
use oxiline_graph::payload::Text;
use oxiline_graph::plan::*;
use oxiline_graph::{Io, Outcome, RunOptions, Runtime, Setup, Span, Summary};

/// Passes texts on and can be made again; `failures` of its items are one too many.
fn member(name: &str, failures: u32) -> PlannedNode {
    let left = Arc::new(AtomicU32::new(failures));
    let make: MakeNode = Arc::new(move |_| {
        let left = left.clone();
        Ok(Box::new(Fun(move |io: &Io| {
            let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
            while let Some(item) = input.recv()? {
                if item.header.seq == 20 && left.swap(0, Ordering::SeqCst) > 0 {
                    panic!("bad weather");
                }
                out.send(item)?;
            }
            Ok(())
        })))
    });
    let mut planned = node(name, &["in"], &["out"], |_| Ok(()));
    planned.node = make(&mut Setup::new(name.into(), None)).unwrap();
    planned.make = make;
    planned.restart =
        Some(Restart { max: 3, within: Span::secs(60), backoff: Span::ms(10), backoff_max: Span::secs(1) });
    planned.scope = Some(0);
    planned
}

/// before → failing → after → end, the first three in one scope.
fn restarts(group: Group) -> (Summary, Vec<String>) {
    let log = Log::default();
    let nodes = vec![source("a", 50), member("before", 0), member("failing", 1), member("after", 0), sink("end", &log)];
    let edges = (0..4).map(|n| edge((n, 0), (n + 1, 0), 4, Full::Block)).collect();
    let mut plan = plan(nodes, edges);
    plan.scopes = vec![PlannedScope { name: "s".into(), group }];
    (run(plan), lines(&log))
}

#[test]
fn a_failure_restarts_its_group() {
    for (group, wanted) in [(Group::One, [0, 1, 0]), (Group::Rest, [0, 1, 1]), (Group::All, [1, 1, 1])] {
        let (summary, lines) = restarts(group);
        assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
        assert!(summary.conserved);
        let counts = ["before", "failing", "after"].map(|name| summary.node(name).unwrap().restarts);
        assert_eq!(counts, wanted, "{group:?}");
        assert!(lines.iter().any(|l| l == "Flush(0)") && lines.last().is_some_and(|l| l == "Eos(Complete)"));
        assert!(lines.iter().filter(|l| l.contains('@')).count() >= 40, "{lines:?}");
    }
}

#[test]
fn a_graph_that_never_ends_waits_for_its_stop() {
    let log = Log::default();
    let mut plan = plan(vec![source("a", 3), sink("end", &log)], vec![edge((0, 0), (1, 0), 4, Full::Block)]);
    plan.stays = true;
    let run = Runtime::isolated(RunOptions::default()).start(plan).unwrap();
    while lines(&log).last().is_none_or(|l| l != "Eos(Complete)") {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(30));
    assert!(!run.is_finished());
    run.stop();
    assert_eq!(run.wait().outcome, Outcome::Complete);
}
