//! Which tokens may come next: suppression lists, then the timestamp grammar.

use super::Config;

/// The rules of one transcription. Applied to raw logits in the reference's order: the list for the
/// first position, the list for all positions, then (with timestamps) the timestamp rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Never generated.
    pub suppress: Vec<u32>,
    /// Never generated first.
    pub begin_suppress: Vec<u32>,
    /// Timestamps are asked for: they come in pairs and never fall.
    pub timestamps: bool,
    /// `<|endoftext|>`.
    pub end_of_text: u32,
    /// `<|notimestamps|>`.
    pub no_timestamps: u32,
    /// `<|0.00|>`.
    pub timestamp_begin: u32,
    /// The first timestamp is at most this many steps of 0.02 s.
    pub max_initial_timestamp: Option<usize>,
}

impl Rules {
    /// The rules a checkpoint asks for.
    pub fn new(config: &Config, timestamps: bool) -> Self {
        Self {
            suppress: config.suppress.clone(),
            begin_suppress: config.begin_suppress.clone(),
            timestamps,
            end_of_text: config.ids.end_of_text,
            no_timestamps: config.ids.no_timestamps,
            timestamp_begin: config.ids.timestamp_begin,
            max_initial_timestamp: Some(config.max_initial_timestamp),
        }
    }

    /// Sets the logits of forbidden tokens to -inf, given what was generated after the prompt. At
    /// least one token stays possible: where nothing else does, `<|endoftext|>`.
    pub fn apply(&self, logits: &mut [f32], generated: &[u32]) {
        let forbid = |logits: &mut [f32], ids: &[u32]| {
            for &id in ids {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        };
        // A checkpoint with broken weights gives NaN; it must not spread through comparisons.
        for logit in logits.iter_mut().filter(|l| l.is_nan()) {
            *logit = f32::NEG_INFINITY;
        }
        if generated.is_empty() {
            forbid(logits, &self.begin_suppress);
        }
        forbid(logits, &self.suppress);
        if self.timestamps {
            self.pair(logits, generated);
            self.prefer_timestamps(logits);
        }
        if !logits.iter().any(|l| l.is_finite())
            && let Some(end) = logits.get_mut(self.end_of_text as usize)
        {
            *end = 0.0;
        }
    }

    /// Timestamps come in pairs, never fall, and come first.
    fn pair(&self, logits: &mut [f32], generated: &[u32]) {
        let vocabulary = logits.len();
        let begin = (self.timestamp_begin as usize).min(vocabulary);
        let mut mask = |range: std::ops::Range<usize>| {
            let end = range.end.min(vocabulary);
            logits[range.start.min(end)..end].fill(f32::NEG_INFINITY);
        };
        mask(self.no_timestamps as usize..self.no_timestamps as usize + 1);
        let is_stamp = |token: u32| token >= self.timestamp_begin;
        let n = generated.len();
        let last_was = n >= 1 && is_stamp(generated[n - 1]);
        let before_was = n < 2 || is_stamp(generated[n - 2]);
        if last_was {
            if before_was {
                mask(begin..vocabulary);
            } else {
                mask(0..self.end_of_text as usize);
            }
        }
        if let Some(&last) = generated.iter().rev().find(|&&t| is_stamp(t)) {
            // The same time may come again only to open the next segment.
            let from = last as usize + usize::from(!last_was || before_was);
            mask(begin..from);
        }
        if generated.is_empty() {
            mask(0..begin);
            if let Some(most) = self.max_initial_timestamp {
                mask(begin + most + 1..vocabulary);
            }
        }
    }

    /// Where timestamps together are likelier than any one text token, a timestamp it must be.
    fn prefer_timestamps(&self, logits: &mut [f32]) {
        let begin = (self.timestamp_begin as usize).min(logits.len());
        let (text, stamps) = logits.split_at_mut(begin);
        let top = |part: &[f32]| part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let top_stamp = top(stamps);
        if top_stamp == f32::NEG_INFINITY {
            return;
        }
        let sum: f64 = stamps.iter().map(|&l| f64::from(l - top_stamp).exp()).sum();
        if f64::from(top_stamp) + sum.ln() > f64::from(top(text)) {
            text.fill(f32::NEG_INFINITY);
        }
    }
}
