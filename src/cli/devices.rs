//! `oxiline devices`: processor, memory, compute and audio devices.

use oxiline::graph::{Error, Result};
use serde_json::{Value, json};

use super::args::Devices;
use super::{Outcome, print};

/// Runs the verb.
pub fn run(args: Devices) -> Result<Outcome> {
    let compute = oxiline::backends::devices();
    #[cfg(feature = "audio-devices")]
    let (audio, audio_error) = match oxiline::media::devices::devices() {
        Ok(list) => (serde_json::to_value(&list).map_err(Error::msg)?, None),
        Err(error) => (json!([]), Some(error.to_string())),
    };
    #[cfg(not(feature = "audio-devices"))]
    let (audio, audio_error) =
        (json!([]), Some("not looked for: built without the feature `audio-devices`".to_string()));
    if args.json {
        let all = json!({"compute": compute, "audio": audio, "audio_note": audio_error});
        print(serde_json::to_string_pretty(&all).map_err(Error::msg)?)?;
        return Ok(Outcome::Done);
    }
    print("compute")?;
    for device in &compute {
        print(format_args!("  {:<6} {}", device.id, device.name))?;
        print(format_args!(
            "         {} cores; kernels: {}; has: {}",
            device.cores,
            device.kernels,
            device.features.join(" ")
        ))?;
        if let Some(memory) = device.memory {
            let free = device.memory_available.map_or(String::new(), |b| format!(", {:.1} GB free", b as f64 / 1e9));
            print(format_args!("         {:.1} GB of memory{free}", memory as f64 / 1e9))?;
        }
    }
    if compute.len() == 1 {
        print("  no GPU: this version computes on the CPU")?;
    }
    print("audio")?;
    match (&audio_error, audio.as_array()) {
        (Some(note), _) => print(format_args!("  {note}"))?,
        (None, Some(list)) if list.is_empty() => print("  none")?,
        (None, list) => list.into_iter().flatten().try_for_each(audio_device)?,
    }
    Ok(Outcome::Done)
}

/// An id to put into `device`, what it is and what it can do.
fn audio_device(device: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    print(format_args!("  {:<24} {}", text(&device["id"]), text(&device["name"])))?;
    for (way, default) in [("capture", "default_capture"), ("playback", "default_playback")] {
        let form = &device[way];
        if !form.is_null() {
            let default = if device[default] == json!(true) { ", the default" } else { "" };
            print(format_args!(
                "  {:<24} {way}: {} Hz, {} channels, {}{default}",
                "",
                form["rate"],
                form["channels"],
                text(&form["format"])
            ))?;
        }
    }
    Ok(())
}
