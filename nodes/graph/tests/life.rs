//! Life of a graph: ends, failures, restarts, bypasses, deadlocks, shutdown.

mod common;
use common::*;
use oxiline_graph::payload::{PortType, Text};
use oxiline_graph::plan::*;
use oxiline_graph::{Error, Item, Mark, Outcome, Payload, RunOptions, Runtime, Span, Timed, bail};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[test]
fn a_chain_delivers_everything_in_order() {
    let log = Log::default();
    let summary = run(plan(
        vec![source("a", 100), pass("b"), sink("c", &log)],
        vec![edge((0, 0), (1, 0), 2, Full::Block), edge((1, 0), (2, 0), 1, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(summary.exit_code, 0);
    assert!(summary.conserved);
    let got = lines(&log);
    assert_eq!(got.len(), 101);
    assert_eq!(got[99], "99@99000000e0");
    assert_eq!(got[100], "Eos(Complete)");
    let edge = summary.edge("a.out → b.in").unwrap();
    assert_eq!((edge.sent, edge.received, edge.queued), (100, 100, 0));
    assert!(edge.max_items <= 2);
}

#[test]
fn a_stream_without_items_ends() {
    let log = Log::default();
    let summary = run(plan(
        vec![source("a", 0), pass("b"), sink("c", &log)],
        vec![edge((0, 0), (1, 0), 2, Full::Block), edge((1, 0), (2, 0), 1, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Complete);
    assert_eq!(lines(&log), ["Eos(Complete)"]);
}

fn failing(name: &str, at: u64, panic: bool) -> PlannedNode {
    node(name, &["in"], &["out"], move |io| {
        let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
        while let Some(item) = input.recv()? {
            if item.header.seq == at {
                if panic {
                    panic!("index out of bounds");
                }
                bail!("the table has no entry for `{}`", item.value.text);
            }
            out.send(item)?;
        }
        Ok(())
    })
}

#[test]
fn a_failure_names_node_item_and_cause_and_reaches_the_sink() {
    for (panic, verb, cause) in
        [(false, "failed", "the table has no entry for `7`"), (true, "panicked", "index out of bounds")]
    {
        let log = Log::default();
        let summary = run(plan(
            vec![source("a", 50), failing("b", 7, panic), sink("c", &log)],
            vec![edge((0, 0), (1, 0), 4, Full::Block), edge((1, 0), (2, 0), 4, Full::Block)],
        ));
        assert_eq!(summary.outcome, Outcome::Failed);
        assert_eq!(summary.exit_code, 1);
        assert_eq!(summary.error.as_deref(), Some(&*format!("node `b` {verb} at item 7 (0.007 s): {cause}")));
        assert!(summary.conserved, "{summary:?}");
        let got = lines(&log);
        assert_eq!(got.len(), 8);
        assert!(got[7].starts_with("Eos(Failed { node: \"b\""), "{}", got[7]);
    }
}

#[test]
fn every_consumer_gone_ends_the_producers() {
    let taker = node("head", &["in"], &[], |io| {
        let input = io.input::<Text>("in")?;
        for _ in 0..3 {
            input.recv()?;
        }
        Ok(())
    });
    let endless = node("a", &[], &["out"], |io| {
        let out = io.output::<Text>("out")?;
        for i in 0.. {
            out.send(Timed::at(i, 1, text(i)))?;
        }
        Ok(())
    });
    let summary = run(plan(
        vec![endless, pass("b"), taker],
        vec![edge((0, 0), (1, 0), 2, Full::Block), edge((1, 0), (2, 0), 2, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert!(summary.conserved);
}

fn flaky(restart: Option<Restart>, bypass: Option<Bypass>, failures: u32) -> PlannedNode {
    let left = Arc::new(AtomicU32::new(failures));
    let make: MakeNode = Arc::new(move |_| {
        let left = left.clone();
        Ok(Box::new(Fun(move |io: &oxiline_graph::Io| {
            let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
            while let Some(item) = input.recv()? {
                if left.load(Ordering::SeqCst) > 0 && item.header.seq % 2 == 1 {
                    left.fetch_sub(1, Ordering::SeqCst);
                    panic!("bad weather");
                }
                out.send(item)?;
            }
            Ok(())
        })))
    });
    let mut planned = node("b", &["in"], &["out"], |_| Ok(()));
    planned.node = make(&mut oxiline_graph::Setup::new("b".into(), None)).unwrap();
    planned.make = make;
    planned.restart = restart;
    planned.bypass = bypass;
    planned
}

fn restart(max: u32) -> Option<Restart> {
    Some(Restart { max, within: Span::secs(60), backoff: Span::ms(200), backoff_max: Span::secs(10) })
}

#[test]
fn a_restarted_node_goes_on_after_flush_and_gap() {
    let log = Log::default();
    let summary = run(plan(
        vec![source("a", 6), flaky(restart(3), None, 2), sink("c", &log)],
        vec![edge((0, 0), (1, 0), 4, Full::Block), edge((1, 0), (2, 0), 4, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(summary.node("b").unwrap().restarts, 2);
    let want = [
        "0@0e0",
        "Flush(0)",
        "gap 1000000..2000000 dropped",
        "2@2000000e0",
        "Flush(0)",
        "gap 3000000..4000000 dropped",
        "4@4000000e0",
        "5@5000000e0",
        "Eos(Complete)",
    ];
    assert_eq!(lines(&log), want);
}

#[test]
fn too_many_restarts_fail_the_graph() {
    let log = Log::default();
    let summary = run(plan(
        vec![source("a", 100), flaky(restart(3), None, 99), sink("c", &log)],
        vec![edge((0, 0), (1, 0), 4, Full::Block), edge((1, 0), (2, 0), 4, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Failed);
    assert_eq!(summary.node("b").unwrap().restarts, 3);
    assert!(summary.error.unwrap().contains("bad weather"));
}

#[test]
fn bypass_lets_the_graph_go_on() {
    for (bypass, second) in [(Bypass::Pass, "2@2000000e0"), (Bypass::Mute, "gap 2000000..3000000 muted")] {
        let log = Log::default();
        let summary = run(plan(
            vec![source("a", 4), flaky(None, Some(bypass), 1), sink("c", &log)],
            vec![edge((0, 0), (1, 0), 4, Full::Block), edge((1, 0), (2, 0), 4, Full::Block)],
        ));
        assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
        assert_eq!(summary.exit_code, 3);
        assert_eq!(summary.node("b").unwrap().state, "bypassed");
        let got = lines(&log);
        assert_eq!((&*got[0], &*got[1]), ("0@0e0", second));
        assert_eq!(got.last().unwrap(), "Eos(Complete)");
        assert!(summary.to_string().contains("bypassed: node `b` panicked at item 1 (0.001 s): bad weather"));
    }
}

#[test]
fn a_bypassed_sink_swallows() {
    let mut bad = node("b", &["in"], &[], |_| bail!("disk full"));
    bad.bypass = Some(Bypass::Mute);
    let log = Log::default();
    let summary = run(plan(
        vec![source("a", 40), bad, sink("c", &log)],
        vec![edge((0, 0), (1, 0), 1, Full::Block), edge((0, 0), (2, 0), 1, Full::Block)],
    ));
    assert_eq!(summary.exit_code, 3);
    assert_eq!(lines(&log).len(), 41);
}

#[test]
fn damaged_items_become_counted_gaps() {
    let mut skipping = node("b", &["in"], &["out"], |io| {
        let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
        while let Some(item) = input.recv()? {
            if item.header.seq == 1 {
                io.item_error(Error::msg("bad checksum"))?;
            } else {
                out.send(item)?;
            }
        }
        Ok(())
    });
    skipping.skip_item_errors = Some(true);
    let log = Log::default();
    let summary = run(plan(
        vec![source("a", 3), skipping, sink("c", &log)],
        vec![edge((0, 0), (1, 0), 4, Full::Block), edge((1, 0), (2, 0), 4, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Complete);
    assert_eq!(summary.node("b").unwrap().item_errors, 1);
    assert_eq!(lines(&log)[1], "gap 1000000..2000000 decode-error");
}

#[test]
fn a_deadlock_is_named_and_ends() {
    // The join takes all of `x` before anything of `y`; the fork sends both in turn.
    let fork = node("fork", &[], &["x", "y"], |io| {
        let (x, y) = (io.output::<Text>("x")?, io.output::<Text>("y")?);
        for i in 0..100 {
            x.send(Timed::at(i, 1, text(i)))?;
            y.send(Timed::at(i, 1, text(i)))?;
        }
        Ok(())
    });
    let join = node("join", &["x", "y"], &[], |io| {
        let (x, y) = (io.input::<Text>("x")?, io.input::<Text>("y")?);
        while x.recv()?.is_some() {}
        while y.recv()?.is_some() {}
        Ok(())
    });
    let summary =
        run(plan(vec![fork, join], vec![edge((0, 0), (1, 0), 8, Full::Block), edge((0, 1), (1, 1), 8, Full::Block)]));
    assert_eq!(summary.outcome, Outcome::Failed);
    let error = summary.error.unwrap();
    assert!(error.contains("cycle: fork waits for space on fork.y → join.y (8/8 items)"), "{error}");
    assert!(error.contains("join waits for input on fork.x → join.x"), "{error}");
}

#[test]
fn joins_take_the_smallest_time_and_wait_on_bounds() {
    let left = node("left", &[], &["out"], |io| {
        let out = io.output::<Text>("out")?;
        out.send(Timed::at(0, 10, text("l0")))?;
        // Nothing until 50: the join may go on without this input.
        out.mark(Mark::Bound(50))?;
        io.sleep(Span::secs(1))?;
        out.send(Timed::at(50, 10, text("l50")))
    });
    let right = node("right", &[], &["out"], |io| {
        let out = io.output::<Text>("out")?;
        for at in [0, 20, 40, 50] {
            out.send(Timed::at(at, 10, text(format!("r{at}"))))?;
        }
        Ok(())
    });
    let log = Log::default();
    let seen = log.clone();
    let join = node("join", &["l", "r"], &[], move |io| {
        while let Some((port, item)) = io.recv_any()? {
            seen.lock().unwrap().push(format!("{port}:{}:{}", line(&item), io.now()));
        }
        Ok(())
    });
    let summary = run(plan(
        vec![left, right, join],
        vec![edge((0, 0), (2, 0), 8, Full::Block), edge((1, 0), (2, 1), 8, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    let want = [
        "0:l0@0e0:0",
        "1:r0@0e0:0",
        "1:r20@20e0:0",
        "1:r40@40e0:0",
        "0:Bound(50):0",
        "0:l50@50e0:1000000000",
        "1:r50@50e0:1000000000",
        "0:Eos(Complete):1000000000",
        "1:Eos(Complete):1000000000",
    ];
    assert_eq!(lines(&log), want);
}

#[test]
fn feedback_does_not_keep_a_cycle_alive() {
    let log = Log::default();
    let mut back = edge((1, 0), (1, 1), 4, Full::DropOldest);
    back.feedback = true;
    let aec = node("aec", &["near", "far"], &["out"], |io| {
        let (near, far) = (io.input::<Text>("near")?, io.input::<Text>("far")?);
        let out = io.output::<Text>("out")?;
        while let Some(item) = near.recv()? {
            far.try_next()?;
            out.send(item)?;
        }
        while far.recv()?.is_some() {}
        Ok(())
    });
    let edges = vec![edge((0, 0), (1, 0), 4, Full::Block), edge((1, 0), (2, 0), 4, Full::Block), back];
    let plan = plan(vec![source("mic", 5), aec, sink("c", &log)], edges);
    let summary = run(plan);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(lines(&log).len(), 6);
}

#[test]
fn several_producers_join_in_one_input_by_time() {
    let log = Log::default();
    let summary = run(plan(
        vec![source("a", 3), source("b", 2), sink("c", &log)],
        vec![edge((0, 0), (2, 0), 1, Full::Block), edge((1, 0), (2, 0), 1, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Complete);
    assert_eq!(lines(&log), ["0@0e0", "0@0e0", "1@1000000e0", "1@1000000e0", "2@2000000e0", "Eos(Complete)"]);
}

#[test]
fn the_fail_policy_names_the_edge() {
    let slow = node("slow", &["in"], &[], |io| {
        io.sleep(Span::secs(1))?;
        let input = io.input::<Text>("in")?;
        while input.recv()?.is_some() {}
        Ok(())
    });
    let summary = run(plan(vec![source("a", 9), slow], vec![edge((0, 0), (1, 0), 4, Full::Fail)]));
    assert_eq!(summary.outcome, Outcome::Failed);
    let error = summary.error.unwrap();
    assert!(error.contains("edge `a.out → slow.in` is full (4/4 items) and its policy is `fail`"), "{error}");
}

#[test]
fn paced_sources_follow_the_clock() {
    let log = Log::default();
    let seen = log.clone();
    let sink = node("c", &["in"], &[], move |io| {
        let input = io.input::<Text>("in")?;
        while let Some(item) = input.recv()? {
            seen.lock().unwrap().push((io.now() >= item.header.pts).to_string());
        }
        Ok(())
    });
    let mut plan = plan(vec![source("a", 20), sink], vec![edge((0, 0), (1, 0), 4, Full::Block)]);
    plan.clock = ClockKind::Paced;
    let summary = run(plan);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(lines(&log), vec!["true"; 20]);
}

/// Stops after exactly `at` items have passed the middle of a chain.
fn stopped_at(at: u64, hard: bool) -> (oxiline_graph::Summary, Vec<String>) {
    let log = Log::default();
    let (tell, told) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let middle = node("b", &["in"], &["out"], move |io| {
        let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
        let mut n = 0;
        loop {
            if n == at {
                let _ = tell.send(());
                let _ = wait.recv();
            }
            n += 1;
            let Some(item) = input.recv()? else { return Ok(()) };
            out.send(item)?;
        }
    });
    let handle = Runtime::isolated(RunOptions::default())
        .start(plan(
            vec![source("a", 20), middle, sink("c", &log)],
            vec![edge((0, 0), (1, 0), 2, Full::Block), edge((1, 0), (2, 0), 2, Full::Block)],
        ))
        .unwrap();
    told.recv().unwrap();
    if hard {
        handle.cancel();
    } else {
        handle.stop();
    }
    go.send(()).unwrap();
    (handle.wait(), lines(&log))
}

#[test]
fn shutdown_at_every_step_ends_and_tells() {
    for hard in [false, true] {
        for at in 0..=20 {
            let (summary, got) = stopped_at(at, hard);
            assert!(summary.conserved, "{summary:?}");
            assert_ne!(summary.outcome, Outcome::Failed, "{summary}");
            let data = got.iter().filter(|l| !l.starts_with("Eos")).count() as u64;
            if hard {
                assert_eq!(summary.outcome, Outcome::Stopped);
                assert_eq!(summary.exit_code, 130);
            } else {
                // Graceful: what had passed is delivered, and the sink knows whether it is all.
                assert!(data >= at);
                assert_eq!(got.iter().filter(|l| l.starts_with("Eos")).count(), 1, "{got:?}");
                let end =
                    if data == 20 && summary.outcome == Outcome::Complete { "Eos(Complete)" } else { "Eos(Stopped)" };
                assert_eq!(got.last().unwrap(), end);
            }
        }
    }
}

#[test]
fn a_graceful_stop_gives_up_at_the_drain_deadline() {
    // On the virtual clock the deadline is graph time: a consumer sleeping past it is cut off.
    let (tell, told) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let slow = node("slow", &["in"], &[], move |io| {
        let input = io.input::<Text>("in")?;
        input.recv()?;
        let _ = tell.send(());
        let _ = wait.recv();
        io.sleep(Span::secs(3600))
    });
    let handle = Runtime::isolated(RunOptions::default())
        .start(plan(vec![source("a", 100), slow], vec![edge((0, 0), (1, 0), 2, Full::Block)]))
        .unwrap();
    told.recv().unwrap();
    handle.stop();
    go.send(()).unwrap();
    let summary = handle.wait();
    assert_eq!(summary.outcome, Outcome::Stopped, "{summary}");
}

#[test]
fn a_source_that_sees_the_stop_may_send_its_tail() {
    let (tell, told) = mpsc::channel();
    let source = node("a", &[], &["out"], move |io| {
        let out = io.output::<Text>("out")?;
        out.send(Timed::at(0, 1, text("first")))?;
        let _ = tell.send(());
        while !io.stopping() {
            std::thread::yield_now();
        }
        out.send(Timed::at(1, 1, text("tail")))
    });
    let log = Log::default();
    let handle = Runtime::isolated(RunOptions::default())
        .start(plan(vec![source, sink("c", &log)], vec![edge((0, 0), (1, 0), 2, Full::Block)]))
        .unwrap();
    told.recv().unwrap();
    handle.stop();
    let summary = handle.wait();
    assert_eq!(summary.outcome, Outcome::Stopped);
    assert_eq!(lines(&log), ["first@0e0", "tail@1e0", "Eos(Stopped)"]);
}

#[test]
fn a_node_that_never_stops_is_left_behind() {
    let (tell, told) = mpsc::channel();
    let (release, hold) = mpsc::channel::<()>();
    let stuck = node("stuck", &[], &[], move |_| {
        let _ = tell.send(());
        let _ = hold.recv();
        Ok(())
    });
    let handle = Runtime::isolated(RunOptions::default()).start(plan(vec![stuck], vec![])).unwrap();
    told.recv().unwrap();
    handle.cancel();
    let summary = handle.wait();
    assert_eq!(summary.outcome, Outcome::Failed);
    assert!(summary.error.unwrap().contains("node `stuck` did not stop within"));
    drop(release);
}

#[test]
fn a_stall_is_diagnosed() {
    let (release, hold) = mpsc::channel::<()>();
    let mut stuck = node("b", &["in"], &[], move |io| {
        let _ = hold.recv();
        let input = io.input::<Text>("in")?;
        while input.recv()?.is_some() {}
        Ok(())
    });
    stuck.stall = Some(Duration::from_millis(20));
    // The watchdog's own word lets the node go on.
    let release = std::sync::Mutex::new(Some(release));
    let observer: oxiline_graph::run::Observer = Arc::new(move |progress| {
        if let oxiline_graph::Progress::Note { .. } = progress {
            release.lock().unwrap().take();
        }
    });
    let runtime = Runtime::isolated(RunOptions { observer: Some(observer), ..RunOptions::default() });
    let handle = runtime.start(plan(vec![source("a", 9), stuck], vec![edge((0, 0), (1, 0), 2, Full::Block)])).unwrap();
    let summary = handle.wait();
    assert_eq!(summary.outcome, Outcome::Complete);
    let note = summary.notes.iter().find(|n| n.contains("no progress")).expect("a diagnosis");
    assert!(note.contains("node `b` has made no progress"), "{note}");
}

#[test]
fn ports_are_checked_with_sentences() {
    let bad = node("b", &["in"], &[], |io| io.input::<Text>("audio").map(drop));
    let summary = run(plan(vec![source("a", 1), bad], vec![edge((0, 0), (1, 0), 2, Full::Block)]));
    assert!(summary.error.unwrap().contains("asks for its input `audio`, which it did not declare; it declared: in"));
    let bad = node("b", &["in"], &[], |io| io.input::<oxiline_graph::payload::Audio>("in").map(drop));
    let summary = run(plan(vec![source("a", 1), bad], vec![edge((0, 0), (1, 0), 2, Full::Block)]));
    assert!(summary.error.unwrap().contains("as `audio`, but declared it as `text`"));
    assert_eq!(PortType::Text.name(), "text");
    let _: fn(Payload) -> Item = |p| Item::Data(Default::default(), p);
}

#[cfg(target_os = "linux")]
#[test]
fn a_node_runs_where_it_is_placed() {
    let status = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let allowed = |status: &str| {
        let line = status.lines().find(|l| l.starts_with("Cpus_allowed_list")).unwrap();
        line.split_whitespace().last().unwrap().to_string()
    };
    let all = allowed(&status());
    let core: usize = all.split([',', '-']).next().unwrap().parse().unwrap();
    let log = Log::default();
    let seen = log.clone();
    let mut placed = node("b", &["in"], &["out"], move |io| {
        seen.lock().unwrap().push(allowed(&status()));
        let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
        while let Some(item) = input.recv()? {
            out.send(item)?;
        }
        Ok(())
    });
    placed.placement = Placement { cores: vec![core], priority: Priority::Low };
    let summary = run(plan(
        vec![source("a", 5), placed, sink("c", &Log::default())],
        vec![edge((0, 0), (1, 0), 2, Full::Block), edge((1, 0), (2, 0), 2, Full::Block)],
    ));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(lines(&log), [core.to_string()]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_place_that_is_refused_is_said_and_the_graph_goes_on() {
    let mut placed = source("a", 5);
    placed.placement = Placement { cores: vec![1023], ..Placement::default() };
    let log = Log::default();
    let summary = run(plan(vec![placed, sink("c", &log)], vec![edge((0, 0), (1, 0), 2, Full::Block)]));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    let note = summary.notes.first().expect("a note");
    assert!(
        note.starts_with("node `a` cannot be kept on core 1023 (") && note.ends_with("it runs on any core"),
        "{note}"
    );
}
