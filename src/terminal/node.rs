//! `chat.terminal`: what a person types, a turn a segment.

use std::io::{BufRead, IsTerminal};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use oxiline_graph::payload::Text;
use oxiline_graph::{Error, Incoming, Input, Io, Mark, Node, Output, PortType, Result, Setup, Timed};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Editor, Typed};

/// How often a waiting node looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(20);
/// Longest line of a pipe, bytes.
const MAX_LINE: u64 = 16 << 20;

/// Options of `chat.terminal`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChatTerminalOptions {
    /// What stands before the place where one types; not shown when standard input is no terminal.
    pub prompt: String,
    /// Keep what was typed in this file and offer it again (empty: for this run only).
    pub history: String,
}

impl Default for ChatTerminalOptions {
    fn default() -> Self {
        Self { prompt: "> ".into(), history: String::new() }
    }
}

/// Asks a person.
pub struct ChatTerminal {
    options: ChatTerminalOptions,
}

impl Node for ChatTerminal {
    const KIND: &'static str = "chat.terminal";
    const ABOUT: &'static str = "What a person types, a turn at a time; from a pipe a line at a time. /quit ends it.";
    type Options = ChatTerminalOptions;

    fn new(options: Self::Options, setup: &mut Setup) -> Result<Self> {
        setup.optional_input("reply", PortType::Text);
        setup.output("text", PortType::Text);
        setup.memory(64 << 20);
        Ok(Self { options })
    }

    fn run(&mut self, io: &Io) -> Result<()> {
        let output: Output<Text> = io.output("text")?;
        let reply: Option<Input<Text>> = io.optional_input("reply")?;
        let terminal = std::io::stdin().is_terminal();
        // Reading blocks, so it has a thread of its own; it reads on only when it is asked to, because a
        // prompt in the middle of an answer helps nobody.
        let (ask, asked) = sync_channel::<()>(1);
        let (send, receive) = sync_channel::<Result<Typed>>(1);
        let options = self.options.clone();
        std::thread::Builder::new()
            .name("chat.terminal".into())
            .spawn(move || {
                let mut source = Source::open(&options, terminal);
                while asked.recv().is_ok() {
                    let typed = source.as_mut().map_err(|e| e.clone()).and_then(|s| s.next());
                    if send.send(typed).is_err() {
                        return;
                    }
                }
            })
            .map_err(|e| Error::msg(format_args!("cannot start the thread that reads what is typed: {e}")))?;
        loop {
            if ask.send(()).is_err() {
                return Ok(());
            }
            let text = match next(&receive, io)? {
                Some(Typed::Text(text)) => text,
                Some(Typed::Interrupt { empty: false }) => continue,
                Some(Typed::Interrupt { empty: true } | Typed::End) | None => return Ok(()),
            };
            match text.trim() {
                "" => continue,
                "/quit" | "/exit" if terminal => return Ok(()),
                _ => {}
            }
            output.send(Timed::at(io.now(), 0, Text { text: text.into(), delta: false }))?;
            io.count("turns", 1);
            if let Some(reply) = &reply
                && !answered(reply)?
            {
                return Ok(());
            }
        }
    }
}

/// Waits for the end of the answer. False: no answer will come any more.
fn answered(reply: &Input<Text>) -> Result<bool> {
    loop {
        match reply.next()? {
            Incoming::Mark(Mark::SegmentEnd { .. }) => return Ok(true),
            Incoming::Data(Timed { value, .. }) if !value.delta => return Ok(true),
            Incoming::Data(_) | Incoming::Gap(_) | Incoming::Mark(_) => {}
            Incoming::End(_) => return Ok(false),
        }
    }
}

/// What comes next; `None` when the graph ends.
fn next(receive: &Receiver<Result<Typed>>, io: &Io) -> Result<Option<Typed>> {
    loop {
        if io.stopping() {
            return Ok(None);
        }
        io.check()?;
        match receive.recv_timeout(LOOK) {
            Ok(typed) => return typed.map(Some),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

enum Source {
    Terminal(Box<Editor>, String),
    Pipe,
}

impl Source {
    fn open(options: &ChatTerminalOptions, terminal: bool) -> Result<Self> {
        if !terminal {
            return Ok(Self::Pipe);
        }
        let history = Some(options.history.as_str()).filter(|h| !h.is_empty()).map(std::path::Path::new);
        Ok(Self::Terminal(Box::new(Editor::new(history)?), options.prompt.clone()))
    }

    fn next(&mut self) -> Result<Typed> {
        match self {
            Self::Terminal(editor, prompt) => editor.ask(prompt),
            Self::Pipe => {
                let mut bytes = Vec::new();
                let mut stdin = std::io::Read::take(std::io::stdin().lock(), MAX_LINE + 1);
                let read = stdin.read_until(b'\n', &mut bytes);
                read.map_err(|e| Error::msg(format_args!("standard input cannot be read: {e}")))?;
                if bytes.is_empty() {
                    return Ok(Typed::End);
                }
                if bytes.len() as u64 > MAX_LINE {
                    return Err(Error::msg(format_args!("a line of standard input is longer than {MAX_LINE} bytes")));
                }
                let text = String::from_utf8(bytes).map_err(|e| {
                    let at = e.utf8_error().valid_up_to();
                    Error::msg(format_args!("a line of standard input is not UTF-8 at its byte {at}"))
                })?;
                Ok(Typed::Text(text.trim_end_matches(['\n', '\r']).to_string()))
            }
        }
    }
}
