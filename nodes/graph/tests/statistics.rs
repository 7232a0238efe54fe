//! Ages along a path and times at work, as statistics tell them.

mod common;
use std::time::Duration;

use common::*;
use oxiline_graph::payload::Text;
use oxiline_graph::plan::*;
use oxiline_graph::{RunOptions, Runtime, Span, Summary, Timed};

/// A source, a node that takes 20 ms of graph time (1 ms of real time) an item, a sink.
fn measured(stats: bool) -> Summary {
    let slow = node("slow", &["in"], &["out"], |io| {
        let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
        while let Some(item) = input.recv()? {
            io.sleep(Span(Duration::from_millis(20)))?;
            std::thread::sleep(Duration::from_millis(1));
            out.send(item)?;
        }
        Ok(())
    });
    let ticks = node("ticks", &[], &["out"], |io| {
        let out = io.output::<Text>("out")?;
        for i in 0..100 {
            io.sleep_until(i * 50_000_000)?;
            // Born when it is sent: time 0 would mean "not stamped".
            out.send(Timed::at(i * 50_000_000, 50_000_000, text(i)))?;
        }
        Ok(())
    });
    let log = Log::default();
    let edges = vec![edge((0, 0), (1, 0), 4, Full::Block), edge((1, 0), (2, 0), 4, Full::Block)];
    let options = RunOptions { stats, ..RunOptions::default() };
    Runtime::isolated(options).start(plan(vec![ticks, slow, sink("end", &log)], edges)).unwrap().wait()
}

#[test]
fn the_age_at_a_sink_is_the_latency_of_the_path() {
    let summary = measured(true);
    let at = |name: &str| summary.edge(name).unwrap().age.unwrap();
    let (first, path) = (at("ticks.out → slow.in"), at("slow.out → end.in"));
    assert_eq!((first.count, first.max), (100, 0.0), "taken in the same instant of virtual time");
    assert_eq!(path.count, 100);
    assert!((path.max - 0.02).abs() < 1e-9, "{path:?}");
    assert!((path.p50 / 0.02 - 1.0).abs() < 0.07 && path.p99 <= path.max, "{path:?}");
    let service = summary.node("slow").unwrap().service.unwrap();
    assert!(service.p50 >= 0.9e-3 && service.count >= 99, "{service:?}");
}

#[test]
fn nothing_is_measured_when_nobody_asks() {
    let summary = measured(false);
    assert!(summary.stats.edges.iter().all(|edge| edge.age.is_none()));
    assert!(summary.stats.nodes.iter().all(|node| node.service.is_none()));
    assert_eq!(summary.edge("slow.out → end.in").unwrap().received, 100);
}

#[cfg(feature = "count-allocations")]
#[test]
fn allocations_are_counted_and_a_hop_makes_few() {
    let of = |items: u64| {
        let summary = run(plan(
            vec![source("a", items), pass("b"), pass("c"), sink("d", &Log::default())],
            (0..3).map(|n| edge((n, 0), (n + 1, 0), 8, Full::Block)).collect(),
        ));
        ["a", "b", "c"].map(|name| summary.node(name).unwrap().allocations.expect("counted").0)
    };
    let (few, many) = (of(100), of(2100));
    // The source makes a text an item; who passes it on allocates for a wake-up at most, never for an item.
    assert!(many[0] >= few[0] + 2000, "{few:?} {many:?}");
    for node in [1, 2] {
        assert!(many[node] < few[node] + 2000, "{few:?} {many:?}");
    }
}

#[cfg(not(feature = "count-allocations"))]
#[test]
fn allocations_are_not_counted_unless_asked_for() {
    let plan = plan(vec![source("a", 3), sink("b", &Log::default())], vec![edge((0, 0), (1, 0), 8, Full::Block)]);
    assert_eq!(run(plan).node("a").unwrap().allocations, None);
}
