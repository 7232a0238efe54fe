//! What an item costs on its way: link alone, thread to thread, fan-out, round trip.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{edge, node, plan, text};
use criterion::{Criterion, criterion_group, criterion_main};
use oxiline_graph::link::{Link, Push};
use oxiline_graph::payload::Text;
use oxiline_graph::plan::{Cap, Full, Plan, PlannedNode};
use oxiline_graph::{Item, RunOptions, Runtime, Timed};

fn feeder(n: u64) -> PlannedNode {
    let one = text("x");
    node("a", &[], &["out"], move |io| {
        let out = io.output::<Text>("out")?;
        (0..n as i64).try_for_each(|i| out.send(Timed::at(i, 1, one.clone())))
    })
}

fn eater(name: &str) -> PlannedNode {
    node(name, &["in"], &[], |io| {
        let input = io.input::<Text>("in")?;
        while input.recv()?.is_some() {}
        Ok(())
    })
}

fn timed(plan: Plan, stats: bool) -> Duration {
    let runtime = Runtime::isolated(RunOptions { stats, ..RunOptions::default() });
    let began = Instant::now();
    let summary = runtime.start(plan).expect("starts").wait();
    assert_eq!(summary.exit_code, 0, "{summary}");
    began.elapsed()
}

fn hops(c: &mut Criterion) {
    c.bench_function("link push+pop, same thread", |b| {
        let mut link = Link::new(Cap { items: Some(64), ..Cap::default() }, Full::Block);
        let item = Item::data(0, 1, text("x"));
        b.iter(|| {
            assert!(matches!(link.push(item.clone()), Push::Done));
            link.pop()
        });
    });
    for cap in [1, 8, 256] {
        c.bench_function(&format!("hop, thread to thread, cap {cap}"), |b| {
            b.iter_custom(|n| {
                timed(plan(vec![feeder(n), eater("b")], vec![edge((0, 0), (1, 0), cap, Full::Block)]), false)
            });
        });
    }
    c.bench_function("hop, cap 8, statistics on", |b| {
        b.iter_custom(|n| timed(plan(vec![feeder(n), eater("b")], vec![edge((0, 0), (1, 0), 8, Full::Block)]), true));
    });
    c.bench_function("hop, lockstep (drop-oldest, cap 8)", |b| {
        b.iter_custom(|n| {
            timed(plan(vec![feeder(n), eater("b")], vec![edge((0, 0), (1, 0), 8, Full::DropOldest)]), false)
        });
    });
    c.bench_function("fan-out 1 to 8, cap 8, per source item", |b| {
        b.iter_custom(|n| {
            let mut nodes = vec![feeder(n)];
            nodes.extend((0..8).map(|i| eater(&format!("b{i}"))));
            timed(plan(nodes, (1..9).map(|i| edge((0, 0), (i, 0), 8, Full::Block)).collect()), false)
        });
    });
    c.bench_function("round trip (two wake-ups)", |b| {
        b.iter_custom(|n| {
            let one = text("x");
            let ping = node("ping", &["in"], &["out"], move |io| {
                let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
                for i in 0..n as i64 {
                    out.send(Timed::at(i, 1, one.clone()))?;
                    input.recv()?;
                }
                Ok(())
            });
            let edges = vec![edge((0, 0), (1, 0), 1, Full::Block), edge((1, 0), (0, 0), 1, Full::Block)];
            timed(plan(vec![ping, common::pass("pong")], edges), false)
        });
    });
}

criterion_group!(benches, hops);
criterion_main!(benches);
