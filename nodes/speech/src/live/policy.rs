//! Which words of a growing hypothesis are certain.

use oxiline_graph::protocol::speech::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When a word counts as certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Two passes in a row say it at the same place, with sound behind it (LocalAgreement-2: Liu et al. 2020, Macháček et al. 2023).
    #[default]
    LocalAgreement,
    /// The model's attention to it ended half a second or more before the sound did (AlignAtt: Papi et al. 2023).
    AlignAtt,
    /// It ended a second or more before the sound did.
    StablePrefix,
    /// Its segment is over: one pass a segment, no text before.
    FinalOnly,
}

/// Speech behind a word that makes it certain under [`Policy::StablePrefix`], seconds.
const BEHIND: f64 = 1.0;
/// The same under [`Policy::AlignAtt`]: 25 positions of the encoder.
const ATTENDED: f64 = 0.5;
/// A word that ends so near to the end of the sound may be cut off: two passes can mishear it alike. Seconds.
const CUT: f64 = 0.3;
/// So many letters may differ to find the border of what is certain a second nearer to where it was.
const EDITS_A_SECOND: f64 = 1.0;

/// The words of one segment. Times in seconds from where the segment's sound begins.
#[derive(Debug, Clone, Default)]
pub struct Agreement {
    policy: Policy,
    certain: Vec<Word>,
    open: Vec<Word>,
}

impl Agreement {
    /// Nothing said yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Takes the words of a pass over the first `end` seconds of the segment's sound.
    pub fn pass(&mut self, words: Vec<Word>, end: f64) {
        let new = self.behind_the_certain(words);
        let sure = match self.policy {
            Policy::LocalAgreement => {
                let whole = |word: &Word| word.end + CUT <= end;
                self.open.iter().zip(&new).take_while(|(a, b)| same(a, b) && whole(b)).count()
            }
            Policy::AlignAtt => new.iter().take_while(|word| word.end + ATTENDED <= end).count(),
            Policy::StablePrefix => new.iter().take_while(|word| word.end + BEHIND <= end).count(),
            Policy::FinalOnly => 0,
        };
        self.open = new;
        self.certain.extend(self.open.drain(..sure));
    }

    /// Takes the words of the last pass: all are certain now.
    pub fn finish(&mut self, words: Vec<Word>) {
        let new = self.behind_the_certain(words);
        self.open.clear();
        self.certain.extend(new);
    }

    /// What of a hypothesis comes after the certain words, at times that never run backwards.
    fn behind_the_certain(&self, words: Vec<Word>) -> Vec<Word> {
        let Some(last) = self.certain.last() else { return words };
        let mut new = self.beyond_the_border(words, last.end);
        let mut least = last.end;
        for word in &mut new {
            word.start = word.start.max(least);
            word.end = word.end.max(word.start);
            least = word.end;
        }
        new
    }

    /// What of a whole hypothesis comes after the certain words, which ended at `border`.
    ///
    /// The times of words near a border differ between passes by more than a short word lasts, so the border
    /// is where the certain text and a beginning of the hypothesis differ least, letter by letter; times only
    /// decide between places that fit alike.
    fn beyond_the_border(&self, mut words: Vec<Word>, border: f64) -> Vec<Word> {
        let certain: Vec<char> = self.certain.iter().flat_map(plain).collect();
        // Edits that make the certain letters from those of the hypothesis so far (Levenshtein), by their count.
        let mut edits: Vec<usize> = (0..=certain.len()).collect();
        let cost = |edits: &[usize], start: f64| edits[certain.len()] as f64 + EDITS_A_SECOND * (start - border).abs();
        let mut best = (cost(&edits, words.first().map_or(border, |word| word.start)), 0);
        for i in 0..words.len() {
            for letter in plain(&words[i]) {
                let mut diagonal = edits[0];
                edits[0] += 1;
                for (j, c) in certain.iter().enumerate() {
                    let replaced = diagonal + usize::from(*c != letter);
                    diagonal = edits[j + 1];
                    edits[j + 1] = replaced.min(diagonal + 1).min(edits[j] + 1);
                }
            }
            // Behind the last word there is nothing that could begin late.
            let start = words.get(i + 1).map_or(border, |word| word.start);
            let cost = cost(&edits, start);
            if cost < best.0 {
                best = (cost, i + 1);
            }
        }
        words.split_off(best.1)
    }

    /// The certain words.
    pub fn certain(&self) -> &[Word] {
        &self.certain
    }

    /// The others of the last pass.
    pub fn open(&self) -> &[Word] {
        &self.open
    }

    /// Certain text, without the space before the first word.
    pub fn stable(&self) -> String {
        text(&self.certain).trim_start().to_string()
    }

    /// The rest of the text.
    pub fn unstable(&self) -> String {
        let text = text(&self.open);
        if self.certain.is_empty() { text.trim_start().to_string() } else { text }
    }
}

fn text(words: &[Word]) -> String {
    words.iter().map(|word| word.text.as_str()).collect()
}

/// The letters and digits of a word, in lower case.
fn plain(word: &Word) -> impl Iterator<Item = char> {
    word.text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase)
}

/// The same word, whatever its case and the marks around it.
fn same(a: &Word, b: &Word) -> bool {
    if plain(a).next().is_none() { a.text.trim() == b.text.trim() } else { plain(a).eq(plain(b)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(text: &str) -> Vec<Word> {
        let word = |(i, word): (usize, &str)| Word {
            text: format!(" {word}"),
            start: i as f64 * 0.5,
            end: i as f64 * 0.5 + 0.5,
            probability: 1.0,
        };
        text.split_whitespace().enumerate().map(word).collect()
    }

    #[test]
    fn two_passes_agree_on_a_beginning() {
        let mut words = Agreement::new(Policy::LocalAgreement);
        words.pass(said("the cat sad"), 1.5);
        assert_eq!((words.stable(), words.unstable()), (String::new(), "the cat sad".into()));
        words.pass(said("The cat sat on"), 2.0);
        assert_eq!((words.stable().as_str(), words.unstable().as_str()), ("The cat", " sat on"));
        words.pass(said("The cat sat on the"), 2.5);
        assert_eq!((words.stable().as_str(), words.unstable().as_str()), ("The cat sat on", " the"));
        words.finish(said("A bat sat on the mat"));
        assert_eq!((words.stable().as_str(), words.unstable().as_str()), ("The cat sat on the mat", ""));
    }

    #[test]
    fn a_word_said_twice_stays_and_one_heard_twice_goes() {
        let mut words = Agreement::new(Policy::LocalAgreement);
        words.pass(said("no no"), 1.0);
        words.pass(said("no no no"), 1.5);
        assert_eq!(words.stable(), "no no");
        words.finish(said("no no no way"));
        assert_eq!(words.stable(), "no no no way");
        // The last certain word a little later than before.
        let mut words = Agreement::new(Policy::LocalAgreement);
        words.pass(said("so it was"), 1.5);
        words.pass(said("so it was"), 1.6);
        let mut later = said("so it was then");
        later[2].start += 0.45;
        words.finish(later);
        assert_eq!(words.stable(), "so it was then");
    }

    #[test]
    fn a_stable_prefix_is_behind_the_sound() {
        let mut words = Agreement::new(Policy::StablePrefix);
        words.pass(said("a b c d"), 2.0);
        assert_eq!((words.stable().as_str(), words.unstable().as_str()), ("a b", " c d"));
        let mut words = Agreement::new(Policy::FinalOnly);
        words.pass(said("a b c d"), 20.0);
        assert_eq!(words.stable(), "");
    }

    proptest! {
        #[test]
        fn what_is_certain_only_grows(
            passes in prop::collection::vec(prop::collection::vec(("[ab]{1,2}", 0.0_f64..0.6, 0.0_f64..0.6), 0..8), 1..8),
            policy in prop_oneof![Just(Policy::LocalAgreement), Just(Policy::AlignAtt), Just(Policy::StablePrefix), Just(Policy::FinalOnly)],
        ) {
            let mut words = Agreement::new(policy);
            let mut before = String::new();
            let count = passes.len();
            for (i, pass) in passes.into_iter().enumerate() {
                let mut at = 0.0;
                let hypothesis: Vec<Word> = pass.into_iter().map(|(text, pause, length)| {
                    let start = at + pause;
                    at = start + length;
                    Word { text: format!(" {text}"), start, end: at, probability: 1.0 }
                }).collect();
                if i + 1 == count { words.finish(hypothesis) } else { words.pass(hypothesis, at) }
                prop_assert!(words.stable().starts_with(&before), "`{}` after `{before}`", words.stable());
                before = words.stable();
                let all: Vec<&Word> = words.certain().iter().chain(words.open()).collect();
                prop_assert!(all.windows(2).all(|two| two[1].start + 1e-9 >= two[0].start && two[0].end <= two[1].end + 1e-9));
            }
            prop_assert_eq!(words.unstable(), "");
        }
    }
}
