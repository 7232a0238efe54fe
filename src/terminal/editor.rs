//! A line editor with history: `\` at a line's end goes on, `"""` begins and ends a text of many lines.

use std::path::{Path, PathBuf};

use oxiline_graph::{Error, Result};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Helper};

/// Lines kept in the history.
const HISTORY: usize = 1000;
const FENCE: &str = "\"\"\"";

/// What was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Typed {
    /// A text, its continuation marks taken out.
    Text(String),
    /// Ctrl-C; was there something on the line?
    Interrupt {
        /// The line was empty.
        empty: bool,
    },
    /// Ctrl-D: nothing more will come.
    End,
}

/// A line editor on this terminal.
pub struct Editor {
    inner: rustyline::Editor<Multiline, FileHistory>,
    history: Option<PathBuf>,
}

impl Editor {
    /// An editor whose history is kept in `history`, when that can be read and written.
    ///
    /// # Errors
    /// There is no terminal.
    pub fn new(history: Option<&Path>) -> Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY)
            .and_then(|c| c.history_ignore_dups(true))
            .map_err(Error::msg)?
            .history_ignore_space(true)
            .build();
        let mut inner = rustyline::Editor::with_config(config)
            .map_err(|e| Error::msg(format_args!("the terminal cannot be used: {e}")))?;
        inner.set_helper(Some(Multiline::default()));
        if let Some(path) = history {
            // No history yet is no mistake.
            let _ = inner.load_history(path);
        }
        Ok(Self { inner, history: history.map(Path::to_path_buf) })
    }

    /// Asks for a text.
    ///
    /// # Errors
    /// The terminal went away.
    pub fn ask(&mut self, prompt: &str) -> Result<Typed> {
        match self.inner.readline(prompt) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    let _ = self.inner.add_history_entry(line.as_str());
                    if let Some(path) = &self.history {
                        // A history that cannot be kept must not end a conversation.
                        let _ = self.inner.append_history(path);
                    }
                }
                Ok(Typed::Text(joined(&line)))
            }
            Err(ReadlineError::Interrupted) => {
                let seen = self.inner.helper().map_or_else(String::new, |h| h.seen.borrow().clone());
                Ok(Typed::Interrupt { empty: seen.trim().is_empty() })
            }
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(Error::msg(format_args!("the terminal cannot be read: {error}"))),
        }
    }
}

/// Is more to come after these lines?
fn unfinished(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(inside) => !inside.trim_end().ends_with(FENCE),
        None => text.ends_with('\\') && !text.ends_with("\\\\"),
    }
}

/// The text without continuation marks.
pub(crate) fn joined(text: &str) -> String {
    if let Some(inside) = text.trim_start().strip_prefix(FENCE) {
        let inside = inside.trim_end();
        let inside = inside.strip_suffix(FENCE).unwrap_or(inside);
        return inside.strip_prefix('\n').unwrap_or(inside).trim_end_matches('\n').to_string();
    }
    let joined = text.replace("\\\n", "\n");
    // A line may end with a backslash of its own, written twice.
    joined.strip_suffix("\\\\").map(|s| format!("{s}\\")).unwrap_or(joined)
}

/// Lets rustyline ask for another line, and remembers what is being typed.
#[derive(Default)]
struct Multiline {
    seen: std::cell::RefCell<String>,
}

impl Validator for Multiline {
    fn validate(&self, ctx: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(if unfinished(ctx.input()) { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Hinter for Multiline {
    type Hint = String;
    fn hint(&self, line: &str, _: usize, _: &rustyline::Context<'_>) -> Option<String> {
        // Called at every key: the only place that knows what an interrupt throws away.
        *self.seen.borrow_mut() = line.to_string();
        None
    }
}

impl Completer for Multiline {
    type Candidate = String;
}
impl Highlighter for Multiline {}
impl Helper for Multiline {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_many_lines() {
        for (text, more) in [
            ("hello", false),
            ("hello \\", true),
            ("path C:\\\\", false),
            ("\"\"\"", true),
            ("\"\"\"a\nb", true),
            ("\"\"\"a\nb\"\"\"", false),
            ("say \"\"\"", false),
            ("", false),
        ] {
            assert_eq!(unfinished(text), more, "{text}");
        }
        assert_eq!(joined("one \\\ntwo"), "one \ntwo");
        assert_eq!(joined("\"\"\"\na\n\nb\n\"\"\""), "a\n\nb");
        assert_eq!(joined("C:\\\\"), "C:\\");
        assert_eq!(joined("plain"), "plain");
    }
}
