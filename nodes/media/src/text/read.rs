//! `text.read`: a file or standard input, line by line as it arrives, or whole.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use oxiline_graph::payload::Text;
use oxiline_graph::{Error, Io, Node, Output, PortType, Prepare, Result, Setup, Timed};
use schemars::JsonSchema;
use serde::Deserialize;

/// Pieces read ahead of the graph.
const AHEAD: usize = 16;
/// How often a waiting reader looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(20);

/// What one segment of the output is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// A line, without its end; empty lines are left out.
    #[default]
    Line,
    /// The lines up to an empty one, joined by line ends.
    Paragraph,
    /// Everything, as it is.
    Whole,
}

/// Options of `text.read`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextReadOptions {
    /// A file, or "-" for standard input, read as it arrives.
    #[serde(default = "stdin")]
    pub from: String,
    /// line, paragraph or whole: what is sent at a time.
    #[serde(default)]
    pub by: By,
    /// Most bytes of one piece.
    #[serde(default = "limit")]
    pub limit: u64,
}

fn stdin() -> String {
    "-".into()
}

fn limit() -> u64 {
    16 << 20
}

impl Default for TextReadOptions {
    fn default() -> Self {
        Self { from: stdin(), by: By::default(), limit: limit() }
    }
}

/// Reads text.
pub struct TextRead {
    options: TextReadOptions,
    source: Option<Box<dyn BufRead + Send>>,
}

impl Node for TextRead {
    const KIND: &'static str = "text.read";
    const ABOUT: &'static str = "Reads a text file or standard input: a line, a paragraph or the whole at a time.";
    type Options = TextReadOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        if options.from.is_empty() {
            return Err(Error::msg("`from` is empty: name a text file, or - for standard input"));
        }
        if options.limit == 0 {
            return Err(Error::msg("`limit` is 0: give the most bytes of one piece, like 1048576"));
        }
        setup.output("text", PortType::Text);
        setup.memory(options.limit.saturating_mul(AHEAD as u64 + 2));
        setup.skips_item_errors();
        Ok(Self { options, source: None })
    }

    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        let from = &self.options.from;
        self.source = Some(if from == "-" {
            Box::new(BufReader::new(std::io::stdin()))
        } else {
            let file = File::open(from)
                .map_err(|e| Error::msg(format_args!("`{from}` cannot be read: {e}; is the name right?")))?;
            if file.metadata().is_ok_and(|m| m.is_dir()) {
                return Err(Error::msg(format_args!("`{from}` is a directory; name a text file")));
            }
            Box::new(BufReader::new(file))
        });
        Ok(())
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let output: Output<Text> = io.output("text")?;
        let source = self.source.take().ok_or_else(|| Error::msg("`text.read` was run before it was prepared"))?;
        // A read may block for ever (a terminal, a pipe), so it has a thread of its own; the graph can
        // end without it.
        let (send, receive) = sync_channel(AHEAD);
        let (by, limit, name) = (self.options.by, self.options.limit, place(&self.options.from));
        std::thread::Builder::new()
            .name("text.read".into())
            .spawn(move || read(source, by, limit, &name, &send))
            .map_err(|e| Error::msg(format_args!("cannot start the thread that reads text: {e}")))?;
        while let Some(piece) = next(&receive, io)? {
            match piece {
                Ok(text) => {
                    output.send(Timed::at(io.now(), 0, Text { text: text.into(), delta: false }))?;
                    io.count("pieces", 1);
                }
                Err(error) => io.item_error(error)?,
            }
        }
        Ok(())
    }
}

fn place(from: &str) -> String {
    if from == "-" { "standard input".into() } else { format!("`{from}`") }
}

/// The next piece; `None` at the end of the text or of the graph.
fn next(receive: &Receiver<Result<String>>, io: &Io) -> Result<Option<Result<String>>> {
    loop {
        if io.stopping() {
            return Ok(None);
        }
        io.check()?;
        match receive.recv_timeout(LOOK) {
            Ok(piece) => return Ok(Some(piece)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

/// Reads to the end or until nobody listens.
fn read(mut source: Box<dyn BufRead + Send>, by: By, limit: u64, name: &str, send: &SyncSender<Result<String>>) {
    let mut lines = Lines { source: &mut source, limit, name, number: 0 };
    let mut paragraph = String::new();
    loop {
        let piece = if by == By::Whole { lines.whole() } else { lines.line() };
        let (out, more) = match piece {
            Err(broken) => (Some(Err(broken.error)), !broken.fatal && by != By::Whole),
            Ok(None) => (Some(Ok(std::mem::take(&mut paragraph))), false),
            Ok(Some(line)) if by == By::Paragraph => {
                if line.trim().is_empty() {
                    (Some(Ok(std::mem::take(&mut paragraph))), true)
                } else if (paragraph.len() + line.len()) as u64 > limit {
                    (Some(Err(too_long(name, lines.number, limit))), false)
                } else {
                    paragraph.push_str(if paragraph.is_empty() { "" } else { "\n" });
                    paragraph.push_str(&line);
                    (None, true)
                }
            }
            Ok(Some(text)) => (Some(Ok(text)), by != By::Whole),
        };
        let worth = out.filter(|out| out.as_ref().map_or(true, |text| !text.trim().is_empty()));
        if let Some(out) = worth
            && send.send(out).is_err()
        {
            return;
        }
        if !more {
            return;
        }
    }
}

/// A piece that is no text; `fatal`: nothing after it can be read.
struct Broken {
    error: Error,
    fatal: bool,
}

struct Lines<'a> {
    source: &'a mut (dyn BufRead + Send),
    limit: u64,
    name: &'a str,
    number: u64,
}

impl Lines<'_> {
    /// The next line without its end; `None` at the end.
    fn line(&mut self) -> Result<Option<String>, Broken> {
        let mut bytes = Vec::new();
        let read = self.source.take(self.limit.saturating_add(1)).read_until(b'\n', &mut bytes);
        read.map_err(|e| self.io(&e))?;
        self.number += 1;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() as u64 > self.limit && bytes.last() != Some(&b'\n') {
            return Err(Broken { error: too_long(self.name, self.number, self.limit), fatal: true });
        }
        if bytes.pop_if(|b| *b == b'\n').is_some() {
            bytes.pop_if(|b| *b == b'\r');
        }
        self.text(bytes).map(Some)
    }

    /// All of it; `None` when it is empty.
    fn whole(&mut self) -> Result<Option<String>, Broken> {
        let mut bytes = Vec::new();
        let read = self.source.take(self.limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|e| self.io(&e))?;
        self.number = 1;
        if bytes.len() as u64 > self.limit {
            return Err(Broken { error: too_long(self.name, 1, self.limit), fatal: true });
        }
        if bytes.is_empty() { Ok(None) } else { self.text(bytes).map(Some) }
    }

    fn text(&self, bytes: Vec<u8>) -> Result<String, Broken> {
        let mut text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            let error = Error::msg(format_args!(
                "{}, line {}: byte {at} is not UTF-8; convert the text to UTF-8 first",
                self.name, self.number
            ));
            Broken { error, fatal: false }
        })?;
        if self.number == 1 && text.starts_with('\u{feff}') {
            text.remove(0);
        }
        Ok(text)
    }

    fn io(&self, e: &std::io::Error) -> Broken {
        let error = Error::msg(format_args!("{} cannot be read after line {}: {e}", self.name, self.number));
        Broken { error, fatal: true }
    }
}

fn too_long(name: &str, line: u64, limit: u64) -> Error {
    Error::msg(format_args!("{name}, line {line}: a piece is longer than {limit} bytes; raise `limit`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &[u8], by: By, limit: u64) -> Vec<Result<String>> {
        let (send, receive) = sync_channel(1000);
        read(Box::new(std::io::Cursor::new(text.to_vec())), by, limit, "`t`", &send);
        drop(send);
        receive.iter().collect()
    }

    fn texts(text: &str, by: By) -> Vec<String> {
        pieces(text.as_bytes(), by, 1000).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn pieces_are_lines_paragraphs_or_all() {
        let text = "\u{feff}one\r\ntwo\n\n\nthree";
        assert_eq!(texts(text, By::Line), ["one", "two", "three"]);
        assert_eq!(texts(text, By::Paragraph), ["one\ntwo", "three"]);
        assert_eq!(texts(text, By::Whole), ["one\r\ntwo\n\n\nthree"]);
        for by in [By::Line, By::Paragraph, By::Whole] {
            assert!(texts("", by).is_empty() && texts("\n\n", by).is_empty());
        }
    }

    #[test]
    fn what_is_no_text_is_one_sentence_and_the_rest_goes_on() {
        let got = pieces(b"good\nb\xffd\nagain\n", By::Line, 1000);
        assert_eq!(got.len(), 3);
        let error = got[1].as_ref().unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("byte 1"), "{error}");
        assert_eq!(got[2].as_ref().unwrap(), "again");
    }

    #[test]
    fn a_piece_without_end_does_not_fill_memory() {
        for by in [By::Line, By::Paragraph, By::Whole] {
            let got = pieces(&[b'a'; 100], by, 10);
            assert_eq!(got.len(), 1);
            assert!(got[0].as_ref().unwrap_err().to_string().contains("raise `limit`"));
        }
        assert_eq!(pieces(&[b'a'; 10], By::Line, 10).len(), 1);
        assert!(pieces(b"aaaaaaaaaa\nb", By::Line, 10).iter().all(Result::is_ok));
    }
}
