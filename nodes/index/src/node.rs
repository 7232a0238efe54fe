//! `index.write`: what was said becomes searchable.

use std::path::Path;

use oxiline_graph::payload::Transcript;
use oxiline_graph::protocol::embed::{EmbedOptions, EmbedReply, EmbedRequest, EmbedText, EmbedTexts};
use oxiline_graph::{EosReason, Error, Incoming, Input, Io, ModelRef, Node, PortType, Result, Setup, Timed, bail};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::passage::{Passages, Place};
use crate::store::{About, Index};

/// Options of `index.write`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IndexWriteOptions {
    /// The index's folder; made when it is not there.
    pub to: String,
    /// The name of the recording in the index: its file.
    pub name: String,
    /// The embedding model as `oxiline search` is to load it: the same as the model's weights.
    pub embedder: String,
}

/// Writes a transcript into an index.
pub struct IndexWrite {
    options: IndexWriteOptions,
    model: ModelRef<EmbedText>,
}

impl Node for IndexWrite {
    const KIND: &'static str = "index.write";
    const ABOUT: &'static str = "Puts the passages of a transcript, with their times and vectors, into a search index.";
    type Options = IndexWriteOptions;

    fn new(options: IndexWriteOptions, setup: &mut Setup) -> Result<Self> {
        if options.to.is_empty() || options.name.is_empty() {
            bail!("`to` and `name` are the index's folder and the recording's name: neither may be empty");
        }
        setup.input("transcript", PortType::Transcript);
        setup.memory_grows("the text of the whole transcript and its vectors, about 10 kB a minute of speech");
        setup.cancellable();
        Ok(Self { options, model: setup.model()? })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Transcript> = io.input("transcript")?;
        let mut passages = Passages::default();
        loop {
            match input.next()? {
                Incoming::Data(Timed { value: Transcript(update), .. }) if update.is_final => {
                    passages.push(Place::Time(update.t0 as f64 / 1e9), &update.stable);
                }
                Incoming::Data(_) | Incoming::Gap(_) | Incoming::Mark(_) => {}
                Incoming::End(EosReason::Complete) => break,
                Incoming::End(_) => {
                    io.note(format!("`{}` was not indexed: the work stopped before its end", self.options.name));
                    return Ok(());
                }
            }
        }
        let passages = passages.finish();
        let mut session = self.model.open(())?;
        let mut about = None;
        for reply in session.ask(EmbedRequest::About)? {
            if let EmbedReply::About(told) = reply {
                about = Some(told);
            }
        }
        let about = about.ok_or_else(|| Error::msg("the embedding model does not say what it is"))?;
        let known = |name: &&str| about.prompts.iter().any(|(known, _)| known == name);
        let prompt_name = ["document", "passage"].into_iter().find(known).map(str::to_owned);
        let ask = EmbedTexts {
            texts: passages.iter().map(|p| p.text.clone()).collect(),
            options: EmbedOptions { prompt_name, ..EmbedOptions::default() },
        };
        let mut vectors = Vec::with_capacity(passages.len());
        for reply in session.ask(EmbedRequest::Texts(ask))? {
            if let EmbedReply::Vectors(some) = reply {
                vectors.extend(some.into_iter().map(|one| one.dense));
            }
        }
        let index = Index::create(Path::new(&self.options.to), &About::new(&self.options.embedder, about.dim))?;
        io.report("passages", passages.len().into());
        index.put(&self.options.name, "", &passages, &vectors)
    }
}
