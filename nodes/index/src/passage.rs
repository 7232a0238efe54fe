//! Texts cut into passages of a few sentences, each with its place.

use serde::Serialize;

/// Longest passage, bytes: what embedding models read without cutting.
const LONGEST: usize = 700;
/// A passage that is as long ends with its line.
const ENOUGH: usize = 300;

/// Where a passage begins.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Line, from 1.
    Line(u64),
    /// Seconds from the start of the recording.
    Time(f64),
}

/// A few sentences.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// Where it begins.
    pub place: Place,
    /// The text.
    pub text: String,
}

/// Collects passages out of pieces with their places.
#[derive(Debug, Default)]
pub struct Passages {
    done: Vec<Passage>,
    open: Option<Passage>,
}

impl Passages {
    /// Adds a piece: a line, a caption, a segment of speech. An empty one ends a passage.
    pub fn push(&mut self, place: Place, piece: &str) {
        let piece = piece.trim();
        if piece.is_empty() {
            self.close();
            return;
        }
        if self.open.as_ref().is_some_and(|open| open.text.len() + piece.len() > LONGEST) {
            self.close();
        }
        for part in parts(piece) {
            match &mut self.open {
                Some(open) => {
                    open.text.push(' ');
                    open.text.push_str(part);
                }
                None => self.open = Some(Passage { place, text: part.into() }),
            }
            if self.open.as_ref().is_some_and(|open| open.text.len() >= ENOUGH) {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        self.done.extend(self.open.take());
    }

    /// All passages.
    pub fn finish(mut self) -> Vec<Passage> {
        self.close();
        self.done
    }

    /// The passages of a text file: lines, or the cues of SubRip or WebVTT captions.
    pub fn of_text(text: &str) -> Vec<Passage> {
        let mut passages = Self::default();
        let captions = text.lines().any(|line| cue(line).is_some());
        // In captions: the time of the cue one is in; none in a header, a note, or between cues.
        let mut time = None;
        for (i, line) in text.lines().enumerate() {
            if !captions {
                passages.push(Place::Line(i as u64 + 1), line);
            } else if let Some(at) = cue(line) {
                time = Some(at);
            } else if line.trim().is_empty() {
                time = None;
            } else if let Some(at) = time {
                passages.push(Place::Time(at), line);
            }
        }
        passages.finish()
    }
}

/// Pieces of at most [`LONGEST`] bytes, cut at spaces where there are some.
fn parts(mut text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while text.len() > LONGEST {
        let most = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(LONGEST);
        let at = text[..most].rfind(' ').filter(|at| *at > 0).unwrap_or(most);
        parts.push(text[..at].trim_end());
        text = text[at..].trim_start();
    }
    if !text.is_empty() {
        parts.push(text);
    }
    parts
}

/// Start of a line of captions such as `00:01:02,500 --> 00:01:04,000`, seconds.
fn cue(line: &str) -> Option<f64> {
    let (start, _) = line.split_once("-->")?;
    let start = start.trim().replace(',', ".");
    let mut seconds = 0.0;
    for part in start.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok().filter(|v| *v >= 0.0 && v.is_finite())?;
    }
    Some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_passages_with_their_lines() {
        let passages = Passages::of_text("One.\nTwo.\n\n\nThree.\n");
        let got: Vec<(Place, &str)> = passages.iter().map(|p| (p.place, p.text.as_str())).collect();
        assert_eq!(got, [(Place::Line(1), "One. Two."), (Place::Line(5), "Three.")]);
    }

    #[test]
    fn captions_keep_their_times() {
        let text =
            "WEBVTT\n\n1\n00:00:01.500 --> 00:00:02.000\nHello there.\n\n2\n01:00:03,000 --> 01:00:04,000\nBye.\n";
        let passages = Passages::of_text(text);
        assert_eq!(passages, [Passage { place: Place::Time(1.5), text: "Hello there. Bye.".into() }]);
    }

    #[test]
    fn no_passage_is_longer_than_a_model_reads_and_nothing_is_lost() {
        let text = "wörd ".repeat(1000);
        let passages = Passages::of_text(&text);
        assert!(passages.iter().all(|p| p.text.len() <= LONGEST), "all short");
        let words: usize = passages.iter().map(|p| p.text.split(' ').count()).sum();
        assert_eq!(words, 1000);
        let one = Passages::of_text(&"é".repeat(2000));
        assert_eq!(one.iter().map(|p| p.text.chars().filter(|c| *c == 'é').count()).sum::<usize>(), 2000);
    }
}
