//! Random graphs: conservation, order, ends, bounded memory, no deadlock (graph.md 2.11, 1),
//! and the same results for any number of threads (9).

mod common;
use common::*;
use oxiline_graph::plan::*;
use oxiline_graph::{Item, Mark, Outcome, Payload, Span, Timed};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug, Clone)]
struct Shape {
    items: u64,
    /// Per node after the first: parents (as fractions of its index), cap, policy, sleep, scope.
    nodes: Vec<(Vec<u8>, u64, u8, u64, bool)>,
    cancels: u64,
}

fn shapes(cancels: bool) -> impl Strategy<Value = Shape> {
    let node = (prop::collection::vec(any::<u8>(), 1..3), 1u64..=8, 0u8..4, 0u64..4, any::<bool>());
    (0u64..60, prop::collection::vec(node, 1..19), 0u64..20).prop_map(move |(items, nodes, n)| Shape {
        items,
        nodes,
        cancels: if cancels { n } else { 0 },
    })
}

fn policy(n: u8) -> Full {
    [Full::Block, Full::DropOldest, Full::DropNewest, Full::Latest][usize::from(n)]
}

struct Built {
    plan: Plan,
    log: Log,
    ends: Vec<Arc<AtomicU64>>,
    disorder: Arc<AtomicU64>,
}

fn build(shape: &Shape, policies: bool) -> Built {
    let log = Log::default();
    let disorder: Arc<AtomicU64> = Arc::default();
    let mut ends = Vec::new();
    let mut nodes = vec![source("n0", shape.items)];
    let mut edges = Vec::new();
    for (i, (parents, cap, full, sleep, scoped)) in shape.nodes.iter().enumerate() {
        let me = i + 1;
        let mut from: Vec<usize> = parents.iter().map(|p| usize::from(*p) % me).collect();
        from.dedup();
        for parent in from {
            let full = if policies { policy(*full) } else { Full::Block };
            edges.push(edge((parent, 0), (me, 0), *cap, full));
        }
        let end: Arc<AtomicU64> = Arc::default();
        ends.push(end.clone());
        let (sleep, log, disorder, name) = (*sleep, log.clone(), disorder.clone(), format!("n{me}"));
        let mut last = i64::MIN;
        // A log per node, joined at its end: threads of a free graph interleave as they like.
        let mine: Arc<Mutex<Vec<String>>> = Arc::default();
        let tag = name.clone();
        let mut planned = node(&name, &["in"], &["out"], move |io| {
            let out = io.output::<Payload>("out")?;
            while let Some((_, item)) = io.recv_any()? {
                mine.lock().unwrap().push(format!("{tag} {} {}", io.now(), line(&item)));
                match item {
                    Item::Data(header, payload) => {
                        if header.pts < last {
                            disorder.fetch_add(1, Ordering::SeqCst);
                        }
                        last = header.pts;
                        if sleep > 0 && header.seq % 4 < sleep {
                            io.sleep(Span(Duration::from_micros(7 * sleep)))?;
                        }
                        out.send(Timed { header, value: payload })?;
                    }
                    Item::Gap(gap) => out.gap(gap)?,
                    Item::Mark(Mark::Eos(_)) => {
                        end.fetch_add(1, Ordering::SeqCst);
                        log.lock().unwrap().append(&mut mine.lock().unwrap());
                    }
                    Item::Mark(mark) => out.mark(mark)?,
                }
            }
            Ok(())
        });
        if *scoped {
            planned.scope = Some(0);
        }
        nodes.push(planned);
    }
    if shape.cancels > 0 {
        let n = shape.cancels;
        let mut canceller = node("canceller", &[], &[], move |io| {
            for i in 0..n {
                io.sleep(Span(Duration::from_micros(5 + i % 13)))?;
                io.cancel_scope("s")?;
            }
            Ok(())
        });
        canceller.cancels = vec![0];
        nodes.push(canceller);
    }
    let mut plan = plan(nodes, edges);
    plan.scopes = vec![PlannedScope { name: Arc::from("s"), group: Group::One }];
    Built { plan, log, ends, disorder }
}

fn check(shape: &Shape, policies: bool, clock: ClockKind, threads: Option<usize>) -> Vec<String> {
    let Built { mut plan, log, ends, disorder } = build(shape, policies);
    plan.clock = clock;
    let caps: Vec<u64> = plan.edges.iter().map(|e| e.cap.items.unwrap()).collect();
    let summary = run_with(plan, threads);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}\n{shape:?}");
    assert!(summary.conserved, "{summary:?}");
    for (edge, cap) in summary.stats.edges.iter().zip(caps) {
        assert!(edge.max_items <= cap, "{edge:?} holds more than {cap}");
        assert_eq!(edge.queued, 0, "{edge:?}");
        let dropped: u64 = edge.dropped.values().sum();
        assert_eq!(edge.sent, edge.received + dropped, "{edge:?}");
        if !policies && shape.cancels == 0 {
            assert_eq!(dropped, 0, "{edge:?}");
        }
    }
    for (i, end) in ends.iter().enumerate() {
        assert_eq!(end.load(Ordering::SeqCst), 1, "ends of n{}", i + 1);
    }
    if shape.cancels == 0 {
        assert_eq!(disorder.load(Ordering::SeqCst), 0);
    }
    let mut lines = lines(&log);
    lines.sort_by_key(|l| l.split(' ').next().map(str::to_string));
    lines
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_conserve_and_end(shape in shapes(true)) {
        check(&shape, true, ClockKind::Virtual, None);
    }

    #[test]
    fn random_graphs_conserve_in_real_time(shape in shapes(true)) {
        check(&shape, true, ClockKind::Monotonic, None);
    }

    #[test]
    fn results_do_not_depend_on_threads(shape in shapes(true), policies in any::<bool>()) {
        let once = check(&shape, policies, ClockKind::Virtual, Some(1));
        for threads in [Some(2), Some(8), None, None] {
            prop_assert_eq!(&once, &check(&shape, policies, ClockKind::Virtual, threads));
        }
    }

    #[test]
    fn free_running_graphs_are_deterministic_too(shape in shapes(false)) {
        let once = check(&shape, false, ClockKind::Virtual, Some(1));
        for threads in [Some(2), Some(8), None, None] {
            prop_assert_eq!(&once, &check(&shape, false, ClockKind::Virtual, threads));
        }
    }
}
