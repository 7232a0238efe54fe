//! Demuxing: from a file to the packets of one audio track.

use std::fs::File;
use std::io::BufReader;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use oxideav_core::{CodecId, CodecParameters, Demuxer, MediaType, RuntimeContext};
use oxideav_mkv::demux::MkvDemuxer;
use oxiline_graph::payload::StreamInfo;
use oxiline_graph::{Error, Nanos, Result};
use symphonia::core::codecs::CodecParameters as SymphoniaParameters;
use symphonia::core::codecs::audio::AudioCodecParameters;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, Track};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use crate::decoder::frames_to_nanos;
use crate::mp4_edits;
use crate::mpeg::Framer;
use crate::promise::{self, Promise};
use crate::sniff::{self, Container};
use crate::source::{STDIN_LIMIT, Source};
use crate::track::{Coded, Engine, Ticks, codec_name, symphonia_codec};

/// A packet and where it lies in the media.
#[derive(Debug, Clone)]
pub struct Demuxed {
    /// The packet.
    pub packet: oxiline_graph::payload::Packet,
    /// Start of what will be heard of it, nanoseconds: counted in samples and without the
    /// priming where the container tells lengths, else the container's own stamp.
    pub pts: Nanos,
    /// Length, nanoseconds; 0 when the container does not tell.
    pub dur: Nanos,
    /// How much of that will be heard: less while the encoder's priming lasts.
    pub heard: Nanos,
}

enum Demux {
    OxideAv(Box<dyn Demuxer>),
    Mkv(Box<MkvDemuxer>),
    Symphonia(Box<dyn FormatReader>),
}

/// One audio track of an open media file.
pub struct Reader {
    demux: Demux,
    track: u32,
    stream: Arc<StreamInfo>,
    coded: Arc<Coded>,
    framer: Option<Framer>,
    queue: std::collections::VecDeque<Demuxed>,
    container: &'static str,
    total: Option<f64>,
    delivered: u64,
    errors: u64,
    last_pts: Nanos,
    /// Samples delivered while every packet told its length.
    counted: Option<u64>,
    promise: Promise,
    warning: Option<String>,
    ended: bool,
}

/// Packets larger than this are damage (32 MiB; a second of 8-channel 192 kHz 64-bit PCM is 12 MB).
const PACKET_LIMIT: usize = 32 << 20;
/// Demuxer errors in a row before the rest of the file is given up.
const ERROR_LIMIT: u64 = 64;

impl Reader {
    /// Opens `uri` (a path, `file:` URL or `-`) and chooses audio track `track` (0: the first).
    ///
    /// # Errors
    /// One sentence: missing, unreadable, a directory, empty, of no known format, without audio,
    /// of an unsupported codec, damaged at its start.
    pub fn open(uri: &str, track: usize) -> Result<Self> {
        Self::from_source(Source::open(uri, STDIN_LIMIT)?, track)
    }

    /// Opens a file by its path; see [`Reader::open`].
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open_path(path: &Path, track: usize) -> Result<Self> {
        Self::from_source(Source::open_path(path)?, track)
    }

    /// Reads an open source; see [`Reader::open`].
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn from_source(mut source: Source, track: usize) -> Result<Self> {
        let container = sniff::sniff(&mut source.file, &source.name)?;
        let Source { mut file, name } = source;
        let counted = match container {
            Container::Mpeg => promise::counts_frames(&mut file),
            Container::Ogg => promise::has_last_page(&mut file),
            Container::Avi => Ok(true),
            _ => Ok(false),
        };
        let counted = counted.map_err(|e| unreadable(&name, container, &e))?;
        let opened = catch_unwind(AssertUnwindSafe(|| open_container(file, &name, container, track)));
        let mut reader = opened.unwrap_or_else(|_| {
            Err(Error::msg(format_args!("`{name}` is damaged: its {container:?} headers make the demuxer fail")))
        })?;
        reader.promise = match (container, reader.total) {
            (Container::Mpeg | Container::Avi, Some(total)) if counted => Promise::Seconds(total),
            (Container::Ogg, _) if !counted => Promise::Unfinished,
            _ => Promise::Nothing,
        };
        Ok(reader)
    }

    /// What the track is; every packet carries it.
    pub fn stream(&self) -> &Arc<StreamInfo> {
        &self.stream
    }

    /// Length of the track in seconds, when the container tells.
    pub fn seconds(&self) -> Option<f64> {
        self.total
    }

    /// Name of the container, lower case: `"wav"`, `"matroska"`, ...
    pub fn container(&self) -> &'static str {
        self.container
    }

    /// What was wrong with the file, once it has ended early.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The next packet of the track, `None` at the end. A file that breaks off ends early with
    /// a [`warning`](Self::warning).
    ///
    /// # Errors
    /// Only when not one packet can be read.
    pub fn next_packet(&mut self) -> Result<Option<Demuxed>> {
        loop {
            if let Some(mut demuxed) = self.queue.pop_front() {
                self.delivered += 1;
                self.stamp(&mut demuxed);
                return Ok(Some(demuxed));
            }
            if self.ended {
                return Ok(None);
            }
            let step = catch_unwind(AssertUnwindSafe(|| self.step()))
                .unwrap_or_else(|_| Step::Fatal("the demuxer failed on it".into()));
            match step {
                Step::Packet | Step::Other => self.errors = 0,
                Step::Damaged(_) if self.errors < ERROR_LIMIT => self.errors += 1,
                Step::Damaged(what) | Step::Fatal(what) => {
                    self.ended = true;
                    let file = &self.coded.file;
                    let at = self.last_pts as f64 / 1e9;
                    if self.delivered == 0 {
                        return Err(Error::msg(format_args!("`{file}` holds no packet that can be read: {what}")));
                    }
                    self.warning =
                        Some(format!("`{file}` is damaged or cut off after {at:.1} s ({what}): the rest is missing"));
                }
                Step::End => {
                    self.ended = true;
                    let (file, at) = (&self.coded.file, self.last_pts as f64 / 1e9);
                    if let Some(what) = self.promise.broken(at) {
                        self.warning =
                            Some(format!("`{file}` is cut off after {at:.1} s ({what}): the rest is missing"));
                    }
                    if self.delivered == 0 && self.queue.is_empty() {
                        self.warning = Some(format!(
                            "`{file}` holds no sound: it ends before the first whole packet of its audio track"
                        ));
                    }
                }
            }
        }
    }

    /// Counts samples instead of believing stamps, and moves the start to what will be heard.
    fn stamp(&mut self, demuxed: &mut Demuxed) {
        let rate = self.stream.rate;
        self.counted = self.counted.filter(|_| demuxed.dur > 0);
        if let Some(frames) = &mut self.counted {
            let priming = self.coded.skip.frames(rate);
            let own = Ticks::new(demuxed.dur.unsigned_abs(), 1_000_000_000).frames(rate);
            let (from, to) = (frames.saturating_sub(priming), (*frames + own).saturating_sub(priming));
            *frames += own;
            demuxed.pts = self.coded.start + frames_to_nanos(from, rate);
            demuxed.heard = frames_to_nanos(to, rate) - frames_to_nanos(from, rate);
        } else {
            demuxed.heard = demuxed.dur;
        }
    }

    fn step(&mut self) -> Step {
        let oxide = match &mut self.demux {
            Demux::Symphonia(format) => {
                return step_symphonia(format.as_mut(), self.track, &self.stream, &mut self.queue, &mut self.last_pts);
            }
            Demux::OxideAv(demux) => demux.next_packet().map(|p| (p, 0)),
            Demux::Mkv(demux) => demux.next_packet().map(|p| {
                let padding = demux.block_group_meta().and_then(|m| m.discard_padding()).unwrap_or(0);
                (p, padding.max(0) as u64)
            }),
        };
        let (packet, padding) = match oxide {
            Ok(found) => found,
            Err(oxideav_core::Error::Eof) => return Step::End,
            // These demuxers do not find their way back into a broken stream.
            Err(error) => return Step::Fatal(error.to_string()),
        };
        if packet.stream_index != self.track || packet.flags.header {
            return Step::Other;
        }
        if packet.data.len() > PACKET_LIMIT {
            return Step::Damaged(format!("a packet of {} bytes", packet.data.len()));
        }
        let base = packet.time_base.as_rational();
        let nanos = |ticks: i64| -> Nanos {
            if base.den == 0 {
                return 0;
            }
            let ns = i128::from(ticks) * i128::from(base.num) * 1_000_000_000 / i128::from(base.den);
            Nanos::try_from(ns).unwrap_or(0)
        };
        // Opus counts 48000 a second whatever the header says.
        let rate = if self.coded.engine == Engine::Opus { 48_000 } else { self.stream.rate };
        let trim_end = u32::try_from(Ticks::new(padding, 1_000_000_000).frames(rate)).unwrap_or(0);
        // The stamps of AVI (packet numbers) and of Vorbis in WebM (samples in a millisecond
        // base) are wrong, so a stamp may only move forward and is for progress alone.
        let pts = packet.pts.map_or(self.last_pts, nanos).max(self.last_pts);
        let dur = packet.duration.map_or(0, nanos).max(0);
        self.last_pts = pts;
        let mut push = |data: Vec<u8>| {
            let packet = oxiline_graph::payload::Packet {
                stream: self.stream.clone(),
                data: data.into(),
                ts: packet.pts,
                trim: (0, trim_end),
            };
            self.queue.push_back(Demuxed { packet, pts, dur, heard: dur });
        };
        match &mut self.framer {
            Some(framer) => framer.push(&packet.data).into_iter().for_each(&mut push),
            None => push(packet.data),
        }
        Step::Packet
    }
}

enum Step {
    Packet,
    Other,
    Damaged(String),
    Fatal(String),
    End,
}

fn step_symphonia(
    format: &mut dyn FormatReader,
    track: u32,
    stream: &Arc<StreamInfo>,
    queue: &mut std::collections::VecDeque<Demuxed>,
    last_pts: &mut Nanos,
) -> Step {
    use symphonia::core::errors::Error as E;
    let packet = match format.next_packet() {
        Ok(Some(packet)) => packet,
        Ok(None) => return Step::End,
        Err(E::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            return Step::Fatal("it ends in the middle of a packet".into());
        }
        Err(E::DecodeError(what)) => return Step::Damaged(what.to_string()),
        Err(error) => return Step::Fatal(error.to_string()),
    };
    if packet.track_id != track {
        return Step::Other;
    }
    if packet.data.len() > PACKET_LIMIT {
        return Step::Damaged(format!("a packet of {} bytes", packet.data.len()));
    }
    let base = format.tracks().iter().find(|t| t.id == track).and_then(|t| t.time_base);
    let nanos = |ticks: i128| -> Nanos {
        let Some(base) = base else { return 0 };
        let ns = ticks * i128::from(base.numer.get()) * 1_000_000_000 / i128::from(base.denom.get());
        Nanos::try_from(ns).unwrap_or(0)
    };
    let pts = nanos(i128::from(packet.pts.get())).max(*last_pts);
    *last_pts = pts;
    let cut = |d: symphonia::core::units::Duration| u32::try_from(d.get()).unwrap_or(u32::MAX);
    queue.push_back(Demuxed {
        heard: 0,
        pts,
        dur: nanos(i128::from(packet.dur.get())).max(0),
        packet: oxiline_graph::payload::Packet {
            stream: stream.clone(),
            ts: Some(packet.pts.get()),
            trim: (cut(packet.trim_start), cut(packet.trim_end)),
            data: packet.data.into(),
        },
    });
    Step::Packet
}

fn open_container(file: File, name: &str, container: Container, track: usize) -> Result<Reader> {
    match container {
        Container::Wav | Container::Flac | Container::Ogg | Container::Avi | Container::Matroska => {
            let spare = file.try_clone();
            match open_oxide(file, name, container, track) {
                Ok(reader) => Ok(reader),
                // Symphonia reads some that OxideAV does not: ADPCM and mu-law WAV, PCM and
                // ALAC in Matroska.
                Err(error) if matches!(container, Container::Wav | Container::Matroska) => match spare {
                    Ok(file) => match open_symphonia(file, name, container, track) {
                        Ok(reader) => Ok(reader),
                        Err(_) => Err(error),
                    },
                    Err(_) => Err(error),
                },
                Err(error) => Err(error),
            }
        }
        _ => open_symphonia(file, name, container, track),
    }
}

fn label(container: Container) -> &'static str {
    match container {
        Container::Wav => "wav",
        Container::Avi => "avi",
        Container::Flac => "flac",
        Container::Ogg => "ogg",
        Container::Matroska => "matroska",
        Container::Mp4 => "mp4",
        Container::Aiff => "aiff",
        Container::Caf => "caf",
        Container::Mpeg => "mpeg audio",
        Container::Adts => "adts",
    }
}

fn unreadable(name: &str, container: Container, why: &dyn std::fmt::Display) -> Error {
    Error::msg(format_args!(
        "`{name}` is {} file that cannot be read ({why}): it is damaged or cut off; get it again, or convert it to WAV",
        with_article(label(container))
    ))
}

/// "a wav", "an mp4".
pub(crate) fn with_article(word: &str) -> String {
    let vowel = word.starts_with(['a', 'e', 'i', 'o']) || word.starts_with("mp");
    format!("{} {word}", if vowel && word != "mpeg audio" { "an" } else { "a" })
}

fn no_track(name: &str, tracks: usize, others: usize, wanted: usize) -> Error {
    if tracks == 0 {
        let what = if others > 0 { " (only pictures or subtitles)" } else { "" };
        return Error::msg(format_args!("`{name}` has no audio track{what}: there is nothing to hear in it"));
    }
    Error::msg(format_args!("`{name}` has {tracks} audio track(s): `track` counts from 0, so {wanted} is one too many"))
}

fn bad_codec(name: &str, codec: &str, container: Container) -> Error {
    let hint = match codec {
        "ac3" | "eac3" | "ac4" | "dts" | "wma" | "speex" | "truehd" => "convert it to FLAC, Opus or AAC",
        _ => "convert it to WAV or FLAC",
    };
    Error::msg(format_args!(
        "the audio of `{name}` ({} file) is {codec}, which cannot be decoded: {hint}",
        label(container)
    ))
}

/// Every OxideAV registry we use.
pub(crate) fn oxide_context() -> RuntimeContext {
    let mut ctx = RuntimeContext::new();
    oxideav_basic::register_codecs(&mut ctx.codecs);
    oxideav_basic::register_containers(&mut ctx.containers);
    oxideav_flac::register(&mut ctx);
    oxideav_vorbis::register(&mut ctx);
    oxideav_ogg::register(&mut ctx);
    oxideav_avi::register(&mut ctx);
    ctx
}

fn open_oxide(mut file: File, name: &str, container: Container, wanted: usize) -> Result<Reader> {
    use std::io::Seek;
    let damaged = |e: &dyn std::fmt::Display| unreadable(name, container, e);
    file.rewind().map_err(|e| damaged(&e))?;
    let ctx = oxide_context();
    let input: Box<dyn oxideav_core::ReadSeek> = Box::new(BufReader::with_capacity(64 * 1024, file));
    let mut demux = match container {
        Container::Matroska => {
            Demux::Mkv(Box::new(oxideav_mkv::demux::open_typed(input, &ctx.codecs).map_err(|e| damaged(&e))?))
        }
        _ => {
            Demux::OxideAv(ctx.containers.open_demuxer(label(container), input, &ctx.codecs).map_err(|e| damaged(&e))?)
        }
    };
    let (streams, duration) = match &demux {
        Demux::Mkv(d) => (d.streams(), d.duration_micros()),
        Demux::OxideAv(d) => (d.streams(), d.duration_micros()),
        Demux::Symphonia(_) => return Err(damaged(&"wrong demuxer")),
    };
    let audio: Vec<_> = streams.iter().filter(|s| s.params.media_type == MediaType::Audio).collect();
    let stream = match audio.get(wanted) {
        Some(stream) => (*stream).clone(),
        None => return Err(no_track(name, audio.len(), streams.len() - audio.len(), wanted)),
    };
    let mut stream = stream;
    let codec = plain_name(stream.params.codec_id.as_str());
    stream.params.codec_id = CodecId::new(codec.clone());
    if codec == "flac" {
        stream.params.extradata = flac_headers(&stream.params.extradata);
    }
    let engine = match codec.as_str() {
        "opus" => Engine::Opus,
        c if symphonia_codec(c).is_some_and(|_| !c.starts_with("adpcm")) => Engine::Symphonia,
        // The Matroska demuxer calls every integer PCM 16-bit.
        c if c.starts_with("pcm") && container == Container::Matroska => return Err(bad_codec(name, c, container)),
        _ if ctx.codecs.has_decoder(&stream.params.codec_id) => Engine::OxideAv,
        c => return Err(bad_codec(name, c, container)),
    };
    let rate = stream.params.sample_rate.unwrap_or(0);
    let (mut skip, mut keep) = (Ticks::default(), None);
    match (container, &mut demux) {
        (Container::Ogg, _) => {
            keep =
                duration.and_then(|us| u64::try_from(us).ok()).filter(|&us| us > 0).map(|us| Ticks::new(us, 1_000_000));
        }
        // FLAC's stream information counts samples.
        (Container::Flac, _) => {
            keep = stream.duration.and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0 && rate > 0).and_then(|n| {
                let base = stream.time_base.as_rational();
                (base.num == 1 && base.den == i64::from(rate)).then(|| Ticks::new(n, u64::from(rate)))
            });
        }
        (Container::Matroska, Demux::Mkv(d)) => {
            let delay = d.track_codec_timing(stream.index).map_or(0, |t| t.codec_delay());
            skip = Ticks::new(delay, 1_000_000_000);
        }
        _ => {}
    }
    if engine == Engine::Opus {
        skip = Ticks::new(u64::from(opus_pre_skip(&stream.params.extradata)), 48_000);
    }
    let mut symphonia = AudioCodecParameters::new();
    if let Some(id) = symphonia_codec(&codec) {
        symphonia.for_codec(id);
        if rate > 0 {
            symphonia.with_sample_rate(rate);
        }
        if let Some(channels) = stream.params.channels.filter(|&c| c > 0) {
            symphonia.with_channels(symphonia::core::audio::Channels::Discrete(channels));
        }
        if !stream.params.extradata.is_empty() {
            symphonia.with_extra_data(stream.params.extradata.clone().into());
        }
    }
    match &mut demux {
        Demux::Mkv(d) => d.set_active_streams(&[stream.index]),
        Demux::OxideAv(d) => d.set_active_streams(&[stream.index]),
        Demux::Symphonia(_) => {}
    }
    let framer = (container == Container::Avi && matches!(codec.as_str(), "mp3" | "mp2")).then(Framer::default);
    let total = match (duration, stream.duration) {
        (Some(us), _) if us > 0 => Some(us as f64 / 1e6),
        (_, Some(ticks)) if ticks > 0 => Some(stream.time_base.seconds_of(ticks)),
        _ => None,
    };
    let coded = Coded { file: name.into(), codec, engine, oxide: stream.params, symphonia, skip, keep, start: 0 };
    Ok(reader(demux, stream.index, coded, container, framer, total.filter(|s| s.is_finite() && *s > 0.0)))
}

/// The codec behind a demuxer's own name: AVI's tags of WAVEFORMATEX have no other.
fn plain_name(codec: &str) -> String {
    let tag = codec.strip_prefix("avi:tag_").and_then(|hex| u16::from_str_radix(hex, 16).ok());
    match tag {
        Some(0x0002) => "adpcm_ms",
        Some(0x0006) => "pcm_alaw",
        Some(0x0007) => "pcm_mulaw",
        Some(0x0011) => "adpcm_ima_wav",
        Some(0x0050) => "mp2",
        Some(0x0055) => "mp3",
        Some(0x00ff | 0x1600 | 0x706d) => "aac",
        Some(0x0160..=0x0163) => "wma",
        Some(0x2000) => "ac3",
        Some(0x2001) => "dts",
        _ => codec,
    }
    .to_string()
}

/// FLAC's stream information as the decoder wants it, a metadata block: MP4 has it bare, Ogg
/// behind its own header.
fn flac_headers(extradata: &[u8]) -> Vec<u8> {
    let bare = |info: &[u8]| [&[0x80, 0, 0, 34][..], info].concat();
    if extradata.len() == 34 {
        return bare(extradata);
    }
    let magic = extradata.windows(4).take(64).position(|w| w == b"fLaC");
    match magic.and_then(|at| extradata.get(at + 8..at + 42)) {
        Some(info) => bare(info),
        None => extradata.to_vec(),
    }
}

/// An `OpusHead` from MP4's `dOps`, whose numbers are the other way round (and which the demuxer
/// only puts the magic in front of).
fn opus_head(mut head: Vec<u8>) -> Vec<u8> {
    if let Some(numbers) = head.get_mut(10..18) {
        numbers[..2].reverse();
        numbers[2..6].reverse();
        numbers[6..].reverse();
    }
    head
}

/// Samples at 48 kHz to drop from the start, from an `OpusHead` (RFC 7845, 5.1).
fn opus_pre_skip(head: &[u8]) -> u16 {
    match head {
        [b'O', b'p', b'u', b's', b'H', b'e', b'a', b'd', _, _, low, high, ..] => u16::from_le_bytes([*low, *high]),
        _ => 0,
    }
}

fn reader(
    demux: Demux,
    track: u32,
    coded: Coded,
    container: Container,
    framer: Option<Framer>,
    total: Option<f64>,
) -> Reader {
    let coded = Arc::new(coded);
    let rate = match coded.engine {
        Engine::Symphonia => coded.symphonia.sample_rate.unwrap_or(0),
        Engine::Opus => 48_000,
        Engine::OxideAv => coded.oxide.sample_rate.unwrap_or(0),
    };
    let channels = match coded.engine {
        Engine::Symphonia => coded.symphonia.channels.as_ref().map_or(0, |c| c.count() as u16),
        _ => coded.oxide.channels.unwrap_or(0),
    };
    let stream = Arc::new(StreamInfo {
        codec: coded.codec.clone(),
        rate,
        channels,
        total_frames: coded.keep.map(|k| k.frames(rate)),
        native: coded.clone(),
    });
    Reader {
        demux,
        track,
        stream,
        coded,
        framer,
        queue: Default::default(),
        container: label(container),
        total,
        delivered: 0,
        errors: 0,
        last_pts: 0,
        counted: (rate > 0).then_some(0),
        promise: Promise::Nothing,
        warning: None,
        ended: false,
    }
}

fn open_symphonia(mut file: File, name: &str, container: Container, wanted: usize) -> Result<Reader> {
    use std::io::Seek;
    let damaged = |e: &dyn std::fmt::Display| unreadable(name, container, e);
    let edits = if container == Container::Mp4 { mp4_edits::read(&mut file) } else { Vec::new() };
    file.rewind().map_err(|e| damaged(&e))?;
    let mss = MediaSourceStream::new(Box::new(file), MediaSourceStreamOptions::default());
    let format = symphonia::default::get_probe()
        .probe(&Hint::new(), mss, FormatOptions::default(), MetadataOptions::default())
        .map_err(|e| damaged(&e))?;
    let audio: Vec<&Track> =
        format.tracks().iter().filter(|t| matches!(t.codec_params, Some(SymphoniaParameters::Audio(_)))).collect();
    let Some(track) = audio.get(wanted).copied() else {
        return Err(no_track(name, audio.len(), format.tracks().len() - audio.len(), wanted));
    };
    let Some(SymphoniaParameters::Audio(params)) = &track.codec_params else {
        return Err(no_track(name, 0, format.tracks().len(), wanted));
    };
    let codec = codec_name(params.codec);
    let extradata = params.extra_data.as_deref().unwrap_or(&[]).to_vec();
    let ctx = oxide_context();
    let engine = match codec.as_str() {
        "opus" => Engine::Opus,
        "pcm" => Engine::Symphonia,
        c if symphonia_codec(c).is_some() => Engine::Symphonia,
        c if ctx.codecs.has_decoder(&CodecId::new(c)) => Engine::OxideAv,
        c => return Err(bad_codec(name, c, container)),
    };
    let mut oxide = CodecParameters::audio(CodecId::new(codec.clone()));
    oxide.sample_rate = params.sample_rate;
    oxide.channels = params.channels.as_ref().and_then(|c| u16::try_from(c.count()).ok());
    oxide.extradata = match codec.as_str() {
        "flac" => flac_headers(&extradata),
        "opus" if container == Container::Mp4 => opus_head(extradata),
        _ => extradata,
    };
    let (mut skip, mut keep, mut start) = (Ticks::default(), None, 0);
    let rate = params.sample_rate.unwrap_or(0);
    if let Some(edit) = edits.iter().find(|e| e.track == track.id) {
        skip = Ticks::new(edit.start, u64::from(edit.media_scale));
        // The sample table is exact but includes padding; the edit's length excludes padding
        // but is often in milliseconds. The table counts unless the edit is shorter by more
        // than its own rounding.
        let table = track.num_frames.filter(|_| edit.media_scale == rate).map(|n| n.saturating_sub(edit.start));
        let edited = Ticks::new(edit.length, u64::from(edit.movie_scale));
        let slack = u64::from(edit.media_scale / edit.movie_scale) + 1;
        keep = match table {
            Some(n) if edit.length == 0 || n <= edited.frames(rate).saturating_add(slack) => {
                (n > 0).then(|| Ticks::new(n, u64::from(rate)))
            }
            _ => (edit.length > 0).then_some(edited),
        };
        start = Nanos::try_from(Ticks::new(edit.empty, u64::from(edit.movie_scale)).frames(1_000_000_000)).unwrap_or(0);
    }
    if engine == Engine::Opus {
        skip = Ticks::new(u64::from(opus_pre_skip(&oxide.extradata)), 48_000);
    }
    if codec.starts_with("adpcm") {
        // The `fact` chunk says how much of the last block counts.
        keep = track.num_frames.filter(|&n| n > 0 && rate > 0).map(|n| Ticks::new(n, u64::from(rate)));
    }
    let total = track
        .time_base
        .zip(track.duration)
        .map(|(base, d)| d.get() as f64 * f64::from(base.numer.get()) / f64::from(base.denom.get()))
        .or_else(|| track.num_frames.filter(|_| rate > 0).map(|n| n as f64 / f64::from(rate)))
        .filter(|s| s.is_finite() && *s > 0.0);
    let total = keep.map(Ticks::seconds).or(total);
    let (id, symphonia) = (track.id, params.clone());
    let coded = Coded { file: name.into(), codec, engine, oxide, symphonia, skip, keep, start };
    Ok(reader(Demux::Symphonia(format), id, coded, container, None, total))
}
