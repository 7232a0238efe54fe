//! From logits to tokens: penalties, filters, draws, log-probabilities, stop strings.

mod filter;
mod penalty;
mod rng;
mod stop;

use oxiline_graph::protocol::llm::Sampling;
use oxiline_graph::{Result, bail};
use oxiline_kernels::ops;

pub use filter::Candidates;
pub use rng::Rng;
pub use stop::Stop;

/// Chooses tokens as [`Sampling`] says. Its draws depend on the seed and on how many were made, not on
/// anything else.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: Sampling,
    rng: Rng,
}

/// Fails when an option is outside its range.
///
/// # Errors
/// A sentence that names the option, its value and its range.
pub fn check(options: &Sampling) -> Result<()> {
    let s = options;
    let within = |name: &str, value: f32, from: f32, to: f32| -> Result<()> {
        if (from..=to).contains(&value) {
            return Ok(());
        }
        let range = if to == f32::MAX { format!("{from} or more") } else { format!("between {from} and {to}") };
        bail!("`{name}` is {value}, but has to be {range}")
    };
    within("temperature", s.temperature, 0.0, f32::MAX)?;
    within("top_p", s.top_p, 0.0, 1.0)?;
    within("min_p", s.min_p, 0.0, 1.0)?;
    within("typical_p", s.typical_p, 0.0, 1.0)?;
    within("xtc_probability", s.xtc_probability, 0.0, 1.0)?;
    within("xtc_threshold", s.xtc_threshold, 0.0, 1.0)?;
    within("dry_multiplier", s.dry_multiplier, 0.0, f32::MAX)?;
    within("dry_base", s.dry_base, 1.0, f32::MAX)?;
    if !(s.repetition_penalty > 0.0 && s.repetition_penalty.is_finite()) {
        bail!("`repetition_penalty` is {}, but has to be above 0 (1: off)", s.repetition_penalty);
    }
    within("presence_penalty", s.presence_penalty, f32::MIN, f32::MAX)?;
    within("frequency_penalty", s.frequency_penalty, f32::MIN, f32::MAX)?;
    if let Some((id, bias)) = s.logit_bias.iter().find(|(_, bias)| bias.is_nan()) {
        bail!("the `logit_bias` of token {id} is {bias}; give a number, or -inf to forbid the token");
    }
    Ok(())
}

impl Sampler {
    /// A sampler with a seed of its own when none is given.
    ///
    /// # Errors
    /// As [`check`].
    pub fn new(options: &Sampling) -> Result<Self> {
        check(options)?;
        let rng = options.seed.map_or_else(Rng::fresh, Rng::new);
        Ok(Self { options: options.clone(), rng })
    }

    /// The options.
    pub fn options(&self) -> &Sampling {
        &self.options
    }

    /// Chooses the next token of `logits` `[vocab]` (changed on the way) after `prompt` and what has
    /// been answered. None when no token is allowed.
    pub fn choose(&mut self, logits: &mut [f32], prompt: &[u32], answer: &[u32]) -> Option<u32> {
        penalty::apply(&self.options, logits, prompt, answer);
        if self.options.temperature == 0.0 {
            return ops::argmax(logits).map(|id| id as u32);
        }
        let candidates = Candidates::of(&self.options, logits, &mut self.rng);
        candidates.draw(self.rng.uniform())
    }

    /// The distribution [`Self::choose`] draws from, `[vocab]`; tokens that cannot come have 0.
    pub fn probabilities(&mut self, logits: &mut [f32], prompt: &[u32], answer: &[u32]) -> Vec<f32> {
        penalty::apply(&self.options, logits, prompt, answer);
        let mut out = vec![0.0; logits.len()];
        if self.options.temperature == 0.0 {
            if let Some(id) = ops::argmax(logits) {
                out[id] = 1.0;
            }
            return out;
        }
        for (id, p) in Candidates::of(&self.options, logits, &mut self.rng).iter() {
            out[id as usize] = p;
        }
        out
    }
}

/// Logarithm of the probability of `id`, and the `most` most probable tokens with theirs, greatest first.
pub fn logprobs(logits: &[f32], id: u32, most: usize) -> (f32, Vec<(u32, f32)>) {
    let sum = ops::logsumexp(logits);
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let most = most.min(ids.len());
    if most > 0 && most < ids.len() {
        ids.select_nth_unstable_by(most - 1, by);
    }
    ids.truncate(most);
    ids.sort_unstable_by(by);
    let top = ids.into_iter().map(|id| (id, logits[id as usize] - sum)).collect();
    (logits.get(id as usize).map_or(f32::NEG_INFINITY, |l| l - sum), top)
}

/// How probable it is that a token drawn from `draft` is accepted in place of one drawn from `target`,
/// for every token; and the distribution to draw from when it is not (speculative sampling:
/// Leviathan et al. 2023, algorithm 1). Both `[vocab]`.
pub fn acceptance(target: &[f32], draft: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let accept = target.iter().zip(draft).map(|(p, q)| (p / q.max(1e-30)).min(1.0)).collect();
    let mut rest: Vec<f32> = target.iter().zip(draft).map(|(p, q)| (p - q).max(0.0)).collect();
    let sum: f64 = rest.iter().map(|v| f64::from(*v)).sum();
    if sum > 0.0 {
        rest.iter_mut().for_each(|v| *v = (f64::from(*v) / sum) as f32);
    } else {
        // Both are the same: nothing is ever rejected.
        rest.copy_from_slice(target);
    }
    (accept, rest)
}
