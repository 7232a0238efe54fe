//! A node of your own in a graph: `cargo run --release --example own_node -- FILE`.
//!
//! `example.loudness` measures each piece of sound that passes and hands it on unchanged.

use oxiline::graph::payload::{Audio, Event};
use oxiline::graph::{Io, Node, PortType, Result, Runtime, Setup, Timed};
use schemars::JsonSchema;
use serde::Deserialize;

/// Options, as the graph file writes them.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Options {
    /// Pieces quieter than this, in dBFS, are not reported.
    floor: f32,
}

impl Default for Options {
    fn default() -> Self {
        Self { floor: -60.0 }
    }
}

struct Loudness {
    options: Options,
}

impl Node for Loudness {
    const KIND: &'static str = "example.loudness";
    const ABOUT: &'static str = "Measures the loudness of sound that passes.";
    type Options = Options;

    fn new(options: Options, setup: &mut Setup) -> Result<Self> {
        setup.input("audio", PortType::AUDIO);
        setup.output("events", PortType::Event);
        Ok(Self { options })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input = io.input::<Audio>("audio")?;
        let output = io.output::<Event>("events")?;
        while let Some(piece) = input.recv()? {
            let energy: f32 = piece.value.samples.iter().map(|s| s * s).sum();
            let db = 10.0 * (energy / piece.value.samples.len().max(1) as f32).max(1e-12).log10();
            if db >= self.options.floor {
                let data = serde_json::json!({ "at_s": piece.header.pts as f64 * 1e-9, "dbfs": db });
                let event = Event { kind: "loudness".into(), data: data.into() };
                output.send(Timed { header: piece.header, value: event })?;
            }
        }
        Ok(())
    }
}

/// Prints events.
struct Print;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoOptions {}

impl Node for Print {
    const KIND: &'static str = "example.print";
    const ABOUT: &'static str = "Prints events, a line each.";
    type Options = NoOptions;

    fn new(_: NoOptions, setup: &mut Setup) -> Result<Self> {
        setup.input("events", PortType::Event);
        Ok(Self)
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input = io.input::<Event>("events")?;
        while let Some(event) = input.recv()? {
            println!("{}", event.value.data);
        }
        Ok(())
    }
}

const GRAPH: &str = r#"
schema = 1
name = "loudness"

[vars]
input = "talk.mp3"

[nodes.file]
use = "media.read"
uri = "${input}"

[nodes.decode]
use = "audio.decode"
in = "file.audio"

[nodes.meter]
use = "example.loudness"
in = "decode"
floor = -50.0

[nodes.print]
use = "example.print"
in = "meter.events"
"#;

fn main() -> Result<()> {
    let Some(file) = std::env::args().nth(1) else {
        eprintln!("usage: own_node FILE");
        std::process::exit(2);
    };
    let mut registry = oxiline::registry();
    registry.node::<Loudness>();
    registry.node::<Print>();
    let sets = [("input".to_string(), file)];
    let plan = oxiline::graphs::plan_text("loudness", GRAPH, &registry, &sets)?;
    for summary in Runtime::default().run(vec![plan])? {
        eprintln!("{summary}");
        if summary.exit_code != 0 {
            std::process::exit(summary.exit_code.into());
        }
    }
    Ok(())
}
