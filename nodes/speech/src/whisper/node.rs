//! `asr.transcribe`: a whole clip in, its segments out as they are decoded.

use std::sync::Arc;

use oxiline_graph::payload::{Audio, Transcript, Update};
use oxiline_graph::protocol::speech::{
    Segment, Transcribe, TranscribeOptions, TranscribeReply, TranscribeRequest, TranscribeStats,
};
use oxiline_graph::samples::Samples;
use oxiline_graph::{
    Gap, GapReason, Header, Incoming, Input, Io, Mark, ModelRef, Nanos, Node, Output, PortType, Result, Session, Setup,
    Timed, bail,
};

const RATE: u64 = 16_000;

/// Longest clip held in memory: a day of sound.
const LONGEST: usize = 24 * 3600 * RATE as usize;

/// Transcribes the sound of a stream as one clip.
pub struct AsrTranscribe {
    options: TranscribeOptions,
    model: ModelRef<Transcribe>,
}

impl Node for AsrTranscribe {
    const KIND: &'static str = "asr.transcribe";
    const ABOUT: &'static str =
        "Transcribes a whole stream of 16 kHz mono sound; every segment is sent as soon as it is decoded.";
    type Options = TranscribeOptions;

    fn new(options: TranscribeOptions, setup: &mut Setup) -> Result<Self> {
        setup.input("audio", PortType::audio(RATE as u32, 1));
        setup.output("transcript", PortType::Transcript);
        setup.cancellable();
        setup.memory_grows("the clip: 64 kB a second of sound, and 32 to 51 kB of its features");
        Ok(Self { options, model: setup.model()? })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Audio> = io.input("audio")?;
        let mut run = Run {
            io,
            output: io.output("transcript")?,
            session: self.model.open(())?,
            options: &self.options,
            segment: 0,
            stats: TranscribeStats::default(),
        };
        let mut clip = Clip::default();
        loop {
            match input.next()? {
                Incoming::Data(item) => clip.data(&item)?,
                Incoming::Gap(gap) => clip.gap(&gap)?,
                Incoming::Mark(mark @ Mark::Flush(_)) => {
                    run.transcribe(std::mem::take(&mut clip))?;
                    run.output.mark(mark)?;
                }
                // Sound has its own segments and forms; the transcript opens new ones.
                Incoming::Mark(_) => {}
                Incoming::End(_) => {
                    run.transcribe(clip)?;
                    return Ok(());
                }
            }
        }
    }
}

/// The sound so far. Samples without sound are zeros, so that times stay true.
#[derive(Default)]
struct Clip {
    samples: Samples,
    /// Media time of the first sample.
    start: Option<Nanos>,
    /// Stretches with speech, in samples.
    speech: Vec<(usize, usize)>,
    /// A voice-activity node looked at the sound.
    judged: bool,
    /// There was sound, not only gaps.
    sound: bool,
}

impl Clip {
    fn data(&mut self, item: &Timed<Audio>) -> Result<()> {
        self.reach(item.header.pts)?;
        self.sound = true;
        let from = self.samples.len();
        if from + item.value.samples.len() > LONGEST {
            bail!("`asr.transcribe` takes clips of at most 24 hours; cut the input into parts");
        }
        self.samples.extend_from_slice(&item.value.samples);
        if item.header.flags & Header::VAD_SEEN != 0 {
            self.judged = true;
        }
        if item.header.flags & Header::SPEECH != 0 {
            match self.speech.last_mut() {
                Some((_, end)) if *end == from => *end = self.samples.len(),
                _ => self.speech.push((from, self.samples.len())),
            }
        }
        Ok(())
    }

    fn gap(&mut self, gap: &Gap) -> Result<()> {
        if gap.reason == GapReason::NoSpeech {
            self.judged = true;
        }
        self.start.get_or_insert(gap.from);
        self.reach(gap.to)
    }

    /// Fills up with silence until media time `pts`.
    fn reach(&mut self, pts: Nanos) -> Result<()> {
        let start = *self.start.get_or_insert(pts);
        let at = (i128::from(pts - start) * i128::from(RATE) / 1_000_000_000).clamp(0, LONGEST as i128 + 1) as usize;
        if at > LONGEST {
            bail!("`asr.transcribe` takes clips of at most 24 hours; cut the input into parts");
        }
        // Rounding of time stamps is no break; sound that comes twice is not cut.
        if at > self.samples.len() + 16 {
            self.samples.pad_to(at);
        }
        Ok(())
    }

    /// Spans of speech in seconds; None: nobody looked.
    fn spans(&self) -> Option<Vec<(f64, f64)>> {
        let second = |sample: usize| sample as f64 / RATE as f64;
        self.judged.then(|| self.speech.iter().map(|(from, to)| (second(*from), second(*to))).collect())
    }
}

struct Run<'a> {
    io: &'a Io,
    output: Output<Transcript>,
    session: Session<Transcribe>,
    options: &'a TranscribeOptions,
    segment: u64,
    stats: TranscribeStats,
}

impl Run<'_> {
    fn transcribe(&mut self, clip: Clip) -> Result<()> {
        // Of gaps alone (every packet damaged, say) nothing can be known: a model would invent words.
        if !clip.sound || clip.samples.is_empty() {
            return Ok(());
        }
        let start = clip.start.unwrap_or(0);
        let speech = clip.spans();
        let request = TranscribeRequest { samples: clip.samples.into(), speech, options: self.options.clone() };
        let mut language = None;
        for reply in self.session.call(request)? {
            match reply? {
                TranscribeReply::Language { code, probability } => {
                    self.io.report("language", serde_json::json!({ "code": code, "probability": probability }));
                    language = Some(code);
                }
                TranscribeReply::Languages(_) => {}
                TranscribeReply::Segment(segment) => {
                    self.segment += 1;
                    let update = update(self.segment, start, segment, language.clone());
                    let (pts, dur) = (update.t0, update.t1 - update.t0);
                    self.output.send(Timed::at(pts, dur, Transcript(Arc::new(update))))?;
                }
                TranscribeReply::Progress { done, total } => self.io.progress(done, Some(total)),
                TranscribeReply::Done(stats) => add(&mut self.stats, &stats),
            }
        }
        self.io.report("transcription", serde_json::to_value(&self.stats).unwrap_or_default());
        if self.stats.skipped_s > 0.0 {
            self.io.note(format!("left out {:.1} s without speech", self.stats.skipped_s));
        }
        Ok(())
    }
}

fn update(id: u64, start: Nanos, segment: Segment, lang: Option<String>) -> Update {
    let time = |seconds: f64| start + (seconds * 1e9).round() as Nanos;
    let (t0, t1) = (time(segment.start), time(segment.end.max(segment.start)));
    Update {
        segment: id,
        rev: 0,
        t0,
        t1,
        stable: segment.text,
        unstable: String::new(),
        words: segment.words,
        lang,
        is_final: true,
        avg_logprob: Some(segment.avg_logprob),
        no_speech_prob: Some(segment.no_speech_prob),
        tokens: segment.tokens,
        ..Update::default()
    }
}

fn add(total: &mut TranscribeStats, one: &TranscribeStats) {
    total.audio_s += one.audio_s;
    total.features_s += one.features_s;
    total.encode_s += one.encode_s;
    total.decode_s += one.decode_s;
    total.windows += one.windows;
    total.fallbacks += one.fallbacks;
    total.skipped += one.skipped;
    total.skipped_s += one.skipped_s;
    total.tokens += one.tokens;
    total.stopped |= one.stopped;
}
