//! Which tokens may be drawn, and how probable each is.

use oxiline_graph::protocol::llm::Sampling;

use super::Rng;

/// Candidates looked at first when only the top of a large vocabulary is needed.
const FIRST: usize = 256;

/// Tokens that may be drawn with their probabilities.
#[derive(Debug, Clone)]
pub struct Candidates {
    ids: Vec<u32>,
    probabilities: Vec<f64>,
}

/// A token and its logit after temperature.
type Scored = (f32, u32);

/// The greatest logit first; of equals the greatest id, so that a border cuts the smallest first.
fn descending(a: &Scored, b: &Scored) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(b.1.cmp(&a.1))
}

impl Candidates {
    /// Filters logits after penalties: temperature (above 0), top-k, top-p, min-p, typical, XTC.
    pub(super) fn of(s: &Sampling, logits: &[f32], rng: &mut Rng) -> Self {
        let scored = logits.iter().zip(0..).filter(|(l, _)| **l > f32::NEG_INFINITY);
        let mut tokens: Vec<Scored> = scored.map(|(l, id)| (l / s.temperature, id)).collect();
        if s.top_k > 0 && s.top_k < tokens.len() {
            tokens.select_nth_unstable_by(s.top_k - 1, descending);
            let border = tokens[s.top_k - 1].0;
            // Ties with the last one stay.
            let (_, rest) = tokens.split_at(s.top_k);
            let ties: Vec<Scored> = rest.iter().filter(|t| t.0 == border).copied().collect();
            tokens.truncate(s.top_k);
            tokens.extend(ties);
        }
        let greatest = tokens.iter().map(|t| t.0).fold(f32::NEG_INFINITY, f32::max);
        if greatest == f32::INFINITY {
            // Of infinite logits the rest is not worth anything.
            tokens.retain(|t| t.0 == greatest);
            tokens.iter_mut().for_each(|t| t.0 = 0.0);
        }
        let greatest = if greatest.is_finite() { greatest } else { 0.0 };
        if s.top_p < 1.0 {
            top_p(&mut tokens, greatest, f64::from(s.top_p));
        }
        if s.min_p > 0.0 {
            let least = f64::from(s.min_p);
            tokens.retain(|t| f64::from(t.0 - greatest).exp() >= least);
        }
        // One order whatever the filters did on the way.
        tokens.sort_unstable_by_key(|t| t.1);
        let mut out = Self::normalised(&tokens, greatest);
        if s.typical_p < 1.0 {
            out.typical(f64::from(s.typical_p));
        }
        if s.xtc_probability > 0.0 && rng.uniform() < f64::from(s.xtc_probability) {
            out.exclude_top(f64::from(s.xtc_threshold));
        }
        out
    }

    fn normalised(tokens: &[Scored], greatest: f32) -> Self {
        let weights: Vec<f64> = tokens.iter().map(|t| f64::from(t.0 - greatest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let probabilities = weights.into_iter().map(|w| w / sum).collect();
        Self { ids: tokens.iter().map(|t| t.1).collect(), probabilities }
    }

    fn keep(&mut self, keep: impl Fn(usize, f64) -> bool) {
        let kept: Vec<usize> = (0..self.ids.len()).filter(|&i| keep(i, self.probabilities[i])).collect();
        let sum: f64 = kept.iter().map(|&i| self.probabilities[i]).sum();
        *self = Self {
            ids: kept.iter().map(|&i| self.ids[i]).collect(),
            probabilities: kept.iter().map(|&i| self.probabilities[i] / sum).collect(),
        };
    }

    /// Locally typical sampling (Meister et al. 2022): tokens whose information is nearest to the
    /// entropy, until they hold `mass`.
    fn typical(&mut self, mass: f64) {
        let information = |p: f64| if p > 0.0 { -p.ln() } else { f64::INFINITY };
        let entropy: f64 = self.probabilities.iter().map(|&p| if p > 0.0 { p * information(p) } else { 0.0 }).sum();
        let distance: Vec<f64> = self.probabilities.iter().map(|&p| (information(p) - entropy).abs()).collect();
        let mut order: Vec<usize> = (0..self.ids.len()).collect();
        order.sort_by(|a, b| distance[*a].total_cmp(&distance[*b]));
        let mut sum = 0.0;
        let last = order.iter().position(|&i| {
            sum += self.probabilities[i];
            sum >= mass
        });
        if let Some(border) = last.map(|at| distance[order[at]]) {
            self.keep(|i, _| distance[i] <= border);
        }
    }

    /// XTC: of the tokens above the threshold only the least probable stays.
    fn exclude_top(&mut self, threshold: f64) {
        let above = (0..self.ids.len()).filter(|&i| self.probabilities[i] >= threshold);
        let least = above.min_by(|&a, &b| self.probabilities[a].total_cmp(&self.probabilities[b]));
        if let Some(least) = least {
            self.keep(|i, p| p < threshold || i == least);
        }
    }

    /// Tokens and probabilities, by id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f32)> {
        self.ids.iter().zip(&self.probabilities).map(|(id, p)| (*id, *p as f32))
    }

    /// The token at `at` in `[0, 1)` of the cumulated distribution; None when there is no token.
    pub fn draw(&self, at: f64) -> Option<u32> {
        let mut sum = 0.0;
        for (id, p) in self.ids.iter().zip(&self.probabilities) {
            sum += p;
            if at < sum {
                return Some(*id);
            }
        }
        // Rounding: the last one that can come.
        let possible = self.ids.iter().zip(&self.probabilities).rev().find(|(_, p)| **p > 0.0);
        possible.map(|(id, _)| *id)
    }
}

/// Nucleus sampling (Holtzman et al. 2020): a token stays while those more probable hold less than `p`.
/// Only as much of the vocabulary is sorted as that needs.
fn top_p(tokens: &mut Vec<Scored>, greatest: f32, p: f64) {
    let weight = |t: &Scored| f64::from(t.0 - greatest).exp();
    let total: f64 = tokens.iter().map(weight).sum();
    let mut sorted = FIRST;
    loop {
        let count = sorted.min(tokens.len());
        if count < tokens.len() {
            tokens.select_nth_unstable_by(count, descending);
        }
        tokens[..count].sort_unstable_by(descending);
        let mut before = 0.0;
        for (kept, token) in tokens[..count].iter().enumerate() {
            // The first one always stays.
            if kept > 0 && before >= p * total {
                tokens.truncate(kept);
                return;
            }
            before += weight(token);
        }
        if count == tokens.len() {
            return;
        }
        sorted *= 8;
    }
}
