//! Live sound: `audio.capture` and `audio.play`.
//!
//! A device's callback touches nothing but its end of a [`ring`]; the node at the other end follows the
//! device's own clock with a [`dll`], brings its sound to graph time with [`steer`] unless the device *is*
//! the graph's clock, and opens it again when it went away. Devices come from a [`Host`]: the
//! system's behind the feature `audio-devices`, simulated ones in tests.

mod capture;
pub mod dll;
#[cfg(test)]
mod fake;
pub mod gate;
mod heard;
pub mod host;
#[cfg(feature = "audio-devices")]
mod list;
mod play;
mod player;
mod reopen;
pub mod ring;
pub mod steer;
#[cfg(feature = "audio-devices")]
mod system;
#[cfg(test)]
mod tests;
mod timeline;

pub use capture::{AudioCapture, AudioCaptureOptions};
pub use host::{Host, OnLost};
#[cfg(feature = "audio-devices")]
pub use list::{DeviceForm, SoundDevice, devices};
pub use play::{AudioPlay, AudioPlayOptions, Start};

use oxiline_graph::{Error, Registry, Result};

/// Adds the device nodes.
pub(crate) fn register(registry: &mut Registry) {
    registry.node::<AudioCapture>();
    registry.node::<AudioPlay>();
}

/// So many errors of a device are worth no sentence: ALSA's plug-ins report one or two while a stream starts.
/// All are in the statistics.
const HARMLESS: u64 = 10;

/// Frames of a time at a rate.
fn frames(nanos: oxiline_graph::Nanos, rate: u32) -> usize {
    usize::try_from(i128::from(nanos.max(0)) * i128::from(rate) / 1_000_000_000).unwrap_or(0)
}

/// The checks both nodes make of what a person wrote.
fn checked(device: &str, rate: Option<u32>, channels: Option<u16>, period: u32) -> Result<()> {
    if device.is_empty() {
        return Err(Error::msg("`device` is empty: give an id that `oxiline devices` lists, or default"));
    }
    if rate.is_some_and(|r| !(1_000..=768_000).contains(&r)) {
        return Err(Error::msg("`rate` must lie between 1000 and 768000 Hz"));
    }
    if channels.is_some_and(|c| !(1..=64).contains(&c)) {
        return Err(Error::msg("`channels` must lie between 1 and 64"));
    }
    if !(16..=65_536).contains(&period) {
        return Err(Error::msg("`period` must lie between 16 and 65536 frames"));
    }
    Ok(())
}
