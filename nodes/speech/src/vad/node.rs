//! `audio.vad`: labels speech. Nothing is deleted unseen.

use std::collections::VecDeque;
use std::sync::Arc;

use oxiline_graph::payload::{Audio, Event};
use oxiline_graph::protocol::speech::{VoiceActivity, VoiceReply, VoiceRequest};
use oxiline_graph::{
    Gap, GapReason, Header, Incoming, Input, Io, Mark, ModelRef, Nanos, Node, Output, PortType, Result, Session, Setup,
    Span, Timed, bail,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Boundary, CHUNK, SegmentSettings, Segmenter};

const RATE: u64 = 16_000;

/// What becomes of sound without speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Gate {
    /// It is passed on, labelled as silence.
    #[default]
    Label,
    /// A gap that says `no-speech` takes its place; it is counted.
    Gap,
}

/// Options of `audio.vad`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AudioVadOptions {
    /// Probability from which on sound starts speech, 0 to 1.
    pub threshold: f32,
    /// Shorter sounds are no speech.
    pub min_speech: Span,
    /// Silence this long ends speech.
    pub min_silence: Span,
    /// Counted as speech before the first and after the last sound of it.
    pub pad: Span,
    /// Longer speech is cut at its longest pause; left out: never.
    pub max_segment: Option<Span>,
    /// What becomes of sound without speech.
    pub gate: Gate,
}

impl Default for AudioVadOptions {
    fn default() -> Self {
        Self {
            threshold: 0.5,
            min_speech: Span::ms(200),
            min_silence: Span::ms(500),
            pad: Span::ms(300),
            max_segment: None,
            gate: Gate::Label,
        }
    }
}

/// Labels speech in 16 kHz mono sound.
pub struct AudioVad {
    settings: SegmentSettings,
    gate: Gate,
    model: ModelRef<VoiceActivity>,
}

fn samples(span: Span) -> u64 {
    (span.as_secs_f64() * RATE as f64).round() as u64
}

fn nanos(samples: u64) -> Nanos {
    (i128::from(samples) * 1_000_000_000 / i128::from(RATE)) as Nanos
}

impl Node for AudioVad {
    const KIND: &'static str = "audio.vad";
    const ABOUT: &'static str = "Labels speech in 16 kHz mono sound; silence is passed on labelled, or becomes a gap.";
    type Options = AudioVadOptions;

    fn new(options: AudioVadOptions, setup: &mut Setup) -> Result<Self> {
        if !(options.threshold > 0.0 && options.threshold < 1.0) {
            bail!("`threshold` is {}; it must lie between 0 and 1, 0.5 is usual", options.threshold);
        }
        let longest = [options.min_speech, options.min_silence, options.pad].into_iter().max().unwrap_or_default();
        if longest > Span::secs(60) {
            bail!("`min_speech`, `min_silence` and `pad` must be shorter than a minute, not {longest}");
        }
        let settings = SegmentSettings {
            threshold: options.threshold,
            low: None,
            min_speech: samples(options.min_speech),
            min_silence: samples(options.min_silence),
            pad: samples(options.pad),
            max_segment: options.max_segment.map(samples),
        };
        if let Some(max) = options.max_segment
            && samples(max) < CHUNK as u64 + 2 * settings.pad + settings.min_speech
        {
            bail!("`max_segment` ({max}) must be longer than `min_speech` and twice the `pad`");
        }
        setup.input("audio", PortType::audio(RATE as u32, 1));
        setup.output("speech", PortType::audio(RATE as u32, 1));
        setup.output("events", PortType::Event);
        let chunk = CHUNK as u64;
        // A label waits for the padding after it, and for speech to be long enough or cut.
        let wait = settings.pad + settings.max_segment.unwrap_or(settings.min_speech).max(settings.min_speech) + chunk;
        setup.latency(Span::ms((settings.pad + chunk) / 16), Span::ms(wait / 16));
        setup.memory(wait * 4 + (1 << 20));
        setup.cancellable();
        Ok(Self { settings, gate: options.gate, model: setup.model()? })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Audio> = io.input("audio")?;
        let mut run = Run {
            io,
            speech: io.output("speech")?,
            events: io.output("events")?,
            session: self.model.open(())?,
            gate: self.gate,
            settings: self.settings,
            segmenter: Segmenter::new(self.settings),
            waiting: VecDeque::new(),
            heard: 0,
            anchors: VecDeque::new(),
            seen: 0,
            spoken: 0,
        };
        loop {
            match input.next()? {
                Incoming::Data(item) => run.data(item)?,
                Incoming::Gap(gap) => run.pass(Waiting::Gap(gap))?,
                Incoming::Mark(mark @ Mark::Flush(_)) => {
                    run.end()?;
                    run.pass(Waiting::Mark(mark))?;
                }
                Incoming::Mark(mark) => run.pass(Waiting::Mark(mark))?,
                Incoming::End(_) => {
                    run.end()?;
                    run.summary();
                    return Ok(());
                }
            }
        }
    }
}

/// What waits for its label, and what waits behind it.
enum Waiting {
    Data(Timed<Audio>, u64, u64),
    Gap(Gap),
    Mark(Mark),
}

struct Run<'a> {
    io: &'a Io,
    speech: Output<Audio>,
    events: Output<Event>,
    session: Session<VoiceActivity>,
    gate: Gate,
    settings: SegmentSettings,
    segmenter: Segmenter,
    waiting: VecDeque<Waiting>,
    /// Samples given to the segmenter's timeline since the last flush.
    heard: u64,
    /// Where that timeline and media time meet, at every break in either.
    anchors: VecDeque<(u64, Nanos)>,
    /// Samples in all, and those labelled as speech.
    seen: u64,
    spoken: u64,
}

/// Breaks in time that are remembered: enough for any look-back.
const ANCHORS: usize = 256;

impl Run<'_> {
    fn data(&mut self, item: Timed<Audio>) -> Result<()> {
        let from = self.heard;
        let count = item.value.samples.len() as u64;
        self.heard += count;
        self.seen += count;
        // One sample of rounding is no break.
        if self.anchors.is_empty() || (self.time(from) - item.header.pts).abs() > 70_000 {
            self.anchors.push_back((from, item.header.pts));
            if self.anchors.len() > ANCHORS {
                self.anchors.pop_front();
            }
        }
        let request = VoiceRequest::Samples(item.value.samples.clone());
        self.waiting.push_back(Waiting::Data(item, from, self.heard));
        self.ask(request)?;
        self.release()
    }

    fn pass(&mut self, item: Waiting) -> Result<()> {
        self.waiting.push_back(item);
        self.release()
    }

    /// Probabilities into the segmenter, its boundaries out as events.
    fn ask(&mut self, request: VoiceRequest) -> Result<()> {
        for VoiceReply(probabilities) in self.session.ask(request)? {
            probabilities.into_iter().for_each(|p| self.segmenter.push(p));
        }
        self.boundaries()
    }

    fn boundaries(&mut self) -> Result<()> {
        while let Some(boundary) = self.segmenter.next_boundary() {
            let (state, at) = match boundary {
                Boundary::Start(at) => ("start", at),
                Boundary::End(at) => ("end", at),
            };
            let pts = self.time(at);
            let data = serde_json::json!({ "state": state, "at": pts as f64 / 1e9 });
            self.events.send(Timed::at(pts, 0, Event { kind: "vad".into(), data: Arc::new(data) }))?;
        }
        Ok(())
    }

    /// Media time of a sample.
    fn time(&self, sample: u64) -> Nanos {
        let anchor = self.anchors.iter().rev().find(|(at, _)| *at <= sample).or(self.anchors.front());
        match anchor {
            Some((at, pts)) if *at <= sample => pts + nanos(sample - at),
            Some((at, pts)) => pts - nanos(at - sample),
            None => 0,
        }
    }

    /// Sends on what needs to wait no longer, in order.
    fn release(&mut self) -> Result<()> {
        while let Some(first) = self.waiting.front() {
            let label = match first {
                Waiting::Data(_, from, to) => match self.segmenter.speech(*from, *to) {
                    Some(label) => label,
                    None => return Ok(()),
                },
                _ => false,
            };
            match self.waiting.pop_front() {
                Some(Waiting::Data(item, from, to)) => self.send(item, to - from, label)?,
                Some(Waiting::Gap(gap)) => self.speech.gap(gap)?,
                Some(Waiting::Mark(mark)) => self.speech.mark(mark)?,
                None => {}
            }
        }
        Ok(())
    }

    fn send(&mut self, mut item: Timed<Audio>, count: u64, speech: bool) -> Result<()> {
        if speech {
            self.spoken += count;
        } else if self.gate == Gate::Gap {
            self.io.count("muted_samples", count);
            let Header { pts, dur, .. } = item.header;
            let to = pts + if dur > 0 { dur } else { nanos(count) };
            return self.speech.gap(Gap { from: pts, to, reason: GapReason::NoSpeech });
        }
        item.header.flags |= Header::VAD_SEEN;
        if speech {
            item.header.flags |= Header::SPEECH;
        }
        self.speech.send(item)
    }

    /// The end of a stream: everything gets its label; the state is as new afterwards.
    fn end(&mut self) -> Result<()> {
        self.ask(VoiceRequest::Finish)?;
        self.segmenter.finish(self.heard);
        self.boundaries()?;
        self.release()?;
        self.segmenter = Segmenter::new(self.settings);
        self.heard = 0;
        self.anchors.clear();
        Ok(())
    }

    fn summary(&self) {
        let seconds = |samples: u64| samples as f64 / RATE as f64;
        self.io.report("audio_s", seconds(self.seen).into());
        self.io.report("speech_s", seconds(self.spoken).into());
        if self.seen > 0 && self.gate == Gate::Gap {
            let muted = 100.0 * (self.seen - self.spoken) as f64 / self.seen as f64;
            let hint = if muted > 90.0 { ": check `threshold`" } else { "" };
            self.io.note(format!("muted {muted:.0} % of {:.1} s as silence{hint}", seconds(self.seen)));
        }
    }
}
