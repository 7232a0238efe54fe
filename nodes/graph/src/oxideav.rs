//! OxideAV frames to and from our sound.
//!
//! An OxideAV frame is bytes and a time stamp; rate, channels and sample format live on the
//! stream's parameters and are often missing or wrong there (Vorbis and MP3 leave the format
//! out, MP4 calls mono AAC stereo). So one function looks at everything there is: the declared
//! parameters, the number of planes and the byte counts.

use std::sync::Arc;

use oxideav_core::{AudioFrame, CodecId, CodecParameters, SampleFormat};

use crate::error::{Error, Result};
use crate::payload::Audio;

/// The form a frame really has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameForm {
    /// Sample format; planar variants when there is a plane for each channel.
    pub format: SampleFormat,
    /// Channels.
    pub channels: u16,
}

/// What a frame of `samples` samples a channel, with planes of the byte lengths `planes`, is.
///
/// `declared_format` and `declared_channels` are what the decoder or else the container says;
/// they count only as far as the byte counts agree.
pub fn frame_form(
    samples: usize,
    planes: &[usize],
    declared_format: Option<SampleFormat>,
    declared_channels: Option<u16>,
) -> Result<FrameForm> {
    let bytes = planes.first().copied().unwrap_or(0);
    if samples == 0 || bytes == 0 || planes.iter().any(|&p| p != bytes) || bytes % samples != 0 {
        return Err(Error::msg(format_args!(
            "a decoded frame of {samples} samples has planes of {planes:?} bytes, which is no whole number of samples"
        )));
    }
    let per_sample = bytes / samples;
    let wrong = || {
        Error::msg(format_args!(
            "a decoded frame has {per_sample} bytes a sample in {} plane(s), which is no known sample format",
            planes.len()
        ))
    };
    if planes.len() > 1 {
        let channels = u16::try_from(planes.len()).map_err(|_| wrong())?;
        let format = match declared_format {
            Some(format) if format.bytes_per_sample() == per_sample => planar(format),
            _ => planar(by_size(per_sample).ok_or_else(wrong)?),
        };
        return Ok(FrameForm { format, channels });
    }
    let interleaved_of = |format: SampleFormat| -> Option<FrameForm> {
        let size = format.bytes_per_sample();
        if size == 0 || !per_sample.is_multiple_of(size) {
            return None;
        }
        let channels = u16::try_from(per_sample / size).ok().filter(|&c| c > 0)?;
        Some(FrameForm { format: interleaved(format), channels })
    };
    // A declared format is trusted over a declared channel count: decoders that name their
    // format name it rightly, containers miscount channels.
    if let Some(form) = declared_format.and_then(interleaved_of) {
        return Ok(form);
    }
    if let Some(channels) = declared_channels.filter(|&c| c > 0 && per_sample.is_multiple_of(usize::from(c))) {
        match per_sample / usize::from(channels) {
            // No decoder leaves out that it gives bytes: this is 16-bit sound of half the channels.
            1 => {}
            size => {
                if let Some(format) = by_size(size) {
                    return Ok(FrameForm { format, channels });
                }
            }
        }
    }
    interleaved_of(SampleFormat::S16).ok_or_else(wrong)
}

fn by_size(bytes: usize) -> Option<SampleFormat> {
    Some(match bytes {
        1 => SampleFormat::U8,
        2 => SampleFormat::S16,
        3 => SampleFormat::S24,
        4 => SampleFormat::F32,
        8 => SampleFormat::F64,
        _ => return None,
    })
}

fn planar(format: SampleFormat) -> SampleFormat {
    match format {
        SampleFormat::U8 => SampleFormat::U8P,
        SampleFormat::S16 => SampleFormat::S16P,
        SampleFormat::S32 => SampleFormat::S32P,
        SampleFormat::F32 => SampleFormat::F32P,
        SampleFormat::F64 => SampleFormat::F64P,
        // S8 and S24 have no planar twin; the plane count says it already.
        other => other,
    }
}

fn interleaved(format: SampleFormat) -> SampleFormat {
    match format {
        SampleFormat::U8P => SampleFormat::U8,
        SampleFormat::S16P => SampleFormat::S16,
        SampleFormat::S32P => SampleFormat::S32,
        SampleFormat::F32P => SampleFormat::F32,
        SampleFormat::F64P => SampleFormat::F64,
        other => other,
    }
}

/// Appends the samples of little-endian `bytes` to `out`, scaled to ±1
/// (integers by 2^(bits-1), unsigned bytes around 128). A cut-off last sample is left out.
pub fn bytes_to_f32(bytes: &[u8], format: SampleFormat, out: &mut Vec<f32>) {
    fn each<const N: usize>(bytes: &[u8], out: &mut Vec<f32>, f: impl Fn([u8; N]) -> f32) {
        out.extend(bytes.as_chunks::<N>().0.iter().map(|&b| f(b)));
    }
    match interleaved(format) {
        SampleFormat::U8 => each(bytes, out, |[b]| (f32::from(b) - 128.0) / 128.0),
        SampleFormat::S8 => each(bytes, out, |[b]| f32::from(b as i8) / 128.0),
        SampleFormat::S16 => each(bytes, out, |b| f32::from(i16::from_le_bytes(b)) / 32768.0),
        SampleFormat::S24 => each(bytes, out, |[a, b, c]| (i32::from_le_bytes([0, a, b, c]) >> 8) as f32 / 8_388_608.0),
        SampleFormat::S32 => each(bytes, out, |b| (f64::from(i32::from_le_bytes(b)) / 2_147_483_648.0) as f32),
        SampleFormat::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        _ => each(bytes, out, f32::from_le_bytes),
    }
}

/// A frame as sound. `params` is what decoder and container say of the stream.
///
/// # Errors
/// When the byte counts fit no sample format, or no rate is known.
pub fn audio_from_frame(frame: &AudioFrame, params: &CodecParameters) -> Result<Audio> {
    let rate = params
        .sample_rate
        .filter(|&r| r > 0)
        .ok_or_else(|| Error::msg("the decoded stream does not say its sample rate, so its sound cannot be used"))?;
    let lengths: Vec<usize> = frame.data.iter().map(Vec::len).collect();
    let form = frame_form(frame.samples as usize, &lengths, params.sample_format, params.channels)?;
    let mut samples = Vec::with_capacity(frame.samples as usize * usize::from(form.channels));
    if frame.data.len() <= 1 {
        if let Some(plane) = frame.data.first() {
            bytes_to_f32(plane, form.format, &mut samples);
        }
    } else {
        let mut planes = Vec::with_capacity(frame.data.len());
        for plane in &frame.data {
            let mut one = Vec::with_capacity(frame.samples as usize);
            bytes_to_f32(plane, form.format, &mut one);
            planes.push(one);
        }
        for i in 0..frame.samples as usize {
            samples.extend(planes.iter().map(|plane| plane[i]));
        }
    }
    Ok(Audio { rate, channels: form.channels, samples: samples.into() })
}

/// Sound as a frame of `format`, planar formats with one plane a channel. Values outside ±1 are
/// clipped for integers. `pts` is passed on as it is.
pub fn frame_from_audio(audio: &Audio, format: SampleFormat, pts: Option<i64>) -> AudioFrame {
    let channels = usize::from(audio.channels.max(1));
    let frames = audio.frames();
    let used = &audio.samples[..frames * channels];
    let data = if format.is_planar() {
        (0..channels).map(|c| f32_to_bytes(used.iter().skip(c).step_by(channels).copied(), format)).collect()
    } else {
        vec![f32_to_bytes(used.iter().copied(), format)]
    };
    AudioFrame { samples: u32::try_from(frames).unwrap_or(u32::MAX), pts, data }
}

fn f32_to_bytes(samples: impl Iterator<Item = f32>, format: SampleFormat) -> Vec<u8> {
    let mut out = Vec::new();
    let int = |x: f32, bits: u32| -> i64 {
        let full = f64::from(1u32 << (bits - 1));
        (f64::from(x) * full).round_ties_even().clamp(-full, full - 1.0) as i64
    };
    for x in samples {
        match interleaved(format) {
            SampleFormat::U8 => out.push((int(x, 8) + 128) as u8),
            SampleFormat::S8 => out.push(int(x, 8) as i8 as u8),
            SampleFormat::S16 => out.extend_from_slice(&(int(x, 16) as i16).to_le_bytes()),
            SampleFormat::S24 => out.extend_from_slice(&(int(x, 24) as i32).to_le_bytes()[..3]),
            SampleFormat::S32 => out.extend_from_slice(&(int(x, 32) as i32).to_le_bytes()),
            SampleFormat::F64 => out.extend_from_slice(&f64::from(x).to_le_bytes()),
            _ => out.extend_from_slice(&x.to_le_bytes()),
        }
    }
    out
}

/// Parameters that describe frames made by [`frame_from_audio`].
pub fn params_from_audio(audio: &Audio, codec: &str, format: SampleFormat) -> CodecParameters {
    let mut params = CodecParameters::audio(CodecId::new(codec));
    params.sample_rate = Some(audio.rate);
    params.channels = Some(audio.channels);
    params.sample_format = Some(format);
    params
}

/// Interleaved samples as [`Audio`]; a cut-off last frame is left out.
pub fn audio_from_samples(rate: u32, channels: u16, mut samples: Vec<f32>) -> Audio {
    let channels = channels.max(1);
    samples.truncate(samples.len() / usize::from(channels) * usize::from(channels));
    Audio { rate, channels, samples: Arc::from(samples) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [SampleFormat; 12] = [
        SampleFormat::U8,
        SampleFormat::S8,
        SampleFormat::S16,
        SampleFormat::S24,
        SampleFormat::S32,
        SampleFormat::F32,
        SampleFormat::F64,
        SampleFormat::U8P,
        SampleFormat::S16P,
        SampleFormat::S32P,
        SampleFormat::F32P,
        SampleFormat::F64P,
    ];

    #[test]
    fn every_format_round_trips_to_its_own_precision() {
        let samples: Vec<f32> = (0..96).map(|i| (i as f32 * 0.37).sin() * 0.9).collect();
        let audio = audio_from_samples(44_100, 3, samples);
        for format in ALL {
            let frame = frame_from_audio(&audio, format, Some(7));
            assert_eq!(frame.data.len(), if format.is_planar() { 3 } else { 1 });
            let back = audio_from_frame(&frame, &params_from_audio(&audio, "x", format)).unwrap();
            assert_eq!((back.rate, back.channels, back.frames()), (44_100, 3, 32), "{format:?}");
            let step = match format.bytes_per_sample() {
                1 => 1.0 / 128.0,
                2 => 1.0 / 32768.0,
                3 => 1.0 / 8_388_608.0,
                _ => 6e-8,
            };
            for (a, b) in audio.samples.iter().zip(back.samples.iter()) {
                assert!((a - b).abs() <= step * 0.51, "{format:?}: {a} became {b}");
            }
        }
    }

    #[test]
    fn integers_scale_by_their_full_range_and_clip() {
        let mut out = Vec::new();
        bytes_to_f32(&[0, 0x80, 0xff, 0x7f, 9], SampleFormat::S16, &mut out);
        assert_eq!(out, [-1.0, 32767.0 / 32768.0]);
        let audio = audio_from_samples(8000, 1, vec![2.0, -2.0]);
        assert_eq!(frame_from_audio(&audio, SampleFormat::S16, None).data[0], [0xff, 0x7f, 0x00, 0x80]);
    }

    #[test]
    fn byte_counts_correct_what_the_container_says() {
        // Vorbis, MP3: nothing declared, a plane for each channel.
        let form = frame_form(100, &[400, 400], None, Some(2)).unwrap();
        assert_eq!(form, FrameForm { format: SampleFormat::F32P, channels: 2 });
        let form = frame_form(100, &[200, 200], Some(SampleFormat::F32), None).unwrap();
        assert_eq!(form, FrameForm { format: SampleFormat::S16P, channels: 2 });
        // Mono AAC in MP4: declared stereo, 16-bit.
        let form = frame_form(1024, &[2048], None, Some(2)).unwrap();
        assert_eq!(form, FrameForm { format: SampleFormat::S16, channels: 1 });
        // Opus: stereo 16-bit.
        let form = frame_form(960, &[3840], None, Some(2)).unwrap();
        assert_eq!(form, FrameForm { format: SampleFormat::S16, channels: 2 });
        assert!(frame_form(100, &[401], None, Some(1)).is_err());
        assert!(frame_form(0, &[], None, None).is_err());
    }
}
