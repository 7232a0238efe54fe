//! Where something stands in a graph file, and the sentences said about it.

use std::fmt;
use std::sync::Arc;

/// A place in one of the files of a graph; resolved to line and column only for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    file: u32,
    at: u32,
}

impl Spot {
    /// No file: graphs from code, `--set`.
    pub const NONE: Self = Self { file: u32::MAX, at: 0 };

    /// Byte `at` of file `file`.
    pub fn new(file: u32, at: usize) -> Self {
        Self { file, at: u32::try_from(at).unwrap_or(u32::MAX) }
    }
}

/// How much a message matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The graph cannot run.
    Error,
    /// It can, but probably not as meant.
    Warning,
    /// Something was done that the file does not say, such as a converter put in.
    Note,
}

/// One sentence about a graph, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// How much it matters.
    pub severity: Severity,
    /// The file, as it was named; `None` for graphs from code.
    pub file: Option<Arc<str>>,
    /// Line from 1; 0 when there is no place.
    pub line: usize,
    /// Column from 1, in characters; 0 when there is no place.
    pub column: usize,
    /// What, where, and what to do.
    pub text: String,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}:")?;
            if self.line > 0 {
                write!(f, "{}:{}:", self.line, self.column)?;
            }
            write!(f, " ")?;
        }
        match self.severity {
            Severity::Error => {}
            Severity::Warning => write!(f, "warning: ")?,
            Severity::Note => write!(f, "note: ")?,
        }
        write!(f, "{}", self.text)
    }
}

impl std::error::Error for Message {}

/// More messages than this help nobody, and a hostile file could make millions.
const MOST_MESSAGES: usize = 100;

struct Source {
    name: Arc<str>,
    text: Arc<str>,
}

/// The files read so far and what was found in them.
#[derive(Default)]
pub(crate) struct Reports {
    sources: Vec<Source>,
    messages: Vec<Message>,
    errors: usize,
}

impl Reports {
    /// Adds a file; its number goes into [`Spot`]s.
    pub fn add_source(&mut self, name: &str, text: &str) -> u32 {
        self.sources.push(Source { name: name.into(), text: text.into() });
        u32::try_from(self.sources.len() - 1).unwrap_or(u32::MAX)
    }

    /// The name of the file of a spot.
    pub fn file_name(&self, spot: Spot) -> Option<Arc<str>> {
        self.sources.get(spot.file as usize).map(|s| s.name.clone())
    }

    /// `file:line` of a spot, for sentences that name a second place.
    pub fn place(&self, spot: Spot) -> String {
        match self.sources.get(spot.file as usize) {
            Some(source) => format!("{}:{}", source.name, self.line_column(spot).0),
            None => "the graph's code".into(),
        }
    }

    fn line_column(&self, spot: Spot) -> (usize, usize) {
        let Some(source) = self.sources.get(spot.file as usize) else { return (0, 0) };
        let mut at = (spot.at as usize).min(source.text.len());
        while !source.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &source.text[..at];
        let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |i| i + 1);
        (line, before[start..].chars().count() + 1)
    }

    fn push(&mut self, severity: Severity, spot: Spot, text: String) {
        if self.messages.len() >= MOST_MESSAGES && (severity != Severity::Error || self.errors > 0) {
            self.errors += usize::from(severity == Severity::Error);
            return;
        }
        self.errors += usize::from(severity == Severity::Error);
        let (line, column) = self.line_column(spot);
        self.messages.push(Message { severity, file: self.file_name(spot), line, column, text });
    }

    /// The graph cannot run.
    pub fn error(&mut self, spot: Spot, text: impl Into<String>) {
        self.push(Severity::Error, spot, text.into());
    }

    /// It can, but probably not as meant.
    pub fn warn(&mut self, spot: Spot, text: impl Into<String>) {
        self.push(Severity::Warning, spot, text.into());
    }

    /// Something was done that the file does not say.
    pub fn note(&mut self, spot: Spot, text: impl Into<String>) {
        self.push(Severity::Note, spot, text.into());
    }

    /// An error about a whole file that could not be read.
    pub fn file_error(&mut self, file: &str, text: impl Into<String>) {
        self.errors += 1;
        self.messages.push(Message {
            severity: Severity::Error,
            file: Some(file.into()),
            line: 0,
            column: 0,
            text: text.into(),
        });
    }

    /// Is there an error among them?
    pub fn failed(&self) -> bool {
        self.errors > 0
    }

    /// So many errors that looking for more is a waste.
    pub fn flooded(&self) -> bool {
        self.errors > 2 * MOST_MESSAGES
    }

    /// How many errors so far, those not kept included.
    pub fn error_count(&self) -> usize {
        self.errors
    }

    /// All messages, errors first, then in file order of their finding.
    pub fn into_messages(self) -> Vec<Message> {
        let mut messages = self.messages;
        messages.sort_by_key(|m| m.severity != Severity::Error);
        messages
    }
}

/// The nearest of `names`, when it is near enough to be what was meant.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long words cannot be typing errors, and comparing them costs their length squared.
    if word.len() > 64 {
        return None;
    }
    let lower = word.to_lowercase();
    names
        .into_iter()
        .filter(|name| name.len() <= 64)
        .map(|name| {
            let lowered = name.to_lowercase();
            let tail = lowered.rsplit('.').next() == Some(lower.as_str());
            // A short word with two letters swapped is near by count, not by share.
            let slip = lower.len() >= 3 && strsim::osa_distance(&lower, &lowered) == 1;
            let share = strsim::normalized_damerau_levenshtein(&lower, &lowered);
            let near = strsim::jaro_winkler(&lower, &lowered).max(share).max(if slip { 0.76 } else { 0.0 });
            (if tail { 1.0 } else { near }, name)
        })
        .filter(|(near, _)| *near >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// "; did you mean `x`?" or a list of what there is, or nothing.
pub(crate) fn suggest<'a>(word: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(near) = nearest(word, names.clone()) {
        return format!("; did you mean `{near}`?");
    }
    let all: Vec<&str> = names.into_iter().collect();
    match all.len() {
        0 => String::new(),
        1..=12 => format!("; there is {}", list(&all)),
        n => format!("; there are {n}, such as {}", list(&all[..6])),
    }
}

/// "`a`, `b` and `c`".
pub(crate) fn list<S: AsRef<str>>(names: &[S]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("`{}`", clip(n.as_ref()))).collect();
    match quoted.as_slice() {
        [] => "nothing".into(),
        [one] => one.clone(),
        [start @ .., last] => format!("{} and {last}", start.join(", ")),
    }
}

/// A text short enough for a sentence, control characters made visible.
pub(crate) fn clip(text: &str) -> String {
    let mut out: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    out = out.replace("\\'", "'").replace("\\\"", "\"");
    if text.chars().nth(60).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters() {
        let mut reports = Reports::default();
        let file = reports.add_source("g.toml", "ab\nüx = 1\n");
        reports.error(Spot::new(file, 5), "here");
        assert_eq!(reports.into_messages()[0].to_string(), "g.toml:2:2: here");
    }

    #[test]
    fn names_that_are_far_are_not_suggested() {
        assert_eq!(nearest("audio.resampel", ["audio.resample", "audio.vad"]), Some("audio.resample"));
        assert_eq!(nearest("resample", ["audio.resample", "audio.vad"]), Some("audio.resample"));
        assert_eq!(nearest("zzzz", ["audio.resample", "audio.vad"]), None);
    }
}
