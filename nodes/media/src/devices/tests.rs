//! The device nodes on simulated devices: in virtual time, or in real time where samples must be exact
//! (then the device is the graph's clock and nothing is resampled).

use std::sync::{Mutex, PoisonError};

use oxiline_graph::payload::{Audio, Event};
use oxiline_graph::plan::ClockKind;
use oxiline_graph::stats::Outcome;
use oxiline_graph::{
    Gap, GapReason, GraphBuilder, Harness, Incoming, Io, Item, Nanos, Node, Outputs, Payload, PortType, Registry,
    Result, RunOptions, Runtime, Setup, Span, Summary, Timed,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::fake::{FakeHost, Nature, plug, signal};
use super::host::{Form, OnLost};
use super::{AudioCapture, AudioCaptureOptions, AudioPlay};

const SECOND: Nanos = 1_000_000_000;

fn options(device: &str, seconds: u64) -> AudioCaptureOptions {
    AudioCaptureOptions { device: device.into(), duration: Some(Span::secs(seconds)), ..AudioCaptureOptions::default() }
}

fn capture(options: AudioCaptureOptions) -> Outputs {
    Harness::new::<AudioCapture<FakeHost>>(options).run().unwrap()
}

fn gaps(out: &Outputs) -> Vec<Gap> {
    out.items("audio").iter().filter_map(|i| if let Item::Gap(g) = i { Some(*g) } else { None }).collect()
}

fn sound(out: &Outputs) -> Vec<Timed<Audio>> {
    out.data("audio")
}

/// Times run on without a hole between items, except where a gap says so.
fn runs_on(out: &Outputs) {
    let mut next = None;
    for item in out.items("audio") {
        let (from, to) = match item {
            Item::Data(header, Payload::Audio(_)) => (header.pts, header.pts + header.dur),
            Item::Gap(gap) => (gap.from, gap.to),
            _ => continue,
        };
        assert!(next.is_none_or(|n: Nanos| (n - from).abs() <= 2), "{next:?} is followed by {from}");
        next = Some(to);
    }
}

#[test]
fn a_master_microphone_is_captured_sample_for_sample() {
    plug("exact", Nature { ppm: 300.0, ..Nature::new(48_000, 2) });
    let run = Harness::new::<AudioCapture<FakeHost>>(AudioCaptureOptions {
        duration: Some(Span::ms(400)),
        ..options("exact", 0)
    });
    let out = run.clock(ClockKind::Auto).run().unwrap();
    let heard: Vec<f32> = sound(&out).iter().flat_map(|t| t.value.samples.to_vec()).collect();
    assert_eq!(heard.len(), 2 * 19_200);
    let first = (heard[0] * 32_768.0).round() as u64;
    assert!(heard.chunks(2).enumerate().all(|(i, f)| f == [signal(first + i as u64); 2]));
    runs_on(&out);
    assert_eq!(out.summary.outcome, Outcome::Complete);
    let device = &out.summary.stats.nodes[0].reports["device"];
    assert_eq!((&device["clock_master"], &device["overrun_frames"]), (&json!(true), &json!(0)));
}

#[test]
fn ten_minutes_of_drift_keep_to_graph_time() {
    plug("drifting", Nature { ppm: 200.0, jitter: 8_000_000, ..Nature::new(16_000, 1) });
    let out = capture(options("drifting", 600));
    assert!(gaps(&out).is_empty(), "no hard resync");
    runs_on(&out);
    let sound = sound(&out);
    let frames: usize = sound.iter().map(|t| t.value.frames()).sum();
    assert_eq!(frames, 16_000 * 600);
    // Ten minutes of graph time hold ten minutes of sound: what is sent last is 10 ms old, and the filter
    // and the look at the ring add to that.
    let late = out.summary.stats.nodes[0].reports["device"]["late_ms"].as_f64().unwrap();
    assert!(late.abs() < 10.0, "{late} ms from the device's line");
    // The signal counts frames: of 9,600,000 output frames, the device made 200 ppm more.
    let all: Vec<f32> = sound.iter().flat_map(|t| t.value.samples.to_vec()).collect();
    let counted = f64::from(all[all.len() - 200]) * 32_768.0;
    let want = (16_000.0 * 600.0 * 1.0002 - 200.0) % 32_768.0;
    assert!((counted - want).abs() < 16.0 * 12.0, "frame {counted}, not {want}");
}

#[test]
fn a_device_lost_for_five_seconds_comes_back_at_another_rate() {
    for mute in [false, true] {
        let name = if mute { "lost mute" } else { "lost" };
        let back = Form { rate: 44_100, channels: 2 };
        let away = Some((2 * SECOND, 7 * SECOND, back));
        let fake = plug(name, Nature { away, mute, ..Nature::new(48_000, 1) });
        let out = capture(options(name, 4));
        runs_on(&out);
        let gaps = gaps(&out);
        assert!(gaps.iter().all(|g| g.reason == GapReason::DeviceLost), "{gaps:?}");
        let missing: Nanos = gaps.iter().map(|g| g.to - g.from).sum();
        // Until the next attempt after it is back, which the back-off puts at most 4 s later.
        assert!((5 * SECOND..9 * SECOND).contains(&missing), "{missing}");
        assert!((gaps[0].from - 2 * SECOND).abs() < SECOND / 50, "{gaps:?}");
        assert!(sound(&out).iter().all(|t| (t.value.rate, t.value.channels) == (48_000, 1)), "the form stays");
        let frames: usize = sound(&out).iter().map(|t| t.value.frames()).sum();
        assert_eq!(frames, 4 * 48_000);
        assert_eq!(*fake.opened.lock().unwrap(), 2);
        assert_eq!(out.summary.stats.nodes[0].counters["device_losses"], 1);
        assert!(out.summary.notes.iter().any(|n| n.contains("44100 Hz again")), "{:?}", out.summary.notes);
    }
}

#[test]
fn another_device_is_taken_when_the_lost_one_stays_away() {
    let form = Form { rate: 16_000, channels: 1 };
    plug("unplugged", Nature { away: Some((SECOND, 600 * SECOND, form)), ..Nature::new(16_000, 1) });
    plug("default", Nature::new(16_000, 1));
    let out = capture(options("unplugged", 2));
    runs_on(&out);
    assert!(out.summary.notes.iter().any(|n| n.contains("capturing from `default`")), "{:?}", out.summary.notes);
}

/// Takes sound, and sleeps a second at its tenth item.
struct Slow;

impl Node for Slow {
    const KIND: &'static str = "test.slow";
    const ABOUT: &'static str = "Sleeps.";
    type Options = LogOptions;
    fn new(_: LogOptions, setup: &mut Setup) -> Result<Self> {
        setup.input("audio", PortType::AUDIO);
        Ok(Self)
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        let input = io.input::<Audio>("audio")?;
        let (mut frames, mut gaps, mut items) = (0, Vec::new(), 0);
        loop {
            match input.next()? {
                Incoming::Data(item) => {
                    frames += item.value.frames();
                    items += 1;
                    if items == 10 {
                        io.sleep(Span::secs(1))?;
                    }
                }
                Incoming::Gap(gap) => gaps.push((gap.reason.name(), gap.to - gap.from)),
                Incoming::Mark(_) => {}
                Incoming::End(_) => break,
            }
        }
        io.report("took", json!({ "frames": frames, "gaps": gaps }));
        Ok(())
    }
}

#[test]
fn what_the_graph_does_not_take_in_time_is_counted_and_a_gap() {
    plug("hurried", Nature::new(16_000, 1));
    let mut registry = Registry::new();
    registry.node::<AudioCapture<FakeHost>>();
    registry.node::<Slow>();
    let graph = GraphBuilder::new("g")
        .node("mic", "audio.capture", json!({ "device": "hurried", "ring": "200ms", "duration": "3s" }))
        .node("slow", "test.slow", json!({}))
        .connect_with("mic", "slow", json!({ "cap": 1 }));
    let mut plan = graph.plan(&registry).unwrap_or_else(|messages| panic!("{messages:?}"));
    plan.clock = ClockKind::Virtual;
    let summary = Runtime::isolated(RunOptions::default()).start(plan).unwrap().wait();
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    let lost = summary.node("mic").unwrap().counters["overrun_frames"];
    // A second passed, of which 200 ms fitted into the ring, and a few items into the edge.
    assert!((16 * 600..=16 * 900).contains(&lost), "{lost} frames");
    let took = &summary.node("slow").unwrap().reports["took"];
    assert_eq!(took["frames"], json!(3 * 16_000), "as much sound as was asked for");
    let gaps = took["gaps"].as_array().unwrap();
    assert!(gaps.iter().all(|g| g[0] == json!("dropped")), "{took}");
    let missing: i64 = gaps.iter().filter_map(|g| g[1].as_i64()).sum();
    let lost = super::timeline::nanos(lost, 16_000);
    assert!((missing - lost).abs() <= 20_000_000, "{missing} ns of gaps for {lost} ns of frames");
    assert!(summary.notes.iter().any(|n| n.contains("did not take them in time")), "{:?}", summary.notes);
}

#[test]
fn a_lost_device_can_be_the_end() {
    let form = Form { rate: 16_000, channels: 1 };
    plug("gone", Nature { away: Some((SECOND, 600 * SECOND, form)), ..Nature::new(16_000, 1) });
    let fails = AudioCaptureOptions { on_lost: OnLost::Fail, ..options("gone", 5) };
    let error = Harness::new::<AudioCapture<FakeHost>>(fails).run().unwrap_err().to_string();
    assert!(error.contains("`gone` was lost (unplugged)") && error.contains("plug it in again"), "{error}");
    let error = Harness::new::<AudioCapture<FakeHost>>(options("nowhere", 5)).run().unwrap_err().to_string();
    assert!(error.contains("there is no device `nowhere`"), "{error}");
}

/// Sends sound in segments: `[speed, [first id, milliseconds], ...]`.
struct Tone(ToneOptions);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ToneOptions {
    rate: u32,
    /// Milliseconds of each segment.
    segments: Vec<u64>,
    /// Seconds of sound made in a second (0: at once).
    #[serde(default)]
    speed: f64,
    /// Milliseconds between segments.
    #[serde(default)]
    rest: u64,
}

impl Node for Tone {
    const KIND: &'static str = "test.tone";
    const ABOUT: &'static str = "Frame numbers as sound.";
    type Options = ToneOptions;
    fn new(options: ToneOptions, setup: &mut Setup) -> Result<Self> {
        setup.output("audio", PortType::audio(options.rate, 1));
        setup.cancellable();
        Ok(Self(options))
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        let out = io.output::<Audio>("audio")?;
        let mut frame = 0u64;
        for (id, ms) in std::mem::take(&mut self.0.segments).into_iter().enumerate() {
            let id = id as u64 + 1;
            out.mark(oxiline_graph::Mark::SegmentStart(id))?;
            for _ in 0..ms / 20 {
                let frames = u64::from(self.0.rate / 50);
                let samples: Vec<f32> = (0..frames).map(|i| 0.5 + signal(frame + i) / 4.0).collect();
                let mut item = Timed::at(
                    super::timeline::nanos(frame, self.0.rate),
                    20_000_000,
                    Audio { rate: self.0.rate, channels: 1, samples: samples.into() },
                );
                item.header.segment = id;
                if self.0.speed > 0.0 {
                    io.sleep(Span::ms((20.0 / self.0.speed) as u64))?;
                }
                out.send(item)?;
                frame += frames;
            }
            out.mark(oxiline_graph::Mark::SegmentEnd { id, cancelled: false })?;
            io.sleep(Span::ms(self.0.rest))?;
        }
        Ok(())
    }
}

/// Presses keys: milliseconds and what then.
struct Keys(KeysOptions);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeysOptions {
    script: Vec<(u64, String)>,
}

impl Node for Keys {
    const KIND: &'static str = "test.keys";
    const ABOUT: &'static str = "Keys.";
    type Options = KeysOptions;
    fn new(options: KeysOptions, _: &mut Setup) -> Result<Self> {
        Ok(Self(options))
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        for (ms, what) in &self.0.script {
            io.sleep_until(*ms as Nanos * 1_000_000)?;
            match what.as_str() {
                "pause" => io.pause_scope("reply")?,
                "resume" => io.resume_scope("reply")?,
                _ => io.cancel_scope("reply")?,
            }
        }
        Ok(())
    }
}

/// Reports all events it gets.
struct Log;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogOptions {}

impl Node for Log {
    const KIND: &'static str = "test.log";
    const ABOUT: &'static str = "Events.";
    type Options = LogOptions;
    fn new(_: LogOptions, setup: &mut Setup) -> Result<Self> {
        setup.input("event", PortType::Event);
        Ok(Self)
    }
    fn run(&mut self, io: &Io) -> Result<()> {
        let input = io.input::<Event>("event")?;
        let all = Mutex::new(Vec::new());
        while let Some(event) = input.recv()? {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.push((*event.value.data).clone());
            io.report("events", Value::Array(all.clone()));
        }
        Ok(())
    }
}

/// Runs sound into the loudspeaker `device`; `keys`: what is pressed when.
fn play(device: &str, tone: Value, play: Value, keys: Value, clock: ClockKind) -> Summary {
    let mut registry = Registry::new();
    registry.node::<AudioPlay<FakeHost>>();
    registry.node::<Tone>();
    registry.node::<Keys>();
    registry.node::<Log>();
    let mut tone = tone;
    tone["scope"] = json!("reply");
    let mut options = play;
    (options["device"], options["scope"]) = (json!(device), json!("reply"));
    let graph = GraphBuilder::new("play")
        .node("tone", "test.tone", tone)
        .node("play", "audio.play", options)
        .node("keys", "test.keys", json!({ "script": keys, "cancels": ["reply"] }))
        .node("events", "test.log", json!({}))
        .node("played", "test.log", json!({}))
        .connect("tone", "play")
        .connect("play.events", "events")
        .connect("play.played", "played");
    let mut plan = graph.plan(&registry).unwrap_or_else(|messages| panic!("{messages:?}"));
    plan.clock = clock;
    Runtime::isolated(RunOptions::default()).start(plan).unwrap().wait()
}

fn events(summary: &Summary, node: &str) -> Vec<Value> {
    let reports = &summary.node(node).unwrap().reports;
    reports.get("events").and_then(Value::as_array).cloned().unwrap_or_default()
}

fn names(summary: &Summary) -> Vec<String> {
    events(summary, "events").iter().map(|e| e["event"].as_str().unwrap().to_string()).collect()
}

/// Samples that the tone made, in order.
fn frames_of(sound: &[f32]) -> Vec<i64> {
    sound.iter().filter(|x| **x >= 0.5).map(|x| ((f64::from(*x) - 0.5) * 4.0 * 32_768.0).round() as i64).collect()
}

#[test]
fn what_goes_in_is_heard_to_the_last_sample() {
    let fake = plug("speaker", Nature { ppm: -150.0, ..Nature::new(16_000, 1) });
    let tone = json!({ "rate": 16_000, "segments": [200, 160] });
    let summary = play("speaker", tone, json!({}), json!([]), ClockKind::Auto);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    let frames = frames_of(&fake.sound());
    assert!(frames.iter().copied().eq(0..(16 * 360)), "{} frames", frames.len());
    assert_eq!(names(&summary), ["started", "drained"]);
    let whole: Vec<Value> = events(&summary, "played").into_iter().filter(|e| e["whole"] == json!(true)).collect();
    let told: Vec<(u64, u64)> =
        whole.iter().map(|e| (e["segment"].as_u64().unwrap(), e["samples"].as_u64().unwrap())).collect();
    assert_eq!(told, [(1, 3200), (2, 2560)]);
    assert_eq!(summary.node("play").unwrap().reports["device"]["underruns"], json!(0));
}

#[test]
fn the_pause_between_two_segments_is_no_underrun() {
    // Resampled and steered: each segment's end is still in the filters when it is over.
    let fake = plug("two", Nature::new(48_000, 2));
    let tone = json!({ "rate": 16_000, "segments": [600, 600], "rest": 1500 });
    let summary = play("two", tone, json!({}), json!([]), ClockKind::Virtual);
    assert_eq!(names(&summary), ["started", "started", "drained"], "{summary}");
    assert!(!summary.node("play").unwrap().counters.contains_key("underruns"), "{summary}");
    let heard = fake.sound().iter().filter(|x| **x > 0.4).count() / 2;
    assert!((heard as i64 - 48 * 1200).abs() < 48 * 5, "{heard} frames");
}

#[test]
fn a_pause_loses_no_sample() {
    let fake = plug("paused", Nature::new(16_000, 1));
    let tone = json!({ "rate": 16_000, "segments": [600] });
    let keys = json!([[200, "pause"], [500, "resume"]]);
    let summary = play("paused", tone, json!({}), keys, ClockKind::Auto);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(names(&summary), ["started", "paused", "resumed", "drained"]);
    // At full level everything but the faded in part is heard once, in order; that part (8 ms) faded.
    let mut frames = frames_of(&fake.sound());
    frames.dedup();
    let mut jumps = frames.windows(2).filter(|w| w[1] != w[0] + 1);
    let missing: i64 = jumps.by_ref().map(|w| w[1] - w[0] - 1).sum();
    assert!((0..=16 * 10).contains(&missing), "{missing} frames are missing");
    assert_eq!((frames[0], *frames.last().unwrap()), (0, 9599));
    // The fade ends in silence, not in a click.
    let sound = fake.sound();
    let falls = sound.windows(2).filter(|w| w[0] - w[1] > 0.45).count();
    assert!(falls <= 1, "only the end of the sound may fall at once: {falls}");
}

#[test]
fn a_cancel_is_silence_and_the_truth_about_what_was_heard() {
    let fake = plug("cancelled", Nature::new(16_000, 1));
    let tone = json!({ "rate": 16_000, "segments": [2000] });
    let summary = play("cancelled", tone, json!({}), json!([[400, "cancel"]]), ClockKind::Auto);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    let last = events(&summary, "played").pop().unwrap();
    assert_eq!((&last["segment"], &last["cancelled"]), (&json!(1), &json!(true)));
    let told = last["samples"].as_i64().unwrap();
    let heard = frames_of(&fake.sound());
    // What faded (8 ms) was not heard whole and is not counted.
    let full = *heard.iter().max().unwrap() + 1;
    assert!((told - full).abs() <= 16 * 10, "{told} told, {full} heard");
    assert!((16 * 100..16 * 1500).contains(&told), "{told}");
}

#[test]
fn running_dry_makes_the_cushion_grow() {
    plug("dry", Nature::new(16_000, 1));
    let tone = json!({ "rate": 16_000, "segments": [4000], "speed": 0.5 });
    let summary = play("dry", tone, json!({ "start": "40ms", "cushion_max": "400ms" }), json!([]), ClockKind::Virtual);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    let node = summary.node("play").unwrap();
    assert!(node.counters["underruns"] >= 3, "{:?}", node.counters);
    let cushions: Vec<u64> = events(&summary, "events").iter().filter_map(|e| e["cushion_ms"].as_u64()).collect();
    assert!(cushions.starts_with(&[80, 160, 320, 400]), "{cushions:?}");
    assert!(summary.notes.iter().any(|n| n.contains("ran dry")), "{:?}", summary.notes);
}

#[test]
fn measured_shortfall_is_waited_for() {
    plug("short", Nature::new(16_000, 1));
    let tone = json!({ "rate": 16_000, "segments": [4000], "speed": 0.9 });
    let summary = play("short", tone, json!({}), json!([]), ClockKind::Virtual);
    let started = events(&summary, "events").into_iter().find(|e| e["event"] == json!("started")).unwrap();
    // 20 ms of sound every 22 ms: a tenth short.
    assert!(started["buffered_ms"].as_u64().unwrap() >= 800, "{started}");
    assert!(!summary.node("play").unwrap().counters.contains_key("underruns"), "{summary}");
}

#[test]
fn a_lost_loudspeaker_is_opened_again() {
    let back = Form { rate: 48_000, channels: 2 };
    let away = Some((SECOND, 2 * SECOND, back));
    let fake = plug("lost speaker", Nature { away, ..Nature::new(16_000, 1) });
    let tone = json!({ "rate": 16_000, "segments": [4000] });
    let summary = play("lost speaker", tone, json!({}), json!([]), ClockKind::Virtual);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(names(&summary), ["started", "lost", "reopened", "started", "drained"]);
    let node = summary.node("play").unwrap();
    assert_eq!(node.counters["device_losses"], 1);
    // What waited in the ring went with the device, and that is said.
    assert!((1..=16_000 / 4).contains(&node.counters["lost_frames"]), "{:?}", node.counters);
    assert_eq!(*fake.opened.lock().unwrap(), 2);
}

#[test]
fn a_slow_loudspeaker_keeps_to_graph_time() {
    let fake = plug("slow speaker", Nature { ppm: -250.0, jitter: 6_000_000, ..Nature::new(16_000, 1) });
    let tone = json!({ "rate": 16_000, "segments": [300_000], "speed": 1.0 });
    let summary = play("slow speaker", tone, json!({ "start": "100ms" }), json!([]), ClockKind::Virtual);
    assert_eq!(summary.outcome, Outcome::Complete, "{summary}");
    assert_eq!(names(&summary), ["started", "drained"]);
    let device = &summary.node("play").unwrap().reports["device"];
    assert_eq!((&device["underruns"], &device["resyncs"]), (&json!(0), &json!(0)), "{device}");
    // Five minutes of sound in five minutes of graph time: the device had 250 ppm fewer frames for them.
    let heard = fake.sound().iter().filter(|x| **x > 0.1).count() as f64;
    let want = 300.0 * 16_000.0 * (1.0 - 250e-6);
    assert!((heard - want).abs() < 16.0 * 20.0, "{heard} frames, not {want}");
}

#[test]
fn a_graph_with_a_device_has_the_device_s_time() {
    let mut registry = Registry::new();
    registry.node::<AudioPlay<FakeHost>>();
    registry.node::<Tone>();
    let graph = |clock: &str| {
        GraphBuilder::new("g")
            .set("clock", json!(clock))
            .node("tone", "test.tone", json!({ "rate": 16_000, "segments": [20] }))
            .node("play", "audio.play", json!({ "device": "any" }))
            .connect("tone", "play")
            .plan(&registry)
    };
    assert!(graph("auto").is_ok());
    let Err(messages) = graph("virtual") else { panic!("no error") };
    assert!(messages[0].to_string().contains("a time of its own"), "{messages:?}");
}
