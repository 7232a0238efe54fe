//! `audio.play`: a loudspeaker.

use oxiline_graph::node::Device;
use oxiline_graph::payload::{Audio, Event, Param};
use oxiline_graph::{Error, Input, Io, Nanos, Node, Output, PortType, Prepare, Result, Setup, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::host::{Ask, Host, OnLost, Opened, System};
use super::player::{Player, Step};
use super::reopen::{Backoff, Watch};
use super::ring::{self, PlaybackRing};

/// How often the node looks after its ring.
pub(super) const LOOK: Span = Span::ms(5);

/// When playing starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// When what is buffered covers the shortfall measured so far.
    #[default]
    Auto,
    /// When so much is buffered.
    After(Span),
}

impl<'de> Deserialize<'de> for Start {
    fn deserialize<D: serde::Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        let text = String::deserialize(de)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        Span::parse(&text).map(Self::After).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Start {
    fn serialize<S: serde::Serializer>(&self, ser: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => ser.serialize_str("auto"),
            Self::After(span) => span.serialize(ser),
        }
    }
}

impl JsonSchema for Start {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Start".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "description": "auto, or a duration" })
    }
}

/// Options of `audio.play`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AudioPlayOptions {
    /// The loudspeaker: an id that `oxiline devices` lists, or default.
    pub device: String,
    /// Samples a second to open it with (left out: those of the sound, where they are known, else its own).
    pub rate: Option<u32>,
    /// Channels to open it with (left out: as for the rate).
    pub channels: Option<u16>,
    /// When to start: auto (when what is buffered covers the shortfall measured so far), or after so much.
    pub start: Start,
    /// How much sound is kept ahead of the device.
    pub buffer: Span,
    /// After the sound ran dry it waits for more and more, at most for this.
    pub cushion_max: Span,
    /// Length of the fade of a pause or cancel, at most 10ms.
    pub fade: Span,
    /// Frames a callback of the device, as far as it obeys.
    pub period: u32,
    /// What to do when the device goes away: reopen (it, or else the default device) or fail.
    pub on_lost: OnLost,
}

impl Default for AudioPlayOptions {
    fn default() -> Self {
        Self {
            device: "default".into(),
            rate: None,
            channels: None,
            start: Start::Auto,
            buffer: Span::ms(200),
            cushion_max: Span::ms(1500),
            fade: Span::ms(8),
            period: 2048,
            on_lost: OnLost::Reopen,
        }
    }
}

/// Plays sound.
pub struct AudioPlay<H = System> {
    options: AudioPlayOptions,
    host: H,
    /// The form of the input, where it is known.
    input: (Option<u32>, Option<u16>),
    device: Option<Open>,
}

/// An open loudspeaker.
pub(super) struct Open {
    pub opened: Opened,
    pub ring: PlaybackRing,
    pub watch: Watch,
}

/// The by-products of playing.
pub(super) struct Ports {
    pub audio: Input<Audio>,
    pub events: Output<Event>,
    pub played: Output<Event>,
}

impl<H: Host> Node for AudioPlay<H> {
    const KIND: &'static str = "audio.play";
    const ABOUT: &'static str = "Plays sound on a loudspeaker and says what has really been heard.";
    type Options = AudioPlayOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        super::checked(&options.device, options.rate, options.channels, options.period)?;
        let between = |name: &str, value: Span, min: Span, max: Span| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(Error::msg(format_args!("`{name}` must lie between {min} and {max}")))
            }
        };
        between("buffer", options.buffer, Span::ms(20), Span::secs(10))?;
        between("cushion_max", options.cushion_max, Span::ms(20), Span::secs(10))?;
        between("fade", options.fade, Span::ms(0), Span::ms(10))?;
        if let Start::After(start) = options.start {
            between("start", start, Span::ms(0), options.cushion_max)?;
        }
        setup.input("audio", PortType::AUDIO);
        setup.optional_output("events", PortType::Event);
        setup.optional_output("played", PortType::Event);
        setup.device(Device::Playback);
        setup.cancellable();
        setup.handles_pause();
        let period = Span::ms(u64::from(options.period) * 1000 / u64::from(options.rate.unwrap_or(48_000)));
        let held = Span(options.buffer.0.max(options.cushion_max.0) + period.0 * 2);
        setup.latency(period, Span(options.buffer.0 + period.0 * 2));
        setup.memory((held.as_secs_f64() * f64::from(options.rate.unwrap_or(48_000)) * 16.0) as u64);
        Ok(Self { options, host: H::new(), input: (None, None), device: None })
    }

    fn prepare(&mut self, prepare: &Prepare) -> Result<()> {
        if let Some(PortType::Audio { rate, channels }) = prepare.input_type("audio") {
            self.input = (is(rate), is(channels));
        }
        let device = self.options.device.clone();
        self.device = Some(self.open(&device, prepare.now())?);
        Ok(())
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let ports = Ports { audio: io.input("audio")?, events: io.output("events")?, played: io.output("played")? };
        let Some(device) = self.device.take() else {
            return Err(Error::msg("`audio.play` was run before it was prepared"));
        };
        let mut player = Player::new(io, ports, &self.options, device);
        let done = self.play(io, &mut player);
        // A cancelled scope starts over on the same device.
        let finished = player.finish(matches!(&done, Err(e) if e.is_cancelled()));
        self.device = finished;
        done
    }
}

impl<H: Host> AudioPlay<H> {
    fn play(&mut self, io: &Io, player: &mut Player<'_>) -> Result<()> {
        loop {
            io.check()?;
            match player.step()? {
                Step::On => {}
                Step::Done => return Ok(()),
                Step::Lost => {
                    self.reopen(io, player)?;
                    continue;
                }
            }
            io.sleep(LOOK)?;
        }
    }

    fn open(&mut self, device: &str, now: Nanos) -> Result<Open> {
        let AudioPlayOptions { rate, channels, period, buffer, cushion_max, fade, .. } = self.options;
        let rate = rate.or(self.input.0);
        let channels = channels.or(self.input.1);
        let ask = Ask { device: device.into(), rate, channels, period, now };
        let held = buffer.nanos().max(cushion_max.nanos());
        let mut ring = None;
        let opened = self.host.playback(&ask, &mut |form| {
            let frames = super::frames(held, form.rate) + period as usize;
            let fade = u32::try_from(super::frames(fade.nanos(), form.rate)).unwrap_or(0);
            let (end, mine) = ring::playback(frames, form.channels, fade);
            ring = Some(mine);
            end
        })?;
        let ring = ring.ok_or_else(|| Error::msg("the host opened a loudspeaker without a ring"))?;
        Ok(Open { opened, ring, watch: Watch::new(now) })
    }

    /// Waits for the lost device, or another.
    fn reopen(&mut self, io: &Io, player: &mut Player<'_>) -> Result<()> {
        let (id, said) = player.lost()?;
        if self.options.on_lost == OnLost::Fail {
            return Err(Error::msg(format_args!(
                "the loudspeaker `{id}` was lost{said}; plug it in again, or set `on_lost = \"reopen\"`"
            )));
        }
        io.note(format!("the loudspeaker `{id}` was lost{said}; waiting for it"));
        let mut backoff = Backoff::new(io.now());
        loop {
            io.check()?;
            let now = io.now();
            if backoff.due(now) {
                let asked = self.options.device.clone();
                if let Ok(again) = self.open(&asked, now).or_else(|_| self.open("default", now)) {
                    io.note(format!("playing on `{}` at {} Hz again", again.opened.id, again.opened.form.rate));
                    return player.back(again);
                }
            }
            io.sleep(Span::ms(50))?;
        }
    }
}

fn is<T>(param: Param<T>) -> Option<T> {
    match param {
        Param::Is(value) => Some(value),
        _ => None,
    }
}
