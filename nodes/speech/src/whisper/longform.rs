//! The sequential algorithm over one stretch of a clip: a window of 30 s that moves to the end of
//! the last whole segment.

use std::sync::Arc;

use oxiline_graph::Result;
use oxiline_graph::protocol::speech::{Segment, TranscribeOptions, TranscribeStats};

use super::align::{self, POSITION_S};
use super::batch::Stretch;
use super::decode::{Decoded, Lane, Manner, WindowDecoder};
use super::segments::{self, FRAME_S, Slice};
use super::speech::{Spans, guessed, loops};
use super::tokens::{self, Codec};
use super::words::{self, Timed};
use super::{Config, Mel, fallback};

/// What all stretches of a transcription share.
pub struct Shared {
    /// The checkpoint.
    pub config: Arc<Config>,
    /// Its tokenizer.
    pub codec: Arc<dyn Codec>,
    /// How windows are decoded.
    pub manner: Arc<Manner>,
    /// How to transcribe.
    pub options: TranscribeOptions,
    /// Features of the whole clip.
    pub mel: Mel,
    /// Samples of the whole clip.
    pub samples: usize,
    /// Speech, where text elsewhere is to be left out.
    pub guard: Option<Spans>,
    /// From `<|startoftranscript|>` on.
    pub initial: Vec<u32>,
    /// `<|startofprev|>` and the initial prompt; empty without one.
    pub prompt: Vec<u32>,
    /// The prompt stands in front of every conditioned window, not only where history begins.
    pub prompt_everywhere: bool,
    /// What every window's transcript starts with.
    pub prefix: Vec<u32>,
    /// Code of the language.
    pub language: String,
}

impl Shared {
    /// The encoder window from frame `seek` on, `[frames, bins]`: 3000 frames, or fewer for a clip that is short
    /// and to be padded less.
    pub fn window(&self, seek: usize) -> Vec<f32> {
        let mut window = self.mel.window(seek);
        let padding = self.options.padding.map(|seconds| (seconds.max(0.0) / FRAME_S) as usize);
        let frames = padding.map_or(Mel::WINDOW, |padding| self.samples / 160 + padding);
        // The convolutions halve the frames; kernels work on rows by eights.
        window.truncate(frames.next_multiple_of(16).min(Mel::WINDOW) * self.mel.bins);
        window
    }

    /// Seconds of the clip.
    pub fn clip_s(&self) -> f64 {
        self.samples as f64 / 16_000.0
    }

    fn condition(&self) -> bool {
        self.options.condition_on_prev
    }
}

/// Where a stretch stands.
pub enum Stage<S> {
    /// The next window is to be encoded.
    Encode,
    /// A window is being decoded.
    Decode(Box<WindowDecoder<S>>),
    /// All windows are done.
    Done,
}

/// One stretch being transcribed.
pub struct Run<S> {
    stretch: Stretch,
    seek: usize,
    frames: usize,
    history: Vec<Vec<u32>>,
    conditioned: bool,
    /// What is to be done next.
    pub stage: Stage<S>,
    /// Finished segments, not yet numbered.
    pub out: Vec<Segment>,
    /// What it cost.
    pub stats: TranscribeStats,
}

impl<S: Lane> Run<S> {
    /// Begins a stretch; the stage is [`Stage::Encode`] or, where it holds no speech, [`Stage::Done`].
    pub fn new(stretch: Stretch, shared: &Shared) -> Self {
        let mut history = Vec::new();
        if shared.condition() && !shared.prompt.is_empty() && !shared.prompt_everywhere {
            let behind = usize::from(Some(shared.prompt[0]) == shared.config.ids.start_of_prev);
            history.push(shared.prompt[behind..].to_vec());
        }
        let mut run = Self {
            stretch,
            seek: stretch.begin,
            frames: 0,
            history,
            conditioned: shared.condition(),
            stage: Stage::Done,
            out: Vec::new(),
            stats: TranscribeStats::default(),
        };
        run.approach(shared);
        run
    }

    /// First frame of the window under way or to come.
    pub fn seek(&self) -> usize {
        self.seek
    }

    /// Does the window show all the clip has to show, not cut short by the stretch's end?
    pub fn full(&self, shared: &Shared) -> bool {
        self.seek + Mel::WINDOW <= self.stretch.end || self.stretch.end >= shared.mel.frames
    }

    /// Seconds of the clip that are done.
    pub fn done_s(&self, shared: &Shared) -> f64 {
        (self.seek as f64 * FRAME_S).min(shared.clip_s())
    }

    /// Moves over what holds no speech and sets up the next window.
    fn approach(&mut self, shared: &Shared) {
        self.stage = Stage::Done;
        while self.seek < self.stretch.end {
            self.frames = Mel::WINDOW.min(self.stretch.end - self.seek);
            let Some(spans) = &shared.guard else {
                self.stage = Stage::Encode;
                return;
            };
            let now = self.seek as f64 * FRAME_S;
            if spans.any(now, now + self.frames as f64 * FRAME_S) {
                self.stage = Stage::Encode;
                return;
            }
            let next = spans.next(self.seek).unwrap_or(self.stretch.end).min(self.stretch.end);
            self.skip(next - self.seek, shared);
            self.seek = next;
        }
    }

    fn skip(&mut self, frames: usize, shared: &Shared) {
        let now = self.seek as f64 * FRAME_S;
        self.stats.skipped_s += ((now + frames as f64 * FRAME_S).min(shared.clip_s()) - now).max(0.0);
        self.stats.skipped += 1;
    }

    /// The window to encode: frames behind the stretch's end are 0.
    pub fn window(&self, shared: &Shared) -> Vec<f32> {
        let mut window = shared.window(self.seek);
        let heard = (self.frames * shared.mel.bins).min(window.len());
        window[heard..].fill(0.0);
        window
    }

    /// Begins to decode the encoded window.
    pub fn encoded(&mut self, stream: S, shared: &Shared) -> Result<()> {
        let prompt = self.prompt(shared);
        let audio = (shared.samples / 160).saturating_sub(self.seek).min(self.frames);
        let manner = Arc::clone(&shared.manner);
        let decoder = WindowDecoder::new(manner, prompt, stream, self.seek as u64, audio / 2)?;
        self.stage = Stage::Decode(Box::new(decoder));
        Ok(())
    }

    /// The prompt of the window to come.
    fn prompt(&self, shared: &Shared) -> Vec<u32> {
        let mut prompt = if self.conditioned && !self.history.is_empty() {
            let start = shared.config.ids.start_of_prev;
            let head: Vec<u32> = match shared.prompt_everywhere && !shared.prompt.is_empty() {
                true => shared.prompt.clone(),
                false => start.into_iter().collect(),
            };
            tokens::conditioned(&shared.config, &head, &self.history)
        } else {
            shared.prompt.clone()
        };
        prompt.extend(&shared.initial);
        prompt.extend(&shared.prefix);
        prompt
    }

    /// Takes the window's result when its decoder is done, and moves on; true when it did.
    pub fn settle(&mut self, shared: &Shared) -> Result<bool> {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Decode(decoder) if decoder.done() => {
                let decoded = decoder.finish();
                self.finish(&decoded, shared)?;
                self.approach(shared);
                Ok(true)
            }
            stage => {
                self.stage = stage;
                Ok(false)
            }
        }
    }

    fn finish(&mut self, decoded: &Decoded, shared: &Shared) -> Result<()> {
        self.stats.windows += 1;
        self.stats.fallbacks += decoded.fallbacks;
        self.stats.tokens += decoded.generated;
        self.conditioned = shared.condition() && decoded.temperature < 0.5;
        if decoded.skip {
            self.skip(self.frames, shared);
            self.seek += self.frames;
            return Ok(());
        }
        let stamp = shared.config.ids.timestamp_begin;
        let (slices, advance) = segments::cut(&decoded.tokens, stamp, self.frames);
        let heard = self.hear(decoded, shared);
        for slice in slices {
            let segment = self.segment(&slice, decoded, heard.as_deref(), shared)?;
            if self.invented(&segment, &decoded.logprobs[slice.from..slice.to], shared) {
                continue;
            }
            self.history.push(segment.tokens.clone());
            if !segment.tokens.is_empty() {
                self.out.push(segment);
            }
        }
        self.seek += advance;
        Ok(())
    }

    /// Seconds into the window at which each token had been said, when words are wanted.
    fn hear(&self, decoded: &Decoded, shared: &Shared) -> Option<Vec<f64>> {
        shared.options.words.then(|| match &decoded.attention {
            Some(attention) => align::token_times(attention, decoded.tokens.len(), shared.config.median_filter_width),
            None => vec![0.0; decoded.tokens.len()],
        })
    }

    fn segment(&self, slice: &Slice, decoded: &Decoded, heard: Option<&[f64]>, shared: &Shared) -> Result<Segment> {
        let tokens = &decoded.tokens[slice.from..slice.to];
        let is_text = |token: &u32| *token < shared.config.ids.end_of_text;
        let text: Vec<u32> = tokens.iter().copied().filter(is_text).collect();
        // The reference lets a clip's last times run past its end; those of a stretch must not run
        // into the next one.
        let bounded = self.stretch.begin > 0 || self.stretch.end < shared.mel.frames;
        let most = if bounded { self.stretch.end as f64 * FRAME_S } else { f64::INFINITY };
        let at = |steps: usize| centi((self.seek as f64 * FRAME_S + steps as f64 * POSITION_S).min(most));
        let mut segment = Segment {
            id: 0,
            start: at(slice.start),
            end: at(slice.end),
            text: shared.codec.decode(&text)?,
            tokens: tokens.to_vec(),
            words: Vec::new(),
            temperature: decoded.temperature,
            avg_logprob: decoded.avg_logprob,
            compression_ratio: decoded.compression_ratio,
            no_speech_prob: decoded.no_speech_prob,
        };
        if let Some(heard) = heard {
            let offset = self.seek as f64 * FRAME_S;
            let timed: Vec<Timed> = (slice.from..slice.to)
                .filter(|&i| is_text(&decoded.tokens[i]))
                .map(|i| Timed {
                    token: decoded.tokens[i],
                    start: offset + if i == 0 { 0.0 } else { heard[i - 1] },
                    end: offset + heard[i],
                    logprob: decoded.logprobs.get(i).copied().unwrap_or(f32::NEG_INFINITY),
                })
                .collect();
            if !slice.closed {
                // No timestamp says where it ends: its last word does.
                let last = timed.last().map_or(segment.end, |t| t.end);
                segment.end = centi(segment.end.max(last));
            }
            let within = (segment.start, segment.end);
            segment.words = words::words(&*shared.codec, &timed, &shared.language, within)?;
        }
        Ok(segment)
    }

    /// Is it text where nobody spoke? Only where speech is known and silence is to be skipped: away from all
    /// speech where something else speaks against it too, and where voice activity hears a voice only if the
    /// model does not at all (music).
    fn invented(&self, segment: &Segment, logprobs: &[f32], shared: &Shared) -> bool {
        let Some(spans) = &shared.guard else { return false };
        if segment.start >= shared.clip_s() {
            return true;
        }
        if spans.touches(segment.start, segment.end) {
            return guessed(segment);
        }
        let options = &shared.options;
        let text: Vec<u32> = segment.tokens.iter().copied().filter(|&t| t < shared.config.ids.end_of_text).collect();
        segment.no_speech_prob > options.no_speech_threshold
            || fallback::mean_logprob(logprobs) < options.logprob_threshold
            || segment.compression_ratio > options.compression_ratio_threshold
            || loops(&text)
    }

    /// Gives up: what is already whole of the window under way becomes its last segments.
    pub fn stop(&mut self, shared: &Shared) -> Result<()> {
        if let Stage::Decode(decoder) = std::mem::replace(&mut self.stage, Stage::Done) {
            if shared.options.fallback {
                return Ok(());
            }
            let decoded = decoder.stop();
            for slice in segments::whole(&decoded.tokens, shared.config.ids.timestamp_begin) {
                let heard = self.hear(&decoded, shared);
                let segment = self.segment(&slice, &decoded, heard.as_deref(), shared)?;
                if !self.invented(&segment, &decoded.logprobs[slice.from..slice.to], shared) {
                    self.out.push(segment);
                }
            }
        }
        Ok(())
    }
}

/// Rounds to a hundredth of a second: all times are whole hundredths, sums of floats are not.
fn centi(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
