//! Microphones and loudspeakers, for `oxiline devices`.

use cpal::traits::{DeviceTrait, HostTrait};
use oxiline_graph::{Error, Result};
use serde::Serialize;

/// A form a device works in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceForm {
    /// Samples a second.
    pub rate: u32,
    /// Channels.
    pub channels: u16,
    /// Sample format, as cpal names it.
    pub format: String,
}

/// A sound device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SoundDevice {
    /// Stable id, `HOST:NAME`: what a graph file's `device` key takes.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Default form for recording; `None`: it cannot record.
    pub capture: Option<DeviceForm>,
    /// Default form for playing; `None`: it cannot play.
    pub playback: Option<DeviceForm>,
    /// The system's default microphone.
    pub default_capture: bool,
    /// The system's default loudspeaker.
    pub default_playback: bool,
}

/// Lists the sound devices of the default host, without the converters and test devices that
/// ALSA lists as if they were hardware.
///
/// Listing opens every device for a moment; ALSA's library may write to standard error meanwhile.
///
/// # Errors
/// When the system has no sound at all to ask.
pub fn devices() -> Result<Vec<SoundDevice>> {
    let host = cpal::default_host();
    let id = |d: &cpal::Device| d.id().map(|id| id.to_string()).ok();
    let (microphone, speaker) =
        (host.default_input_device().and_then(|d| id(&d)), host.default_output_device().and_then(|d| id(&d)));
    let all = host
        .devices()
        .map_err(|e| Error::msg(format_args!("the sound devices of this system cannot be listed: {e}")))?;
    let mut found: Vec<SoundDevice> = Vec::new();
    for device in all {
        let Some(id) = id(&device) else { continue };
        if is_noise(&id) || found.iter().any(|f| f.id == id) {
            continue;
        }
        let form = |c: cpal::SupportedStreamConfig| DeviceForm {
            rate: c.sample_rate(),
            channels: c.channels(),
            format: c.sample_format().to_string(),
        };
        let capture = device.default_input_config().ok().map(form);
        let playback = device.default_output_config().ok().map(form);
        if capture.is_none() && playback.is_none() {
            continue;
        }
        let name = device.description().map_or_else(|_| id.clone(), |d| d.name().to_string());
        let (default_capture, default_playback) = (microphone.as_ref() == Some(&id), speaker.as_ref() == Some(&id));
        found.push(SoundDevice { id, name, capture, playback, default_capture, default_playback });
    }
    Ok(found)
}

/// Names that ALSA lists and nobody means: rate converters, mixers to nowhere, other servers' doors.
fn is_noise(id: &str) -> bool {
    let name = id.rsplit_once(':').map_or(id, |(head, last)| {
        // "alsa:hw:CARD=0": the name starts after the host.
        head.split_once(':').map_or(last, |(_, rest)| if rest.is_empty() { last } else { rest })
    });
    let name = name.split([':', ',']).next().unwrap_or(name);
    matches!(name, "null" | "jack" | "oss" | "upmix" | "vdownmix" | "speex" | "speexrate" | "usbstream" | "hdmi")
        || name.ends_with("rate")
        || name.starts_with("surround")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converters_are_noise_and_hardware_is_not() {
        for id in ["alsa:null", "alsa:jack", "alsa:lavrate", "alsa:samplerate", "alsa:upmix", "alsa:surround51:CARD=0"]
        {
            assert!(is_noise(id), "{id}");
        }
        for id in ["alsa:default", "alsa:pulse", "alsa:hw:CARD=PCH,DEV=0", "alsa:sysdefault:CARD=0", "alsa:oxi_mic"] {
            assert!(!is_noise(id), "{id}");
        }
    }

    #[test]
    fn listing_never_panics() {
        // A machine without sound gives an empty list or a sentence.
        if let Ok(list) = devices() {
            assert!(list.iter().all(|d| d.capture.is_some() || d.playback.is_some()));
        }
    }
}
