//! `text.sentences`: a stream of text as clauses and sentences that can be spoken.

use oxiline_graph::payload::Text;
use oxiline_graph::{Error, Header, Incoming, Input, Io, Mark, Node, Output, PortType, Result, Setup, Timed};
use schemars::JsonSchema;
use serde::Deserialize;

use super::split::{Splitter, SplitterOptions};

/// Options of `text.sentences`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TextSentencesOptions {
    /// The first piece of a segment may end at a comma or the like once it has so many characters.
    pub first_min: usize,
    /// No piece is longer than so many characters.
    pub max: usize,
}

impl Default for TextSentencesOptions {
    fn default() -> Self {
        let SplitterOptions { first_min, max } = SplitterOptions::default();
        Self { first_min, max }
    }
}

/// Cuts text into sentences.
pub struct TextSentences {
    options: SplitterOptions,
}

impl Node for TextSentences {
    const KIND: &'static str = "text.sentences";
    const ABOUT: &'static str = "Cuts a stream of text into sentences, the first clause of each segment early.";
    type Options = TextSentencesOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        let TextSentencesOptions { first_min, max } = options;
        if max == 0 || first_min > max {
            return Err(Error::msg(format_args!(
                "`first_min` is {first_min} and `max` is {max}: `max` must be 1 or more and `first_min` not above it"
            )));
        }
        setup.input("text", PortType::Text);
        setup.output("text", PortType::Text);
        setup.cancellable();
        setup.memory(1 << 20);
        Ok(Self { options: SplitterOptions { first_min, max } })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Text> = io.input("text")?;
        let output: Output<Text> = io.output("text")?;
        let mut splitter = Splitter::new(self.options);
        let mut last = Header::default();
        let send = |header: &Header, pieces: Vec<String>| -> Result<()> {
            for text in pieces {
                output.send(Timed { header: *header, value: Text { text: text.into(), delta: false } })?;
                io.count("sentences", 1);
            }
            Ok(())
        };
        loop {
            io.check()?;
            match input.next()? {
                Incoming::Data(Timed { header, value }) => {
                    if !value.delta {
                        send(&last, splitter.flush())?;
                    }
                    last = header;
                    send(&header, splitter.push(&value.text))?;
                    if !value.delta {
                        send(&header, splitter.flush())?;
                    }
                }
                Incoming::Gap(gap) => {
                    send(&last, splitter.flush())?;
                    output.gap(gap)?;
                }
                Incoming::Mark(mark) => {
                    match &mark {
                        Mark::SegmentStart(_) | Mark::SegmentEnd { cancelled: false, .. } => {
                            send(&last, splitter.flush())?;
                            splitter.restart();
                        }
                        Mark::SegmentEnd { cancelled: true, .. } | Mark::Flush(_) => splitter.restart(),
                        Mark::Caps(_) | Mark::Bound(_) | Mark::Eos(_) => {}
                    }
                    output.mark(mark)?;
                }
                Incoming::End(_) => return send(&last, splitter.flush()),
            }
        }
    }
}
