//! The conversation in a terminal.

use std::path::Path;

use oxiline::Engine;
use oxiline::engine::Turn;
use oxiline::graph::Result;
use oxiline::terminal::{Editor, Typed};

use super::args::Chat;
use super::show::{Show, line};
use crate::cli::args::Common;
use crate::cli::{Outcome, interrupt, quiet, say};

const HELP: &str = "\
/reset          forget the conversation
/system [TEXT]  set the system message and begin anew; without TEXT: none
/save FILE      write the conversation as JSON
/load FILE      go on with a conversation
/set KEY VALUE  change how answers are chosen, as /set temperature 0.7
/stats          figures of the last answer
/quit           leave (also Ctrl-D)
A line that ends with \\ goes on; \"\"\" begins and ends a text of many lines.
Ctrl-C stops an answer and keeps what there is of it.";

/// Talks until the person leaves.
pub fn run(engine: &mut Engine, args: &Chat, common: &Common) -> Result<Outcome> {
    let mut editor = Editor::new(args.history.as_deref())?;
    let mut show = Show::new(args, common);
    let mut repl = Repl { engine, last: None };
    if !quiet(common) {
        say("/help shows what can be typed; Ctrl-D leaves.");
    }
    if let Some(prompt) = &args.prompt {
        repl.answer(prompt, &mut show)?;
    }
    let mut interrupts = 0;
    loop {
        let text = match editor.ask("> ")? {
            Typed::Text(text) => text,
            Typed::End => return Ok(Outcome::Done),
            Typed::Interrupt { empty } => {
                interrupts = if empty { interrupts + 1 } else { 0 };
                if interrupts >= 2 {
                    return Ok(Outcome::Done);
                }
                if empty {
                    say("Ctrl-C again leaves, as /quit does");
                }
                continue;
            }
        };
        interrupts = 0;
        match repl.typed(&text, &mut show) {
            Ok(true) => {}
            Ok(false) => return Ok(Outcome::Done),
            // A mistake must not cost the conversation.
            Err(error) => say(format_args!("oxiline: {error}")),
        }
        if show.closed {
            return Ok(Outcome::Done);
        }
    }
}

struct Repl<'a> {
    engine: &'a mut Engine,
    last: Option<Turn>,
}

impl Repl<'_> {
    /// Does what was typed. False: the person leaves.
    fn typed(&mut self, text: &str, show: &mut Show) -> Result<bool> {
        let Some(command) = text.strip_prefix('/') else {
            if !text.trim().is_empty() {
                self.answer(text, show)?;
            }
            return Ok(true);
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "quit" | "exit" => return Ok(false),
            "help" | "?" => say(HELP),
            "reset" => {
                self.engine.reset()?;
                self.last = None;
                say("the conversation is forgotten");
            }
            "system" => {
                self.engine.reset()?;
                self.engine.set_system(Some(rest).filter(|text| !text.is_empty()));
                say(if rest.is_empty() { "no system message" } else { "the system message is set" });
            }
            "save" | "load" if rest.is_empty() => say(format_args!("name a file: /{name} talk.json")),
            "save" => {
                self.engine.save(Path::new(rest))?;
                say(format_args!("written to {rest}"));
            }
            "load" => {
                self.engine.restore(Path::new(rest))?;
                let turns = self.engine.conversation().messages().iter().filter(|m| m["role"] == "user").count();
                say(format_args!("a conversation of {turns} turns"));
            }
            "set" => match rest.split_once(|c: char| c.is_whitespace() || c == '=') {
                Some((key, value)) => self.set(key, value.trim())?,
                None => say("give a key and a value: /set temperature 0.7"),
            },
            "stats" => match &self.last {
                Some(turn) => say(line(turn, self.engine.options().open().context)),
                None => say("no answer yet"),
            },
            _ => say(format_args!("/{name} is not known; /help shows what is")),
        }
        Ok(true)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let name = key.replace('-', "_");
        if oxiline::engine::KEYS.iter().any(|k| k.load && k.name == name) {
            say(format_args!(
                "{key} counts when the model is loaded: give it as --{} at the start",
                key.replace('_', "-")
            ));
            return Ok(());
        }
        self.engine.options_mut().set(key, value)?;
        say(format_args!("{key} is {value} from the next answer on"));
        Ok(())
    }

    fn answer(&mut self, prompt: &str, show: &mut Show) -> Result<()> {
        interrupt::reset();
        let cancel = self.engine.cancel_handle();
        let guard = interrupt::on_interrupt(move |_| cancel.cancel());
        let context = self.engine.options().open().context;
        let turn = self.engine.send(prompt, |event| show.event(&event));
        drop(guard);
        show.end_line();
        let turn = turn?;
        show.done(prompt, &turn, context)?;
        self.last = Some(turn);
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../../tests/common/echo.rs"]
mod echo;

#[cfg(test)]
mod tests {
    use clap::Parser;
    use oxiline::graph::ActorHandle;
    use oxiline::graph::plan::Class;
    use oxiline::{EngineOptions, Flow};

    use super::echo::{Echo, EchoOptions};
    use super::*;
    use crate::cli::args::{Cli, Verb};

    #[test]
    fn commands_change_the_conversation_and_mistakes_do_not() {
        let handle = ActorHandle::load::<Echo>(EchoOptions::default(), Class::Interactive).unwrap();
        let mut engine = Engine::on(handle, EngineOptions::new().with("system", "Be brief.").unwrap()).unwrap();
        let cli = Cli::try_parse_from(["oxiline", "--quiet", "chat", "--model", "x"]).unwrap();
        let Verb::Chat(args) = cli.verb else { panic!("another verb") };
        let mut show = Show::new(&args, &cli.common);
        let mut repl = Repl { engine: &mut engine, last: None };
        let mut type_ =
            |text: &str| repl.typed(text, &mut show).map(|go_on| (go_on, repl.engine.conversation().clone()));

        let dir = tempfile::tempdir().unwrap();
        let talk = dir.path().join("talk.json").display().to_string();
        let (_, empty) = type_("/stats").unwrap();
        assert!(type_("  ").unwrap().0 && empty.is_empty());
        for mistake in ["/nothing", "/save", "/set temperature", "/set kv f16", "/help"] {
            assert_eq!(type_(mistake).unwrap(), (true, empty.clone()), "{mistake}");
        }
        assert!(type_("/set temperature hot").is_err() && type_("/load no/such/file").is_err());
        type_(&format!("/save {talk}")).unwrap();
        let (_, changed) = type_("/system Be long.").unwrap();
        assert_eq!(changed.system(), Some("Be long."));
        assert_eq!(type_("/system").unwrap().1.system(), None);
        assert_eq!(type_(&format!("/load {talk}")).unwrap().1, empty);
        assert!(type_("/set temperature 0.7").unwrap().0);
        assert!(!type_("/quit").unwrap().0);
        assert_eq!(engine.options().sampling().temperature, 0.7);
        engine.send("x", |_| Flow::Continue).unwrap();
        assert_eq!(engine.conversation().messages().len(), 3);
    }
}
