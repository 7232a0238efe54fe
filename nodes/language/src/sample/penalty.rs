//! What changes logits before any filter: bias, penalties for what is there already, DRY.

use std::collections::HashMap;

use oxiline_graph::protocol::llm::Sampling;

/// Longest repetition that DRY looks at: beyond it no token can win against the penalty.
const LONGEST: usize = 64;

/// Applies bias and penalties in place. Repetition penalty and DRY see prompt and answer, presence and
/// frequency the answer only; all of them the last `penalty_window` tokens.
pub(super) fn apply(s: &Sampling, logits: &mut [f32], prompt: &[u32], answer: &[u32]) {
    for (id, bias) in &s.logit_bias {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit += bias;
        }
    }
    let window = if s.penalty_window == 0 { usize::MAX } else { s.penalty_window };
    let answered = &answer[answer.len().saturating_sub(window)..];
    let asked = &prompt[prompt.len().saturating_sub(window - answered.len().min(window))..];
    if s.repetition_penalty != 1.0 {
        let mut seen: Vec<u32> = asked.iter().chain(answered).copied().collect();
        seen.sort_unstable();
        seen.dedup();
        for id in seen {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = if *logit < 0.0 { *logit * s.repetition_penalty } else { *logit / s.repetition_penalty };
            }
        }
    }
    if s.presence_penalty != 0.0 || s.frequency_penalty != 0.0 {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        answered.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
        for (id, count) in counts {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= s.presence_penalty + s.frequency_penalty * count as f32;
            }
        }
    }
    if s.dry_multiplier > 0.0 {
        let history: Vec<u32> = asked.iter().chain(answered).copied().collect();
        for (id, length) in repetitions(&history) {
            if length >= s.dry_allowed_length
                && let Some(logit) = logits.get_mut(id as usize)
            {
                let grown = s.dry_base.powi((length - s.dry_allowed_length) as i32);
                *logit -= (s.dry_multiplier * grown).min(f32::MAX);
            }
        }
    }
}

/// For every token that would continue a repetition: how long the repetition already is. That is the
/// longest end of `history` that occurred earlier, followed by this token.
fn repetitions(history: &[u32]) -> HashMap<u32, usize> {
    let mut longest: HashMap<u32, usize> = HashMap::new();
    let Some((last, before)) = history.split_last() else { return longest };
    for (at, id) in before.iter().enumerate() {
        if id != last {
            continue;
        }
        let back = history[..=at].iter().rev().zip(history.iter().rev()).take(LONGEST);
        let length = back.take_while(|(a, b)| a == b).count();
        let known = longest.entry(history[at + 1]).or_default();
        *known = length.max(*known);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_measured_by_their_longest_occurrence() {
        // "... 1 2 3 | 4 ... 2 3 | 5 ... 1 2 3": 4 continues three tokens, 5 only two.
        let found = repetitions(&[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]);
        assert_eq!(found, HashMap::from([(4, 3), (5, 2)]));
        assert!(repetitions(&[]).is_empty() && repetitions(&[7]).is_empty());
        assert_eq!(repetitions(&[7; 200]), HashMap::from([(7, LONGEST)]));
    }

    #[test]
    fn penalties_see_what_they_are_meant_to() {
        let s = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            logit_bias: vec![(4, -3.0), (99, 1.0)],
            ..Sampling::default()
        };
        let mut logits = vec![1.0, -1.0, 1.0, -1.0, 1.0];
        apply(&s, &mut logits, &[0, 1, 0], &[2, 2, 77]);
        // The prompt's tokens are only "repeated"; the answer's also counted.
        assert_eq!(logits, [0.5, -2.0, 0.5 - 0.25 - 1.0, -1.0, -2.0]);

        let windowed = Sampling { penalty_window: 2, ..s };
        let mut logits = vec![1.0; 5];
        apply(&windowed, &mut logits, &[0, 1], &[3]);
        assert_eq!(logits, [1.0, 0.5, 1.0, 0.5 - 0.75, -2.0], "the last of the prompt and the answer");
    }

    #[test]
    fn dry_grows_with_the_repetition() {
        let s = Sampling { dry_multiplier: 1.0, dry_base: 2.0, dry_allowed_length: 2, ..Sampling::default() };
        let mut logits = vec![0.0; 10];
        apply(&s, &mut logits, &[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], &[]);
        assert_eq!((logits[4], logits[5]), (-2.0, -1.0));
        assert!(logits.iter().enumerate().all(|(i, l)| i == 4 || i == 5 || *l == 0.0));
    }
}
