//! One transcription as a resumable state machine.
//!
//! A driver asks what is needed, does it with the model, and hands the result back:
//!
//! - [`Need::Encode`]: encode [`Transcription::windows`], give the streams to
//!   [`Transcription::encoded`];
//! - [`Need::Feed`]: feed [`Transcription::asks`], give the logits to [`Transcription::advance`];
//! - [`Need::Done`]: everything is in [`Transcription::events`].
//!
//! The needs of many transcriptions fit into one call of the model ([`step`] does so), because no
//! stream's logits depend on what is beside it. Between any two calls the transcription may be
//! stopped; what is finished by then is kept.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use oxiline_graph::protocol::speech::{TranscribeOptions, TranscribeReply, TranscribeStats};
use oxiline_graph::{Error, Result, bail};

use super::batch::{self, Stretch};
use super::decode::{Ask, Lane, Manner};
use super::language;
use super::longform::{Run, Shared, Stage};
use super::rules::Rules;
use super::segments::FRAME_S;
use super::speech::Spans;
use super::tokens::{self, Codec, Spoken};
use super::{Config, CrossAttention, Feed, Mel, Rows, Stream, Whisper};

/// Most beams and most windows at a time that can be asked for.
const MOST: usize = 64;
/// Most tokens of a prefix.
const PREFIX: usize = 100;
/// Room a window keeps for its own text beside a prompt.
const ROOM: usize = 64;

/// What a transcription needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Windows to be encoded.
    Encode,
    /// Tokens to be fed.
    Feed,
    /// Nothing more.
    Done,
}

/// A window's place in the clip while it is decoded, for live captions.
pub struct Partial<'a> {
    /// Seconds at which the window begins.
    pub start: f64,
    /// Tokens generated so far; they may still be replaced at a higher temperature.
    pub tokens: &'a [u32],
    /// Their cross-attention: row k is of the step that consumed token k.
    pub attention: Option<&'a CrossAttention>,
}

/// How the language is found.
enum Tongue<S> {
    Known,
    Encode { seek: usize },
    Feed { seek: usize, stream: S },
}

/// A clip being transcribed.
pub struct Transcription<S = Stream> {
    shared: Shared,
    tongue: Tongue<S>,
    /// The detection's window, for the run that begins with the same one.
    reuse: Option<(usize, S)>,
    waiting: VecDeque<Stretch>,
    active: VecDeque<Run<S>>,
    lanes: usize,
    events: Vec<TranscribeReply>,
    segments: usize,
    stats: TranscribeStats,
    start: [u32; 1],
    ended: bool,
}

impl<S: Lane> Transcription<S> {
    /// Of a clip of `samples` samples at 16 kHz with these features. `speech`: spans in seconds,
    /// where somebody looked.
    ///
    /// Err: a sentence about an option that makes no sense or that the checkpoint cannot do.
    pub fn new(
        config: Arc<Config>,
        codec: Arc<dyn Codec>,
        options: TranscribeOptions,
        mel: Mel,
        samples: usize,
        speech: Option<&[(f64, f64)]>,
    ) -> Result<Self> {
        check(&config, &options)?;
        let clip_s = samples as f64 / 16_000.0;
        let spans = speech.map(|spans| Spans::new(spans, clip_s));
        let guard = if options.skip_silence { spans } else { None };
        let long = mel.frames > Mel::WINDOW;
        let timestamps = options.timestamps || long;
        let manner = Manner {
            rules: Rules::new(&config, timestamps),
            vocabulary: config.vocab,
            positions: config.target_positions,
            start: config.ids.start,
            no_speech: config.ids.no_speech.unwrap_or(config.ids.no_timestamps.saturating_sub(1)),
            heads: if options.words { config.alignment_heads.clone() } else { Vec::new() },
            options: options.clone(),
        };
        let everything = Stretch { begin: 0, end: mel.frames };
        let waiting = if samples == 0 {
            VecDeque::new()
        } else if options.batch > 0 && long {
            batch::plan(&mel, mel.frames, guard.as_ref()).into()
        } else {
            VecDeque::from([everything])
        };
        // What no stretch covers is skipped without further ado.
        let covered: usize = waiting.iter().map(|s| s.end - s.begin).sum();
        let skipped_s = Some(clip_s - covered as f64 * FRAME_S).filter(|rest| *rest >= FRAME_S).unwrap_or(0.0);
        let mut prompt = Vec::new();
        if let Some(text) = options.initial_prompt.as_deref().filter(|text| !text.trim().is_empty()) {
            prompt = tokens::previous_text(&config, &*codec, text)?;
        }
        let mut prefix = Vec::new();
        if let Some(text) = options.prefix.as_deref().filter(|text| !text.trim().is_empty()) {
            prefix = codec.encode(&format!(" {}", text.trim()))?;
            if prefix.len() > PREFIX {
                bail!(
                    "the prefix has {} tokens, but at most {PREFIX} leave room for the text; shorten it",
                    prefix.len()
                );
            }
        }
        let shared = Shared {
            manner: Arc::new(manner),
            mel,
            samples,
            guard,
            initial: Vec::new(),
            prompt: Vec::new(),
            prompt_everywhere: false,
            prefix,
            language: String::new(),
            config,
            codec,
            options,
        };
        let lanes = if shared.options.batch > 0 { shared.options.batch } else { 1 };
        let mut this = Self {
            start: [shared.config.ids.start],
            shared,
            tongue: Tongue::Known,
            reuse: None,
            waiting,
            active: VecDeque::new(),
            lanes,
            events: Vec::new(),
            segments: 0,
            stats: TranscribeStats { audio_s: clip_s, skipped_s, ..TranscribeStats::default() },
            ended: false,
        };
        this.set_prompt(prompt, false);
        this.begin()?;
        Ok(this)
    }

    /// Replaces the initial prompt by tokens, `<|startofprev|>` first. `everywhere`: with
    /// conditioning it stands in front of every window, not only where the history begins.
    /// Before the first [`Self::need`].
    pub fn set_prompt(&mut self, mut prompt: Vec<u32>, everywhere: bool) {
        let config = &self.shared.config;
        // A longer prompt than this would leave a window no room; what is nearest counts.
        let most = config.target_positions.saturating_sub(ROOM + self.shared.prefix.len());
        if prompt.len() > most {
            let behind = usize::from(prompt.first().copied() == config.ids.start_of_prev);
            let from = prompt.len() - tokens::context(config);
            prompt.drain(behind..from.max(behind));
        }
        self.shared.prompt = prompt;
        self.shared.prompt_everywhere = everywhere;
    }

    /// Records the cross-attention of these heads while decoding, for [`Self::partial`] (word times
    /// record theirs anyway). Before the first [`Self::need`].
    pub fn listen(&mut self, heads: &[(usize, usize)]) {
        let mut manner = (*self.shared.manner).clone();
        if !self.shared.options.words {
            manner.heads = heads.to_vec();
        }
        self.shared.manner = Arc::new(manner);
    }

    /// Settles the language where that needs no listening.
    fn begin(&mut self) -> Result<()> {
        let config = Arc::clone(&self.shared.config);
        let given = language::wanted(&config, &self.shared.options.language)?;
        if !config.multilingual || config.languages.is_empty() {
            return self.speak(Spoken::Only, "en", 1.0);
        }
        if let Some(language) = config.languages.iter().find(|l| given == Some(l.code.as_str())) {
            return self.speak(Spoken::Given(language.id), &language.code, 1.0);
        }
        if let Some(id) = tokens::forced_language(&config) {
            let code = config.languages.iter().find(|l| l.id == id).map_or("en", |l| l.code.as_str());
            return self.speak(Spoken::Detected(id), code, 1.0);
        }
        // Listen where there is something to hear.
        let first = self.waiting.iter().find_map(|&stretch| {
            let run = Run::<S>::new(stretch, &self.shared);
            matches!(run.stage, Stage::Encode).then(|| run.seek())
        });
        if let Some(seek) = first {
            self.tongue = Tongue::Encode { seek };
        } else {
            // Nothing to decode: the stretches are only counted as skipped.
            self.refill();
        }
        Ok(())
    }

    /// The language is known: decoding can begin.
    fn speak(&mut self, spoken: Spoken, code: &str, probability: f32) -> Result<()> {
        let task = self.shared.options.task;
        let timestamps = self.shared.manner.rules.timestamps;
        self.shared.initial = tokens::initial(&self.shared.config, spoken, task, timestamps)?;
        self.shared.language = code.to_string();
        self.events.push(TranscribeReply::Language { code: code.to_string(), probability });
        self.tongue = Tongue::Known;
        Ok(())
    }

    /// Begins stretches while there is room.
    fn refill(&mut self) {
        while self.active.len() < self.lanes {
            let Some(stretch) = self.waiting.pop_front() else { return };
            self.active.push_back(Run::new(stretch, &self.shared));
        }
    }

    /// Settles what can be settled without the model and says what is needed next.
    pub fn need(&mut self) -> Result<Need> {
        match self.tongue {
            Tongue::Encode { .. } => return Ok(Need::Encode),
            Tongue::Feed { .. } => return Ok(Need::Feed),
            Tongue::Known => {}
        }
        if self.ended {
            return Ok(Need::Done);
        }
        loop {
            self.refill();
            let mut moved = false;
            for run in &mut self.active {
                moved |= run.settle(&self.shared)?;
            }
            self.commit(moved);
            if self.active.is_empty() && self.waiting.is_empty() {
                self.end();
                return Ok(Need::Done);
            }
            self.hand_over()?;
            if self.active.iter().any(|run| matches!(run.stage, Stage::Encode)) {
                return Ok(Need::Encode);
            }
            if self.active.iter().any(|run| matches!(run.stage, Stage::Decode(_))) {
                return Ok(Need::Feed);
            }
        }
    }

    /// Moves finished segments of the earliest stretches out, in order.
    fn commit(&mut self, moved: bool) {
        let mut progressed = moved;
        while let Some(run) = self.active.front_mut() {
            for mut segment in run.out.drain(..) {
                segment.id = self.segments;
                self.segments += 1;
                self.events.push(TranscribeReply::Segment(segment));
            }
            if !matches!(run.stage, Stage::Done) {
                break;
            }
            progressed = true;
            let run = self.active.pop_front();
            if let Some(run) = run {
                self.count(&run.stats);
            }
        }
        if progressed {
            let done = match self.active.front() {
                Some(run) => run.done_s(&self.shared),
                None => match self.waiting.front() {
                    Some(stretch) => stretch.begin as f64 * FRAME_S,
                    None => self.stats.audio_s,
                },
            };
            self.events.push(TranscribeReply::Progress { done, total: self.stats.audio_s });
        }
    }

    fn count(&mut self, run: &TranscribeStats) {
        self.stats.windows += run.windows;
        self.stats.fallbacks += run.fallbacks;
        self.stats.skipped += run.skipped;
        self.stats.skipped_s += run.skipped_s;
        self.stats.tokens += run.tokens;
    }

    fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            self.events.push(TranscribeReply::Done(self.stats.clone()));
        }
    }

    /// The windows to encode, at most `[3000, bins]` each.
    pub fn windows(&self) -> Vec<Vec<f32>> {
        if let Tongue::Encode { seek } = self.tongue {
            return vec![self.shared.window(seek)];
        }
        let waiting = self.active.iter().filter(|run| matches!(run.stage, Stage::Encode));
        waiting.map(|run| run.window(&self.shared)).collect()
    }

    /// The window the language was detected on need not be encoded again where decoding begins with
    /// the same one.
    fn hand_over(&mut self) -> Result<()> {
        let Some((seek, stream)) = self.reuse.take() else { return Ok(()) };
        match self.active.front_mut() {
            Some(run) if matches!(run.stage, Stage::Encode) && run.seek() == seek && run.full(&self.shared) => {
                run.encoded(stream, &self.shared)
            }
            _ => Ok(()),
        }
    }

    /// Takes streams on the encoded [`Self::windows`], in their order.
    pub fn encoded(&mut self, streams: Vec<S>) -> Result<()> {
        let mut streams = streams.into_iter();
        let missing = || Error::msg("fewer windows came back encoded than were given; this is a bug in the driver");
        if let Tongue::Encode { seek } = self.tongue {
            self.tongue = Tongue::Feed { seek, stream: streams.next().ok_or_else(missing)? };
            return Ok(());
        }
        for run in self.active.iter_mut().filter(|run| matches!(run.stage, Stage::Encode)) {
            run.encoded(streams.next().ok_or_else(missing)?, &self.shared)?;
        }
        Ok(())
    }

    /// What is to be fed.
    pub fn asks(&mut self) -> Vec<Ask<'_, S>> {
        if let Tongue::Feed { stream, .. } = &mut self.tongue {
            return vec![Ask { stream, tokens: &self.start, rows: Rows::Last, attention: None }];
        }
        self.active
            .iter_mut()
            .flat_map(|run| match &mut run.stage {
                Stage::Decode(decoder) => decoder.asks(),
                _ => Vec::new(),
            })
            .collect()
    }

    /// Takes the logits of the last [`Self::asks`], in their order.
    pub fn advance(&mut self, logits: Vec<Vec<f32>>) -> Result<()> {
        let mut logits = logits.into_iter();
        let missing = || Error::msg("fewer logits came back than tokens were fed; this is a bug in the driver");
        match std::mem::replace(&mut self.tongue, Tongue::Known) {
            Tongue::Known => {}
            Tongue::Feed { seek, mut stream } => {
                let logits = logits.next().ok_or_else(missing)?;
                let probabilities = language::probabilities(&self.shared.config, &logits);
                let Some((at, p)) = language::likeliest(&probabilities) else { bail!("no language could be detected") };
                let language = self.shared.config.languages[at].clone();
                stream.truncate(0);
                self.reuse = Some((seek, stream));
                return self.speak(Spoken::Detected(language.id), &language.code, p);
            }
            Tongue::Encode { seek } => {
                self.tongue = Tongue::Encode { seek };
                return Ok(());
            }
        }
        for run in &mut self.active {
            if let Stage::Decode(decoder) = &mut run.stage {
                let wanted = decoder.asks().len();
                let part: Vec<Vec<f32>> = logits.by_ref().take(wanted).collect();
                if part.len() < wanted {
                    return Err(missing());
                }
                decoder.advance(part)?;
            }
        }
        Ok(())
    }

    /// Takes the replies that have become final.
    pub fn events(&mut self) -> Vec<TranscribeReply> {
        std::mem::take(&mut self.events)
    }

    /// What was measured; the driver adds its times before the end.
    pub fn stats_mut(&mut self) -> &mut TranscribeStats {
        &mut self.stats
    }

    /// The window that is decoded first, for live captions.
    pub fn partial(&self) -> Option<Partial<'_>> {
        let run = self.active.front()?;
        let Stage::Decode(decoder) = &run.stage else { return None };
        Some(Partial { start: run.seek() as f64 * FRAME_S, tokens: decoder.partial(), attention: decoder.attention() })
    }

    /// Gives up: segments that are whole become final, the end is marked as stopped.
    pub fn stop(&mut self) -> Result<()> {
        if self.ended {
            return Ok(());
        }
        self.tongue = Tongue::Known;
        self.waiting.clear();
        self.stats.stopped = true;
        let mut result = Ok(());
        for run in &mut self.active {
            let stopped = run.settle(&self.shared).and_then(|_| run.stop(&self.shared));
            result = result.and(stopped);
            run.stage = Stage::Done;
        }
        self.commit(false);
        self.end();
        result
    }
}

/// Are the options such that this checkpoint can do them?
fn check(config: &Config, options: &TranscribeOptions) -> Result<()> {
    if options.temperatures.is_empty() || options.temperatures.iter().any(|t| !t.is_finite() || *t < 0.0) {
        bail!("`temperatures` needs at least one number, none below 0; leave it out for 0, 0.2 ... 1");
    }
    if options.beam > MOST {
        bail!("`beam = {}` is too many; at most {MOST}", options.beam);
    }
    if options.batch > MOST {
        bail!("`batch = {}` is too many windows at a time; at most {MOST}", options.batch);
    }
    if options.batch > 0 && options.condition_on_prev {
        bail!(
            "`condition_on_prev` needs each window's text before the next begins, `batch` decodes them side by side; choose one"
        );
    }
    language::can(config, options.task)?;
    Ok(())
}

/// A model as the driver sees it.
pub trait Model {
    /// Its decoding streams.
    type Lane: Lane;
    /// Encodes windows; `cancelled` is asked in between.
    fn encode(&self, windows: &[&[f32]], cancelled: &dyn Fn() -> bool) -> Result<Vec<Self::Lane>>;
    /// Feeds all asks as one batch; their logits, in order.
    fn feed(&self, asks: Vec<Ask<'_, Self::Lane>>) -> Result<Vec<Vec<f32>>>;
}

impl Model for Whisper {
    type Lane = Stream;

    fn encode(&self, windows: &[&[f32]], cancelled: &dyn Fn() -> bool) -> Result<Vec<Stream>> {
        let encoded = Whisper::encode(self, windows, cancelled)?;
        encoded.iter().map(|window| self.start(window)).collect()
    }

    fn feed(&self, asks: Vec<Ask<'_, Stream>>) -> Result<Vec<Vec<f32>>> {
        let mut feeds: Vec<Feed<'_>> = asks.into_iter().map(Feed::from).collect();
        self.step(&mut feeds)?;
        Ok(feeds.into_iter().map(|feed| feed.logits).collect())
    }
}

/// Moves transcriptions on by one call of the model: all windows that wait are encoded, else all
/// tokens that wait are fed. The time it took is shared among those that took part. False when all
/// are done.
pub fn step<M: Model>(
    model: &M,
    transcriptions: &mut [&mut Transcription<M::Lane>],
    cancelled: &dyn Fn() -> bool,
) -> Result<bool> {
    let mut needs = Vec::with_capacity(transcriptions.len());
    for transcription in transcriptions.iter_mut() {
        needs.push(transcription.need()?);
    }
    let began = Instant::now();
    for need in [Need::Encode, Need::Feed] {
        let mut taking: Vec<&mut &mut Transcription<M::Lane>> = transcriptions
            .iter_mut()
            .zip(&needs)
            .filter(|(_, n)| **n == need)
            .map(|(transcription, _)| transcription)
            .collect();
        if taking.is_empty() {
            continue;
        }
        if need == Need::Encode {
            let windows: Vec<Vec<Vec<f32>>> = taking.iter().map(|t| t.windows()).collect();
            let all: Vec<&[f32]> = windows.iter().flatten().map(Vec::as_slice).collect();
            let mut lanes = model.encode(&all, cancelled)?.into_iter();
            for (transcription, windows) in taking.iter_mut().zip(&windows) {
                transcription.encoded(lanes.by_ref().take(windows.len()).collect())?;
            }
        } else {
            let mut counts = Vec::with_capacity(taking.len());
            let mut all = Vec::new();
            for transcription in &mut taking {
                let asks = transcription.asks();
                counts.push(asks.len());
                all.extend(asks);
            }
            let mut logits = model.feed(all)?.into_iter();
            for (transcription, count) in taking.iter_mut().zip(counts) {
                transcription.advance(logits.by_ref().take(count).collect())?;
            }
        }
        let share = began.elapsed().as_secs_f64() / taking.len() as f64;
        for transcription in taking {
            let stats = transcription.stats_mut();
            if need == Need::Encode {
                stats.encode_s += share;
            } else {
                stats.decode_s += share;
            }
        }
        return Ok(true);
    }
    Ok(false)
}
