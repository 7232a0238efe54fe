//! Plans from code: closures as nodes, edges by name.
#![allow(dead_code)]

use std::sync::{Arc, Mutex};

use oxiline_graph::node::{Declared, DynNode, PortDecl};
use oxiline_graph::payload::{PortType, Text};
use oxiline_graph::plan::*;
use oxiline_graph::{Io, Item, Mark, Prepare, Result, RunOptions, Runtime, Summary};

/// A node from a closure. `run` is called with the io; state lives in the closure.
pub struct Fun<F>(pub F);

impl<F: FnMut(&Io) -> Result<()> + Send> DynNode for Fun<F> {
    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        Ok(())
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        (self.0)(io)
    }
}

pub fn port(name: &'static str) -> PortDecl {
    PortDecl { name, ty: PortType::Text, optional: true, like: None }
}

pub fn node<F>(name: &str, inputs: &[&'static str], outputs: &[&'static str], run: F) -> PlannedNode
where
    F: FnMut(&Io) -> Result<()> + Send + 'static,
{
    let declared = Declared {
        inputs: inputs.iter().map(|n| port(n)).collect(),
        outputs: outputs.iter().map(|n| port(n)).collect(),
        cancellable: true,
        ..Declared::default()
    };
    let mut planned = PlannedNode::bare(name, "test", Box::new(Fun(run)), declared);
    planned.input_types.fill(Some(PortType::Text));
    planned
}

pub fn edge(from: (usize, usize), to: (usize, usize), cap: u64, full: Full) -> PlannedEdge {
    PlannedEdge::of(from, to, cap, full, PortType::Text)
}

pub fn plan(nodes: Vec<PlannedNode>, edges: Vec<PlannedEdge>) -> Plan {
    Plan::of("test", nodes, edges)
}

pub fn run(plan: Plan) -> Summary {
    run_with(plan, None)
}

pub fn run_with(plan: Plan, threads: Option<usize>) -> Summary {
    let runtime = Runtime::isolated(RunOptions { threads, ..RunOptions::default() });
    runtime.start(plan).expect("starts").wait()
}

pub fn text(n: impl std::fmt::Display) -> Text {
    Text { text: n.to_string().into(), delta: false }
}

pub type Log = Arc<Mutex<Vec<String>>>;

/// One line for an item, for logs.
pub fn line(item: &Item) -> String {
    match item {
        Item::Data(h, p) => {
            let text = match p {
                oxiline_graph::Payload::Text(t) => t.text.to_string(),
                other => format!("{other:?}"),
            };
            format!("{text}@{}e{}", h.pts, h.epoch)
        }
        Item::Gap(g) => format!("gap {}..{} {}", g.from, g.to, g.reason.name()),
        Item::Mark(m) => format!("{m:?}"),
    }
}

/// A source of `n` texts, one per millisecond of media time.
pub fn source(name: &str, n: u64) -> PlannedNode {
    node(name, &[], &["out"], move |io| {
        let out = io.output::<Text>("out")?;
        for i in 0..n {
            io.check()?;
            out.send(oxiline_graph::Timed::at(i as i64 * 1_000_000, 1_000_000, text(i)))?;
        }
        Ok(())
    })
}

/// Passes texts on.
pub fn pass(name: &str) -> PlannedNode {
    node(name, &["in"], &["out"], |io| {
        let (input, out) = (io.input::<Text>("in")?, io.output::<Text>("out")?);
        while let Some(item) = input.recv()? {
            out.send(item)?;
        }
        Ok(())
    })
}

/// Logs everything it receives, the end too.
pub fn sink(name: &str, log: &Log) -> PlannedNode {
    let log = log.clone();
    node(name, &["in"], &[], move |io| {
        while let Some((_, item)) = io.recv_any()? {
            log.lock().unwrap().push(line(&item));
            if let Item::Mark(Mark::Eos(_)) = item {
                return Ok(());
            }
        }
        Ok(())
    })
}

pub fn lines(log: &Log) -> Vec<String> {
    log.lock().unwrap().clone()
}
