//! Where sentences end, in any language, on a stream that is not complete yet.
//!
//! A wrong merge is harmless (a longer piece), a wrong cut is heard, so a cut needs evidence: a mark
//! that ends sentences, then a space, then something that may begin one. Marks of scripts without
//! spaces need none.

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

/// How a [`Splitter`] cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitterOptions {
    /// The first piece may end with a clause once it has so many characters (as a reader counts them).
    pub first_min: usize,
    /// No piece has more characters; at least 1.
    pub max: usize,
}

impl Default for SplitterOptions {
    fn default() -> Self {
        Self { first_min: 12, max: 240 }
    }
}

/// Cuts text that arrives in pieces into sentences, trimmed of white space. Nothing but white space
/// is lost, and no character as a reader sees it (grapheme) is cut.
#[derive(Debug, Clone)]
pub struct Splitter {
    options: SplitterOptions,
    held: String,
    first: bool,
}

/// Ends of sentences that want a space behind them.
const SPACED: &[char] =
    &['.', '!', '?', '…', '‽', '؟', '۔', '।', '॥', '։', '።', '፧', '၊', '။', '៕', '‼', '⁇', '⁈', '⁉'];
/// Ends of sentences in scripts that do not.
const UNSPACED: &[char] = &['。', '！', '？', '｡', '．', '︒', '﹗', '﹖'];
/// Ends of clauses that want a space.
const CLAUSE: &[char] = &[',', ';', ':', '–', '—', '،', '؛', '፣', '፤'];
/// Ends of clauses that do not.
const CLAUSE_UNSPACED: &[char] = &['，', '、', '；', '：', '､'];
/// What may close behind an end and belongs to it.
const CLOSERS: &[char] =
    &['"', '\'', ')', ']', '}', '”', '’', '»', '›', '」', '』', '）', '】', '》', '〉', '］', '*', '_'];
/// Abbreviations before a full stop that rarely end a sentence, in small letters.
const ABBREVIATIONS: &[&str] = &[
    "mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "vs", "gen", "col", "capt", "lt", "sgt", "rev", "hon", "fig",
    "eq", "vol", "pp", "no", "nos", "approx", "dept", "est", "inc", "ltd", "co", "corp", "bros", "mt", "ave", "blvd",
    "cf", "al", "ed", "eds", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec", "nr",
    "bzw", "ca", "evtl", "ggf", "hr", "fr", "frl", "str", "tel", "vgl", "zzgl", "inkl", "abs", "bd", "geb", "gest",
    "mio", "mrd", "dt", "engl", "mme", "mlle", "mm", "av", "env", "éd", "sra", "srta", "ud", "uds", "núm", "pág",
    "avda", "dña", "sig", "dott", "ing", "avv", "pag", "dhr", "mevr", "bijv", "resp", "tzv", "np", "tzn", "ul",
];

impl Splitter {
    /// An empty splitter.
    pub fn new(options: SplitterOptions) -> Self {
        Self { options: SplitterOptions { max: options.max.max(1), ..options }, held: String::new(), first: true }
    }

    /// More text; the pieces that are whole now.
    pub fn push(&mut self, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        // A long text at once is taken in parts, so that the work grows with its length only.
        let mut rest = text;
        while !rest.is_empty() {
            let part = rest.floor_char_boundary(4096.max(rest.chars().next().map_or(1, char::len_utf8)));
            self.held.push_str(&rest[..part]);
            rest = &rest[part..];
            self.cut(false, &mut pieces);
        }
        pieces
    }

    /// What is held, cut where it must be; the stream goes on with the same segment.
    pub fn flush(&mut self) -> Vec<String> {
        let mut pieces = Vec::new();
        self.cut(true, &mut pieces);
        let held = std::mem::take(&mut self.held);
        self.keep(&held, &mut pieces);
        pieces
    }

    /// Forgets what is held: a new segment begins, whose first clause may come early.
    pub fn restart(&mut self) {
        self.held.clear();
        self.first = true;
    }

    fn keep(&mut self, piece: &str, pieces: &mut Vec<String>) {
        let piece = piece.trim();
        if !piece.is_empty() {
            pieces.push(piece.to_string());
            self.first = false;
        }
    }

    fn cut(&mut self, ended: bool, pieces: &mut Vec<String>) {
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_str();
        while let Some(at) = self.next_cut(rest, ended) {
            self.keep(&rest[..at], pieces);
            rest = rest[at..].trim_start();
        }
        self.held = rest.to_string();
    }

    /// Where the first piece of `text` ends, if that is known.
    fn next_cut(&self, text: &str, ended: bool) -> Option<usize> {
        let end = sentence_end(text, ended);
        let clause = if self.first { clause_end(text, self.options.first_min, ended) } else { None };
        let cut = match (end, clause) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let limit = grapheme_limit(text, self.options.max);
        match (cut, limit) {
            (Some(cut), Some(limit)) if cut <= limit => Some(cut),
            (cut, None) => cut.filter(|&cut| cut < text.len() || ended),
            (_, Some(limit)) => Some(forced(text, limit)),
        }
    }
}

/// Byte where `text` has `max` characters, when it has more.
fn grapheme_limit(text: &str, max: usize) -> Option<usize> {
    // A character has a byte or more.
    if text.len() <= max {
        return None;
    }
    text.grapheme_indices(true).nth(max).map(|(at, _)| at)
}

/// The best cut at or before `limit`: a clause in the second half, a space, or the limit itself.
fn forced(text: &str, limit: usize) -> usize {
    let head = &text[..limit];
    let mut clause = None;
    let mut space = None;
    for (at, c) in head.char_indices() {
        let after = at + c.len_utf8();
        let spaced = text[after..].starts_with(char::is_whitespace);
        if after > limit / 2 && (CLAUSE_UNSPACED.contains(&c) || (CLAUSE.contains(&c) && spaced)) {
            clause = Some(after);
        }
        if c.is_whitespace() && at > 0 {
            space = Some(at);
        }
    }
    if text[limit..].starts_with(char::is_whitespace) {
        return limit;
    }
    clause.or(space).map_or(limit, |at| to_boundary(text, at).min(limit))
}

/// The first byte at or after `at` where a character as a reader sees it begins.
fn to_boundary(text: &str, at: usize) -> usize {
    let mut cursor = GraphemeCursor::new(at, text.len(), true);
    match cursor.is_boundary(text, 0) {
        Ok(false) => cursor.next_boundary(text, 0).ok().flatten().unwrap_or(text.len()),
        _ => at,
    }
}

/// End of the first sentence of `text`, its closing marks included.
fn sentence_end(text: &str, ended: bool) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c == '\n' && at > 0 {
            match line_break(text, at, ended) {
                Some(true) => return Some(at),
                Some(false) => continue,
                None => return None,
            }
        }
        let unspaced = UNSPACED.contains(&c);
        if !unspaced && !SPACED.contains(&c) {
            continue;
        }
        // A run of marks ("?!", "...") and what closes behind it is one end.
        let mut after = at + c.len_utf8();
        let (mut last, mut closed, mut wide) = (c, false, unspaced);
        while let Some(&(next, n)) = chars.peek() {
            let closer = CLOSERS.contains(&n);
            if !closer && (closed || !(SPACED.contains(&n) || UNSPACED.contains(&n))) {
                break;
            }
            closed |= closer;
            wide |= UNSPACED.contains(&n);
            last = if closer { last } else { n };
            after = next + n.len_utf8();
            chars.next();
        }
        let after = to_boundary(text, after);
        let rest = &text[after..];
        let behind = rest.trim_start().chars().next();
        match behind {
            None if !ended => return None,
            None => return Some(after),
            Some(_) if wide => return Some(after),
            Some(_) if !rest.starts_with(char::is_whitespace) => {}
            // "... he said": a small letter goes on with the sentence.
            Some(b) if b.is_lowercase() => {}
            Some(_) if last == '.' && stop_is_part_of_word(&text[..at]) => {}
            Some(_) => return Some(after),
        }
    }
    None
}

/// Does the line end at `at` end a sentence too? `None`: it depends on what comes.
fn line_break(text: &str, at: usize, ended: bool) -> Option<bool> {
    let rest = &text[at + 1..];
    let next = rest.trim_start_matches([' ', '\t', '\r']);
    let Some(first) = next.chars().next() else { return if ended { Some(true) } else { None } };
    if first == '\n' {
        return Some(true);
    }
    // Items of a list, headings, quotes, tables.
    if matches!(first, '-' | '*' | '+' | '•' | '#' | '>' | '|') {
        return Some(true);
    }
    let digits = next.len() - next.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    if (1..=3).contains(&digits) {
        return match next[digits..].chars().next() {
            Some('.' | ')') => Some(true),
            Some(_) => Some(false),
            None => {
                if ended {
                    Some(false)
                } else {
                    None
                }
            }
        };
    }
    Some(false)
}

/// Is a full stop behind `before` part of an abbreviation, an initial, an ordinal or a list's number?
fn stop_is_part_of_word(before: &str) -> bool {
    let start = before.rfind(|c: char| c.is_whitespace() || "([{\"'“‘«„-–—/".contains(c));
    let word = before.get(start.map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8))..);
    let word = word.unwrap_or(before);
    let letters = word.chars().filter(|c| c.is_alphabetic()).count();
    let digits = word.chars().filter(char::is_ascii_digit).count();
    if letters == 0 {
        // "3. May", "12. Then": ordinals and list numbers; years end sentences.
        return (1..=2).contains(&digits) && digits == word.len();
    }
    let one = word.chars().count() == 1 && word.chars().all(char::is_alphabetic) && word != "I";
    // "e.g.", "U.S.", "z.B."
    let dotted = word.contains('.') && word.split('.').all(|part| part.chars().count() <= 2);
    one || dotted || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

/// End of the first clause that has at least `min` characters.
fn clause_end(text: &str, min: usize, ended: bool) -> Option<usize> {
    for (at, c) in text.char_indices() {
        let unspaced = CLAUSE_UNSPACED.contains(&c);
        if !unspaced && !CLAUSE.contains(&c) {
            continue;
        }
        let after = to_boundary(text, at + c.len_utf8());
        if text[..after].graphemes(true).count() < min {
            continue;
        }
        let rest = &text[after..];
        // Something must follow: a cut at the end would be the sentence's own.
        let begins = rest.trim_start().chars().next();
        if begins.is_some_and(|b| !CLOSERS.contains(&b) || b == '*')
            && (unspaced || rest.starts_with(char::is_whitespace))
        {
            return Some(after);
        }
        if begins.is_none() && !ended {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split_by(text: &str, options: SplitterOptions, step: usize) -> Vec<String> {
        let mut splitter = Splitter::new(options);
        let mut pieces = Vec::new();
        let chars: Vec<char> = text.chars().collect();
        for part in chars.chunks(step.max(1)) {
            pieces.extend(splitter.push(&part.iter().collect::<String>()));
        }
        pieces.extend(splitter.flush());
        pieces
    }

    /// Sentences only: no clause comes early.
    fn whole(text: &str) -> Vec<String> {
        let options = SplitterOptions { first_min: 10_000, max: 10_000 };
        let one = split_by(text, options, usize::MAX);
        assert_eq!(one, split_by(text, options, 1), "in pieces");
        assert_eq!(one, split_by(text, options, 3), "in pieces");
        one
    }

    #[test]
    fn sentences_end_where_readers_end_them() {
        let cases: &[(&str, &[&str])] = &[
            ("Hello there. How are you? Fine!", &["Hello there.", "How are you?", "Fine!"]),
            ("Pi is 3.14 or so. Really?! Yes...", &["Pi is 3.14 or so.", "Really?!", "Yes..."]),
            (
                "Dr. Smith met J. R. Brown, e.g. at 5 p.m. on Monday. He left.",
                &["Dr. Smith met J. R. Brown, e.g. at 5 p.m. on Monday.", "He left."],
            ),
            (
                "She said \"Go!\" and went. (It was late.) He \"stayed.\" Then",
                &["She said \"Go!\" and went.", "(It was late.)", "He \"stayed.\"", "Then"],
            ),
            (
                "Am 3. Mai kam er, z.B. um acht. Es war 1999. Dann ging er.",
                &["Am 3. Mai kam er, z.B. um acht.", "Es war 1999.", "Dann ging er."],
            ),
            ("今日は。「元気？」と言った！はい", &["今日は。", "「元気？」", "と言った！", "はい"]),
            ("क्या हाल है? ठीक है। धन्यवाद।", &["क्या हाल है?", "ठीक है।", "धन्यवाद।"]),
            ("كيف حالك؟ أنا بخير.", &["كيف حالك؟", "أنا بخير."]),
            (
                "Title\n\nA line that\ngoes on. Steps:\n1. First\n2. Second\n- item",
                &["Title", "A line that\ngoes on.", "Steps:", "1. First", "2. Second", "- item"],
            ),
            ("See example.com/a.b?c=d. Then v1.2.3 came.", &["See example.com/a.b?c=d.", "Then v1.2.3 came."]),
            ("It is I. And you.", &["It is I.", "And you."]),
            ("   \n ", &[]),
        ];
        for (text, want) in cases {
            assert_eq!(whole(text), *want, "{text}");
        }
    }

    #[test]
    fn the_first_clause_comes_early_and_only_the_first() {
        let options = SplitterOptions { first_min: 12, max: 240 };
        let text = "Well, that is a good question, I think, and so on. Next, one two three, four.";
        let want = ["Well, that is a good question,", "I think, and so on.", "Next, one two three, four."];
        for step in [1, 4, 1000] {
            assert_eq!(split_by(text, options, step), want);
        }
        let mut splitter = Splitter::new(options);
        assert!(splitter.push("It costs 1,000,000 euro").is_empty(), "no cut inside a number");
        assert_eq!(splitter.push(", I").len(), 1, "as soon as the clause is known to end");
        splitter.restart();
        assert_eq!(splitter.push("これはとても良い質問ですが、そう").len(), 1);
    }

    #[test]
    fn pieces_have_a_longest_length_and_graphemes_stay_whole() {
        let options = SplitterOptions { first_min: 5, max: 5 };
        assert_eq!(split_by("one two three four", options, 1), ["one", "two", "three", "four"]);
        let family = "👨‍👩‍👧‍👦";
        assert_eq!(split_by(&family.repeat(12), options, 1).iter().map(|p| p.graphemes(true).count()).max(), Some(5));
        let flags = "🇩🇪🇫🇷🇮🇹🇪🇸🇵🇱🇳🇱🇯🇵";
        assert!(split_by(flags, SplitterOptions { first_min: 2, max: 2 }, 1).iter().all(|p| p.chars().count() <= 4));
    }

    proptest! {
        #[test]
        fn nothing_but_space_is_lost_and_streaming_changes_nothing(
            text in "([a-zA-Zé ,.!?\n0-9]|。|、|！|e\u{301}|👨‍👩‍👧|🇩🇪|ा|Dr\\. ){0,60}", step in 1usize..9, max in 1usize..40,
        ) {
            let options = SplitterOptions { first_min: (max / 2).min(12), max };
            let pieces = split_by(&text, options, step);
            let solid = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(solid(&pieces.concat()), solid(&text));
            let graphemes: Vec<&str> = text.graphemes(true).collect();
            let mut at = 0;
            for piece in &pieces {
                prop_assert!(piece.graphemes(true).count() <= max, "{:?}", piece);
                prop_assert_eq!(piece.trim(), piece);
                for g in piece.graphemes(true) {
                    // Every character of a piece is one of the text's own; a space may carry a mark.
                    while graphemes.get(at).is_some_and(|own| own.trim() != g.trim()) {
                        prop_assert!(graphemes[at].trim().is_empty(), "{:?} was cut in {:?}", graphemes[at], pieces);
                        at += 1;
                    }
                    at += 1;
                }
            }
        }
    }
}
