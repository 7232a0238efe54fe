//! A conversation: messages as chat templates take them, saved as JSON.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use oxiline_graph::{Error, Result};
use serde_json::{Value, json};

use super::Turn;

/// Largest file read as a conversation.
const MAX_FILE: u64 = 256 << 20;

/// Messages of a conversation, or its text where no template is used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    messages: Vec<Value>,
    raw: Option<String>,
}

impl Conversation {
    /// An empty conversation. `raw`: text as it is, without roles and template.
    pub fn new(system: Option<String>, raw: bool) -> Self {
        let mut out = Self { messages: Vec::new(), raw: raw.then(String::new) };
        out.set_system(system.as_deref());
        out
    }

    /// Messages: objects with `role`, `content` and what else the template of the model reads.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// The text so far, where the conversation has no roles.
    pub fn raw_text(&self) -> Option<&str> {
        self.raw.as_deref()
    }

    /// Nobody has said anything?
    pub fn is_empty(&self) -> bool {
        self.raw.as_deref().unwrap_or_default().is_empty() && !self.messages.iter().any(|m| m["role"] != "system")
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|m| m["role"] == "system")?["content"].as_str()
    }

    /// Sets or takes away the system message. Text without roles has none.
    pub fn set_system(&mut self, system: Option<&str>) {
        if self.messages.first().is_some_and(|m| m["role"] == "system") {
            self.messages.remove(0);
        }
        if let Some(text) = system.filter(|_| self.raw.is_none()) {
            self.messages.insert(0, json!({"role": "system", "content": text}));
        }
    }

    /// Adds a message.
    ///
    /// # Errors
    /// It is not an object with a `role`.
    pub fn push(&mut self, message: Value) -> Result<()> {
        check(&message).map_err(Error::msg)?;
        self.messages.push(message);
        Ok(())
    }

    /// The user's next words.
    pub fn ask(&mut self, prompt: &str) {
        match &mut self.raw {
            Some(text) => text.push_str(prompt),
            None => self.messages.push(json!({"role": "user", "content": prompt})),
        }
    }

    /// What the model answered.
    pub(super) fn answered(&mut self, turn: &Turn) {
        if let Some(text) = &mut self.raw {
            text.push_str(&turn.thinking);
            text.push_str(&turn.text);
            return;
        }
        let mut message = json!({"role": "assistant", "content": turn.text});
        if !turn.thinking.is_empty() {
            message["reasoning_content"] = turn.thinking.as_str().into();
        }
        if !turn.tool_calls.is_empty() {
            let call = |c: &oxiline_graph::protocol::llm::ToolCall| json!({"type": "function", "function": {"name": c.name, "arguments": c.arguments}});
            message["tool_calls"] = turn.tool_calls.iter().map(call).collect();
        }
        self.messages.push(message);
    }

    /// What a tool gave back.
    pub(super) fn tool_result(&mut self, name: &str, result: &str) {
        self.messages.push(json!({"role": "tool", "name": name, "content": result}));
    }

    /// Forgets everything except for the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|m| m["role"] == "system");
        if let Some(text) = &mut self.raw {
            text.clear();
        }
    }

    /// Writes it as JSON, under its name when it is whole.
    ///
    /// # Errors
    /// A sentence when it cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let cannot = |e: std::io::Error| {
            Error::msg(format_args!("the conversation cannot be written to `{}`: {e}", path.display()))
        };
        let mut text = serde_json::to_string_pretty(&self.json()).map_err(Error::msg)?;
        text.push('\n');
        let mut partial = path.file_name().map(std::ffi::OsStr::to_os_string).ok_or_else(|| {
            Error::msg(format_args!("the conversation cannot be written to `{}`: name a file", path.display()))
        })?;
        partial.push(".partial");
        let partial = path.with_file_name(partial);
        let write = || {
            let mut file = File::create(&partial)?;
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            std::fs::rename(&partial, path)
        };
        write().map_err(|e| {
            let _ = std::fs::remove_file(&partial);
            cannot(e)
        })
    }

    fn json(&self) -> Value {
        match &self.raw {
            Some(text) => json!({"version": 1, "text": text}),
            None => json!({"version": 1, "messages": self.messages}),
        }
    }

    /// Reads what [`Conversation::save`] wrote, or an array of messages.
    ///
    /// # Errors
    /// A sentence that names the file and the message that is none.
    pub fn load(path: &Path) -> Result<Self> {
        let shown = path.display();
        let bytes = read_bounded(path).map_err(|e| Error::msg(format_args!("`{shown}` cannot be read: {e}")))?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|e| Error::msg(format_args!("`{shown}` is no conversation: it is not JSON ({e})")))?;
        let value = match value {
            messages @ Value::Array(_) => json!({"version": 1, "messages": messages}),
            value => value,
        };
        if let Some(version) = value.get("version").filter(|v| **v != 1) {
            return Err(Error::msg(format_args!(
                "`{shown}` is of version {version}, and this program reads version 1; use the program that wrote it"
            )));
        }
        match (value["text"].as_str(), value["messages"].as_array()) {
            (Some(text), None) => Ok(Self { messages: Vec::new(), raw: Some(text.to_string()) }),
            (None, Some(messages)) => {
                for (i, message) in messages.iter().enumerate() {
                    check(message).map_err(|e| Error::msg(format_args!("`{shown}`: message {i} {e}")))?;
                }
                Ok(Self { messages: messages.clone(), raw: None })
            }
            _ => Err(Error::msg(format_args!(
                "`{shown}` is no conversation: it needs `messages`, an array, or `text`, a string"
            ))),
        }
    }
}

fn check(message: &Value) -> std::result::Result<(), String> {
    match message.get("role") {
        Some(Value::String(_)) => Ok(()),
        Some(_) => Err("has a `role` that is not a string".into()),
        None if message.is_object() => Err("has no `role`".into()),
        None => Err("is not an object".into()),
    }
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(std::io::Error::other(format!("it is larger than {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_survives_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        let mut talk = Conversation::new(Some("Be brief.".into()), false);
        talk.ask("Hello \"you\"\n");
        talk.push(json!({"role": "assistant", "content": "Hi"})).unwrap();
        talk.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), talk);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        talk.clear();
        assert_eq!((talk.messages().len(), talk.system(), talk.is_empty()), (1, Some("Be brief."), true));
        talk.set_system(None);
        assert!(talk.messages().is_empty());
        let mut raw = Conversation::new(Some("unused".into()), true);
        raw.ask("Once upon");
        raw.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap().raw_text(), Some("Once upon"));
        std::fs::write(&path, r#"[{"role": "user", "content": "x"}]"#).unwrap();
        assert_eq!(Conversation::load(&path).unwrap().messages().len(), 1);
    }

    #[test]
    fn what_is_no_conversation_is_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        let cases = [
            ("{", "not JSON"),
            ("{}", "needs `messages`"),
            (r#"{"version": 7, "messages": []}"#, "version 7"),
            (r#"[{"role": "user"}, {"content": "x"}]"#, "message 1 has no `role`"),
            (r#"[3]"#, "message 0 is not an object"),
            (r#"[{"role": 3}]"#, "not a string"),
        ];
        for (text, want) in cases {
            std::fs::write(&path, text).unwrap();
            let error = Conversation::load(&path).unwrap_err().to_string();
            assert!(error.contains(want) && error.contains("c.json"), "{text}: {error}");
        }
        assert!(Conversation::load(&dir.path().join("none")).is_err());
        assert!(Conversation::default().save(Path::new("/")).is_err());
    }
}
