//! `text.embed` and `text.rerank`: text in, vectors or scores out.

use std::sync::Arc;

use oxiline_graph::payload::{Embed, Event, Tensor, Text};
use oxiline_graph::protocol::embed::{
    EmbedOptions, EmbedReply, EmbedRequest, EmbedText, EmbedTexts, Rerank, RerankRequest,
};
use oxiline_graph::{Incoming, Input, Io, Mark, ModelRef, Node, Output, PortType, Result, Setup, Timed, bail};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Texts of an input: pieces joined until a segment ends, whole segments as they are.
struct Segments {
    input: Input<Text>,
    held: Option<Timed<String>>,
}

/// What comes next.
enum Next {
    Text(Timed<String>),
    Gap(oxiline_graph::Gap),
    Mark(Mark),
    End,
}

impl Segments {
    fn next(&mut self, waiting: &mut Vec<Next>) -> Result<Next> {
        if let Some(next) = waiting.pop() {
            return Ok(next);
        }
        loop {
            let next = match self.input.next()? {
                Incoming::Data(item) if item.value.delta => {
                    match &mut self.held {
                        Some(held) => held.value.push_str(&item.value.text),
                        None => {
                            self.held = Some(Timed { header: item.header, value: item.value.text.to_string() });
                        }
                    }
                    continue;
                }
                Incoming::Data(item) => Next::Text(Timed { header: item.header, value: item.value.text.to_string() }),
                Incoming::Gap(gap) => Next::Gap(gap),
                Incoming::Mark(mark) => Next::Mark(mark),
                Incoming::End(_) => Next::End,
            };
            // Whatever is not a piece ends what was said in pieces.
            return Ok(match self.held.take() {
                Some(held) => {
                    waiting.push(next);
                    Next::Text(held)
                }
                None => next,
            });
        }
    }
}

/// Embeds texts.
pub struct TextEmbed {
    options: EmbedOptions,
    model: ModelRef<EmbedText>,
}

impl Node for TextEmbed {
    const KIND: &'static str = "text.embed";
    const ABOUT: &'static str = "Turns every text into a vector, with an embedding model.";
    type Options = EmbedOptions;

    fn new(options: EmbedOptions, setup: &mut Setup) -> Result<Self> {
        if options.sparse || options.colbert {
            bail!("`sparse` and `colbert` are for `oxiline embed` and the library: this node sends one vector a text");
        }
        setup.input("text", PortType::Text);
        setup.output("embed", PortType::Embed);
        setup.memory(1 << 20);
        setup.cancellable();
        Ok(Self { options, model: setup.model()? })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let output: Output<Embed> = io.output("embed")?;
        let mut session = self.model.open(())?;
        let mut segments = Segments { input: io.input("text")?, held: None };
        let (mut waiting, mut cut) = (Vec::new(), 0);
        loop {
            match segments.next(&mut waiting)? {
                Next::Text(text) => {
                    let ask = EmbedTexts { texts: [text.value].into(), options: self.options.clone() };
                    let replies = match session.ask(EmbedRequest::Texts(ask)) {
                        Ok(replies) => replies,
                        Err(error) if error.is_cancelled() => return Err(error),
                        Err(error) => {
                            io.item_error(error)?;
                            continue;
                        }
                    };
                    for reply in replies {
                        let EmbedReply::Vectors(vectors) = reply else { continue };
                        for one in vectors {
                            cut += u64::from(one.cut > 0);
                            let tensor = Tensor { shape: [one.dense.len()].into(), data: one.dense.into() };
                            let value = Embed { modality: "text".into(), tensor };
                            output.send(Timed { header: text.header, value })?;
                        }
                    }
                }
                Next::Gap(gap) => output.gap(gap)?,
                Next::Mark(mark) => output.mark(mark)?,
                Next::End => {
                    if cut > 0 {
                        io.note(format!("{cut} texts were longer than the model reads and were cut"));
                    }
                    return Ok(());
                }
            }
        }
    }
}

/// Options of `text.rerank`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextRerankOptions {
    /// What texts are scored against.
    pub query: String,
    /// Only texts with at least this score are passed on; all when left out.
    #[serde(default)]
    pub least: Option<f32>,
}

/// Scores texts.
pub struct TextRerank {
    options: TextRerankOptions,
    model: ModelRef<Rerank>,
}

impl Node for TextRerank {
    const KIND: &'static str = "text.rerank";
    const ABOUT: &'static str = "Scores every text against a query, with a cross-encoder; passes on those that fit.";
    type Options = TextRerankOptions;

    fn new(options: TextRerankOptions, setup: &mut Setup) -> Result<Self> {
        if options.query.trim().is_empty() {
            bail!("`query` is empty: say what texts are scored against");
        }
        setup.input("text", PortType::Text);
        setup.output("text", PortType::Text);
        setup.output("scores", PortType::Event);
        setup.memory(1 << 20);
        setup.cancellable();
        Ok(Self { options, model: setup.model()? })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let (output, scores): (Output<Text>, Output<Event>) = (io.output("text")?, io.output("scores")?);
        let mut session = self.model.open(())?;
        let mut segments = Segments { input: io.input("text")?, held: None };
        let mut waiting = Vec::new();
        loop {
            match segments.next(&mut waiting)? {
                Next::Text(text) => {
                    let request =
                        RerankRequest { query: self.options.query.clone(), texts: [text.value.clone()].into() };
                    let replies = match session.ask(request) {
                        Ok(replies) => replies,
                        Err(error) if error.is_cancelled() => return Err(error),
                        Err(error) => {
                            io.item_error(error)?;
                            continue;
                        }
                    };
                    for one in replies.into_iter().flatten() {
                        let data = json!({"scores": one.scores, "text": text.value});
                        let event = Event { kind: "score".into(), data: Arc::new(data) };
                        scores.send(Timed { header: text.header, value: event })?;
                        let first = one.scores.first().copied().unwrap_or(f32::NEG_INFINITY);
                        if self.options.least.is_none_or(|least| first >= least) {
                            let value = Text { text: text.value.as_str().into(), delta: false };
                            output.send(Timed { header: text.header, value })?;
                        }
                    }
                }
                Next::Gap(gap) => output.gap(gap)?,
                Next::Mark(mark) => output.mark(mark)?,
                Next::End => return Ok(()),
            }
        }
    }
}
