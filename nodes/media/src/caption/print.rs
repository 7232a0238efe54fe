//! `caption.print`: captions on a screen while they are being said.

use std::io::{self, IsTerminal, Write};

use oxiline_graph::payload::{PortType, Transcript, Update};
use oxiline_graph::{Error, Incoming, Input, Io, Node, Result, Setup, Timed};
use schemars::JsonSchema;
use serde::Deserialize;
use unicode_width::UnicodeWidthChar;

/// Behind by more than this, it is said how much.
const LATE: i64 = 1_000_000_000;
/// Columns where the terminal does not tell.
const COLUMNS: usize = 80;

/// Options of `caption.print`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CaptionPrintOptions {
    /// Columns of a line; left out: those of the terminal.
    pub columns: Option<usize>,
}

/// Prints a transcript on standard output. On a terminal the line of the open segment is drawn again with every
/// revision, text that may still change dimmed; elsewhere finished segments are lines.
pub struct CaptionPrint {
    options: CaptionPrintOptions,
}

impl Node for CaptionPrint {
    const KIND: &'static str = "caption.print";
    const ABOUT: &'static str =
        "Prints captions while they are said: what stays plain, what may change dimmed, and the lag above a second.";
    type Options = CaptionPrintOptions;

    fn new(options: CaptionPrintOptions, setup: &mut Setup) -> Result<Self> {
        if options.columns.is_some_and(|columns| columns < 20) {
            return Err(Error::msg("`columns` is less than 20: no caption would fit"));
        }
        setup.input("transcript", PortType::Transcript);
        setup.writes("-".into());
        setup.memory(1 << 20);
        Ok(Self { options })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let input: Input<Transcript> = io.input("transcript")?;
        let terminal = io::stdout().is_terminal();
        let mut screen = Screen { out: io::stdout(), columns: terminal.then_some(self.options.columns), open: false };
        loop {
            let shown = match input.next()? {
                Incoming::Data(Timed { value: Transcript(update), .. }) => {
                    io.count("segments", u64::from(update.is_final));
                    screen.show(&update)
                }
                Incoming::Gap(_) | Incoming::Mark(_) => Ok(()),
                Incoming::End(_) => return screen.end().or_else(gone),
            };
            match shown {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                other => other.map_err(|e| Error::msg(format_args!("standard output cannot be written: {e}")))?,
            }
        }
    }
}

/// A reader that went away is no error.
fn gone(error: io::Error) -> Result<()> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(Error::msg(format_args!("standard output cannot be written: {error}"))),
    }
}

/// Where captions are drawn.
struct Screen<W: Write> {
    out: W,
    /// A terminal, and its columns where they were given.
    columns: Option<Option<usize>>,
    /// A line is drawn that may be drawn again.
    open: bool,
}

impl<W: Write> Screen<W> {
    fn show(&mut self, update: &Update) -> io::Result<()> {
        let (stable, unstable) = (clean(&update.stable), clean(&update.unstable));
        let Some(columns) = self.columns else {
            if update.is_final && !stable.trim().is_empty() {
                writeln!(self.out, "{}", stable.trim())?;
                self.out.flush()?;
            }
            return Ok(());
        };
        write!(self.out, "\r\x1b[K")?;
        self.open = !update.is_final;
        if update.is_final {
            if !stable.trim().is_empty() {
                writeln!(self.out, "{}", stable.trim())?;
            }
            return self.out.flush();
        }
        let lag = if update.lag > LATE { format!(" [{:.1} s behind]", update.lag as f64 / 1e9) } else { String::new() };
        let columns = columns.unwrap_or_else(width);
        // The newest words are those to be seen.
        let room = columns.saturating_sub(1 + lag.len());
        let (stable, unstable) = last_columns(&stable, &unstable, room);
        write!(self.out, "{stable}\x1b[2m{unstable}\x1b[0m{lag}")?;
        self.out.flush()
    }

    fn end(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.open) {
            writeln!(self.out)?;
        }
        self.out.flush()
    }
}

/// Text without what moves a terminal's cursor.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The end of both texts that fits so many columns.
fn last_columns<'a>(stable: &'a str, unstable: &'a str, columns: usize) -> (&'a str, &'a str) {
    let fit = |text: &'a str, room: usize| {
        let mut used = 0;
        let first = text.char_indices().rev().take_while(|(_, c)| {
            used += c.width().unwrap_or(0);
            used <= room
        });
        let at = first.last().map_or(text.len(), |(at, _)| at);
        &text[at..]
    };
    let width = |text: &str| text.chars().map(|c| c.width().unwrap_or(0)).sum::<usize>();
    let unstable = fit(unstable, columns);
    (fit(stable, columns - width(unstable).min(columns)), unstable)
}

fn width() -> usize {
    terminal_size::terminal_size().map_or(COLUMNS, |(width, _)| usize::from(width.0).max(20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(stable: &str, unstable: &str, is_final: bool, lag: i64) -> Update {
        Update { stable: stable.into(), unstable: unstable.into(), is_final, lag, ..Update::default() }
    }

    fn drawn(columns: Option<Option<usize>>, updates: &[Update]) -> String {
        let mut out = Vec::new();
        let mut screen = Screen { out: &mut out, columns, open: false };
        updates.iter().for_each(|update| screen.show(update).unwrap());
        screen.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_pipe_gets_finished_segments_only() {
        let all = [update("", "so", false, 0), update("so it", " was", false, 0), update("so it was", "", true, 0)];
        assert_eq!(drawn(None, &all), "so it was\n");
        assert_eq!(drawn(None, &[update(" ", "", true, 0)]), "");
    }

    #[test]
    fn a_terminal_sees_what_may_change_dimmed_and_the_lag() {
        let all = [update("so", " it", false, 0), update("so it", " was", false, 2_500_000_000)];
        let text = drawn(Some(Some(60)), &all);
        assert_eq!(text, "\r\x1b[Kso\x1b[2m it\x1b[0m\r\x1b[Kso it\x1b[2m was\x1b[0m [2.5 s behind]\n");
        let done = drawn(Some(Some(60)), &[update("so", "", false, 0), update("so it was", "", true, 0)]);
        assert!(done.ends_with("\r\x1b[Kso it was\n"), "{done:?}");
    }

    #[test]
    fn a_long_line_shows_its_end_and_nothing_moves_the_cursor() {
        let text = drawn(Some(Some(21)), &[update("one two three four five", " six seven", false, 0)]);
        assert_eq!(text, "\r\x1b[Kfour five\x1b[2m six seven\x1b[0m\n".replace("four", " four"));
        let wide = drawn(Some(Some(21)), &[update("你好世界你好世界你好世界", "", false, 0)]);
        assert_eq!(wide, "\r\x1b[K世界你好世界你好世界\x1b[2m\x1b[0m\n");
        let hostile = drawn(Some(Some(60)), &[update("a\x1b[2Jb\r\n", "", true, 0)]);
        assert!(!hostile[4..].contains('\x1b'), "{hostile:?}");
    }
}
