//! What live captions are measured by, in the field's names: how soon, how steady, how far behind.
//!
//! Times are on the graph's clock: with the compute of the machine on a paced or real one, of the graph and
//! the policy alone on the virtual one.

use oxiline_graph::Nanos;
use oxiline_graph::payload::Update;
use oxiline_graph::protocol::speech::Word;
use serde_json::{Value, json};

/// Collects while updates are sent.
#[derive(Debug, Default)]
pub struct Figures {
    /// First word of a segment to its first text.
    first_partial: Vec<Nanos>,
    /// End of a word to the moment from which it stays.
    commit: Vec<Nanos>,
    /// End of labelled speech to its final text.
    to_final: Vec<Nanos>,
    lag: Vec<Nanos>,
    shown: u64,
    rewritten: u64,
    retractions: u64,
    /// Words of the open segment as they were shown last, and how many of them stay.
    words: Vec<String>,
    certain: usize,
    stable: String,
}

impl Figures {
    /// Takes an update that is sent now. `age` is how long ago the sound of a media time was captured;
    /// `certain` counts the update's words that stay; `over` is the end of the speech, if it is over and not
    /// only its window.
    pub fn take(&mut self, update: &Update, certain: usize, over: Option<Nanos>, age: impl Fn(Nanos) -> Nanos) {
        let at = |seconds: f64| age((seconds * 1e9).round() as Nanos);
        let same = |a: &str, b: &Word| a == b.text.trim();
        if self.words.is_empty() {
            self.first_partial.extend(update.words.first().map(|word| at(word.start)));
        }
        for (i, word) in update.words.iter().enumerate() {
            let old = self.words.get(i);
            self.shown += u64::from(old.is_none_or(|old| !same(old, word)));
            self.rewritten += u64::from(old.is_some_and(|old| !same(old, word)));
        }
        // Words that were shown and are gone were rewritten too.
        self.rewritten += self.words.len().saturating_sub(update.words.len()) as u64;
        self.retractions += u64::from(!update.stable.starts_with(&self.stable));
        self.commit.extend(update.words[..certain].iter().skip(self.certain).map(|word| at(word.end)));
        self.lag.push(update.lag);
        if update.is_final {
            self.to_final.extend(over.map(&age));
            (self.words, self.certain, self.stable) = <_>::default();
        } else {
            self.words = update.words.iter().map(|word| word.text.trim().to_string()).collect();
            self.certain = certain;
            self.stable.clone_from(&update.stable);
        }
    }

    /// The figures as names and values, seconds; none where nothing was said.
    pub fn report(&mut self) -> Vec<(&'static str, Value)> {
        if self.lag.is_empty() {
            return Vec::new();
        }
        let of = |times: &mut Vec<Nanos>| {
            times.sort_unstable();
            let seconds = |nanos: Nanos| (nanos as f64 / 1e6).round() / 1e3;
            let mean = times.iter().sum::<Nanos>() / times.len().max(1) as Nanos;
            let rank = |share: f64| times.get(((times.len() as f64 * share).ceil() as usize).max(1) - 1);
            json!({ "mean": seconds(mean), "p50": rank(0.5).copied().map(seconds), "p95": rank(0.95).copied().map(seconds) })
        };
        vec![
            ("time_to_first_partial_s", of(&mut self.first_partial)),
            ("commit_latency_s", of(&mut self.commit)),
            ("time_to_final_s", of(&mut self.to_final)),
            ("lag_s", of(&mut self.lag)),
            ("churn", json!((self.rewritten as f64 / self.shown.max(1) as f64 * 1e4).round() / 1e4)),
            ("retractions", json!(self.retractions)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(stable: &str, unstable: &str, last: bool) -> (Update, usize) {
        let text = format!("{stable}{unstable}");
        let words = text.split_whitespace().enumerate().map(|(i, word)| Word {
            text: format!(" {word}"),
            start: i as f64,
            end: i as f64 + 1.0,
            probability: 1.0,
        });
        let update = Update {
            words: words.collect(),
            stable: stable.into(),
            unstable: unstable.into(),
            is_final: last,
            ..Update::default()
        };
        (update, stable.split_whitespace().count())
    }

    #[test]
    fn words_are_counted_once_and_rewritten_ones_as_churn() {
        let mut figures = Figures::default();
        let mut now = 0;
        let mut take = |text: (Update, usize), at: Nanos| {
            now = at * 1_000_000_000;
            let over = text.0.is_final.then(|| text.0.words.last().map_or(0, |word| word.end as Nanos * 1_000_000_000));
            figures.take(&text.0, text.1, over, |media| now - media);
        };
        take(update("", "the cat sad", false), 3);
        take(update("the cat", " sat on", false), 4);
        take(update("the cat sat on the mat", "", true), 7);
        take(update("", "bye", false), 9);
        take(update("bye bye", "", true), 9);
        let report: serde_json::Map<String, Value> =
            figures.report().into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        assert_eq!(report["time_to_first_partial_s"], json!({ "mean": 6.0, "p50": 3.0, "p95": 9.0 }));
        // Of the six words two stay from 4 on, the others from 7 on; then two from 9 on.
        assert_eq!(report["commit_latency_s"]["mean"], json!((3 + 2 + 4 + 3 + 2 + 1 + 8 + 7) as f64 / 8.0));
        assert_eq!(report["time_to_final_s"], json!({ "mean": 4.0, "p50": 1.0, "p95": 7.0 }));
        // "sad" became "sat": one of the nine words that were shown.
        assert_eq!(report["churn"], json!(0.1111));
        assert_eq!(report["retractions"], json!(0));
        let (retracted, certain) = update("thy cat", "", false);
        let mut figures = Figures::default();
        figures.take(&update("the", "", false).0, 1, None, |_| 0);
        figures.take(&retracted, certain, None, |_| 0);
        assert_eq!(figures.report().last(), Some(&("retractions", json!(1))));
    }
}
