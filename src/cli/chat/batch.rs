//! One answer, or one a line of a pipe.

use std::io::{BufRead, Read};

use oxiline::Engine;
use oxiline::engine::Conversation;
use oxiline::graph::{Error, Result};

use super::args::Chat;
use super::show::Show;
use super::{MAX_TEXT, read_stdin};
use crate::cli::args::Common;
use crate::cli::{Outcome, interrupt};

/// Answers what is asked.
pub fn run(engine: &mut Engine, args: &Chat, common: &Common) -> Result<Outcome> {
    let cancel = engine.cancel_handle();
    let _guard = interrupt::on_interrupt(move |_| cancel.cancel());
    let mut show = Show::new(args, common);
    if !args.lines {
        let prompt = match args.prompt.as_deref() {
            Some("-") | None => without_last_end(read_stdin()?),
            Some(text) => text.to_string(),
        };
        return one(engine, &prompt, &mut show);
    }
    let fresh: Conversation = engine.conversation().clone();
    let mut stdin = std::io::stdin().lock();
    for number in 1.. {
        let mut bytes = Vec::new();
        let read = stdin.by_ref().take(MAX_TEXT + 1).read_until(b'\n', &mut bytes);
        read.map_err(|e| Error::msg(format_args!("standard input cannot be read: {e}")))?;
        if bytes.is_empty() {
            break;
        }
        if bytes.len() as u64 > MAX_TEXT {
            return Err(Error::msg(format_args!(
                "line {number} of standard input is longer than {} MiB",
                MAX_TEXT >> 20
            )));
        }
        let line = String::from_utf8(bytes)
            .map_err(|e| Error::msg(format_args!("line {number} of standard input is not UTF-8 ({e})")))?;
        let line = without_last_end(line);
        if line.trim().is_empty() {
            continue;
        }
        engine.set_conversation(fresh.clone());
        match one(engine, &line, &mut show).map_err(|e| Error::msg(format_args!("line {number}: {e}")))? {
            Outcome::Done if !show.closed => {}
            outcome => return Ok(outcome),
        }
    }
    Ok(Outcome::Done)
}

fn without_last_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// One answer.
fn one(engine: &mut Engine, prompt: &str, show: &mut Show) -> Result<Outcome> {
    let context = engine.options().open().context;
    let turn = engine.send(prompt, |event| show.event(&event));
    if turn.is_err() {
        show.end_line();
    }
    let turn = turn?;
    show.done(prompt, &turn, context)?;
    // A closed pipe is the reader's wish, not an interruption.
    Ok(if turn.stopped() && !show.closed { Outcome::Stopped } else { Outcome::Done })
}
