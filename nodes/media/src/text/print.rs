//! `text.print`: text to standard output as it comes.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use oxiline_graph::payload::Text;
use oxiline_graph::{Error, Incoming, Input, Io, Mark, Node, Output, PortType, Result, Setup};
use schemars::JsonSchema;
use serde::Deserialize;

/// Where `text.print` prints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Screen {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

/// Options of `text.print`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TextPrintOptions {
    /// stdout or stderr.
    pub to: Screen,
    /// Dim on a terminal: thinking, notes.
    pub dim: bool,
}

/// Prints text.
pub struct TextPrint {
    options: TextPrintOptions,
}

impl Node for TextPrint {
    const KIND: &'static str = "text.print";
    const ABOUT: &'static str =
        "Prints text as it comes, each piece at once, and sends it on when it is printed; a segment ends its line.";
    type Options = TextPrintOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        setup.input("text", PortType::Text);
        setup.optional_output("text", PortType::Text);
        if options.to == Screen::Stdout {
            setup.writes("-".into());
        }
        setup.memory(64 << 10);
        Ok(Self { options })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Text> = io.input("text")?;
        let (mut out, terminal): (Box<dyn Write>, bool) = match self.options.to {
            Screen::Stdout => (Box::new(io::stdout()), io::stdout().is_terminal()),
            Screen::Stderr => (Box::new(io::stderr()), io::stderr().is_terminal()),
        };
        let printed: Output<Text> = io.output("text")?;
        let mut heard = printed.connected();
        let mut lines = Lines::default();
        loop {
            let next = input.next();
            let (text, ended) = match &next {
                Ok(Incoming::Data(item)) => (lines.text(&item.value), false),
                // A cancelled answer ends its line too, so that what follows does not hang on to it.
                Ok(Incoming::Mark(Mark::SegmentEnd { .. } | Mark::Flush(_))) => (lines.end(), false),
                Ok(Incoming::Gap(_) | Incoming::Mark(_)) => (String::new(), false),
                Ok(Incoming::End(_)) | Err(_) => (lines.end(), true),
            };
            if !print(&mut *out, &text, terminal, terminal && self.options.dim)? {
                return Ok(());
            }
            if ended {
                return next.map(|_| ());
            }
            let sent = match next? {
                Incoming::Data(item) if heard => printed.send(item),
                Incoming::Gap(gap) if heard => printed.gap(gap),
                Incoming::Mark(mark) if heard => printed.mark(mark),
                _ => Ok(()),
            };
            match sent {
                // Whoever listened has ended; what comes is printed all the same.
                Err(Error::Cancelled) => heard = false,
                sent => sent?,
            }
        }
    }
}

/// Prints at once. False: nobody reads any more.
fn print(out: &mut dyn Write, text: &str, terminal: bool, dim: bool) -> Result<bool> {
    if text.is_empty() {
        return Ok(true);
    }
    let text = if terminal { printable(text) } else { Cow::Borrowed(text) };
    // One write, so that an interrupt cannot leave half an escape code.
    let text = if dim { Cow::Owned(format!("\x1b[2m{text}\x1b[22m")) } else { text };
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::msg(format_args!("text cannot be printed: {e}"))),
    }
}

/// The text with control characters replaced: what a model says must not steer a terminal.
/// Line ends and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if text.contains(steers) { text.replace(steers, "\u{fffd}").into() } else { Cow::Borrowed(text) }
}

/// Line ends around pieces and whole segments.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    open: bool,
}

impl Lines {
    /// What to write for `text`.
    pub fn text(&mut self, text: &Text) -> String {
        let mut out = String::new();
        if !text.delta {
            out.push_str(&self.end());
        }
        out.push_str(&text.text);
        self.open = if out.is_empty() { self.open } else { !out.ends_with('\n') };
        if !text.delta {
            out.push_str(&self.end());
        }
        out
    }

    /// What ends the line, where it is not ended.
    pub fn end(&mut self) -> String {
        if std::mem::take(&mut self.open) { "\n".into() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str, delta: bool) -> Text {
        Text { text: text.into(), delta }
    }

    #[test]
    fn pieces_are_joined_and_segments_are_lines() {
        let mut lines = Lines::default();
        let mut out = String::new();
        for (text, delta) in [("He", true), ("llo", true), ("whole", false), ("ended\n", false), ("", true)] {
            out.push_str(&lines.text(&said(text, delta)));
        }
        out.push_str(&lines.end());
        assert_eq!(out, "Hello\nwhole\nended\n");
    }

    #[test]
    fn a_model_cannot_steer_the_terminal() {
        assert_eq!(printable("a\tb\nc"), "a\tb\nc");
        assert_eq!(printable("\x1b]0;t\x07\u{9b}2J"), "\u{fffd}]0;t\u{fffd}\u{fffd}2J");
        let mut out = Vec::new();
        assert!(print(&mut out, "x", true, true).unwrap());
        assert_eq!(out, b"\x1b[2mx\x1b[22m");
    }

    #[test]
    fn a_closed_pipe_ends_quietly() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(!print(&mut Closed, "x", false, false).unwrap());
    }
}
