//! `asr.stream`: speech in, revisions of its text out while it goes on.

use std::sync::Arc;

use oxiline_graph::payload::{Audio, Transcript, Update};
use oxiline_graph::protocol::speech::{
    Segment, Task, Transcribe, TranscribeOptions, TranscribeReply, TranscribeRequest, Word,
};
use oxiline_graph::{
    Gap, GapReason, Header, Incoming, Input, Io, Mark, ModelRef, Nanos, Node, Output, PortType, Result, Session, Setup,
    Span, Timed, bail,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::policy::{Agreement, Policy};
use crate::whisper::speech::{guessed, loops};

const RATE: u64 = 16_000;
/// A hole this long in the sound ends a segment.
const HOLE: Nanos = 500_000_000;
/// Sound in which a language is taken to be known.
const LANGUAGE_AFTER: u64 = 3 * RATE;
/// Seconds of padding that the model sees after speech that goes on, in place of as many as fill 30 s: most of
/// the work of a pass is its encoder's.
const PADDING: f64 = 8.0;
/// Tokens that nobody says in a second, in any script.
const MOST_TOKENS: usize = 24;
/// Tokens a second that somebody may say but not by repeating himself.
const LOOP_TOKENS: f64 = 8.0;
/// Shortest sound worth a pass.
const LEAST: u64 = RATE / 2;

/// Options of `asr.stream`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AsrStreamOptions {
    /// What of a hypothesis is certain: `local-agreement`, `align-att`, `stable-prefix`, or `final-only`.
    pub policy: Policy,
    /// New speech before the next pass. A pass covers at least as much new speech as the last one took time.
    pub step: Span,
    /// Longest such wait; a machine that is slower than this falls behind, and the lag says so.
    pub step_max: Span,
    /// Longest speech transcribed at once; longer speech is cut behind its certain words.
    pub window: Span,
    /// Language code ("de") or name ("german"); "auto" detects it in every segment.
    pub language: String,
    /// Transcribe, or translate to English.
    pub task: Task,
    /// Text the model believes was said before.
    pub initial_prompt: Option<String>,
}

impl Default for AsrStreamOptions {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            step: Span::ms(500),
            step_max: Span::secs(5),
            window: Span::secs(15),
            language: "auto".into(),
            task: Task::default(),
            initial_prompt: None,
        }
    }
}

/// Transcribes labelled speech while it goes on.
pub struct AsrStream {
    options: AsrStreamOptions,
    model: ModelRef<Transcribe>,
}

impl Node for AsrStream {
    const KIND: &'static str = "asr.stream";
    const ABOUT: &'static str = "Transcribes 16 kHz mono sound while it comes: text that stays, text that may still change, and a final segment.";
    type Options = AsrStreamOptions;

    fn new(options: AsrStreamOptions, setup: &mut Setup) -> Result<Self> {
        if !(Span::secs(2)..=Span::secs(28)).contains(&options.window) {
            bail!("`window` is {}; it must lie between 2 s and 28 s, what the model hears at once", options.window);
        }
        if options.step < Span::ms(100) || options.step > options.step_max || options.step_max > options.window {
            bail!(
                "`step` ({}), `step_max` ({}) and `window` ({}) must grow in this order, from 100 ms on",
                options.step,
                options.step_max,
                options.window
            );
        }
        setup.input("audio", PortType::audio(RATE as u32, 1));
        setup.output("transcript", PortType::Transcript);
        // A word waits for the pass that hears it, and under agreement for the one after.
        let worst = if options.policy == Policy::FinalOnly { options.window } else { Span(2 * options.step.0) };
        setup.latency(options.step, worst);
        setup.memory(8 * samples(options.window) + (1 << 20));
        setup.cancellable();
        Ok(Self { options, model: setup.model()? })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Audio> = io.input("audio")?;
        let mut run = Run {
            io,
            output: io.output("transcript")?,
            session: self.model.open(())?,
            options: &self.options,
            open: None,
            segments: 0,
            judged: false,
            born: 0,
            captured: 0,
            passes: 0,
            busy: 0,
            figures: Figures::default(),
        };
        let ended = run.all(&input);
        // A segment that was shown is ended, however the work ends.
        let told = run.abandon();
        run.report();
        ended.and(told)
    }
}

fn samples(span: Span) -> u64 {
    (span.as_secs_f64() * RATE as f64).round() as u64
}

fn nanos(samples: u64) -> Nanos {
    (i128::from(samples) * 1_000_000_000 / i128::from(RATE)) as Nanos
}

fn time(start: Nanos, seconds: f64) -> Nanos {
    start + (seconds * 1e9).round() as Nanos
}

/// Text that nobody said, in so many seconds of sound: a guess, or more repetitions than a mouth can make.
fn doubtful(segment: &Segment, seconds: f64) -> bool {
    guessed(segment) || segment.tokens.len() as f64 > LOOP_TOKENS * seconds && loops(&segment.tokens)
}

/// Speech that goes on.
struct Open {
    /// Media time of the first sample.
    start: Nanos,
    sound: Vec<f32>,
    words: Agreement,
    /// Its number, once anything of it was shown.
    id: Option<u64>,
    rev: u32,
    /// Text that was shown last.
    shown: (String, String),
    /// Sound the last pass covered, and how long it took.
    covered: u64,
    took: Nanos,
    language: Option<String>,
    /// What was said just before, where speech was cut.
    before: Option<String>,
}

impl Open {
    fn len(&self) -> u64 {
        self.sound.len() as u64
    }
}

struct Run<'a> {
    io: &'a Io,
    output: Output<Transcript>,
    session: Session<Transcribe>,
    options: &'a AsrStreamOptions,
    open: Option<Open>,
    segments: u64,
    /// A voice-activity node has looked at the sound.
    judged: bool,
    /// When the newest sound was captured.
    born: Nanos,
    /// Media time at its end.
    captured: Nanos,
    passes: u64,
    busy: Nanos,
    figures: Figures,
}

impl Run<'_> {
    fn all(&mut self, input: &Input<Audio>) -> Result<()> {
        loop {
            match input.next()? {
                Incoming::Data(item) => self.data(&item)?,
                Incoming::Gap(gap) => self.gap(&gap)?,
                Incoming::Mark(mark @ Mark::Flush(_)) => {
                    self.close()?;
                    self.output.mark(mark)?;
                }
                Incoming::Mark(_) => {}
                Incoming::End(_) => return self.close(),
            }
        }
    }

    fn data(&mut self, item: &Timed<Audio>) -> Result<()> {
        if item.header.flags & Header::VAD_SEEN == 0 {
            bail!("`asr.stream` needs sound in which speech is labelled; put `audio.vad` in front of it");
        }
        self.judged = true;
        self.born = item.header.born;
        self.captured = item.header.pts + item.header.dur;
        if item.header.flags & Header::SPEECH == 0 {
            return self.close();
        }
        let hole = self.open.as_ref().is_some_and(|open| item.header.pts - (open.start + nanos(open.len())) > HOLE);
        if hole {
            self.close()?;
        }
        let policy = self.options.policy;
        let open = self.open.get_or_insert_with(|| Open {
            start: item.header.pts,
            sound: Vec::new(),
            words: Agreement::new(policy),
            id: None,
            rev: 0,
            shown: <(String, String)>::default(),
            covered: 0,
            took: 0,
            language: None,
            before: None,
        });
        // Sound that is missing is silence, so that times stay true.
        let missing = item.header.pts - (open.start + nanos(open.len()));
        if missing > 1_000_000 {
            let at = (i128::from(item.header.pts - open.start) * i128::from(RATE) / 1_000_000_000) as usize;
            open.sound.resize(at.max(open.sound.len()), 0.0);
        }
        open.sound.extend_from_slice(&item.value.samples);
        if open.len() >= samples(self.options.window) {
            return self.cut();
        }
        let took = (i128::from(open.took) * i128::from(RATE) / 1_000_000_000) as u64;
        let wait = took.clamp(samples(self.options.step), samples(self.options.step_max));
        if policy != Policy::FinalOnly && open.len() >= (open.covered + wait).max(LEAST) {
            self.pass()?;
        }
        Ok(())
    }

    fn gap(&mut self, gap: &Gap) -> Result<()> {
        // Short holes are filled when sound comes again.
        if gap.to - gap.from > HOLE || gap.reason == GapReason::NoSpeech { self.close() } else { Ok(()) }
    }

    /// A pass over the open speech, and what it changes.
    fn pass(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let words = self.transcribe(&mut open, true);
        let result = words.and_then(|words| {
            let end = open.len() as f64 / RATE as f64;
            open.words.pass(words, end);
            let text = (open.words.stable(), open.words.unstable());
            if text == open.shown || text.0.is_empty() && text.1.is_empty() {
                return Ok(());
            }
            self.show(&mut open, text, None)
        });
        self.open = Some(open);
        result
    }

    /// The words of all the open speech, which may still go on.
    fn transcribe(&mut self, open: &mut Open, goes_on: bool) -> Result<Vec<Word>> {
        let began = self.io.now();
        let language = open.language.clone().unwrap_or_else(|| self.options.language.clone());
        let request = TranscribeRequest {
            samples: open.sound.as_slice().into(),
            speech: None,
            options: TranscribeOptions {
                language,
                task: self.options.task,
                words: true,
                initial_prompt: open.before.clone().or_else(|| self.options.initial_prompt.clone()),
                // Voice activity has been judged already.
                skip_silence: false,
                padding: goes_on.then_some(PADDING),
                // A hypothesis that loops must not hold up the next pass.
                max_tokens: 32 + (open.len() / RATE) as usize * MOST_TOKENS,
                ..TranscribeOptions::default()
            },
        };
        let seconds = open.len() as f64 / RATE as f64;
        let mut words = Vec::new();
        for reply in self.session.call(request)? {
            match reply? {
                TranscribeReply::Language { code, .. } if open.len() >= LANGUAGE_AFTER => open.language = Some(code),
                TranscribeReply::Segment(segment) if !doubtful(&segment, seconds) => words.extend(segment.words),
                _ => {}
            }
        }
        open.covered = open.len();
        open.took = self.io.now() - began;
        self.passes += 1;
        self.busy += open.took;
        Ok(words)
    }

    /// The speech is over: its last pass, and its final text.
    fn close(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let words = match self.transcribe(&mut open, false) {
            Ok(words) => words,
            Err(error) => {
                self.open = Some(open);
                return Err(error);
            }
        };
        open.words.finish(words);
        self.end(open, true)
    }

    /// The window is full: what is certain becomes a segment, the rest goes on as the next one.
    fn cut(&mut self) -> Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let Some(last) = open.words.certain().last().map(|word| word.end) else { return self.close() };
        let at = ((last * RATE as f64) as usize).min(open.sound.len());
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let rest = open.sound.split_off(at);
        let next = Open {
            start: open.start + nanos(at as u64),
            sound: rest,
            words: Agreement::new(self.options.policy),
            id: None,
            rev: 0,
            shown: <(String, String)>::default(),
            covered: 0,
            took: open.took,
            language: open.language.clone(),
            before: Some(open.words.stable()),
        };
        let certain = open.words.certain().to_vec();
        open.words = Agreement::new(self.options.policy);
        open.words.finish(certain);
        self.open = Some(next);
        self.end(open, false)
    }

    /// `over`: nothing was said after it, for now.
    fn end(&mut self, mut open: Open, over: bool) -> Result<()> {
        let stable = open.words.stable();
        if stable.is_empty() && open.id.is_none() {
            return Ok(());
        }
        self.show(&mut open, (stable, String::new()), Some(over))
    }

    /// What was shown of speech that is given up is its final text.
    fn abandon(&mut self) -> Result<()> {
        match self.open.take() {
            Some(mut open) if open.id.is_some() => {
                let stable = open.words.stable();
                self.show(&mut open, (stable, String::new()), Some(false))
            }
            _ => Ok(()),
        }
    }

    /// Sends a revision; `over` says of a segment's last one whether the speech is over, too.
    fn show(&mut self, open: &mut Open, text: (String, String), over: Option<bool>) -> Result<()> {
        let last = over.is_some();
        let id = *open.id.get_or_insert_with(|| {
            self.segments += 1;
            self.segments
        });
        let words = open.words.certain().iter().chain(open.words.open());
        let (t0, t1) = (open.start, open.start + nanos(open.len()));
        let absolute = |word: &Word| Word {
            start: time(open.start, word.start).clamp(t0, t1) as f64 / 1e9,
            end: time(open.start, word.end).clamp(t0, t1) as f64 / 1e9,
            ..word.clone()
        };
        let words: Vec<Word> = words.map(absolute).collect();
        // Captions stand where the words are.
        let first = words.first().filter(|_| last).map_or(t0, |word| time(0, word.start).max(t0));
        let end = words.last().filter(|_| last).map_or(t1, |word| time(0, word.end).clamp(first, t1));
        let update = Update {
            segment: id,
            rev: open.rev,
            t0: first,
            t1: end,
            stable: text.0.clone(),
            unstable: text.1.clone(),
            words,
            lang: open.language.clone().or_else(|| Some(self.options.language.clone()).filter(|l| l != "auto")),
            is_final: last,
            lag: (self.io.now() - self.born).max(0),
            ..Update::default()
        };
        let offset = self.io.now() - self.born + self.captured;
        self.figures
            .take(&update, open.words.certain().len(), (over == Some(true)).then_some(t1), |media| offset - media);
        open.rev += 1;
        open.shown = text;
        let mut item = Timed::at(open.start, t1 - open.start, Transcript(Arc::new(update)));
        if last {
            item.header.flags |= Header::STICKY;
        }
        self.output.send(item)
    }

    fn report(&mut self) {
        self.io.count("segments", self.segments);
        self.io.count("passes", self.passes);
        self.io.report("busy_s", (self.busy as f64 / 1e9).into());
        for (name, value) in self.figures.report() {
            self.io.report(name, value);
        }
    }
}
