//! Words: which tokens make one up, when it was said, how sure the model was.

use oxiline_graph::Result;
use oxiline_graph::protocol::speech::Word;

use super::language;
use super::tokens::Codec;

/// Punctuation that belongs to the word behind it.
const OPENING: &str = "\"'“¡¿([{-";
/// Punctuation that belongs to the word before it.
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";

/// A piece that is one of these (or nothing but space) is a word of its own at first.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// The tokens of one word, as a range of the tokens it was cut from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The text.
    pub text: String,
    /// First token.
    pub from: usize,
    /// One past the last token.
    pub to: usize,
}

/// Cuts text tokens into words: at spaces and punctuation, or at every character in languages
/// written without spaces; punctuation is merged into the word it belongs to.
pub fn split(codec: &dyn Codec, tokens: &[u32], language: &str) -> Result<Vec<Span>> {
    let pieces = characters(codec, tokens)?;
    let mut words: Vec<Span> = Vec::new();
    if language::without_spaces(language) {
        words = pieces;
    } else {
        for piece in pieces {
            let punctuation = PUNCTUATION.contains(piece.text.trim());
            match words.last_mut() {
                Some(word) if !piece.text.starts_with(' ') && !punctuation => {
                    word.text.push_str(&piece.text);
                    word.to = piece.to;
                }
                _ => words.push(piece),
            }
        }
    }
    Ok(merge(words))
}

/// The shortest runs of tokens that are whole characters: the text up to a run's end is a beginning
/// of the whole text, which half a character, decoded as U+FFFD, is not (unless the model left the
/// character broken: then it counts as it is).
fn characters(codec: &dyn Codec, tokens: &[u32]) -> Result<Vec<Span>> {
    let whole = codec.decode(tokens)?;
    let mut pieces: Vec<Span> = Vec::new();
    let (mut from, mut done) = (0, 0);
    for to in 1..=tokens.len() {
        let before = codec.decode(&tokens[..to])?;
        let last = to == tokens.len();
        if before.len() < done || !(last || whole.starts_with(&before)) {
            continue;
        }
        let text = whole.get(done..if last { whole.len() } else { before.len() }).unwrap_or_default();
        match pieces.last_mut() {
            // The rest of a broken character.
            Some(piece) if text.is_empty() => piece.to = to,
            _ => pieces.push(Span { text: text.to_string(), from, to }),
        }
        (from, done) = (to, before.len());
    }
    Ok(pieces)
}

/// Joins punctuation to its words.
fn merge(words: Vec<Span>) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::with_capacity(words.len());
    for word in words.into_iter().rev() {
        let mark = word.text.trim();
        match joined.last_mut() {
            Some(next) if word.text.starts_with(' ') && OPENING.contains(mark) => {
                next.text.insert_str(0, &word.text);
                next.from = word.from;
            }
            _ => joined.push(word),
        }
    }
    let mut done: Vec<Span> = Vec::with_capacity(joined.len());
    for word in joined.into_iter().rev() {
        match done.last_mut() {
            Some(before) if !before.text.ends_with(' ') && !word.text.is_empty() && CLOSING.contains(&*word.text) => {
                before.text.push_str(&word.text);
                before.to = word.to;
            }
            _ => done.push(word),
        }
    }
    done
}

/// A token of a segment with its time and probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Id.
    pub token: u32,
    /// Seconds at which it began.
    pub start: f64,
    /// Seconds at which it had been said.
    pub end: f64,
    /// Its log-probability.
    pub logprob: f32,
}

/// The words of a segment's text tokens, inside `within` (seconds), in order.
pub fn words(codec: &dyn Codec, tokens: &[Timed], language: &str, within: (f64, f64)) -> Result<Vec<Word>> {
    let ids: Vec<u32> = tokens.iter().map(|t| t.token).collect();
    let mut words = Vec::new();
    let mut earliest = within.0;
    for span in split(codec, &ids, language)? {
        let Some(part) = tokens.get(span.from..span.to).filter(|part| !part.is_empty()) else { continue };
        let start = part[0].start.max(earliest).min(within.1.max(earliest));
        let end = part[part.len() - 1].end.max(start).min(within.1.max(start));
        let sum: f64 = part.iter().map(|t| f64::from(t.logprob).exp()).sum();
        words.push(Word {
            text: span.text,
            start: centi(start),
            end: centi(end),
            probability: (sum / part.len() as f64) as f32,
        });
        earliest = end;
    }
    Ok(words)
}

/// Rounds to a hundredth of a second.
fn centi(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as tokens.
    struct Bytes;

    impl Codec for Bytes {
        fn encode(&self, text: &str) -> Result<Vec<u32>> {
            Ok(text.bytes().map(u32::from).collect())
        }
        fn decode(&self, ids: &[u32]) -> Result<String> {
            let bytes: Vec<u8> = ids.iter().map(|&i| i as u8).collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    }

    fn texts(text: &str, language: &str) -> Vec<String> {
        let tokens = Bytes.encode(text).unwrap();
        let spans = split(&Bytes, &tokens, language).unwrap();
        let mut at = 0;
        for span in &spans {
            assert_eq!(span.from, at, "words are cut without gaps");
            at = span.to;
        }
        assert_eq!(at, tokens.len());
        assert_eq!(spans.iter().map(|s| s.text.as_str()).collect::<String>(), text);
        spans.into_iter().map(|s| s.text).collect()
    }

    #[test]
    fn words_are_cut_at_spaces_and_keep_their_punctuation() {
        assert_eq!(texts(" Yes, he said.", "en"), [" Yes,", " he", " said."]);
        // As in the reference, an apostrophe that is a token of its own begins a word.
        assert_eq!(texts(" don't", "en"), [" don", "'t"]);
        assert_eq!(texts(" Öl und Brot", "de"), [" Öl", " und", " Brot"]);
        assert_eq!(texts("世界、", "ja"), ["世", "界、"]);
        assert_eq!(texts(" 世界", "en"), [" 世界"]);
    }

    #[test]
    fn broken_characters_do_not_swallow_the_rest() {
        let tokens = [0x20, 0xe4, 0xb8, 0x20, 0x61];
        let spans = split(&Bytes, &tokens, "en").unwrap();
        assert_eq!(spans.last().unwrap().text, " a");
        assert_eq!(spans.last().unwrap().to, tokens.len());
        let cut = [0x20, 0x61, 0xe4];
        assert_eq!(split(&Bytes, &cut, "en").unwrap().last().unwrap().to, 3);
    }

    #[test]
    fn words_stay_inside_and_in_order() {
        let timed: Vec<Timed> = Bytes
            .encode(" ab cd")
            .unwrap()
            .into_iter()
            .zip([9.0, 9.5, 9.5, 9.2, 9.3, 40.0])
            .map(|(token, t)| Timed { token, start: t - 1.0, end: t, logprob: -0.5 })
            .collect();
        let words = words(&Bytes, &timed, "en", (9.0, 12.0)).unwrap();
        assert_eq!(words.len(), 2);
        assert!(words[0].start >= 9.0 && words[0].start <= words[0].end);
        assert!(words[1].start >= words[0].end && words[1].end <= 12.0);
        assert!((words[0].probability - (-0.5_f32).exp()).abs() < 1e-6);
    }
}
