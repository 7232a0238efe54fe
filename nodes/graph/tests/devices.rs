//! Nodes that drive devices: when they listen, whose time the graph's is, how they end.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use oxiline_graph::node::{Device, DynNode};
use oxiline_graph::payload::Text;
use oxiline_graph::plan::*;
use oxiline_graph::{Error, Io, Nanos, Outcome, Prepare, Result, RunOptions, Runtime, Span, Timed};

/// A device that notes what is asked of it, and sends a text every millisecond until it is stopped.
struct Microphone(Notes);

type Notes = Arc<Mutex<Vec<(&'static str, Nanos)>>>;

impl Microphone {
    fn note(&self, what: &'static str, now: Nanos) {
        self.0.lock().unwrap().push((what, now));
    }
}

impl DynNode for Microphone {
    fn listen(&mut self, prepare: &Prepare) -> Result<()> {
        self.note("listen", prepare.now());
        prepare.begin_time();
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    }
    fn prepare(&mut self, prepare: &Prepare) -> Result<()> {
        self.note("prepare", prepare.now());
        Ok(())
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        self.note("run", io.now());
        let out = io.output::<Text>("out")?;
        for i in 0.. {
            if io.stopping() {
                break;
            }
            io.steer_clock(1.0001);
            out.send(Timed::at(i * 1_000_000, 1_000_000, text(i)))?;
            io.sleep(Span::ms(1))?;
        }
        self.note(if io.is_clock_master() { "master" } else { "follower" }, io.now());
        Ok(())
    }
}

fn graph(clock: ClockKind, notes: &Notes) -> Plan {
    let mut microphone = node("mic", &[], &["out"], |_| Ok(()));
    microphone.node = Box::new(Microphone(notes.clone()));
    microphone.declared.device = Some(Device::Capture);
    let sink = node("sink", &["in"], &[], |io| {
        let input = io.input::<Text>("in")?;
        while input.recv()?.is_some() {}
        Ok(())
    });
    let mut plan = plan(vec![microphone, sink], vec![edge((0, 0), (1, 0), 4, Full::Block)]);
    plan.clock = clock;
    plan
}

#[test]
fn time_begins_when_a_device_listens_and_stopping_it_is_its_end() {
    for (clock, role) in [(ClockKind::Auto, "master"), (ClockKind::Monotonic, "follower")] {
        let notes = Arc::default();
        let handle = Runtime::isolated(RunOptions::default()).start(graph(clock, &notes)).unwrap();
        while handle.stats().edges[0].sent < 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        handle.stop();
        let summary = handle.wait();
        assert_eq!((summary.outcome, summary.exit_code), (Outcome::Complete, 0), "{summary}");
        let notes = notes.lock().unwrap().clone();
        let order: Vec<&str> = notes.iter().map(|(what, _)| *what).collect();
        assert_eq!(order, ["listen", "prepare", "run", role]);
        assert_eq!(notes[0].1, 0, "before it begins, time stands still");
        assert!(notes[1].1 >= 19_000_000, "{notes:?}");
    }
}

#[test]
fn a_cancelled_device_is_no_whole() {
    let notes = Arc::default();
    let handle = Runtime::isolated(RunOptions::default()).start(graph(ClockKind::Auto, &notes)).unwrap();
    while handle.stats().edges[0].sent < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    handle.cancel();
    assert_eq!(handle.wait().outcome, Outcome::Stopped);
}

#[test]
fn a_device_that_cannot_listen_is_the_graph_s_error() {
    struct Broken;
    impl DynNode for Broken {
        fn listen(&mut self, _: &Prepare) -> Result<()> {
            Err(Error::msg("it is broken"))
        }
        fn prepare(&mut self, _: &Prepare) -> Result<()> {
            panic!("after a failure nothing is prepared")
        }
        fn run(&mut self, _: &Io) -> Result<()> {
            Ok(())
        }
    }
    let mut plan = graph(ClockKind::Auto, &Arc::default());
    plan.nodes[0].node = Box::new(Broken);
    let summary = Runtime::isolated(RunOptions::default()).start(plan).unwrap().wait();
    let error = summary.error.unwrap();
    assert!(error.contains("`mic`") && error.contains("it is broken"), "{error}");
}
