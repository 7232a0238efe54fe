//! Caption files: text, SRT, WebVTT, JSON, TSV and LRC, written as segments come.

mod file;
mod print;
mod wrap;

use std::io::{self, Write};

use oxiline_graph::payload::Update;
use oxiline_graph::protocol::speech::{Segment, Word};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use file::{CaptionOutput, Written};
pub use print::{CaptionPrint, CaptionPrintOptions};
pub use wrap::wrap;

/// A caption format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One line a segment.
    #[default]
    Text,
    /// SubRip.
    Srt,
    /// WebVTT.
    Vtt,
    /// One object: `segments`, `language`, `duration`, `text`.
    Json,
    /// Start and end in milliseconds, text; with a header line.
    Tsv,
    /// Lyrics: `[mm:ss.xx]line`.
    Lrc,
}

impl Format {
    /// All, with their names.
    pub const ALL: [(&'static str, Self); 6] = [
        ("text", Self::Text),
        ("srt", Self::Srt),
        ("vtt", Self::Vtt),
        ("json", Self::Json),
        ("tsv", Self::Tsv),
        ("lrc", Self::Lrc),
    ];

    /// The formats by name, for messages.
    pub fn names() -> String {
        Self::ALL.map(|(name, _)| name).join(", ")
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// The usual file extension.
    pub fn extension(self) -> &'static str {
        if self == Self::Text { "txt" } else { self.name() }
    }

    /// The format a file name asks for.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::by_name(path.rsplit_once('.')?.1)
    }

    /// By name or file extension (`txt` is text).
    pub fn by_name(name: &str) -> Option<Self> {
        let name = match name.to_ascii_lowercase().as_str() {
            "txt" => "text".into(),
            "webvtt" => "vtt".into(),
            other => other.to_string(),
        };
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }
}

/// One finished segment. Times in seconds from the start of the media.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Caption {
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
    /// What was said.
    pub text: String,
    /// Language code, when known.
    pub language: Option<String>,
    /// Words with times, when asked for.
    pub words: Vec<Word>,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Mean log-probability of the tokens.
    pub avg_logprob: Option<f32>,
    /// Probability that nothing was said.
    pub no_speech_prob: Option<f32>,
    /// Temperature it was decoded at.
    pub temperature: Option<f32>,
    /// Compression ratio of the text.
    pub compression_ratio: Option<f32>,
}

impl From<&Update> for Caption {
    fn from(update: &Update) -> Self {
        Self {
            start: update.t0 as f64 / 1e9,
            end: update.t1 as f64 / 1e9,
            text: [&update.stable[..], &update.unstable].concat(),
            language: update.lang.clone(),
            words: update.words.clone(),
            tokens: update.tokens.clone(),
            avg_logprob: update.avg_logprob,
            no_speech_prob: update.no_speech_prob,
            temperature: update.temperature,
            compression_ratio: update.compression_ratio,
        }
    }
}

impl From<&Segment> for Caption {
    fn from(segment: &Segment) -> Self {
        Self {
            start: segment.start,
            end: segment.end,
            text: segment.text.clone(),
            language: None,
            words: segment.words.clone(),
            tokens: segment.tokens.clone(),
            avg_logprob: Some(segment.avg_logprob),
            no_speech_prob: Some(segment.no_speech_prob),
            temperature: Some(segment.temperature),
            compression_ratio: Some(segment.compression_ratio),
        }
    }
}

/// Writes captions of one format to anything. Times never run backwards and never pass the end.
pub struct CaptionWriter<W: Write> {
    out: W,
    format: Format,
    max_line: Option<usize>,
    limit: f64,
    started: bool,
    count: usize,
    numbered: usize,
    last_start: f64,
    last_end: f64,
    language: Option<String>,
    text: String,
}

impl<W: Write> CaptionWriter<W> {
    /// A writer of `format`. `max_line` wraps lines of SRT, VTT and LRC at so many columns.
    pub fn new(out: W, format: Format, max_line: Option<usize>) -> Self {
        Self {
            out,
            format,
            max_line: max_line.filter(|&n| n > 0),
            limit: f64::INFINITY,
            started: false,
            count: 0,
            numbered: 0,
            last_start: 0.0,
            last_end: 0.0,
            language: None,
            text: String::new(),
        }
    }

    /// The media ends here (seconds): no later time is written.
    pub fn limit(&mut self, seconds: f64) {
        if seconds.is_finite() && seconds >= 0.0 {
            self.limit = seconds;
        }
    }

    /// Segments written.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The output underneath.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Writes a segment and flushes.
    ///
    /// # Errors
    /// What the output reports.
    pub fn push(&mut self, caption: &Caption) -> io::Result<()> {
        self.begin()?;
        let tidy = |t: f64| if t.is_finite() { t.max(0.0) } else { 0.0 };
        let start = tidy(caption.start).max(self.last_start).min(self.limit);
        let end = tidy(caption.end).max(start).min(self.limit);
        self.last_start = start;
        self.last_end = self.last_end.max(end);
        if self.language.is_none() {
            self.language.clone_from(&caption.language);
        }
        let line = one_line(&caption.text);
        match self.format {
            Format::Json => {
                let object = json_segment(self.count, start, end, caption, self.limit);
                let comma = if self.count == 0 { "" } else { "," };
                write!(self.out, "{comma}\n{object}")?;
                self.text.push_str(&caption.text);
            }
            // A cue without text is none.
            _ if line.is_empty() => {}
            Format::Text => writeln!(self.out, "{line}")?,
            Format::Tsv => writeln!(self.out, "{}\t{}\t{line}", millis(start), millis(end))?,
            Format::Srt => {
                self.numbered += 1;
                // SubRip knows no escapes, and this arrow would start a new time line.
                let line = line.replace("-->", "->");
                let (start, end) = (clock(start, ','), clock(end, ','));
                writeln!(self.out, "{}\n{start} --> {end}\n{}\n", self.numbered, self.lines(&line).join("\n"))?;
            }
            Format::Vtt => {
                let lines: Vec<String> = self.lines(&line).iter().map(|l| escape_vtt(l)).collect();
                writeln!(self.out, "{} --> {}\n{}\n", clock(start, '.'), clock(end, '.'), lines.join("\n"))?;
            }
            Format::Lrc => self.lrc(&line, start, end)?,
        }
        self.count += 1;
        self.out.flush()
    }

    /// Ends the file; `duration` is the length of the media in seconds if known.
    ///
    /// # Errors
    /// What the output reports.
    pub fn finish(&mut self, duration: Option<f64>) -> io::Result<()> {
        self.begin()?;
        if self.format == Format::Json {
            let duration = duration.filter(|d| d.is_finite()).unwrap_or(self.last_end);
            write!(
                self.out,
                "{}],\n\"language\": {},\n\"duration\": {},\n\"text\": {}\n}}\n",
                if self.count > 0 { "\n" } else { "" },
                json!(self.language),
                round(duration),
                json!(self.text)
            )?;
        }
        self.out.flush()
    }

    fn begin(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.started, true) {
            return Ok(());
        }
        match self.format {
            Format::Vtt => self.out.write_all(b"WEBVTT\n\n"),
            Format::Json => self.out.write_all(b"{\n\"segments\": ["),
            Format::Tsv => self.out.write_all(b"start\tend\ttext\n"),
            Format::Text | Format::Srt | Format::Lrc => Ok(()),
        }
    }

    fn lines(&self, line: &str) -> Vec<String> {
        match self.max_line {
            Some(width) => wrap(line, width),
            None => vec![line.to_string()],
        }
    }

    /// Lyrics have one time for each line: a wrapped segment's lines share its time by length.
    fn lrc(&mut self, line: &str, start: f64, end: f64) -> io::Result<()> {
        let lines = self.lines(line);
        let all = lines.iter().map(|l| l.chars().count()).sum::<usize>().max(1) as f64;
        let mut before = 0usize;
        for line in lines {
            let at = centis(start + (end - start) * before as f64 / all);
            before += line.chars().count();
            writeln!(self.out, "[{:02}:{:02}.{:02}]{line}", at / 6000, at / 100 % 60, at % 100)?;
        }
        Ok(())
    }
}

fn json_segment(id: usize, start: f64, end: f64, caption: &Caption, limit: f64) -> Value {
    let mut map = Map::new();
    map.insert("id".into(), json!(id));
    map.insert("start".into(), round(start));
    map.insert("end".into(), round(end));
    map.insert("text".into(), json!(caption.text));
    if !caption.words.is_empty() {
        let word = |w: &Word| {
            json!({
                "word": w.text,
                "start": round(w.start.min(limit)),
                "end": round(w.end.min(limit)),
                "probability": w.probability,
            })
        };
        map.insert("words".into(), caption.words.iter().map(word).collect());
    }
    map.insert("tokens".into(), json!(caption.tokens));
    for (key, value) in [
        ("avg_logprob", caption.avg_logprob),
        ("no_speech_prob", caption.no_speech_prob),
        ("temperature", caption.temperature),
        ("compression_ratio", caption.compression_ratio),
    ] {
        // JSON has no infinity: what is no number is null.
        map.insert(key.into(), json!(value));
    }
    Value::Object(map)
}

/// Seconds to the millisecond, without binary tails like 0.30000000000000004.
fn round(seconds: f64) -> Value {
    json!((seconds * 1000.0).round() / 1000.0)
}

/// All on one line: white space runs become one space.
fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ")
}

fn escape_vtt(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

fn centis(seconds: f64) -> u64 {
    (seconds * 100.0).round() as u64
}

/// `hh:mm:ss.mmm`; more than 99 hours take more digits.
fn clock(seconds: f64, point: char) -> String {
    let ms = millis(seconds);
    format!("{:02}:{:02}:{:02}{point}{:03}", ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
}

#[cfg(test)]
mod tests;
