//! Beam search over one window.
//!
//! As in openai-whisper: every beam offers its `beams + 1` likeliest tokens, the best `beams` that do
//! not end go on, those that end are kept until there are `beams` of them, and the winner has the
//! highest log-probability a token. The rules apply to each beam's own history.

use oxiline_graph::{Result, bail};

use super::Rows;
use super::decode::{Ask, Lane};
use super::rules::Rules;
use super::sample::log_sum_exp;

/// A sequence of tokens under search, `<|endoftext|>` included where it was generated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Candidate {
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Log-probability of each.
    pub logprobs: Vec<f32>,
    /// Their sum.
    pub sum: f64,
}

impl Candidate {
    fn with(&self, token: u32, logprob: f32) -> Self {
        let mut next = self.clone();
        next.tokens.push(token);
        next.logprobs.push(logprob);
        next.sum += f64::from(logprob);
        next
    }

    /// Log-probability a text token: the end token counts in the sum but not in the length.
    fn score(&self, end: u32) -> f64 {
        let ended = self.tokens.last() == Some(&end);
        self.sum / (self.tokens.len() - usize::from(ended)).max(1) as f64
    }
}

/// The beams of one window.
pub struct BeamSearch<S> {
    beams: usize,
    limit: usize,
    end: u32,
    live: Vec<(Candidate, S)>,
    finished: Vec<Candidate>,
}

impl<S: Lane> BeamSearch<S> {
    /// `beams` beams from a stream that was fed the prompt; at most `limit` tokens each.
    pub fn new(beams: usize, stream: S, limit: usize, end: u32) -> Self {
        Self { beams: beams.max(1), limit, end, live: vec![(Candidate::default(), stream)], finished: Vec::new() }
    }

    /// Enough sequences are finished, or none can go on.
    pub fn done(&self) -> bool {
        self.finished.len() >= self.beams
            || self.live.first().is_none_or(|(candidate, _)| candidate.tokens.len() >= self.limit)
    }

    /// The last token of every live beam.
    pub fn asks(&mut self) -> Vec<Ask<'_, S>> {
        self.live
            .iter_mut()
            .filter(|(candidate, _)| !candidate.tokens.is_empty())
            .map(|(candidate, stream)| Ask {
                stream,
                tokens: &candidate.tokens[candidate.tokens.len() - 1..],
                rows: Rows::Last,
                attention: None,
            })
            .collect()
    }

    /// Takes the raw logits of every live beam and moves all beams by a token.
    pub fn advance(&mut self, logits: Vec<Vec<f32>>, rules: &Rules) -> Result<()> {
        if logits.len() != self.live.len() {
            bail!("{} beams were fed but {} came back; this is a bug in the driver", self.live.len(), logits.len());
        }
        // (sum, beam, token, log-probability): equal sums go to the earlier beam, then the lower id.
        let mut offers: Vec<(f64, usize, u32, f32)> = Vec::new();
        for (beam, mut logits) in logits.into_iter().enumerate() {
            let candidate = &self.live[beam].0;
            rules.apply(&mut logits, &candidate.tokens);
            let total = log_sum_exp(&logits);
            for token in likeliest(&logits, self.beams + 1) {
                let logprob = (f64::from(logits[token as usize]) - total) as f32;
                offers.push((candidate.sum + f64::from(logprob), beam, token, logprob));
            }
        }
        offers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut kept: Vec<(usize, Candidate)> = Vec::with_capacity(self.beams);
        let mut ended = Vec::new();
        for (_, beam, token, logprob) in offers {
            let next = self.live[beam].0.with(token, logprob);
            if token == self.end {
                ended.push(next);
            } else {
                kept.push((beam, next));
                if kept.len() == self.beams {
                    break;
                }
            }
        }
        let room = self.beams.saturating_sub(self.finished.len());
        self.finished.extend(ended.into_iter().take(room));
        self.rearrange(kept);
        Ok(())
    }

    /// Gives every kept candidate its parent's stream: the last child takes it, the others fork.
    fn rearrange(&mut self, kept: Vec<(usize, Candidate)>) {
        let mut uses = vec![0_usize; self.live.len()];
        for (beam, _) in &kept {
            uses[*beam] += 1;
        }
        let mut parents: Vec<Option<S>> =
            std::mem::take(&mut self.live).into_iter().map(|(_, stream)| Some(stream)).collect();
        for (beam, candidate) in kept {
            uses[beam] -= 1;
            let stream = if uses[beam] == 0 { parents[beam].take() } else { parents[beam].as_ref().map(S::fork) };
            if let Some(stream) = stream {
                self.live.push((candidate, stream));
            }
        }
    }

    /// The sequence with the highest log-probability a token; unfinished ones stand in where too
    /// few ended.
    pub fn best(self) -> Candidate {
        let missing = self.beams.saturating_sub(self.finished.len());
        let end = self.end;
        let mut best: Option<Candidate> = None;
        for candidate in self.finished.into_iter().chain(self.live.into_iter().map(|(c, _)| c).take(missing)) {
            if best.as_ref().is_none_or(|b| candidate.score(end) > b.score(end)) {
                best = Some(candidate);
            }
        }
        best.unwrap_or_default()
    }
}

/// The `n` likeliest tokens that are possible at all, best first; the lower id of equals.
fn likeliest(logits: &[f32], n: usize) -> Vec<u32> {
    let mut top: Vec<u32> = Vec::with_capacity(n + 1);
    for (token, &logit) in logits.iter().enumerate() {
        if logit == f32::NEG_INFINITY {
            continue;
        }
        if top.len() == n && top.last().is_some_and(|&worst| logit <= logits[worst as usize]) {
            continue;
        }
        let at = top.partition_point(|&t| logits[t as usize] >= logit);
        top.insert(at, token as u32);
        top.truncate(n);
    }
    top
}
