//! `text.write`: text to a file that appears under its name only when it is whole.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use oxiline_graph::payload::Text;
use oxiline_graph::{EosReason, Error, Incoming, Input, Io, Mark, Node, PortType, Prepare, Result, Setup, Timed};
use schemars::JsonSchema;
use serde::Deserialize;

use super::print::Lines;
use crate::place::{Place, full, rename};

/// Options of `text.write`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextWriteOptions {
    /// A file, written as NAME.partial until it is whole, or "-" for standard output.
    pub to: String,
    /// Write at the end of a file that is there already, under its own name.
    #[serde(default)]
    pub append: bool,
}

/// Writes text.
pub struct TextWrite {
    options: TextWriteOptions,
    target: Option<Target>,
}

struct Target {
    out: BufWriter<Box<dyn Sink>>,
    names: Option<(PathBuf, PathBuf)>,
    lines: Lines,
    written: bool,
    place: PathBuf,
}

/// Something to write to that may have to reach the disk.
trait Sink: Write + Send {
    fn reach_disk(&self) -> io::Result<()>;
}

impl Sink for std::fs::File {
    fn reach_disk(&self) -> io::Result<()> {
        // Devices and pipes have no disk below them.
        if self.metadata()?.is_file() { self.sync_data() } else { Ok(()) }
    }
}

impl Sink for io::Stdout {
    fn reach_disk(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Node for TextWrite {
    const KIND: &'static str = "text.write";
    const ABOUT: &'static str = "Writes text to a file: pieces joined as they are, whole segments a line each.";
    type Options = TextWriteOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        if options.to.is_empty() {
            return Err(Error::msg("`to` is empty: name a file, or - for standard output"));
        }
        setup.input("text", PortType::Text);
        setup.writes(options.to.clone().into());
        setup.memory(1 << 20);
        Ok(Self { options, target: None })
    }

    fn prepare(&mut self, _: &Prepare) -> Result<()> {
        let to = self.options.to.as_str();
        let (sink, names): (Box<dyn Sink>, _) = match (to, self.options.append) {
            ("-", _) => (Box::new(io::stdout()), None),
            (to, true) => (Box::new(Place::append("text", to)?.file), None),
            (to, false) => {
                let place = Place::open("text", to)?;
                (Box::new(place.file), place.names)
            }
        };
        let place = names.as_ref().map_or_else(|| PathBuf::from(to), |(_, partial)| partial.clone());
        self.target = Some(Target { out: BufWriter::new(sink), names, lines: Lines::default(), written: false, place });
        Ok(())
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let mut target = self.target.take().ok_or_else(|| Error::msg("`text.write` was run before it was prepared"))?;
        match write_all(io, &mut target) {
            Ok(Some(EosReason::Complete)) => target.complete(),
            Ok(None) => Ok(()),
            Ok(Some(_)) => {
                target.keep_partial().into_iter().for_each(|note| io.note(note));
                Ok(())
            }
            Err(error) => {
                target.keep_partial().into_iter().for_each(|note| io.note(note));
                Err(error)
            }
        }
    }
}

/// Writes until the input ends; `None` when nobody reads any more.
fn write_all(io: &Io, target: &mut Target) -> Result<Option<EosReason>> {
    let input: Input<Text> = io.input("text")?;
    loop {
        let out = match input.next()? {
            Incoming::Data(Timed { value, .. }) => target.lines.text(&value),
            Incoming::Mark(Mark::SegmentEnd { .. }) => target.lines.end(),
            Incoming::Gap(_) | Incoming::Mark(_) => continue,
            Incoming::End(reason) => {
                let last = target.lines.end();
                return Ok(target.write(&last)?.then_some(reason));
            }
        };
        if !target.write(&out)? {
            return Ok(None);
        }
    }
}

impl Target {
    /// Visible to readers of the file at once. False: the reader of the pipe went away.
    fn write(&mut self, text: &str) -> Result<bool> {
        if text.is_empty() {
            return Ok(true);
        }
        self.written = true;
        match self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe && self.names.is_none() => Ok(false),
            Err(e) => Err(full("text", &self.place, &e)),
        }
    }

    fn complete(mut self) -> Result<()> {
        let reached = self.out.flush().and_then(|()| self.out.get_ref().reach_disk());
        reached.map_err(|e| full("text", &self.place, &e))?;
        match &self.names {
            Some((path, partial)) => rename("text is", partial, path),
            None => Ok(()),
        }
    }

    /// Says where the part is that was written before the work stopped.
    fn keep_partial(mut self) -> Option<String> {
        let last = self.lines.end();
        let _ = self.write(&last);
        let (path, partial) = self.names.take()?;
        let path = path.display();
        if !self.written {
            drop(self.out);
            let _ = std::fs::remove_file(&partial);
            return Some(format!("`{path}` was not written: the work stopped before the first text"));
        }
        let partial = partial.display();
        Some(format!("the work stopped before the end: the text so far is in `{partial}`, `{path}` was not written"))
    }
}
