//! What a sound device is to a node: somebody else's thread at the other end of a ring.

use oxiline_graph::{Nanos, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ring::{CaptureEnd, PlaybackEnd};

/// Rate and channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Samples a second and channel.
    pub rate: u32,
    /// Channels.
    pub channels: u16,
}

/// What is asked of a device. Where it can't, it says what it does instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Stable id, or `default`.
    pub device: String,
    /// Wished rate.
    pub rate: Option<u32>,
    /// Wished channels.
    pub channels: Option<u16>,
    /// Wished frames a callback.
    pub period: u32,
    /// Graph time, for simulated devices.
    pub now: Nanos,
}

/// An open device.
pub struct Opened {
    /// Its stable id, or `default`.
    pub id: String,
    /// The form it really works in.
    pub form: Form,
    /// Frames a callback, as far as it says.
    pub period: Option<u32>,
    /// Keeps it open.
    pub stream: Box<dyn Stream>,
}

/// A running stream; dropping it stops the device.
pub trait Stream: Send {
    /// Now, on the clock of the stream's stamps.
    fn now(&self) -> Nanos;
    /// Graph time is `now`: a simulated device does what it has to do until then. Real ones have a thread.
    fn pump(&mut self, _now: Nanos) {}
    /// Gives the device a moment of its own time, when the graph's time is over.
    fn moment(&mut self);
}

/// Where devices come from.
pub trait Host: Send + 'static {
    /// The way to it; opens nothing.
    fn new() -> Self;
    /// Opens a microphone and starts it; `ring` makes its end of the ring.
    ///
    /// # Errors
    /// A sentence when it is not there, busy, or can't do what is asked.
    fn capture(&mut self, ask: &Ask, ring: &mut dyn FnMut(Form) -> CaptureEnd) -> Result<Opened>;
    /// Opens a loudspeaker and starts it.
    ///
    /// # Errors
    /// As [`Host::capture`].
    fn playback(&mut self, ask: &Ask, ring: &mut dyn FnMut(Form) -> PlaybackEnd) -> Result<Opened>;
}

/// What to do when the device goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// Open it again as soon as it is back, or else the default device.
    #[default]
    Reopen,
    /// Fail.
    Fail,
}

/// The devices of this system.
#[cfg(feature = "audio-devices")]
pub type System = super::system::System;

/// This build has no way to sound devices.
#[cfg(not(feature = "audio-devices"))]
pub struct System;

#[cfg(not(feature = "audio-devices"))]
impl Host for System {
    fn new() -> Self {
        Self
    }
    fn capture(&mut self, ask: &Ask, _: &mut dyn FnMut(Form) -> CaptureEnd) -> Result<Opened> {
        Err(without(ask))
    }
    fn playback(&mut self, ask: &Ask, _: &mut dyn FnMut(Form) -> PlaybackEnd) -> Result<Opened> {
        Err(without(ask))
    }
}

#[cfg(not(feature = "audio-devices"))]
fn without(ask: &Ask) -> oxiline_graph::Error {
    oxiline_graph::Error::msg(format_args!(
        "the sound device `{}` cannot be opened: this program was built without the feature `audio-devices`",
        ask.device
    ))
}
