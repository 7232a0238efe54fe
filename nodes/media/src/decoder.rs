//! Decoding: from the packets of one track to interleaved f32 at the rate and with the channels
//! that are really in them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use oxiline_graph::oxideav::audio_from_frame;
use oxiline_graph::payload::{Audio, Packet, StreamInfo};
use oxiline_graph::{Error, Nanos, Result};
use ropus::{Channels, DecodeMode, OpusMSDecoder};
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};

use crate::reader::oxide_context;
use crate::track::{Coded, Engine, Ticks};

/// A packet that could not be decoded.
#[derive(Debug, Clone)]
pub struct Damage {
    /// Why, as a sentence.
    pub error: Error,
    /// Samples per channel that are missing, as well as can be told.
    pub frames: u64,
    /// At this rate (0: nothing was decoded yet and the container does not say).
    pub rate: u32,
}

/// Decodes one track. Priming and padding are cut; a packet that fails leaves a gap of its length.
pub struct Decoder {
    coded: Arc<Coded>,
    inner: Inner,
    /// Rate and channels of the last sound.
    form: Option<(u32, u16)>,
    /// Samples seen, before any cutting, at the rate of `form`.
    seen: u64,
    /// What comes out, counted from the start of the track.
    position: u64,
    last_frames: u64,
    good: u64,
    bad: u64,
    first_error: Option<Error>,
}

enum Inner {
    OxideAv(Box<dyn oxideav_core::Decoder>),
    Symphonia(Box<dyn AudioDecoder>),
    Opus { decoder: OpusKind, channels: u16, gain: f32, pcm: Vec<f32> },
}

/// Samples a channel in the longest packet: 120 ms at 48 kHz.
const OPUS_FRAMES: usize = 5760;

enum OpusKind {
    Plain(Box<ropus::Decoder>),
    Multi(Box<OpusMSDecoder>, Vec<i16>),
}

impl Decoder {
    /// A decoder for the stream of a [`crate::Reader`].
    ///
    /// # Errors
    /// When the stream is not one of ours, or its headers do not make sense.
    pub fn new(stream: &StreamInfo) -> Result<Self> {
        let Ok(coded) = stream.native.clone().downcast::<Coded>() else {
            return Err(Error::msg(format_args!(
                "a {} stream that `media.read` did not make cannot be decoded by `audio.decode`",
                stream.codec
            )));
        };
        let inner = make(&coded)?;
        Ok(Self { coded, inner, form: None, seen: 0, position: 0, last_frames: 0, good: 0, bad: 0, first_error: None })
    }

    /// Media time of the next sample that comes out, nanoseconds.
    pub fn pts(&self) -> Nanos {
        let rate = self.form.map_or(0, |f| f.0);
        self.coded.start + frames_to_nanos(self.position, rate)
    }

    /// Packets decoded, packets damaged.
    pub fn packets(&self) -> (u64, u64) {
        (self.good, self.bad)
    }

    /// Decodes a packet. `dur` is its length if the container tells (else 0).
    ///
    /// # Errors
    /// [`Damage`] when the packet makes no sense; the decoder goes on with the next.
    pub fn decode(&mut self, packet: &Packet, dur: Nanos) -> Result<Vec<Audio>, Damage> {
        let mut sound = Vec::new();
        let result = catch_unwind(AssertUnwindSafe(|| feed(&mut self.inner, &self.coded, packet, dur, &mut sound)));
        let result = result.unwrap_or_else(|_| {
            // Whatever state it was in, it is not to be trusted any more.
            if let Ok(fresh) = make(&self.coded) {
                self.inner = fresh;
            }
            Err("the decoder failed on it".to_string())
        });
        match result {
            Ok(()) => {
                self.good += 1;
                let raw: u64 = sound.iter().map(|a| a.frames() as u64).sum();
                if raw > 0 {
                    self.last_frames = raw;
                }
                let (from, to) = packet.trim;
                Ok(self.cut(sound, u64::from(from), u64::from(to)))
            }
            Err(why) => {
                self.bad += 1;
                let error = Error::msg(format_args!(
                    "{} packet at {:.3} s of `{}` cannot be decoded: {why}",
                    crate::reader::with_article(&self.coded.codec),
                    self.pts() as f64 / 1e9,
                    self.coded.file
                ));
                self.first_error.get_or_insert_with(|| error.clone());
                let rate = self.form.map_or(packet.stream.rate, |f| f.0);
                let told = Ticks::new(u64::try_from(dur).unwrap_or(0), 1_000_000_000).frames(rate);
                let frames = if told > 0 { told } else { self.last_frames };
                let frames = self.pass(frames, rate);
                Err(Damage { error, frames, rate })
            }
        }
    }

    /// The end of the stream: what the decoder still holds.
    ///
    /// # Errors
    /// When packets came and not one could be decoded, or none came at all.
    pub fn finish(&mut self) -> Result<Vec<Audio>> {
        let mut sound = Vec::new();
        if let Inner::OxideAv(decoder) = &mut self.inner {
            let coded = &self.coded;
            let _ = catch_unwind(AssertUnwindSafe(|| {
                if decoder.flush().is_ok() {
                    let _ = drain(decoder.as_mut(), coded, &mut sound);
                }
            }));
        }
        let sound = self.cut(sound, 0, 0);
        let file = &self.coded.file;
        if self.good == 0 && self.bad > 0 {
            let why = self.first_error.take().map(|e| e.to_string()).unwrap_or_default();
            return Err(Error::msg(format_args!(
                "not one of the {} packets of `{file}` can be decoded: {why}",
                self.bad
            )));
        }
        if self.good == 0 {
            return Err(Error::msg(format_args!("`{file}` has an audio track without any sound in it")));
        }
        Ok(sound)
    }

    /// Samples the container promised and that did not come, with their rate; after
    /// [`finish`](Self::finish).
    pub fn missing(&self) -> Option<(u64, u32)> {
        let (rate, _) = self.form?;
        let missing = self.coded.keep?.frames(rate).saturating_sub(self.position);
        // A packet's worth may be a container's rounding; more is a file that was cut off.
        (missing > self.last_frames.max(u64::from(rate) / 20)).then_some((missing, rate))
    }

    /// Forgets what came before (seek).
    pub fn reset(&mut self) {
        match &mut self.inner {
            Inner::OxideAv(d) => {
                let _ = d.reset();
            }
            Inner::Symphonia(d) => d.reset(),
            Inner::Opus { .. } => {
                if let Ok(fresh) = make(&self.coded) {
                    self.inner = fresh;
                }
            }
        }
    }

    /// Advances over `frames` samples that do not come; returns how many of them would have been heard.
    fn pass(&mut self, frames: u64, rate: u32) -> u64 {
        let (from, to) = self.window(rate, frames);
        self.seen += frames;
        self.position += to - from;
        to - from
    }

    /// The part of the next `frames` samples that lies inside what is to be heard.
    fn window(&self, rate: u32, frames: u64) -> (u64, u64) {
        let skip = self.coded.skip.frames(rate);
        let end = self.coded.keep.map_or(u64::MAX, |k| skip.saturating_add(k.frames(rate)));
        let from = skip.saturating_sub(self.seen).min(frames);
        let to = end.saturating_sub(self.seen).min(frames);
        (from.min(to), to)
    }

    /// Cuts `from` samples off the start and `to` off the end of a packet's sound, then what the
    /// container says is priming or padding.
    fn cut(&mut self, sound: Vec<Audio>, from: u64, to: u64) -> Vec<Audio> {
        let total: u64 = sound.iter().map(|a| a.frames() as u64).sum();
        let (mut at, end) = (0u64, total.saturating_sub(to));
        let mut out = Vec::with_capacity(sound.len());
        for audio in sound {
            let frames = audio.frames() as u64;
            let (lo, hi) = (from.clamp(at, at + frames) - at, end.clamp(at, at + frames) - at);
            at += frames;
            if lo >= hi {
                continue;
            }
            if let Some((rate, _)) = self.form.filter(|f| f.0 != audio.rate) {
                // A new rate: what was counted keeps its duration.
                let convert = |n: u64| (u128::from(n) * u128::from(audio.rate) / u128::from(rate.max(1))) as u64;
                (self.seen, self.position) = (convert(self.seen), convert(self.position));
            }
            self.form = Some((audio.rate, audio.channels));
            let (skip, keep) = self.window(audio.rate, hi - lo);
            self.seen += hi - lo;
            self.position += keep - skip;
            if skip >= keep {
                continue;
            }
            let channels = u64::from(audio.channels);
            let range = ((lo + skip) * channels) as usize..((lo + keep) * channels) as usize;
            out.push(if range.len() == audio.samples.len() {
                audio
            } else {
                Audio { samples: audio.samples[range].into(), ..audio }
            });
        }
        out
    }
}

/// Nanoseconds of `frames` samples at `rate`, exact to one.
pub(crate) fn frames_to_nanos(frames: u64, rate: u32) -> Nanos {
    if rate == 0 {
        return 0;
    }
    Nanos::try_from(u128::from(frames) * 1_000_000_000 / u128::from(rate)).unwrap_or(Nanos::MAX)
}

fn make(coded: &Coded) -> Result<Inner> {
    let wrong = |e: &dyn std::fmt::Display| {
        Error::msg(format_args!("the {} headers of `{}` cannot be used: {e}", coded.codec, coded.file))
    };
    let made = catch_unwind(AssertUnwindSafe(|| match coded.engine {
        Engine::OxideAv => {
            oxide_context().codecs.first_decoder(&coded.oxide).map(Inner::OxideAv).map_err(|e| wrong(&e))
        }
        Engine::Symphonia => {
            let track = match coded.codec.as_str() {
                "aac" => crate::aac::plain(&coded.symphonia).map_err(|e| wrong(&e))?,
                _ => coded.symphonia.clone(),
            };
            // Trimming is done here, the same for every codec.
            let options = AudioDecoderOptions::default().gapless(false);
            symphonia::default::get_codecs()
                .make_audio_decoder(&track, &options)
                .map(Inner::Symphonia)
                .map_err(|e| wrong(&e))
        }
        Engine::Opus => make_opus(coded).map_err(|e| wrong(&e)),
    }));
    made.unwrap_or_else(|_| Err(wrong(&"they make the decoder fail")))
}

/// A decoder from an `OpusHead` (RFC 7845, 5.1).
fn make_opus(coded: &Coded) -> Result<Inner, String> {
    let head = &coded.oxide.extradata;
    let declared = coded.oxide.channels.filter(|&c| c > 0).unwrap_or(2);
    let (channels, gain, family) = match head.get(..19) {
        Some(h) if h.starts_with(b"OpusHead") => (u16::from(h[9]), i16::from_le_bytes([h[16], h[17]]), h[18]),
        _ => (declared, 0, 0),
    };
    let decoder = match (family, head.get(19..)) {
        (0, _) if channels == 1 || channels == 2 => {
            let layout = if channels == 1 { Channels::Mono } else { Channels::Stereo };
            OpusKind::Plain(Box::new(ropus::Decoder::new(48_000, layout).map_err(|e| format!("{e:?}"))?))
        }
        (1.., Some([streams, coupled, map @ ..])) if map.len() >= usize::from(channels) && channels > 0 => {
            let map = &map[..usize::from(channels)];
            let made = OpusMSDecoder::new(48_000, channels.into(), (*streams).into(), (*coupled).into(), map);
            let decoder = made.map_err(|code| format!("error {code} of the channel mapping"))?;
            OpusKind::Multi(Box::new(decoder), vec![0; OPUS_FRAMES * usize::from(channels)])
        }
        _ => return Err(format!("{channels} channels in mapping family {family}")),
    };
    let gain = 10f32.powf(f32::from(gain) / (20.0 * 256.0));
    Ok(Inner::Opus { decoder, channels, gain, pcm: vec![0.0; OPUS_FRAMES * usize::from(channels)] })
}

fn feed(inner: &mut Inner, coded: &Coded, packet: &Packet, dur: Nanos, sound: &mut Vec<Audio>) -> Result<(), String> {
    match inner {
        Inner::OxideAv(decoder) => {
            let base = oxideav_core::TimeBase::new(1, i64::from(packet.stream.rate.max(1)));
            let coded_packet = oxideav_core::Packet::new(0, base, packet.data.to_vec());
            decoder.send_packet(&coded_packet).map_err(|e| e.to_string())?;
            drain(decoder.as_mut(), coded, sound)
        }
        Inner::Symphonia(decoder) => {
            // Block codecs (ADPCM) count blocks by the packet's length in samples.
            let frames = u64::try_from(dur).map_or(0, |ns| Ticks::new(ns, 1_000_000_000).frames(packet.stream.rate));
            let stamp = Timestamp::new(packet.ts.unwrap_or(0));
            let coded_packet = PacketRef::new(0, stamp, Duration::new(frames), &packet.data);
            let buffer = decoder.decode_ref(&coded_packet).map_err(|e| e.to_string())?;
            let (rate, channels) = (buffer.spec().rate(), buffer.spec().channels().count());
            let Ok(channels) = u16::try_from(channels) else { return Err(format!("{channels} channels")) };
            if rate == 0 || channels == 0 {
                return Err("it says neither rate nor channels".into());
            }
            let mut samples: Vec<f32> = Vec::new();
            buffer.copy_to_vec_interleaved(&mut samples);
            if !samples.is_empty() {
                sound.push(Audio { rate, channels, samples: samples.into() });
            }
            Ok(())
        }
        Inner::Opus { decoder, channels, gain, pcm } => {
            // An empty packet is what a lost one looks like to the decoder; in a file it is damage.
            if packet.data.is_empty() {
                return Err("it is empty".into());
            }
            let frames = match decoder {
                OpusKind::Plain(d) => {
                    d.decode_float(&packet.data, pcm, DecodeMode::Normal).map_err(|e| format!("{e:?}"))?
                }
                OpusKind::Multi(d, ints) => {
                    let length = i32::try_from(packet.data.len()).map_err(|e| e.to_string())?;
                    let frames = d
                        .decode(Some(&packet.data), length, ints, OPUS_FRAMES as i32, false)
                        .map_err(|code| format!("error {code} of the Opus decoder"))?;
                    pcm.iter_mut().zip(ints.iter()).for_each(|(f, i)| *f = f32::from(*i) / 32768.0);
                    usize::try_from(frames).map_err(|e| e.to_string())?
                }
            };
            let decoded = pcm.get(..frames * usize::from(*channels)).ok_or("it is longer than a packet can be")?;
            let samples: Vec<f32> = decoded.iter().map(|x| x * *gain).collect();
            sound.push(Audio { rate: 48_000, channels: *channels, samples: samples.into() });
            Ok(())
        }
    }
}

fn drain(decoder: &mut dyn oxideav_core::Decoder, coded: &Coded, sound: &mut Vec<Audio>) -> Result<(), String> {
    loop {
        match decoder.receive_frame() {
            Ok(oxideav_core::Frame::Audio(frame)) => {
                if frame.samples == 0 {
                    continue;
                }
                // The decoder's word counts before the container's.
                let mut params = coded.oxide.clone();
                if let Some(told) = decoder.output_params() {
                    params.sample_rate = told.sample_rate.or(params.sample_rate);
                    params.channels = told.channels.or(params.channels);
                    params.sample_format = told.sample_format.or(params.sample_format);
                }
                sound.push(audio_from_frame(&frame, &params).map_err(|e| e.to_string())?);
            }
            Ok(_) => {}
            Err(oxideav_core::Error::NeedMore | oxideav_core::Error::Eof) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
}
