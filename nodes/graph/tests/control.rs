//! The control lane: pauses that lose nothing, settings that reach a node before its next item.

mod common;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use oxiline_graph::payload::Text;
use oxiline_graph::plan::*;
use oxiline_graph::{Io, Outcome, Result, RunOptions, Runtime, Span, Timed};

fn ms(n: u64) -> Span {
    Span(Duration::from_millis(n))
}

/// One text a millisecond, `n` of them, as time passes.
fn ticking(n: i64) -> PlannedNode {
    node("ticks", &[], &["out"], move |io| {
        let out = io.output::<Text>("out")?;
        for i in 0..n {
            io.sleep_until(i * 1_000_000)?;
            out.send(Timed::at(i * 1_000_000, 1_000_000, text(i)))?;
        }
        Ok(())
    })
}

/// When, in milliseconds of graph time, each text arrived.
type Arrivals = Arc<Mutex<Vec<(i64, String)>>>;

fn watching(arrivals: &Arrivals) -> PlannedNode {
    let arrivals = arrivals.clone();
    node("play", &["in"], &[], move |io| {
        let input = io.input::<Text>("in")?;
        while let Some(item) = input.recv()? {
            arrivals.lock().unwrap().push((io.now() / 1_000_000, item.value.text.to_string()));
        }
        Ok(())
    })
}

fn paused_graph(n: i64, arrivals: &Arrivals, pauser: impl FnMut(&Io) -> Result<()> + Send + 'static) -> Plan {
    let mut member = pass("speech");
    member.scope = Some(0);
    let mut keys = node("keys", &[], &[], pauser);
    keys.cancels = vec![0];
    let edges = vec![edge((0, 0), (1, 0), 4, Full::Block), edge((1, 0), (2, 0), 4, Full::Block)];
    let mut plan = plan(vec![ticking(n), member, watching(arrivals), keys], edges);
    plan.scopes = vec![PlannedScope { name: "reply".into(), group: Group::One }];
    plan
}

#[test]
fn a_paused_scope_stands_still_and_loses_nothing() {
    let arrivals = Arrivals::default();
    let summary = run(paused_graph(100, &arrivals, |io| {
        io.sleep(ms(10))?;
        io.pause_scope("reply")?;
        io.sleep(ms(200))?;
        io.resume_scope("reply")?;
        io.sleep(ms(1))
    }));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert!(summary.conserved);
    let arrivals = arrivals.lock().unwrap();
    let texts: Vec<String> = arrivals.iter().map(|(_, text)| text.clone()).collect();
    assert_eq!(texts, (0..100).map(|i| i.to_string()).collect::<Vec<_>>());
    // The item in hand when the pause came may still arrive.
    assert!(arrivals.iter().filter(|(at, _)| (11..210).contains(at)).count() <= 1, "{arrivals:?}");
    assert!(arrivals.iter().any(|(at, _)| *at >= 210));
}

#[test]
fn a_pause_ends_with_the_node_that_made_it() {
    let arrivals = Arrivals::default();
    let summary = run(paused_graph(50, &arrivals, |io| {
        io.sleep(ms(5))?;
        io.pause_scope("reply")?;
        io.sleep(ms(100))
    }));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(arrivals.lock().unwrap().len(), 50);
}

#[test]
fn a_cancel_lifts_the_pause() {
    let arrivals = Arrivals::default();
    let summary = run(paused_graph(50, &arrivals, |io| {
        io.sleep(ms(5))?;
        io.pause_scope("reply")?;
        io.sleep(ms(10))?;
        io.cancel_scope("reply")?;
        // Long enough that the end of this node is not what lets the others go on.
        io.sleep(ms(1000))
    }));
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    let last = arrivals.lock().unwrap().last().cloned();
    assert!(last.is_some_and(|(at, text)| text == "49" && at < 1000));
}

#[test]
fn pausing_needs_the_right_to_cancel() {
    let arrivals = Arrivals::default();
    let summary = run(paused_graph(5, &arrivals, |io| io.pause_scope("other")));
    assert!(summary.error.is_some_and(|e| e.contains("`keys`") && e.contains("`other`")));
}

#[test]
fn from_outside_a_stop_drains_what_is_paused() {
    let arrivals = Arrivals::default();
    let mut plan = paused_graph(1_000_000, &arrivals, |io| io.sleep(ms(3_600_000)));
    plan.clock = ClockKind::Monotonic;
    let run = Runtime::isolated(RunOptions::default()).start(plan).unwrap();
    while arrivals.lock().unwrap().len() < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(run.pause("nothing").is_err_and(|e| e.to_string().contains("it has: reply")));
    run.pause("reply").unwrap();
    // One item may be in hand.
    std::thread::sleep(Duration::from_millis(20));
    let before = arrivals.lock().unwrap().len();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(arrivals.lock().unwrap().len(), before, "it stands still");
    run.resume("reply").unwrap();
    while arrivals.lock().unwrap().len() == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.pause("reply").unwrap();
    run.stop();
    let summary = run.wait();
    assert_eq!(summary.outcome, Outcome::Stopped, "{summary}");
    assert!(summary.conserved && summary.notes.is_empty(), "{summary}");
}

#[test]
fn settings_reach_a_node_the_newest_of_each() {
    let seen: Log = Log::default();
    let log = seen.clone();
    let mut tuned = node("tuned", &["in"], &[], move |io| {
        let input = io.input::<Text>("in")?;
        loop {
            for (key, value) in io.settings() {
                log.lock().unwrap().push(format!("{key}={value}"));
            }
            if input.recv()?.is_none() {
                return Ok(());
            }
        }
    });
    tuned.declared.settable = vec!["gain", "step"];
    let mut plan = plan(vec![ticking(1_000_000), tuned], vec![edge((0, 0), (1, 0), 4, Full::Block)]);
    plan.clock = ClockKind::Monotonic;
    let run = Runtime::isolated(RunOptions::default()).start(plan).unwrap();
    let no_node = run.set("nobody", "gain", 1.into()).unwrap_err().to_string();
    assert!(no_node.contains("no node `nobody`"), "{no_node}");
    let no_option = run.set("tuned", "colour", 1.into()).unwrap_err().to_string();
    assert!(no_option.contains("these can: gain, step"), "{no_option}");
    for value in 0..100 {
        run.set("tuned", "gain", value.into()).unwrap();
    }
    run.set("tuned", "step", "400ms".into()).unwrap();
    while !lines(&seen).iter().any(|l| l.starts_with("step")) || !lines(&seen).contains(&"gain=99".to_string()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.stop();
    assert_eq!(run.wait().outcome, Outcome::Stopped);
    let gains = lines(&seen).into_iter().filter(|l| l.starts_with("gain")).collect::<Vec<_>>();
    assert_eq!(gains.last().map(String::as_str), Some("gain=99"), "nothing older comes after the newest");
}
