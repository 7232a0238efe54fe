//! The run of a loudspeaker: from the input through converters and ring to what is heard.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use oxiline_graph::payload::{Audio, Event};
use oxiline_graph::{Header, Incoming, Io, Mark, Nanos, Output, Result, Span, Timed};
use serde_json::{Value, json};

use super::dll::{Dll, MOVED};
use super::frames;
use super::gate::Gate;
use super::heard::{Heard, Played};
use super::host::Form;
use super::play::{AudioPlayOptions, Open, Ports, Start};
use super::ring::Command;
use super::steer::{Steer, correction};
use super::timeline::{TELLING, nanos};
use crate::resample::Resampler;

/// How often `played` is told while a segment plays.
const TELL: Nanos = 100_000_000;
/// Moments a fade may take until the device counts as hung: 200 ms.
const MOMENTS: usize = 100;

/// What a step came to.
pub(super) enum Step {
    On,
    /// Everything was heard.
    Done,
    Lost,
}

/// Sound in the device's form on its way into the ring.
#[derive(Default)]
struct Pending {
    samples: Vec<f32>,
    at: usize,
    /// Frames of silence that come after it.
    silence: u64,
}

pub(super) struct Player<'a> {
    io: &'a Io,
    ports: Ports,
    device: Option<Open>,
    form: Form,
    buffer: Span,
    gate: Gate,
    heard: Heard,
    dll: Dll,
    converter: Option<Resampler>,
    input: Option<(u32, u16)>,
    /// Only when the device is not the graph's clock.
    steer: Option<Steer>,
    pending: Pending,
    /// Media time of the end of what went through the converters.
    media: Nanos,
    /// Graph and media time of one instant since when playing was not interrupted.
    origin: Option<(Nanos, Nanos)>,
    playing: bool,
    paused: bool,
    /// The input's last segment is over: running dry is no underrun.
    idle: bool,
    ended: bool,
    underruns: u64,
    counts: Counts,
    told: Nanos,
    reported: Nanos,
    frames_told: Option<Played>,
    /// The first error of a device.
    said: Option<String>,
}

#[derive(Default)]
struct Counts {
    underruns: u64,
    lost_frames: u64,
    losses: u64,
    resyncs: u64,
    xruns: u64,
    errors: u64,
}

impl<'a> Player<'a> {
    pub fn new(io: &'a Io, ports: Ports, options: &AudioPlayOptions, device: Open) -> Self {
        let start = match options.start {
            Start::Auto => None,
            Start::After(span) => Some(span),
        };
        let mut player = Self {
            io,
            ports,
            form: device.opened.form,
            buffer: options.buffer,
            gate: Gate::new(start, options.cushion_max),
            heard: Heard::default(),
            dll: Dll::new(device.opened.form.rate),
            converter: None,
            input: None,
            steer: None,
            pending: Pending::default(),
            media: 0,
            origin: None,
            playing: false,
            paused: false,
            idle: false,
            ended: false,
            underruns: 0,
            counts: Counts::default(),
            told: Nanos::MIN,
            reported: Nanos::MIN,
            frames_told: None,
            said: None,
            device: None,
        };
        player.take(device);
        player
    }

    /// Starts with a device.
    fn take(&mut self, device: Open) {
        self.form = device.opened.form;
        self.heard = Heard::new(self.form.rate);
        self.heard.cut(device.ring.written());
        self.dll = Dll::new(self.form.rate);
        self.steer = (!self.io.is_clock_master()).then(|| Steer::new(self.form.channels));
        self.underruns = device.ring.underruns();
        device.ring.set_ended(false);
        (self.playing, self.origin, self.converter, self.input) = (false, None, None, None);
        self.device = Some(device);
    }

    /// One look after everything.
    pub fn step(&mut self) -> Result<Step> {
        let now = self.io.now();
        let Some(device) = &mut self.device else { return Ok(Step::Lost) };
        device.opened.stream.pump(now);
        let (stream, master) = (device.opened.stream.now(), self.io.is_clock_master());
        while let Some(given) = device.ring.given() {
            let at = if master { given.at } else { given.at + now - stream };
            self.dll.update(given.first, at);
            self.heard.given(given);
        }
        if device.watch.is_lost(&device.ring.health, now) {
            return Ok(Step::Lost);
        }
        if master {
            self.io.steer_clock(self.dll.rate());
        }
        self.pause()?;
        self.ran_dry()?;
        self.fill(now)?;
        self.open_gate()?;
        self.align(now, stream);
        self.tell(now, stream, false)?;
        if now.saturating_sub(self.reported) >= 1_000_000_000 {
            self.reported = now;
            self.report();
        }
        let Some(device) = &self.device else { return Ok(Step::Lost) };
        let through = device.ring.waiting() == 0 && self.heard.last().is_none_or(|last| last <= stream);
        if self.ended && self.pending.is_empty() && through && !self.paused {
            self.tell(now, stream, true)?;
            self.event("drained", json!({}))?;
            return Ok(Step::Done);
        }
        Ok(Step::On)
    }

    /// Follows the scope.
    fn pause(&mut self) -> Result<()> {
        let paused = self.io.paused();
        if paused == self.paused {
            return Ok(());
        }
        self.paused = paused;
        self.origin = None;
        if let Some(device) = self.device.as_ref().filter(|_| self.playing) {
            device.ring.command(if paused { Command::Pause } else { Command::Run });
        }
        self.event(if paused { "paused" } else { "resumed" }, json!({}))
    }

    /// The ring ran dry: wait for more than before.
    fn ran_dry(&mut self) -> Result<()> {
        let Some(device) = &self.device else { return Ok(()) };
        let underruns = device.ring.underruns();
        if underruns == self.underruns {
            return Ok(());
        }
        self.counts.underruns += underruns - self.underruns;
        (self.underruns, self.playing, self.origin) = (underruns, false, None);
        let cushion = self.gate.ran_dry();
        self.gate.restart();
        let millis = self.gate.cushion().nanos() / 1_000_000;
        if let Some(cushion) = cushion {
            self.io.note(format!("the sound ran dry; from now on {cushion} are kept in hand"));
        }
        self.event("underrun", json!({ "cushion_ms": millis }))
    }

    /// Frames the ring should hold.
    fn target(&self) -> usize {
        frames(self.buffer.nanos().max(self.gate.needs().nanos()), self.form.rate)
    }

    /// From the input into the ring, as far as the target asks for.
    fn fill(&mut self, now: Nanos) -> Result<()> {
        loop {
            let target = self.target();
            let Some(device) = &mut self.device else { return Ok(()) };
            let wanted = target.saturating_sub(device.ring.waiting());
            let written = self.pending.write(&mut device.ring, wanted, self.form.channels);
            if wanted == written || !self.pending.is_empty() || self.ended {
                break;
            }
            match self.ports.audio.try_next()? {
                None => break,
                Some(Incoming::Data(item)) => self.sound(now, &item)?,
                Some(Incoming::Gap(gap)) => {
                    // Time that passes in silence while there is something to hear.
                    if self.playing || !self.pending.is_empty() {
                        self.pending.silence += frames(gap.to - gap.from.max(self.media), self.form.rate) as u64;
                    }
                    self.media = self.media.max(gap.to);
                }
                Some(Incoming::Mark(mark)) => self.mark(&mark),
                Some(Incoming::End(_)) => {
                    self.flush();
                    self.ended = true;
                }
            }
        }
        if let Some(device) = &self.device
            && (self.ended || self.idle)
            && self.pending.is_empty()
        {
            device.ring.set_ended(true);
        }
        Ok(())
    }

    fn mark(&mut self, mark: &Mark) {
        match mark {
            Mark::SegmentStart(id) => self.segment(*id),
            Mark::SegmentEnd { .. } => {
                self.flush();
                self.segment(0);
                self.idle = true;
            }
            Mark::Flush(_) => (self.converter, self.input) = (None, None),
            _ => {}
        }
    }

    fn segment(&mut self, id: u64) {
        let Some(device) = &self.device else { return };
        self.heard.segment(device.ring.written() + self.pending.frames(self.form.channels), id);
    }

    /// Sound after the end of a segment: it starts like the first.
    fn wake(&mut self) {
        self.idle = false;
        let Some(device) = &self.device else { return };
        device.ring.set_ended(false);
        if self.playing && device.ring.is_silent() {
            device.ring.command(Command::Hold);
            (self.playing, self.origin) = (false, None);
            self.gate.restart();
        }
    }

    fn sound(&mut self, now: Nanos, item: &Timed<Audio>) -> Result<()> {
        if self.idle {
            self.wake();
        }
        let audio = &item.value;
        let form = (audio.rate, audio.channels);
        if self.input != Some(form) {
            self.flush();
            let same = form == (self.form.rate, self.form.channels);
            let new = || Resampler::new(form.0, form.1, self.form.rate, self.form.channels);
            self.converter = (!same).then(new).transpose()?;
            self.input = Some(form);
        }
        if item.header.segment != 0 {
            self.segment(item.header.segment);
        }
        if !self.playing {
            // Later it comes as fast as it is taken, which says nothing.
            self.gate.arrived(now, item.header.dur);
        }
        self.media = item.header.pts + item.header.dur;
        match &mut self.converter {
            None => self.pending.add(&audio.samples, &mut self.steer),
            Some(converter) => {
                let mut samples = Vec::new();
                converter.push(&audio.samples, &mut samples);
                self.pending.add(&samples, &mut self.steer);
            }
        }
        Ok(())
    }

    /// What the converters still hold.
    fn flush(&mut self) {
        if let Some(converter) = &mut self.converter {
            let mut samples = Vec::new();
            converter.finish(&mut samples);
            self.pending.add(&samples, &mut self.steer);
        }
        if let Some(steer) = &mut self.steer {
            let mut samples = Vec::new();
            steer.finish(&mut samples);
            self.pending.add(&samples, &mut None);
            *steer = Steer::new(self.form.channels);
        }
    }

    fn open_gate(&mut self) -> Result<()> {
        let Some(device) = self.device.as_ref().filter(|_| !self.playing && !self.paused) else { return Ok(()) };
        let waiting = device.ring.waiting();
        let buffered = nanos(waiting as u64 + self.pending.frames(self.form.channels), self.form.rate);
        let whole = self.ended || self.idle || waiting >= self.target() || device.ring.room() == 0;
        if waiting == 0 || !self.gate.opens(buffered, whole) {
            return Ok(());
        }
        device.ring.command(Command::Run);
        self.playing = true;
        self.event("started", json!({ "buffered_ms": buffered / 1_000_000 }))
    }

    /// Keeps a device that is not the graph's clock at the graph's speed.
    fn align(&mut self, now: Nanos, stream: Nanos) {
        let frames = self.heard.at(stream);
        let Some(device) = self.device.as_ref().filter(|_| self.playing && !self.paused) else { return };
        let Some(steer) = self.steer.as_mut().filter(|_| self.dll.age() > 1.0) else { return };
        let ahead = device.ring.written().saturating_sub(frames) + self.pending.frames(self.form.channels);
        let media = self.media - nanos(ahead, self.form.rate);
        let (from, at) = *self.origin.get_or_insert((now, media));
        let late = (media - at) - (now - from);
        if late.abs() as f64 > MOVED {
            self.counts.resyncs += 1;
            self.origin = Some((now, media));
        } else {
            steer.set(correction(-self.dll.ppm(), late as f64 * 1e-9));
        }
    }

    /// Says what has been heard.
    fn tell(&mut self, now: Nanos, stream: Nanos, last: bool) -> Result<()> {
        let due = last || now.saturating_sub(self.told) >= TELL;
        for played in self.heard.played(stream) {
            let news = played.frames > 0 && self.frames_told != Some(played);
            if news && (played.whole || due) {
                self.played(played, false, Header::at(now, 0))?;
                self.frames_told = Some(played);
            }
        }
        if due {
            self.told = now;
        }
        Ok(())
    }

    fn played(&self, played: Played, cancelled: bool, header: Header) -> Result<()> {
        let Played { segment, frames, whole } = played;
        let value = json!({
            "segment": segment,
            "samples": frames,
            "rate": self.form.rate,
            "whole": whole,
            "cancelled": cancelled,
        });
        send(&self.ports.played, header, value)
    }

    fn event(&self, what: &str, mut facts: Value) -> Result<()> {
        if !self.ports.events.connected() {
            return Ok(());
        }
        facts["event"] = json!(what);
        send(&self.ports.events, Header::at(self.io.now(), 0), facts)
    }

    fn report(&self) {
        let Some(device) = &self.device else { return };
        let health = &device.ring.health;
        let stream = device.opened.stream.now();
        let latency = self.heard.last().map_or(0, |last| (last - stream).max(0));
        let value = json!({
            "id": device.opened.id,
            "rate": self.form.rate,
            "channels": self.form.channels,
            "period": device.opened.period,
            "clock_master": self.io.is_clock_master(),
            "drift_ppm": (self.dll.age() > TELLING).then(|| (self.dll.ppm() * 10.0).round() / 10.0),
            "fill_ms": nanos(device.ring.waiting() as u64, self.form.rate) / 1_000_000,
            "latency_ms": latency / 1_000_000,
            "cushion_ms": self.gate.cushion().nanos() / 1_000_000,
            "underruns": self.counts.underruns,
            "lost_frames": self.counts.lost_frames,
            "xruns": self.counts.xruns + health.xruns.load(Relaxed),
            "errors": self.counts.errors + health.errors.load(Relaxed),
            "losses": self.counts.losses,
            "resyncs": self.counts.resyncs,
        });
        self.io.report("device", value);
    }

    /// The device is gone; its id, and what it said.
    pub fn lost(&mut self) -> Result<(String, String)> {
        self.counts.losses += 1;
        let Some(device) = self.device.take() else { return Ok(Default::default()) };
        let said = device.ring.health.said().map_or_else(String::new, |said| format!(" ({said})"));
        self.counts.lost_frames += device.ring.waiting() as u64 + self.pending.frames(self.form.channels);
        self.keep(&device);
        let id = device.opened.id.clone();
        // Before the next attempt: some systems allow one user at a time.
        drop(device);
        self.pending = Pending::default();
        self.event("lost", json!({ "id": id }))?;
        Ok((id, said))
    }

    /// A device again.
    pub fn back(&mut self, device: Open) -> Result<()> {
        let id = device.opened.id.clone();
        self.take(device);
        self.event("reopened", json!({ "id": id, "rate": self.form.rate }))
    }

    fn keep(&mut self, device: &Open) {
        self.said = self.said.take().or_else(|| device.ring.health.said());
        self.counts.xruns += device.ring.health.xruns.load(Relaxed);
        self.counts.errors += device.ring.health.errors.load(Relaxed);
    }

    /// The end of a run. Cancelled: fades out, forgets what was not heard and says what was.
    pub fn finish(mut self, cancelled: bool) -> Option<Open> {
        self.report();
        let mut device = self.device.take();
        if let Some(device) = device.as_mut().filter(|_| cancelled) {
            if self.playing {
                device.ring.command(Command::Pause);
                for _ in 0..MOMENTS {
                    if device.ring.is_silent() || device.ring.health.is_gone() {
                        break;
                    }
                    device.opened.stream.moment();
                }
            }
            // What the device has taken is heard, what it has not is stale.
            let taken = device.ring.read();
            let played = self.heard.played(Nanos::MAX / 2).pop();
            device.ring.discard();
            device.ring.command(Command::Hold);
            if let Some(played) = played.filter(|p| p.segment != 0 || p.frames > 0) {
                let frames = played.frames.max(self.heard.since_segment(taken));
                let header = Header { flags: Header::STICKY, ..Header::at(self.io.now(), 0) };
                // Nobody may be there to read it.
                let _ = self.played(Played { frames, ..played }, true, header);
            }
        }
        if let Some(device) = &device {
            self.keep(device);
        }
        self.say();
        device
    }

    /// What a person should know at the end.
    fn say(&self) {
        let Counts { underruns, lost_frames, losses, resyncs, xruns, errors } = self.counts;
        let all = [("underruns", underruns), ("lost_frames", lost_frames), ("device_losses", losses), ("xruns", xruns)];
        for (what, n) in all.into_iter().filter(|(_, n)| *n > 0) {
            self.io.count(what, n);
        }
        if underruns > 0 {
            let cushion = self.gate.cushion();
            self.io.note(format!("the sound ran dry {underruns} times; at the end {cushion} were kept in hand"));
        }
        if lost_frames > 0 {
            let seconds = lost_frames as f64 / f64::from(self.form.rate);
            self.io.note(format!("{seconds:.2} s of sound were lost with the device they waited for"));
        }
        if xruns > 0 || errors > super::HARMLESS {
            let said = self.said.as_ref().map_or_else(String::new, |said| format!(" (the first: {said})"));
            self.io.note(format!("the loudspeaker itself reported {xruns} underruns and {errors} other errors{said}"));
        }
        if resyncs > 0 {
            self.io.note(format!("the loudspeaker's time was realigned {resyncs} times"));
        }
    }
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.at == self.samples.len() && self.silence == 0
    }

    fn frames(&self, channels: u16) -> u64 {
        ((self.samples.len() - self.at) / usize::from(channels.max(1))) as u64 + self.silence
    }

    /// Takes samples in the device's form, through the steered resampler where there is one.
    fn add(&mut self, samples: &[f32], steer: &mut Option<Steer>) {
        if self.at == self.samples.len() {
            self.samples.clear();
            self.at = 0;
        }
        match steer {
            None => self.samples.extend_from_slice(samples),
            Some(steer) => steer.push(samples, &mut self.samples),
        }
    }

    /// Writes at most `wanted` frames; returns how many.
    fn write(&mut self, ring: &mut super::ring::PlaybackRing, wanted: usize, channels: u16) -> usize {
        let width = usize::from(channels.max(1));
        let there = (self.samples.len() - self.at).min(wanted * width);
        let mut written = ring.write(&self.samples[self.at..self.at + there]);
        self.at += written * width;
        const SILENCE: [f32; 2048] = [0.0; 2048];
        while self.at == self.samples.len() && self.silence > 0 && written < wanted {
            let part = (SILENCE.len() / width).min(wanted - written).min(usize::try_from(self.silence).unwrap_or(0));
            let done = ring.write(&SILENCE[..part * width]);
            if done == 0 {
                break;
            }
            written += done;
            self.silence -= done as u64;
        }
        written
    }
}

fn send(output: &Output<Event>, header: Header, value: Value) -> Result<()> {
    if !output.connected() {
        return Ok(());
    }
    output.send(Timed { header, value: Event { kind: Arc::from("playback"), data: Arc::new(value) } })
}
