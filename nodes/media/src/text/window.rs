//! `text.window`: what was said, in windows of time.

use std::collections::VecDeque;

use oxiline_graph::payload::{Text, Transcript};
use oxiline_graph::{Error, Incoming, Input, Io, Mark, Nanos, Node, Output, PortType, Result, Setup, Span, Timed};
use schemars::JsonSchema;
use serde::Deserialize;

/// Options of `text.window`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextWindowOptions {
    /// A window ends every so often (media time).
    pub every: Span,
    /// A window begins so long before the end of the one before it.
    #[serde(default)]
    pub overlap: Span,
}

/// Collects windows.
pub struct TextWindow {
    options: TextWindowOptions,
}

impl Node for TextWindow {
    const KIND: &'static str = "text.window";
    const ABOUT: &'static str = "Joins finished segments of a transcript to the text of regular windows of time.";
    type Options = TextWindowOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        if options.every.nanos() == 0 {
            return Err(Error::msg("`every` is 0: give the length of a window, like \"2m\""));
        }
        setup.input("transcript", PortType::Transcript);
        setup.output("text", PortType::Text);
        setup.latency(Span::ms(0), options.every);
        setup.memory_grows("the text of one window, about 1 kB a minute of speech");
        Ok(Self { options })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Transcript> = io.input("transcript")?;
        let output: Output<Text> = io.output("text")?;
        let mut windows = Windows::new(self.options.every.nanos(), self.options.overlap.nanos());
        let send = |window: Option<Window>| match window {
            Some(Window { from, to, text }) => {
                io.count("windows", 1);
                output.send(Timed::at(from.max(0), to - from.max(0), Text { text: text.into(), delta: false }))
            }
            None => Ok(()),
        };
        loop {
            io.check()?;
            match input.next()? {
                Incoming::Data(Timed { value: Transcript(update), .. }) if update.is_final => {
                    send(windows.reach(update.t0))?;
                    windows.push(update.t0, &update.stable);
                }
                Incoming::Data(_) => {}
                Incoming::Gap(gap) => {
                    send(windows.reach(gap.to))?;
                    output.gap(gap)?;
                }
                Incoming::Mark(mark) => {
                    match mark {
                        Mark::Bound(at) => send(windows.reach(at))?,
                        Mark::Flush(_) => windows.clear(),
                        _ => {}
                    }
                    output.mark(mark)?;
                }
                Incoming::End(_) => return send(windows.finish()),
            }
        }
    }
}

/// The text of `from..to`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Window {
    from: Nanos,
    to: Nanos,
    text: String,
}

/// Segments on their way into windows `[k * every - overlap, (k + 1) * every)`. A segment belongs to
/// a window when it begins in it.
struct Windows {
    every: Nanos,
    overlap: Nanos,
    held: VecDeque<(Nanos, String)>,
    /// End of the window that is being collected; known once something was said.
    end: Option<Nanos>,
}

impl Windows {
    fn new(every: Nanos, overlap: Nanos) -> Self {
        Self { every, overlap, held: VecDeque::new(), end: None }
    }

    /// End of the window that `at` lies in.
    fn end_of(&self, at: Nanos) -> Nanos {
        at.div_euclid(self.every).saturating_add(1).saturating_mul(self.every)
    }

    /// Nothing before `at` will come any more: the window that is whole by then.
    fn reach(&mut self, at: Nanos) -> Option<Window> {
        let end = self.end.filter(|&end| at >= end)?;
        let window = self.window(end);
        // Windows in which nothing new was said are not sent.
        self.end = None;
        let keep = end.saturating_sub(self.overlap);
        self.held.retain(|(t, _)| *t >= keep);
        window
    }

    fn push(&mut self, at: Nanos, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        if self.end.is_none() {
            let end = self.end_of(at);
            self.end = Some(end);
            let from = end.saturating_sub(self.every).saturating_sub(self.overlap);
            self.held.retain(|(t, _)| *t >= from);
        }
        self.held.push_back((at, text.to_string()));
    }

    fn finish(&mut self) -> Option<Window> {
        let end = self.end.take()?;
        self.window(end)
    }

    fn clear(&mut self) {
        self.held.clear();
        self.end = None;
    }

    fn window(&self, end: Nanos) -> Option<Window> {
        // Segments carry the space before them where their language has one.
        let text: String = self.held.iter().map(|(_, text)| text.as_str()).collect();
        let from = end.saturating_sub(self.every).saturating_sub(self.overlap);
        Some(Window { from, to: end, text: text.trim().to_string() }).filter(|w| !w.text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_overlap_and_silence_sends_none() {
        let mut windows = Windows::new(100, 20);
        let mut out = Vec::new();
        for (t, text) in [(0, " a"), (85, " b"), (99, " c"), (100, " d"), (120, " e"), (550, " f"), (560, " g")] {
            out.extend(windows.reach(t));
            windows.push(t, text);
        }
        out.extend(windows.finish());
        let got: Vec<(i64, i64, &str)> = out.iter().map(|w| (w.from, w.to, w.text.as_str())).collect();
        assert_eq!(got, [(-20, 100, "a b c"), (80, 200, "b c d e"), (480, 600, "f g")]);
        assert!(windows.finish().is_none());
    }

    #[test]
    fn an_overlap_may_be_longer_than_a_window() {
        let mut windows = Windows::new(10, 25);
        let mut out = Vec::new();
        for t in 0..5 {
            out.extend(windows.reach(t * 10));
            windows.push(t * 10, &t.to_string());
        }
        out.extend(windows.finish());
        let texts: Vec<&str> = out.iter().map(|w| w.text.as_str()).collect();
        assert_eq!(texts, ["0", "01", "012", "123", "234"]);
    }
}
