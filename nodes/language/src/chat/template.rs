//! A checkpoint's chat template: where it is kept, and the prompt it makes of a conversation.

use std::path::Path;
use std::sync::Arc;

use minijinja::Environment;
use minijinja::value::{Serde, Value};
use oxiline_graph::protocol::llm::Chat;
use oxiline_graph::{Error, Result};
use oxiline_weights::gguf;
use serde_json::{Map, Value as Json};

use super::jinja;

/// Largest configuration file read for a template.
const MAX_FILE: u64 = 16 << 20;
/// Appended to the beginning of an answer to find it again in the prompt.
const CONTINUE_MARK: &str = "\u{f8ff}continue\u{f8ff} ";

/// Values every render of a template knows, besides the conversation: `bos_token`, `eos_token`, ...
pub type Variables = Map<String, Json>;

/// A chat template, compiled. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    /// `None` when there is only the template for conversations with tools.
    plain: Option<Arc<Compiled>>,
    /// Used when there are tools.
    tools: Option<Arc<Compiled>>,
    variables: Arc<Variables>,
    /// Where it came from, for messages.
    origin: Arc<str>,
}

struct Compiled {
    source: String,
    env: Environment<'static>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate({})", self.origin)
    }
}

impl ChatTemplate {
    /// The template of a checkpoint's folder: `chat_template.jinja`, `chat_template.json`, or the
    /// `chat_template` of `tokenizer_config.json` (a text, or a list with a `default` and a `tool_use`
    /// template). `None`: the model has none.
    ///
    /// # Errors
    /// Files that can't be read, templates that don't compile.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let config = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let variables = variables_of(&config, folder)?;
        let jinja = folder.join("chat_template.jinja");
        if let Some(source) = read(&jinja)? {
            let tools = read(&folder.join("additional_chat_templates").join("tool_use.jinja"))?;
            return Self::compile(Some(&source), tools.as_deref(), variables, &jinja.display().to_string()).map(Some);
        }
        let json = folder.join("chat_template.json");
        let kept = read_json(&json)?.unwrap_or_default();
        for (object, place) in [(&kept, json), (&config, folder.join("tokenizer_config.json"))] {
            let place = place.display().to_string();
            match object.get("chat_template") {
                None | Some(Json::Null) => {}
                Some(Json::String(source)) => return Self::compile(Some(source), None, variables, &place).map(Some),
                Some(Json::Array(list)) => {
                    let named =
                        |wanted: &str| list.iter().find(|t| t["name"] == wanted).and_then(|t| t["template"].as_str());
                    return Self::compile(named("default"), named("tool_use"), variables, &place).map(Some);
                }
                Some(_) => {
                    return Err(Error::msg(format_args!(
                        "{place}: `chat_template` is neither a text nor a list of templates"
                    )));
                }
            }
        }
        Ok(None)
    }

    /// The template of a GGUF file (`tokenizer.chat_template`, and `tokenizer.chat_template.tool_use`
    /// for conversations with tools). `None`: the model has none.
    ///
    /// # Errors
    /// Templates that don't compile.
    pub fn from_gguf(metadata: &gguf::Metadata) -> Result<Option<Self>> {
        let (plain, tools) =
            (metadata.str("tokenizer.chat_template"), metadata.str("tokenizer.chat_template.tool_use"));
        if plain.is_none() && tools.is_none() {
            return Ok(None);
        }
        let mut variables = Variables::new();
        if let Some(gguf::Value::Strings(tokens)) = metadata.get("tokenizer.ggml.tokens") {
            for (key, name) in [
                ("bos_token", "bos_token_id"),
                ("eos_token", "eos_token_id"),
                ("unk_token", "unknown_token_id"),
                ("sep_token", "seperator_token_id"),
                ("pad_token", "padding_token_id"),
            ] {
                let id = metadata.u64(&format!("tokenizer.ggml.{name}")).and_then(|id| usize::try_from(id).ok());
                if let Some(token) = id.and_then(|id| tokens.get(id)) {
                    variables.insert(key.into(), token.clone().into());
                }
            }
        }
        Self::compile(plain, tools, variables, "tokenizer.chat_template").map(Some)
    }

    /// A template from its source.
    ///
    /// # Errors
    /// It doesn't compile.
    pub fn from_source(source: &str, variables: Variables) -> Result<Self> {
        Self::compile(Some(source), None, variables, "the chat template")
    }

    fn compile(plain: Option<&str>, tools: Option<&str>, variables: Variables, origin: &str) -> Result<Self> {
        let build = |source: &str| match jinja::compile(source) {
            Ok(env) => Ok(Arc::new(Compiled { source: source.to_string(), env })),
            Err(e) => Err(Error::msg(format_args!("{origin}: the chat template is not usable: {e}"))),
        };
        if plain.is_none() && tools.is_none() {
            return Err(Error::msg(format_args!("{origin}: none of its chat templates is named `default`")));
        }
        Ok(Self {
            plain: plain.map(build).transpose()?,
            tools: tools.map(build).transpose()?,
            variables: Arc::new(variables),
            origin: origin.into(),
        })
    }

    /// The prompt of a conversation. `add_generation_prompt`: it ends where the answer begins (a
    /// conversation that continues its last message ends there whatever is asked for).
    ///
    /// # Errors
    /// What the template itself raises, in its words; a template that doesn't end or makes too much;
    /// `continue_last` with a last message that has no text or that the template leaves out.
    pub fn render(&self, chat: &Chat, add_generation_prompt: bool) -> Result<String> {
        let compiled = self.chosen(!chat.tools.is_empty())?;
        let mut messages = chat.messages.to_vec();
        if chat.continue_last {
            mark_last(&mut messages)?;
        }
        let mut context = (*self.variables).clone();
        let list = |items: &[Json]| if items.is_empty() { Json::Null } else { Json::Array(items.to_vec()) };
        context.insert("messages".into(), Json::Array(messages));
        context.insert("tools".into(), list(&chat.tools));
        context.insert("documents".into(), Json::Null);
        context.insert("add_generation_prompt".into(), (add_generation_prompt && !chat.continue_last).into());
        if let Some(think) = chat.think {
            context.insert("enable_thinking".into(), think.into());
        }
        context.extend(chat.extra.iter().map(|(k, v)| (k.clone(), v.clone())));
        let size = context.values().map(size).sum();
        let prompt = jinja::render(&compiled.env, Value::from(Serde(&context)), size).map_err(|e| {
            Error::msg(format_args!("{}: the chat template refuses the conversation: {e}", self.origin))
        })?;
        if chat.continue_last { cut_at_mark(prompt) } else { Ok(prompt) }
    }

    /// The template's text (that for conversations with tools, where there are two).
    pub fn source(&self) -> &str {
        self.tools.as_ref().or(self.plain.as_ref()).map_or("", |c| &c.source)
    }

    /// The values every render knows (`bos_token`, ...).
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    fn chosen(&self, tools: bool) -> Result<&Compiled> {
        let chosen = if tools { self.tools.as_ref().or(self.plain.as_ref()) } else { self.plain.as_ref() };
        chosen.map(|c| &**c).ok_or_else(|| {
            Error::msg(format_args!(
                "{}: the only chat template is for conversations with tools; give some",
                self.origin
            ))
        })
    }
}

/// Marks the end of the last message's text.
fn mark_last(messages: &mut [Json]) -> Result<()> {
    let content = messages.last_mut().and_then(|m| m.get_mut("content"));
    let text = match content {
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        other => other,
    };
    match text {
        Some(Json::String(text)) => {
            text.push_str(CONTINUE_MARK);
            Ok(())
        }
        _ => Err(Error::msg("the last message has no text to go on from; add one with `content`")),
    }
}

/// The prompt up to the mark; a template that trims messages has trimmed the mark's own space too.
fn cut_at_mark(mut prompt: String) -> Result<String> {
    let Some(at) = prompt.rfind(CONTINUE_MARK.trim_end()) else {
        return Err(Error::msg("the chat template leaves out the last message, so the answer cannot go on from it"));
    };
    let trimmed = !prompt[at..].starts_with(CONTINUE_MARK);
    prompt.truncate(at);
    if trimmed {
        prompt.truncate(prompt.trim_end_matches(super::python::is_space).len());
    }
    Ok(prompt)
}

/// Bytes of a value's texts and something for its structure.
fn size(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len() + 16,
        Json::Array(items) => items.iter().map(size).sum::<usize>() + 16,
        Json::Object(map) => map.iter().map(|(k, v)| k.len() + size(v)).sum::<usize>() + 16,
        _ => 16,
    }
}

/// The named tokens of a tokenizer's configuration: every `..._token`, a text or an object with `content`.
fn variables_of(config: &Map<String, Json>, folder: &Path) -> Result<Variables> {
    let older = read_json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let mut variables = Variables::new();
    for (key, value) in older.iter().chain(config) {
        let token = value.as_str().or_else(|| value.get("content").and_then(Json::as_str));
        match token {
            Some(token) if key.ends_with("_token") => variables.insert(key.clone(), token.into()),
            _ => None,
        };
    }
    Ok(variables)
}

/// A text file; `None` when there is none.
fn read(path: &Path) -> Result<Option<String>> {
    let failed = |e: &dyn std::fmt::Display| Error::msg(format_args!("cannot read {}: {e}", path.display()));
    match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(&e)),
        Ok(m) if !m.is_file() => return Err(failed(&"it is not a file")),
        Ok(m) if m.len() > MAX_FILE => {
            return Err(failed(&format_args!(
                "it has {} bytes, more than the {MAX_FILE} such a file may have",
                m.len()
            )));
        }
        Ok(_) => {}
    }
    std::fs::read_to_string(path).map(Some).map_err(|e| failed(&e))
}

fn read_json(path: &Path) -> Result<Option<Map<String, Json>>> {
    let Some(text) = read(path)? else { return Ok(None) };
    match serde_json::from_str(&text) {
        Ok(map) => Ok(Some(map)),
        Err(e) => Err(Error::msg(format_args!("{} is not a JSON object: {e}", path.display()))),
    }
}
