//! Texts from lines, JSON lines or a CSV column, one at a time.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use oxiline::graph::{Error, Result};

use super::args::{Form, Source};

/// Longest text, bytes.
const LONGEST: usize = 16 << 20;

/// A text, or why there is none in its place.
pub enum Item {
    /// A text.
    Text(String),
    /// What is wrong with it.
    Bad(String),
}

/// Texts of a source in order.
pub struct Texts {
    inner: Inner,
    field: String,
    number: u64,
    /// Bytes read, and bytes there are when known.
    pub done: u64,
    /// Bytes of the file.
    pub total: Option<u64>,
    name: String,
}

enum Inner {
    Lines { input: Box<dyn BufRead>, json: bool },
    Csv { reader: Box<csv::Reader<Box<dyn BufRead>>>, column: usize },
}

impl Texts {
    /// Opens a source.
    pub fn open(source: &Source) -> Result<Self> {
        let stdin = source.file == Path::new("-");
        let name = if stdin { "standard input".into() } else { source.file.display().to_string() };
        let (input, total): (Box<dyn BufRead>, _) = if stdin {
            (Box::new(BufReader::new(std::io::stdin())), None)
        } else {
            let file = File::open(&source.file).map_err(|e| Error::msg(format_args!("cannot read {name}: {e}")))?;
            let total = file.metadata().ok().filter(|m| m.is_file()).map(|m| m.len());
            (Box::new(BufReader::with_capacity(1 << 16, file)), total)
        };
        let inner = match source.from {
            Form::Lines => Inner::Lines { input, json: false },
            Form::Jsonl => Inner::Lines { input, json: true },
            Form::Csv => {
                let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(input);
                let header = reader
                    .byte_headers()
                    .map_err(|e| Error::msg(format_args!("{name}: the header of the CSV file cannot be read: {e}")))?;
                let named = header.iter().position(|h| h == source.field.as_bytes());
                let numbered = source.field.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
                let Some(column) = named.or(numbered.filter(|n| *n < header.len())) else {
                    let names: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
                    return Err(Error::msg(format_args!(
                        "{name}: there is no column `{}`; its columns: {}",
                        source.field.escape_debug(),
                        names.join(", ").escape_debug()
                    )));
                };
                Inner::Csv { reader: Box::new(reader), column }
            }
        };
        Ok(Self { inner, field: source.field.clone(), number: 0, done: 0, total, name })
    }

    /// The next text; None at the end.
    ///
    /// # Errors
    /// The source cannot be read any more.
    pub fn next(&mut self) -> Result<Option<Item>> {
        let failed = |name: &str, e: &dyn std::fmt::Display| Error::msg(format_args!("cannot read {name}: {e}"));
        self.number += 1;
        let bytes = match &mut self.inner {
            Inner::Lines { input, .. } => {
                let mut line = Vec::new();
                let mut limited = input.by_ref().take(LONGEST as u64 + 1);
                let read = limited.read_until(b'\n', &mut line).map_err(|e| failed(&self.name, &e))?;
                if read == 0 {
                    return Ok(None);
                }
                self.done += read as u64;
                let whole = line.last() == Some(&b'\n');
                if !whole && read > LONGEST {
                    self.done += skip_line(input).map_err(|e| failed(&self.name, &e))?;
                    return Ok(Some(self.bad(format_args!("is longer than {} MiB", LONGEST >> 20))));
                }
                if whole {
                    line.pop();
                    if line.last() == Some(&b'\r') {
                        line.pop();
                    }
                }
                line
            }
            Inner::Csv { reader, column } => {
                let mut record = csv::ByteRecord::new();
                let more = reader.read_byte_record(&mut record).map_err(|e| failed(&self.name, &e))?;
                if !more {
                    return Ok(None);
                }
                self.done = reader.position().byte();
                match record.get(*column) {
                    Some(bytes) => bytes.to_vec(),
                    None => {
                        return Ok(Some({
                            let column = *column + 1;
                            self.bad(format_args!("has no column {column}"))
                        }));
                    }
                }
            }
        };
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => {
                let at = e.utf8_error().valid_up_to();
                return Ok(Some(self.bad(format_args!("is not UTF-8 (byte {})", at + 1))));
            }
        };
        if !matches!(self.inner, Inner::Lines { json: true, .. }) {
            return Ok(Some(Item::Text(text)));
        }
        Ok(Some(match serde_json::from_str::<serde_json::Value>(&text) {
            Ok(serde_json::Value::String(text)) => Item::Text(text),
            Ok(value) => match value.get(&self.field).and_then(|v| v.as_str()) {
                Some(text) => Item::Text(text.into()),
                None => self.bad(format_args!("has no string `{}`", self.field.escape_debug())),
            },
            Err(_) => self.bad(format_args!("is not JSON")),
        }))
    }

    fn bad(&self, why: std::fmt::Arguments<'_>) -> Item {
        let what = if matches!(self.inner, Inner::Csv { .. }) { "row" } else { "line" };
        Item::Bad(format!("{what} {} of {} {why}", self.number, self.name))
    }
}

/// Reads the rest of a line away; its bytes.
fn skip_line(input: &mut dyn BufRead) -> std::io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = input.fill_buf()?;
        let (count, end) = match buffer.iter().position(|b| *b == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(count);
        skipped += count as u64;
        if end {
            return Ok(skipped);
        }
    }
}
