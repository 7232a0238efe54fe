//! The graph nodes: thin loops around [`Reader`], [`Decoder`], [`Resampler`] and [`CaptionOutput`].

use oxiline_graph::payload::{Audio, Packet, Param, Transcript};
use oxiline_graph::{
    EosReason, Error, Gap, GapReason, Incoming, Input, Io, Mark, Nanos, Node, Output, PortType, Prepare, Registry,
    Result, Setup, Span, Timed,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::caption::{Caption, CaptionOutput, Format, Written};
use crate::decoder::{Decoder, frames_to_nanos};
use crate::reader::Reader;
use crate::resample::Resampler;
use crate::source::{STDIN_LIMIT, Source};

/// Adds this crate's node kinds.
pub fn register(registry: &mut Registry) {
    registry.node::<MediaRead>();
    registry.node::<AudioDecode>();
    registry.node::<AudioResample>();
    registry.node::<CaptionWrite>();
    registry.node::<crate::caption::CaptionPrint>();
    registry.node::<crate::wav::AudioWrite>();
    crate::devices::register(registry);
    crate::text::register(registry);
}

/// Options of `media.read`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MediaReadOptions {
    /// What to read: a path, a `file:` URL, or "-" for standard input.
    pub uri: String,
    /// Which audio track, counted from 0.
    #[serde(default)]
    pub track: usize,
    /// At most so many bytes of standard input (it is copied to a temporary file).
    #[serde(default = "stdin_limit")]
    pub stdin_limit: u64,
}

fn stdin_limit() -> u64 {
    STDIN_LIMIT
}

/// Demuxes a file.
pub struct MediaRead {
    options: MediaReadOptions,
    reader: Option<Reader>,
}

impl Node for MediaRead {
    const KIND: &'static str = "media.read";
    const ABOUT: &'static str =
        "Reads a media file: recognises it by content and sends the packets of one audio track.";
    type Options = MediaReadOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        if options.uri.is_empty() {
            return Err(Error::msg("`uri` is empty: name a media file, or - for standard input"));
        }
        setup.output("audio", PortType::Packet);
        setup.memory_grows("the container's index, which grows with the number of packets");
        Ok(Self { options, reader: None })
    }

    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        let source = Source::open(&self.options.uri, self.options.stdin_limit)?;
        self.reader = Some(Reader::from_source(source, self.options.track)?);
        Ok(())
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let output: Output<Packet> = io.output("audio")?;
        let reader = self.reader.as_mut().ok_or_else(|| Error::msg("`media.read` was run before it was prepared"))?;
        let total = reader.seconds();
        let (mut at, mut reported): (Nanos, Nanos) = (0, Nanos::MIN);
        while !io.stopping() {
            io.check()?;
            let Some(demuxed) = reader.next_packet()? else { break };
            let pts = demuxed.pts.max(at);
            output.send(Timed::at(pts, demuxed.dur, demuxed.packet))?;
            io.count("packets", 1);
            at = pts + demuxed.heard;
            // Ten times a second of media is plenty.
            if at.saturating_sub(reported) > 100_000_000 {
                io.progress(at as f64 / 1e9, total);
                reported = at;
            }
        }
        io.progress(at as f64 / 1e9, total);
        if let Some(warning) = reader.warning() {
            io.note(warning.to_string());
            io.count("truncated", 1);
        }
        Ok(())
    }
}

/// Options of `audio.decode`: none.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AudioDecodeOptions {}

/// Decodes packets to sound.
pub struct AudioDecode;

impl Node for AudioDecode {
    const KIND: &'static str = "audio.decode";
    const ABOUT: &'static str = "Decodes packets to samples at the rate and with the channels that are really in them.";
    type Options = AudioDecodeOptions;

    fn new(_: Self::Options, setup: &mut Setup) -> Result<Self> {
        setup.input("packet", PortType::Packet);
        setup.output("audio", PortType::AUDIO);
        setup.skips_item_errors();
        // A decoder's tables, and the samples of the largest frames (FLAC: 65535 of 8 channels, 2 MiB)
        // in a few forms.
        setup.memory(16 << 20);
        Ok(Self)
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Packet> = io.input("packet")?;
        let mut out = DecodedOutput { output: io.output("audio")?, form: None, end: 0 };
        let mut decoder: Option<Decoder> = None;
        let mut whole = true;
        loop {
            io.check()?;
            match input.next()? {
                Incoming::Data(Timed { header, value: packet }) => {
                    let decoder = match &mut decoder {
                        Some(decoder) => decoder,
                        None => decoder.insert(Decoder::new(&packet.stream)?),
                    };
                    match decoder.decode(&packet, header.dur) {
                        Ok(sound) => out.send(sound, decoder.pts())?,
                        Err(damage) => {
                            let length = frames_to_nanos(damage.frames, damage.rate);
                            io.item_error(damage.error)?;
                            io.count("missing_ms", u64::try_from(length / 1_000_000).unwrap_or(0));
                            // The runtime leaves a gap of the packet's own length.
                            out.gap(decoder.pts(), if header.dur > 0 { 0 } else { length })?;
                        }
                    }
                }
                Incoming::Gap(gap) => out.output.gap(gap)?,
                Incoming::Mark(mark) => {
                    if let (Mark::Flush(_), Some(decoder)) = (&mark, &mut decoder) {
                        decoder.reset();
                    }
                    out.output.mark(mark)?;
                }
                Incoming::End(reason) => {
                    whole &= reason == EosReason::Complete;
                    break;
                }
            }
        }
        let Some(mut decoder) = decoder else { return Ok(()) };
        // A stopped stream may end before its first sound; that is no fault of the file.
        match decoder.finish() {
            Ok(sound) => out.send(sound, decoder.pts())?,
            Err(error) if whole => return Err(error),
            Err(_) => return Ok(()),
        }
        if whole && let Some((missing, rate)) = decoder.missing() {
            let seconds = missing as f64 / f64::from(rate);
            io.count("missing_ms", (seconds * 1000.0) as u64);
            io.note(format!("the file promises {seconds:.1} s more sound than is in it: it was cut off"));
        }
        Ok(())
    }
}

struct DecodedOutput {
    output: Output<Audio>,
    form: Option<(u32, u16)>,
    end: Nanos,
}

impl DecodedOutput {
    /// Sends `sound`, which ends at media time `end`.
    fn send(&mut self, sound: Vec<Audio>, end: Nanos) -> Result<()> {
        let length = |a: &Audio| frames_to_nanos(a.frames() as u64, a.rate);
        let mut pts = (end - sound.iter().map(length).sum::<Nanos>()).max(self.end);
        for audio in sound {
            let form = (audio.rate, audio.channels);
            if self.form.is_some_and(|f| f != form) {
                self.output.mark(Mark::Caps(PortType::audio(form.0, form.1)))?;
            }
            self.form = Some(form);
            let dur = length(&audio);
            self.output.send(Timed::at(pts, dur, audio))?;
            pts += dur;
        }
        self.end = end.max(self.end);
        Ok(())
    }

    fn gap(&mut self, end: Nanos, length: Nanos) -> Result<()> {
        let gap = Gap { from: (end - length).max(self.end), to: end.max(self.end), reason: GapReason::DecodeError };
        self.end = gap.to;
        if gap.to > gap.from { self.output.gap(gap) } else { Ok(()) }
    }
}

/// Options of `audio.resample`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AudioResampleOptions {
    /// Samples a second.
    pub rate: u32,
    /// Channels: 1 is the mean of all.
    pub channels: u16,
}

impl Default for AudioResampleOptions {
    fn default() -> Self {
        Self { rate: crate::resample::SPEECH_RATE, channels: 1 }
    }
}

/// Converts rate and channels.
pub struct AudioResample {
    options: AudioResampleOptions,
}

impl Node for AudioResample {
    const KIND: &'static str = "audio.resample";
    const ABOUT: &'static str = "Converts sound of any rate and channel count to one rate and channel count.";
    type Options = AudioResampleOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        // The checks of the converter itself, at load.
        Resampler::new(options.rate, options.channels, options.rate, options.channels)?;
        setup.input("audio", PortType::AUDIO);
        setup.output("audio", PortType::Audio { rate: Param::Is(options.rate), channels: Param::Is(options.channels) });
        // The filter looks ahead about 90 samples of the slower rate: 11 ms at 8 kHz.
        setup.latency(Span::ms(0), Span::ms(12));
        setup.memory(8 << 20);
        Ok(Self { options })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Audio> = io.input("audio")?;
        let mut run = Resampling { output: io.output("audio")?, options: self.options.clone(), run: None };
        loop {
            io.check()?;
            match input.next()? {
                Incoming::Data(Timed { header, value }) => run.push(header, &value)?,
                Incoming::Gap(gap) => {
                    // Nothing is known of the gap, so the filter does not reach across it.
                    run.flush()?;
                    run.output.gap(gap)?;
                }
                // The output's form does not change with the input's.
                Incoming::Mark(Mark::Caps(_)) => run.flush()?,
                Incoming::Mark(Mark::Flush(epoch)) => {
                    run.run = None;
                    run.output.mark(Mark::Flush(epoch))?;
                }
                // What was said before a mark goes out before it.
                Incoming::Mark(mark @ (Mark::SegmentStart(_) | Mark::SegmentEnd { .. })) => {
                    run.flush()?;
                    run.output.mark(mark)?;
                }
                // Sound before the bound is still in the filter; it is bounded by what follows.
                Incoming::Mark(Mark::Bound(_)) => {}
                Incoming::Mark(mark) => run.output.mark(mark)?,
                Incoming::End(_) => return run.flush(),
            }
        }
    }
}

struct Run {
    resampler: Resampler,
    /// Media time of the run's first sample, and its header.
    start: Nanos,
    header: oxiline_graph::Header,
}

struct Resampling {
    output: Output<Audio>,
    options: AudioResampleOptions,
    run: Option<Run>,
}

impl Resampling {
    fn push(&mut self, header: oxiline_graph::Header, audio: &Audio) -> Result<()> {
        if self.run.as_ref().is_some_and(|r| r.resampler.input() != (audio.rate, audio.channels)) {
            self.flush()?;
        }
        let run = match &mut self.run {
            Some(run) => run,
            None => {
                let resampler = Resampler::new(audio.rate, audio.channels, self.options.rate, self.options.channels)?;
                self.run.insert(Run { resampler, start: header.pts, header })
            }
        };
        run.header = header;
        let given = run.resampler.given();
        if run.resampler.output() == run.resampler.input() {
            // Nothing to do: the same samples, not a copy.
            run.resampler.push_count(audio.frames() as u64);
            return self.send(given, audio.clone());
        }
        let mut samples = Vec::new();
        run.resampler.push(&audio.samples, &mut samples);
        self.send_samples(given, samples)
    }

    fn flush(&mut self) -> Result<()> {
        let Some(run) = &mut self.run else { return Ok(()) };
        let given = run.resampler.given();
        let mut samples = Vec::new();
        run.resampler.finish(&mut samples);
        self.send_samples(given, samples)?;
        self.run = None;
        Ok(())
    }

    fn send_samples(&self, given: u64, samples: Vec<f32>) -> Result<()> {
        if samples.is_empty() {
            return Ok(());
        }
        self.send(given, Audio { rate: self.options.rate, channels: self.options.channels, samples: samples.into() })
    }

    fn send(&self, given: u64, audio: Audio) -> Result<()> {
        let Some(run) = &self.run else { return Ok(()) };
        let from = run.start + frames_to_nanos(given, audio.rate);
        let to = run.start + frames_to_nanos(given + audio.frames() as u64, audio.rate);
        let mut item = Timed { header: run.header, value: audio };
        (item.header.pts, item.header.dur) = (from, to - from);
        self.output.send(item)
    }
}

/// Options of `caption.write`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptionWriteOptions {
    /// text, srt, vtt, json, tsv or lrc.
    #[serde(default)]
    pub format: Format,
    /// A file, written as NAME.partial until it is whole, or "-" for standard output.
    #[serde(default = "stdout")]
    pub to: String,
    /// Wrap the lines of srt, vtt and lrc at so many columns (0: do not).
    #[serde(default = "max_line")]
    pub max_line: usize,
}

fn stdout() -> String {
    "-".into()
}

fn max_line() -> usize {
    42
}

/// Writes captions.
pub struct CaptionWrite {
    options: CaptionWriteOptions,
    output: Option<CaptionOutput>,
}

impl Node for CaptionWrite {
    const KIND: &'static str = "caption.write";
    const ABOUT: &'static str = "Writes finished segments as text, srt, vtt, json, tsv or lrc, each as it comes.";
    type Options = CaptionWriteOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        if options.to.is_empty() {
            return Err(Error::msg("`to` is empty: name a file, or - for standard output"));
        }
        setup.input("transcript", PortType::Transcript);
        setup.writes(options.to.clone().into());
        match options.format {
            // Its last key is the whole text.
            Format::Json => setup.memory_grows("json: the text so far, about 1 kB a minute of speech"),
            _ => setup.memory(1 << 20),
        }
        Ok(Self { options, output: None })
    }

    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        let wrap = Some(self.options.max_line).filter(|&n| n > 0);
        self.output = Some(CaptionOutput::open(&self.options.to, self.options.format, wrap)?);
        Ok(())
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let mut output =
            self.output.take().ok_or_else(|| Error::msg("`caption.write` was run before it was prepared"))?;
        let mut end = None;
        match write_all(io, &mut output, &mut end) {
            Ok(Some(EosReason::Complete)) => output.complete(end).map(|_| ()),
            Ok(None) => Ok(()),
            Ok(Some(_)) => {
                output.keep_partial(end).into_iter().for_each(|note| io.note(note));
                Ok(())
            }
            Err(error) => {
                output.keep_partial(end).into_iter().for_each(|note| io.note(note));
                Err(error)
            }
        }
    }
}

/// Writes until the input ends; `None` when nobody reads any more.
fn write_all(io: &Io, output: &mut CaptionOutput, end: &mut Option<f64>) -> Result<Option<EosReason>> {
    let input: Input<Transcript> = io.input("transcript")?;
    loop {
        match input.next()? {
            Incoming::Data(Timed { value: Transcript(update), .. }) => {
                if update.is_final && output.push(&Caption::from(&*update))? == Written::ReaderGone {
                    return Ok(None);
                }
                io.count("segments", u64::from(update.is_final));
            }
            // A bound or a gap at the end tells how long the media is.
            Incoming::Gap(gap) => *end = Some(gap.to as f64 / 1e9).filter(|&t| Some(t) > *end).or(*end),
            Incoming::Mark(Mark::Bound(t)) => *end = Some(t as f64 / 1e9).filter(|&t| Some(t) > *end).or(*end),
            Incoming::Mark(_) => {}
            Incoming::End(reason) => return Ok(Some(reason)),
        }
    }
}
