//! Running other programs.

use std::ffi::OsString;
use std::fmt;
use std::process::{Command, Stdio};

/// One sentence on what failed.
#[derive(Debug)]
pub struct Failed(String);

impl Failed {
    /// With this sentence.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A note on what happens now.
pub fn say(verb: &str, text: &str) {
    eprintln!("{verb:>9}  {text}");
}

/// The cargo this task was started by.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    // Of the task's own run; they would describe the wrong package to what is started.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs a program; it sees no standard input, so it can't wait for one.
pub fn run(command: &mut Command) -> Result<(), Failed> {
    let text = shown(command);
    let status = command.stdin(Stdio::null()).status().map_err(|e| Failed::new(format!("cannot start {text}: {e}")))?;
    if status.success() { Ok(()) } else { Err(Failed::new(format!("{text} failed ({status})"))) }
}

/// Does a program succeed? What it says is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// The last line of what a program that succeeds says; its errors are shown.
pub fn last_line(command: &mut Command) -> Option<String> {
    let done = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().ok()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    done.status.success().then(|| text.lines().last().map(str::trim).map(String::from)).flatten()
}
