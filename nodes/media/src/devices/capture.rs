//! `audio.capture`: a microphone.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use oxiline_graph::node::Device;
use oxiline_graph::payload::{Audio, Param};
use oxiline_graph::{Error, GapReason, Header, Io, Nanos, Node, Output, PortType, Prepare, Result, Setup, Span, Timed};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::host::{Ask, Form, Host, OnLost, Opened, System};
use super::reopen::{Backoff, Watch};
use super::ring::{self, CaptureRing};
use super::timeline::{Piece, Timeline};

/// How often the node looks into its ring.
const LOOK: Span = Span::ms(5);
/// Longest item.
const ITEM: Nanos = 100_000_000;
/// How much sound is kept while weights load.
const PRELISTEN: Span = Span::secs(30);
/// How often a lost device's gap goes on.
const AWAY: Nanos = 500_000_000;

/// Options of `audio.capture`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AudioCaptureOptions {
    /// The microphone: an id that `oxiline devices` lists, or default.
    pub device: String,
    /// Samples a second (left out: the device's own).
    pub rate: Option<u32>,
    /// Channels (left out: the device's own).
    pub channels: Option<u16>,
    /// Listen while weights load: what is said then is not lost.
    pub prelisten: bool,
    /// What to do when the device goes away: reopen (it, or else the default device) or fail.
    pub on_lost: OnLost,
    /// How much fits between device and graph; more is lost, counted and a gap.
    pub ring: Span,
    /// Frames a callback of the device, as far as it obeys.
    pub period: u32,
    /// Stop after so much sound (left out: when it is stopped).
    pub duration: Option<Span>,
}

impl Default for AudioCaptureOptions {
    fn default() -> Self {
        Self {
            device: "default".into(),
            rate: None,
            channels: None,
            prelisten: false,
            on_lost: OnLost::Reopen,
            ring: Span::secs(2),
            period: 2048,
            duration: None,
        }
    }
}

/// Captures sound.
pub struct AudioCapture<H = System> {
    options: AudioCaptureOptions,
    host: H,
    device: Option<Open>,
}

/// An open microphone.
struct Open {
    opened: Opened,
    ring: CaptureRing,
    watch: Watch,
}

impl<H: Host> Node for AudioCapture<H> {
    const KIND: &'static str = "audio.capture";
    const ABOUT: &'static str = "Captures sound from a microphone; survives its being unplugged.";
    type Options = AudioCaptureOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        super::checked(&options.device, options.rate, options.channels, options.period)?;
        if !(Span::ms(50)..=Span::secs(60)).contains(&options.ring) {
            return Err(Error::msg("`ring` must lie between 50ms and 60s"));
        }
        let rate = options.rate.map_or(Param::Any, Param::Is);
        let channels = options.channels.map_or(Param::Any, Param::Is);
        setup.output("audio", PortType::Audio { rate, channels });
        setup.device(Device::Capture);
        // The device's own buffer and one look; the device says more once it is open.
        let period = Span::ms(u64::from(options.period) * 1000 / u64::from(options.rate.unwrap_or(48_000)));
        setup.latency(LOOK, Span(period.0 * 2 + LOOK.0));
        let held = options.ring.as_secs_f64() + if options.prelisten { PRELISTEN.as_secs_f64() } else { 0.0 };
        setup.memory((held * f64::from(options.rate.unwrap_or(48_000)) * 8.0) as u64);
        Ok(Self { options, host: H::new(), device: None })
    }

    fn listen(&mut self, prepare: &Prepare) -> Result<()> {
        if self.options.prelisten {
            prepare.begin_time();
            self.device = Some(self.open(&self.options.device.clone(), prepare.now())?);
        }
        Ok(())
    }

    fn prepare(&mut self, prepare: &Prepare) -> Result<()> {
        if self.device.is_none() {
            self.device = Some(self.open(&self.options.device.clone(), prepare.now())?);
        }
        Ok(())
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let Some(device) = self.device.take() else {
            return Err(Error::msg("`audio.capture` was run before it was prepared"));
        };
        let own = device.opened.form;
        let out = Form {
            rate: self.options.rate.unwrap_or(own.rate),
            channels: self.options.channels.unwrap_or(own.channels),
        };
        let mut capture = Capture {
            io,
            output: io.output("audio")?,
            timeline: Timeline::new(out, io.is_clock_master()),
            left: self.options.duration.map(|d| super::frames(d.nanos(), out.rate) as u64),
            pieces: Vec::new(),
            before: Counted::default(),
            counted: Counted::default(),
            reported: Nanos::MIN,
        };
        capture.timeline.open(own)?;
        let done = self.capture(&mut capture, device);
        capture.say();
        done
    }
}

impl<H: Host> AudioCapture<H> {
    fn open(&mut self, device: &str, now: Nanos) -> Result<Open> {
        let AudioCaptureOptions { rate, channels, period, .. } = self.options;
        let held = self.options.ring.nanos() + if self.options.prelisten { PRELISTEN.nanos() } else { 0 };
        let ask = Ask { device: device.into(), rate, channels, period, now };
        let mut ring = None;
        let opened = self.host.capture(&ask, &mut |form| {
            let (end, mine) = ring::capture(super::frames(held, form.rate), form.channels);
            ring = Some(mine);
            end
        })?;
        let ring = ring.ok_or_else(|| Error::msg("the host opened a microphone without a ring"))?;
        Ok(Open { opened, ring, watch: Watch::new(now) })
    }

    fn capture(&mut self, capture: &mut Capture<'_>, device: Open) -> Result<()> {
        let io = capture.io;
        let mut device = device;
        loop {
            let stopping = io.stopping();
            io.check()?;
            let now = io.now();
            device.opened.stream.pump(now);
            let lost = device.watch.is_lost(&device.ring.health, now);
            if capture.look(&mut device, now)? || stopping {
                capture.report(&device, 0);
                capture.close()?;
                return Ok(());
            }
            if lost {
                match self.reopen(capture, device)? {
                    Some(again) => device = again,
                    None => return Ok(()),
                }
            }
            io.sleep(LOOK)?;
        }
    }

    /// Waits for the lost device, or another; `None`: the graph stops meanwhile.
    fn reopen(&mut self, capture: &mut Capture<'_>, device: Open) -> Result<Option<Open>> {
        let io = capture.io;
        let id = device.opened.id.clone();
        let said = device.ring.health.said().map_or_else(String::new, |said| format!(" ({said})"));
        capture.counted.losses += 1;
        capture.before = capture.counted;
        // Before the next attempt: some systems allow one user at a time.
        drop(device);
        capture.close()?;
        if self.options.on_lost == OnLost::Fail {
            return Err(Error::msg(format_args!(
                "the microphone `{id}` was lost{said}; plug it in again, or set `on_lost = \"reopen\"`"
            )));
        }
        io.note(format!("the microphone `{id}` was lost{said}; waiting for it"));
        let mut backoff = Backoff::new(io.now());
        let mut told = Nanos::MIN;
        loop {
            if io.stopping() {
                return Ok(None);
            }
            io.check()?;
            let now = io.now();
            if now.saturating_sub(told) >= AWAY {
                capture.timeline.away(now, &mut capture.pieces);
                capture.send()?;
                told = now;
            }
            if backoff.due(now) {
                let asked = self.options.device.clone();
                let again = self.open(&asked, now).or_else(|_| self.open("default", now));
                if let Ok(again) = again {
                    capture.timeline.open(again.opened.form)?;
                    let Opened { id, form, .. } = &again.opened;
                    io.note(format!("capturing from `{id}` at {} Hz again", form.rate));
                    return Ok(Some(again));
                }
            }
            io.sleep(Span::ms(50))?;
        }
    }
}

/// What went wrong, over all devices of the run.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    lost_frames: u64,
    xruns: u64,
    errors: u64,
    losses: u64,
}

impl Counted {
    /// With what the open device counts.
    fn and(self, device: &Open) -> Self {
        let health = &device.ring.health;
        Self {
            lost_frames: self.lost_frames + device.ring.lost(),
            xruns: self.xruns + health.xruns.load(Relaxed),
            errors: self.errors + health.errors.load(Relaxed),
            losses: self.losses,
        }
    }
}

/// The run of a microphone.
struct Capture<'a> {
    io: &'a Io,
    output: Output<Audio>,
    timeline: Timeline,
    /// Frames until `duration` is reached.
    left: Option<u64>,
    pieces: Vec<Piece>,
    /// Of the devices that went away, and with the one that is open.
    before: Counted,
    counted: Counted,
    reported: Nanos,
}

impl Capture<'_> {
    /// Sends what is in the ring. True when the duration is reached.
    fn look(&mut self, device: &mut Open, now: Nanos) -> Result<bool> {
        let waiting = device.ring.waiting();
        let to_graph = self.io.now() - device.opened.stream.now();
        let mut samples = Vec::new();
        while let Some(block) = device.ring.next(&mut samples) {
            self.timeline.block(block, &samples, to_graph, &mut self.pieces);
            samples.clear();
        }
        self.counted = self.before.and(device);
        self.io.steer_clock(self.timeline.clock());
        if now.saturating_sub(self.reported) >= 1_000_000_000 {
            self.reported = now;
            self.report(device, waiting);
        }
        self.send()?;
        Ok(self.left == Some(0))
    }

    fn report(&self, device: &Open, waiting: usize) {
        let Opened { id, form, period, .. } = &device.opened;
        let Counted { lost_frames, xruns, errors, losses } = self.counted;
        let value = json!({
            "id": id,
            "rate": form.rate,
            "channels": form.channels,
            "period": period,
            "clock_master": self.io.is_clock_master(),
            "drift_ppm": self.timeline.ppm().map(|ppm| (ppm * 10.0).round() / 10.0),
            "late_ms": (self.timeline.late * 1e4).round() / 10.0,
            "fill_ms": waiting as f64 * 1e3 / f64::from(form.rate),
            "overrun_frames": lost_frames,
            "xruns": xruns,
            "errors": errors,
            "losses": losses,
            "resyncs": self.timeline.resyncs,
        });
        self.io.report("device", value);
    }

    /// Sends the pieces, the last one cut at the duration.
    fn send(&mut self) -> Result<()> {
        let form = self.timeline.form();
        let width = usize::from(form.channels);
        // Neighbouring blocks go as one item.
        let mut joined: VecDeque<Piece> = VecDeque::new();
        for piece in self.pieces.drain(..) {
            match (joined.back_mut(), piece) {
                (Some(Piece::Sound(_, before)), Piece::Sound(_, mut samples))
                    if super::timeline::nanos((before.len() / width) as u64, form.rate) < ITEM =>
                {
                    before.append(&mut samples);
                }
                (_, piece) => joined.push_back(piece),
            }
        }
        for piece in joined {
            match piece {
                Piece::Gap(gap) => {
                    if gap.reason == GapReason::Dropped {
                        self.io.count("dropped_ms", u64::try_from((gap.to - gap.from) / 1_000_000).unwrap_or(0));
                    }
                    self.output.gap(gap)?;
                }
                Piece::Sound(pts, mut samples) => {
                    if let Some(left) = &mut self.left {
                        samples.truncate(usize::try_from(*left).unwrap_or(usize::MAX).saturating_mul(width));
                        *left -= (samples.len() / width) as u64;
                    }
                    let frames = (samples.len() / width) as u64;
                    if frames == 0 {
                        continue;
                    }
                    let dur = super::timeline::nanos(frames, form.rate);
                    let audio = Audio { rate: form.rate, channels: form.channels, samples: samples.into() };
                    // Born when it was heard; 0 would mean unknown.
                    let header = Header { born: pts.max(1), ..Header::at(pts, dur) };
                    self.output.send(Timed { header, value: audio })?;
                    self.io.count("frames", frames);
                }
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.timeline.close(&mut self.pieces);
        self.send()
    }

    /// What a person should know at the end.
    fn say(&self) {
        let Counted { lost_frames, xruns, errors, losses } = self.counted;
        for (what, n) in [("overrun_frames", lost_frames), ("xruns", xruns), ("device_losses", losses)] {
            if n > 0 {
                self.io.count(what, n);
            }
        }
        if lost_frames > 0 {
            let seconds = lost_frames as f64 / f64::from(self.timeline.form().rate);
            self.io.note(format!(
                "{seconds:.2} s of the microphone were lost because the graph did not take them in time"
            ));
        }
        if xruns > 0 || errors > super::HARMLESS {
            self.io.note(format!("the microphone itself reported {xruns} overruns and {errors} other errors"));
        }
        if self.timeline.resyncs > 0 {
            self.io.note(format!("the microphone's time was realigned {} times", self.timeline.resyncs));
        }
    }
}
