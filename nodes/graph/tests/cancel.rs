//! Scopes and epochs: nothing stale comes through, nothing leaks, however many cancels.

mod common;
use common::*;
use oxiline_graph::payload::Text;
use oxiline_graph::plan::*;
use oxiline_graph::{Error, Item, Mark, Outcome, Span, Timed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

fn micros(n: u64) -> Span {
    Span(Duration::from_micros(n))
}

#[test]
fn ten_thousand_cancels_let_nothing_stale_through() {
    let epoch: Arc<AtomicU32> = Arc::default();
    let over: Arc<AtomicBool> = Arc::default();
    let (now, stop) = (epoch.clone(), over.clone());
    let mut canceller = node("keys", &[], &[], move |io| {
        let mut state = 1u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            io.sleep(micros(1 + (state >> 33) % 40))?;
            io.cancel_scope("reply")?;
            now.fetch_add(1, Ordering::SeqCst);
        }
        stop.store(true, Ordering::SeqCst);
        Ok(())
    });
    canceller.cancels = vec![0];
    let stop = over.clone();
    let text_source = node("llm", &[], &["out"], move |io| {
        let out = io.output::<Text>("out")?;
        let mut at = 0;
        while !stop.load(Ordering::SeqCst) {
            at += 1;
            io.sleep(micros(17))?;
            out.mark(Mark::SegmentStart(at as u64))?;
            out.send(Timed::at(at * 10_000, 10_000, text(at)))?;
            out.mark(Mark::SegmentEnd { id: at as u64, cancelled: false })?;
        }
        Ok(())
    });
    let mut first = pass("codes");
    let mut second = pass("pcm");
    first.scope = Some(0);
    second.scope = Some(0);
    let (now, seen) = (epoch.clone(), Arc::new(AtomicU32::new(0)));
    let (count, open) = (seen.clone(), Arc::new(std::sync::Mutex::new(Vec::<u64>::new())));
    let opened = open.clone();
    let play = node("play", &["in"], &[], move |io| {
        while let Some((_, item)) = io.recv_any()? {
            match item {
                Item::Data(header, _) => {
                    assert_eq!(header.epoch, now.load(Ordering::SeqCst), "a stale item reached the sink");
                    count.fetch_add(1, Ordering::SeqCst);
                }
                Item::Mark(Mark::SegmentStart(id)) => opened.lock().unwrap().push(id),
                Item::Mark(Mark::SegmentEnd { id, .. }) => opened.lock().unwrap().retain(|o| *o != id),
                _ => {}
            }
        }
        Ok(())
    });
    let mut plan = plan(
        vec![text_source, first, second, play, canceller],
        vec![
            edge((0, 0), (1, 0), 4, Full::Block),
            edge((1, 0), (2, 0), 8, Full::Block),
            edge((2, 0), (3, 0), 8, Full::Block),
        ],
    );
    plan.scopes = vec![PlannedScope { name: "reply".into(), group: Group::One }];
    let summary = run(plan);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert!(summary.conserved);
    assert_eq!(epoch.load(Ordering::SeqCst), 10_000);
    assert!(seen.load(Ordering::SeqCst) > 1_000);
    assert!(open.lock().unwrap().is_empty(), "segments left open: {:?}", open.lock().unwrap());
}

#[test]
fn cancels_from_outside_the_baton_conserve_in_real_time() {
    let mut canceller = node("keys", &[], &[], |io| {
        for _ in 0..2_000 {
            io.check()?;
            io.cancel_scope("reply")?;
            std::thread::yield_now();
        }
        Ok(())
    });
    canceller.cancels = vec![0];
    let mut nodes = vec![source("a", 5_000), pass("b"), pass("c"), sink("d", &Log::default()), canceller];
    nodes[1].scope = Some(0);
    nodes[2].scope = Some(0);
    let mut plan = plan(
        nodes,
        vec![
            edge((0, 0), (1, 0), 4, Full::Block),
            edge((1, 0), (2, 0), 4, Full::Block),
            edge((2, 0), (3, 0), 4, Full::Block),
        ],
    );
    plan.scopes = vec![PlannedScope { name: "reply".into(), group: Group::One }];
    plan.clock = ClockKind::Monotonic;
    let summary = run(plan);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert!(summary.conserved);
}

#[test]
fn a_member_is_told_once_and_starts_over_and_open_segments_end() {
    let log = Log::default();
    let mut canceller = node("keys", &[], &[], |io| {
        io.sleep(Span::ms(5))?;
        io.cancel_scope("reply")
    });
    canceller.cancels = vec![0];
    let told: Arc<AtomicU32> = Arc::default();
    let count = told.clone();
    let mut runs = 0;
    let mut member = node("m", &[], &["out"], move |io| {
        runs += 1;
        let out = io.output::<Text>("out")?;
        out.mark(Mark::SegmentStart(runs))?;
        out.send(Timed::at(runs as i64, 1, text(runs)))?;
        if runs == 1 {
            let error = io.sleep(Span::secs(60)).unwrap_err();
            assert!(matches!(error, Error::Cancelled) && io.check().is_err());
            count.fetch_add(1, Ordering::SeqCst);
            return Err(error);
        }
        assert_eq!(io.now(), 5_000_000, "the sleep ended with the cancel");
        io.check()?;
        out.mark(Mark::SegmentEnd { id: runs, cancelled: false })
    });
    member.scope = Some(0);
    let mut plan = plan(vec![member, sink("c", &log), canceller], vec![edge((0, 0), (1, 0), 8, Full::Block)]);
    plan.scopes = vec![PlannedScope { name: "reply".into(), group: Group::One }];
    let summary = run(plan);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(told.load(Ordering::SeqCst), 1);
    let want = [
        "SegmentStart(1)",
        "1@1e0",
        "SegmentEnd { id: 1, cancelled: true }",
        "SegmentStart(2)",
        "2@2e1",
        "SegmentEnd { id: 2, cancelled: false }",
        "Eos(Complete)",
    ];
    assert_eq!(lines(&log), want);
}

#[test]
fn only_declared_scopes_can_be_cancelled() {
    let summary = run(plan(vec![node("a", &[], &[], |io| io.cancel_scope("reply"))], vec![]));
    assert!(summary.error.unwrap().contains("node `a` may not cancel the scope `reply`"));
}
