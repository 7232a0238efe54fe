//! Small kinds for tests of the loader: enough ports and options for every rule.
#![allow(dead_code)]

use oxiline_graph::plan::Plan;
use oxiline_graph::{
    Io, Job, Load, LoadOptions, Message, Model, Node, PortType, Protocol, Registry, Result, Setup, Span, Whereabouts,
    bail, payload::Param, plan_text,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// A kind with no behaviour: these tests load graphs, they do not run them.
macro_rules! kind {
    ($name:ident, $kind:literal, $about:literal, $options:ty, |$o:ident, $s:ident| $new:block) => {
        pub struct $name;
        impl Node for $name {
            const KIND: &'static str = $kind;
            const ABOUT: &'static str = $about;
            type Options = $options;
            fn new($o: Self::Options, $s: &mut Setup) -> Result<Self> {
                $new
                Ok(Self)
            }
            fn run(&mut self, _: &Io) -> Result<()> {
                Ok(())
            }
        }
    };
}

/// No options.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A file to read.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadOptions {
    /// The file to read.
    pub uri: String,
}

/// Rate and channels.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResampleOptions {
    /// Samples a second.
    #[schemars(range(min = 1, max = 768_000))]
    pub rate: u32,
    /// Channels.
    pub channels: u16,
}

impl Default for ResampleOptions {
    fn default() -> Self {
        Self { rate: 16_000, channels: 1 }
    }
}

/// How sensitive.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VadOptions {
    /// Probability from which it is speech.
    pub threshold: f32,
    /// Shortest silence.
    pub min_silence: Span,
    /// What to give.
    pub gate: Gate,
    /// Longest segment.
    pub max_segment: Option<Span>,
}

/// What to give.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// Labels only.
    #[default]
    Label,
    /// Gaps for silence.
    Cut,
}

impl Default for VadOptions {
    fn default() -> Self {
        Self { threshold: 0.5, min_silence: Span::ms(500), gate: Gate::Label, max_segment: None }
    }
}

/// Language.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AsrOptions {
    /// Code, or "auto".
    pub language: String,
    /// Words with times.
    pub words: bool,
    /// Temperatures.
    pub temperatures: Vec<f32>,
    /// How late it may be.
    pub late: Span,
}

impl Default for AsrOptions {
    fn default() -> Self {
        Self { language: "auto".into(), words: false, temperatures: vec![0.2], late: Span::ms(0) }
    }
}

/// Where to.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteOptions {
    /// The file.
    #[serde(default = "stdout")]
    pub to: String,
}

fn stdout() -> String {
    "-".into()
}

kind!(Read, "media.read", "Reads a media file.", ReadOptions, |_o, s| {
    s.memory(1 << 20);
    s.output("audio", PortType::Packet)
});
kind!(Decode, "audio.decode", "Decodes packets.", Nothing, |_o, s| {
    s.input("packet", PortType::Packet);
    s.output("audio", PortType::AUDIO);
    s.memory(1 << 20);
});
kind!(Resample, "audio.resample", "Converts sound.", ResampleOptions, |o, s| {
    s.input("audio", PortType::AUDIO);
    s.output("audio", PortType::audio(o.rate, o.channels));
    s.latency(Span::ms(0), Span::ms(12));
    s.memory(1 << 20);
});
kind!(Tone, "audio.tone", "A sine at a choice of rates.", Nothing, |_o, s| {
    s.output("audio", PortType::Audio { rate: Param::OneOf(vec![48_000, 16_000]), channels: Param::Range(1, 8) })
});
kind!(Gain, "audio.gain", "Louder or quieter, any form.", Nothing, |_o, s| {
    s.input("audio", PortType::AUDIO);
    s.output_like("audio", PortType::AUDIO, "audio");
});
kind!(Stuck, "audio.stuck", "Cannot follow a change of form.", Nothing, |_o, s| {
    s.input("audio", PortType::AUDIO);
    s.fixed_caps();
});
kind!(Vad, "audio.vad", "Finds speech.", VadOptions, |_o, s| {
    s.input("audio", PortType::audio(16_000, 1));
    s.output("speech", PortType::audio(16_000, 1));
    s.output("events", PortType::Event);
    s.latency(Span::ms(32), Span::ms(800));
    s.cancellable();
    s.memory(1 << 20);
    s.model::<Judge>()?;
});
kind!(Asr, "asr.transcribe", "Sound to text.", AsrOptions, |o, s| {
    s.input("audio", PortType::audio(16_000, 1));
    s.output("transcript", PortType::Transcript);
    s.latency(Span::ms(0), o.late);
    s.cancellable();
    s.memory(1 << 20);
    s.model::<Speak>()?;
});
kind!(Write, "caption.write", "Writes captions.", WriteOptions, |o, s| {
    s.input("transcript", PortType::Transcript);
    s.writes(o.to.into());
    s.memory(1 << 20);
});
kind!(Say, "text.say", "Makes text.", Nothing, |_o, s| { s.output("text", PortType::Text) });
kind!(Upper, "text.upper", "Capitals.", Nothing, |_o, s| {
    s.input("text", PortType::Text);
    s.output("text", PortType::Text);
    s.cancellable();
});
/// How late.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields, default)]
pub struct LateOptions {
    /// So late.
    pub late: Span,
}
kind!(Late, "text.late", "Holds text back.", LateOptions, |o, s| {
    s.input("text", PortType::Text);
    s.output("text", PortType::Text);
    s.latency(Span::ms(0), o.late);
});
kind!(Zip, "text.zip", "Joins two texts.", Nothing, |_o, s| {
    s.input("left", PortType::Text);
    s.input("right", PortType::Text);
    s.optional_input("hint", PortType::Event);
    s.output("text", PortType::Text);
});
kind!(Compose, "chat.compose", "Joins text and attachments by turn.", Nothing, |_o, s| {
    s.input("text", PortType::Text);
    s.input("extra", PortType::Text);
    s.joins_turns();
});
kind!(Print, "text.print", "Shows text.", Nothing, |_o, s| { s.input("text", PortType::Text) });
kind!(Tap, "tap", "Looks at anything.", Nothing, |_o, s| { s.input("any", PortType::Any) });
kind!(Keys, "control.keys", "Keys that stop things.", Nothing, |_o, _s| {});
kind!(Panics, "test.panics", "Panics.", Nothing, |_o, _s| {
    if true {
        panic!("on purpose")
    }
});
kind!(Refuses, "test.refuses", "Says no.", Nothing, |_o, _s| {
    if true {
        bail!("it is not the day for that")
    }
});

/// Judges sound.
pub struct Judge;
impl Protocol for Judge {
    const NAME: &'static str = "judge";
    type Open = ();
    type Request = ();
    type Reply = ();
}
/// Transcribes.
pub struct Speak;
impl Protocol for Speak {
    const NAME: &'static str = "transcribe";
    type Open = ();
    type Request = ();
    type Reply = ();
}

/// Weights by name.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// A folder or a name.
    pub weights: String,
}

macro_rules! model {
    ($name:ident, $kind:literal, $options:ty, $protocol:ty, |$o:ident| $identity:expr, $place:expr) => {
        pub struct $name;
        impl Model for $name {
            const KIND: &'static str = $kind;
            const ABOUT: &'static str = "A model for tests.";
            type Options = $options;
            type Protocol = $protocol;
            type Session = ();
            fn identity($o: &Self::Options) -> Result<String> {
                $identity
            }
            fn whereabouts($o: &Self::Options) -> Result<Whereabouts> {
                Ok($place)
            }
            fn load(_: Self::Options, _: &Load) -> Result<Self> {
                Ok(Self)
            }
            fn open(&mut self, _: ()) -> Result<()> {
                Ok(())
            }
            fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
                jobs.iter_mut().for_each(|job| job.finish(Ok(())));
            }
        }
    };
}
model!(Silero, "silero-vad", Nothing, Judge, |_o| Ok("silero".into()), Whereabouts::Here);
model!(
    Whisper,
    "whisper",
    Weights,
    Speak,
    |o| {
        if o.weights.starts_with("bad") {
            bail!("`{}` is no name of weights", o.weights);
        }
        Ok(o.weights.clone())
    },
    match o.weights.split('-').next() {
        Some("absent") => Whereabouts::Missing(o.weights.clone()),
        Some("remote") => Whereabouts::Fetched(o.weights.clone()),
        _ => Whereabouts::Here,
    }
);

/// All of them.
pub fn registry() -> Registry {
    let mut r = Registry::new();
    r.node::<Read>();
    r.node::<Decode>();
    r.node::<Resample>();
    r.node::<Tone>();
    r.node::<Gain>();
    r.node::<Stuck>();
    r.node::<Vad>();
    r.node::<Asr>();
    r.node::<Write>();
    r.node::<Say>();
    r.node::<Upper>();
    r.node::<Late>();
    r.node::<Zip>();
    r.node::<Compose>();
    r.node::<Print>();
    r.node::<Tap>();
    r.node::<Keys>();
    r.node::<Panics>();
    r.node::<Refuses>();
    r.model::<Silero>();
    r.model::<Whisper>();
    r
}

/// Options with an environment of one variable and files in memory.
pub fn options(files: &[(&str, &str)]) -> LoadOptions {
    LoadOptions {
        files: files.iter().map(|(name, text)| (name.into(), (*text).to_string())).collect(),
        env: std::sync::Arc::new(|name| (name == "WHO").then(|| "me".to_string())),
        ..LoadOptions::default()
    }
}

/// `schema = 1` and the text.
pub fn load(text: &str) -> Result<Plan, Vec<Message>> {
    plan_text("g.toml", &format!("schema = 1\n{text}"), &registry(), &options(&[]))
}

/// The text must load.
pub fn good(text: &str) -> Plan {
    load(text).unwrap_or_else(|m| panic!("must load:\n{}", lines(&m)))
}

/// All errors of a text that must not load, a line each.
pub fn bad(text: &str) -> String {
    lines(&load(text).err().expect("must not load"))
}

/// Messages, a line each.
pub fn lines(messages: &[Message]) -> String {
    messages.iter().map(|m| format!("{m}\n")).collect()
}
