//! From speech probabilities to stretches of speech.
//!
//! Speech starts with a chunk at or above the threshold and ends where the probability has been
//! below the lower threshold for long enough. Short stretches are dropped, long ones are cut at
//! their longest pause, and what is left is padded; two stretches too close for both paddings
//! share the time between them. The rules and their order are those of the reference package.

use std::collections::VecDeque;

use super::silero::CHUNK;

/// When speech starts and ends. Times in samples at 16 kHz.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmentSettings {
    /// Probability from which on a chunk starts speech.
    pub threshold: f32,
    /// Probability below which speech may end; None: `threshold - 0.15`, at least 0.01.
    pub low: Option<f32>,
    /// Shorter speech is dropped.
    pub min_speech: u64,
    /// Silence this long ends speech.
    pub min_silence: u64,
    /// Added on both sides.
    pub pad: u64,
    /// Longer speech is cut (None: never).
    pub max_segment: Option<u64>,
}

impl Default for SegmentSettings {
    /// The reference package's: 0.5, 250 ms, 100 ms, 30 ms, no limit.
    fn default() -> Self {
        Self { threshold: 0.5, low: None, min_speech: 4000, min_silence: 1600, pad: 480, max_segment: None }
    }
}

/// A pause of at least this long (98 ms) is a place to cut speech that is too long.
const CUTTABLE: u64 = 1568;

/// An end of a stretch of speech, at a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// Speech starts here.
    Start(u64),
    /// Speech ends here.
    End(u64),
}

/// Turns probabilities into stretches of speech, chunk by chunk.
#[derive(Debug, Clone)]
pub struct Segmenter {
    settings: SegmentSettings,
    /// Start of the next chunk.
    now: u64,
    /// Start of the speech that is going on, without padding.
    start: Option<u64>,
    /// That speech is long enough to be kept.
    confirmed: bool,
    /// Where the present dip below the lower threshold began.
    dip: Option<u64>,
    /// Pauses inside this speech: where they began and how long they were.
    pauses: Vec<(u64, u64)>,
    /// End of the last kept speech, while what follows may still share its padding.
    last_end: Option<u64>,
    /// Kept speech without padding, as far as [`Segmenter::speech`] may still be asked about it.
    kept: VecDeque<(u64, u64)>,
    boundaries: VecDeque<Boundary>,
    finished: bool,
}

impl Segmenter {
    /// Starts at sample 0.
    pub fn new(settings: SegmentSettings) -> Self {
        Self {
            settings,
            now: 0,
            start: None,
            confirmed: false,
            dip: None,
            pauses: Vec::new(),
            last_end: None,
            kept: VecDeque::new(),
            boundaries: VecDeque::new(),
            finished: false,
        }
    }

    /// Stretches of speech `[start, end)` of a whole clip of `samples` samples.
    pub fn segments(settings: SegmentSettings, probabilities: &[f32], samples: u64) -> Vec<(u64, u64)> {
        let mut segmenter = Self::new(settings);
        probabilities.iter().for_each(|p| segmenter.push(*p));
        segmenter.finish(samples);
        let mut segments = Vec::new();
        let mut start = 0;
        while let Some(boundary) = segmenter.next_boundary() {
            match boundary {
                Boundary::Start(at) => start = at,
                Boundary::End(at) => segments.push((start, at)),
            }
        }
        segments
    }

    /// The probability of the next chunk of 512 samples.
    pub fn push(&mut self, probability: f32) {
        let at = self.now;
        self.now += CHUNK as u64;
        self.advance(probability, at);
        // Whatever end this speech will have, it is not before here.
        if let Some(start) = self.start
            && !self.confirmed
            && self.dip.unwrap_or(at) - start > self.settings.min_speech
        {
            self.announce(start);
        }
        // Nothing that comes can be close enough any more to share the padding.
        if let Some(end) = self.last_end
            && self.start.unwrap_or(at).saturating_sub(end) >= 2 * self.settings.pad
        {
            self.boundaries.push_back(Boundary::End(end + self.settings.pad));
            self.last_end = None;
        }
    }

    fn advance(&mut self, probability: f32, at: u64) {
        let s = self.settings;
        if probability >= s.threshold {
            if let Some(dip) = self.dip.take()
                && at - dip > CUTTABLE
            {
                self.pauses.push((dip, at - dip));
            }
            if self.start.is_none() {
                self.start = Some(at);
                return;
            }
        }
        let Some(mut start) = self.start else { return };
        // One chunk and the padding come on top.
        let longest = s.max_segment.map(|max| max.saturating_sub(CHUNK as u64 + 2 * s.pad));
        if longest.is_some_and(|longest| at - start > longest) {
            // The first one of the longest pauses.
            let pause = self.pauses.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a });
            self.keep(start, pause.map_or(at, |(from, _)| from));
            let Some((from, length)) = pause else { return };
            start = from + length;
            self.start = Some(start);
        }
        if probability < s.low.unwrap_or((s.threshold - 0.15).max(0.01)) {
            let dip = *self.dip.get_or_insert(at);
            if at - dip >= s.min_silence {
                if dip - start > s.min_speech {
                    self.keep(start, dip);
                } else {
                    self.forget();
                }
            }
        }
    }

    /// No speech is going on.
    fn forget(&mut self) {
        self.start = None;
        self.dip = None;
        self.confirmed = false;
        self.pauses.clear();
    }

    /// Both ends of this speech are known.
    fn keep(&mut self, start: u64, end: u64) {
        if !self.confirmed {
            self.announce(start);
        }
        self.forget();
        self.last_end = Some(end);
        self.kept.push_back((start, end));
    }

    /// Speech that is going on will be kept: its start is final, and so is the end before it.
    fn announce(&mut self, start: u64) {
        let pad = self.settings.pad;
        let half = match self.last_end.take() {
            Some(end) => {
                let gap = start - end;
                let share = if gap < 2 * pad { gap / 2 } else { pad };
                self.boundaries.push_back(Boundary::End(end + share));
                share
            }
            None => pad,
        };
        self.boundaries.push_back(Boundary::Start(start.saturating_sub(half)));
        self.confirmed = true;
    }

    /// The clip ends after `samples` samples; everything is final afterwards.
    pub fn finish(&mut self, samples: u64) {
        match self.start {
            Some(start) if samples.saturating_sub(start) > self.settings.min_speech => self.keep(start, samples),
            _ => self.forget(),
        }
        if let Some(end) = self.last_end.take() {
            self.boundaries.push_back(Boundary::End(samples.min(end + self.settings.pad)));
        }
        self.finished = true;
    }

    /// The next end or start that is final, in order.
    pub fn next_boundary(&mut self) -> Option<Boundary> {
        self.boundaries.pop_front()
    }

    /// Is there speech (padding included) in `[from, to)`? None: not known yet. Stretches must be
    /// asked for in order.
    pub fn speech(&mut self, from: u64, to: u64) -> Option<bool> {
        let pad = self.settings.pad;
        let decided = match self.start {
            _ if self.finished => u64::MAX,
            None => self.now,
            Some(start) if !self.confirmed => start,
            Some(_) => {
                let end = self.dip.unwrap_or(self.now);
                // A cut may make any pause silence after the fact.
                let pause = self.pauses.first().filter(|_| self.settings.max_segment.is_some());
                pause.map_or(end, |pause| end.min(pause.0))
            }
        };
        if decided < to.saturating_add(pad) {
            return None;
        }
        while self.kept.front().is_some_and(|(_, end)| end + pad <= from) {
            self.kept.pop_front();
        }
        let open = self.start.filter(|_| self.confirmed).map(|start| (start, decided));
        Some(self.kept.iter().copied().chain(open).any(|(start, end)| start < to + pad && end + pad > from))
    }
}
