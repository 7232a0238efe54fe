//! The template engine as templates expect it: Jinja with Python's methods and printing, without any
//! way out of the template, and with limits on work, depth and output.

use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, escape_formatter};

use super::python::{self, Json, failed};

/// Largest template read.
pub const MAX_SOURCE: usize = 1 << 20;
/// Largest prompt made.
pub const MAX_OUTPUT: usize = 64 << 20;
/// Work a render may do before the size of the conversation is added to it: instructions, and 64 bytes each.
pub const FUEL: u64 = 2_000_000;
/// Stack of the thread a template is compiled and rendered on: the engine's own depth limits fit into
/// it many times, whatever thread asks for the prompt.
const STACK: usize = 64 << 20;
/// Longest render; an honest template takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most `not`s in a row.
const MAX_CHAIN: usize = 64;
/// The name templates have in the engine.
pub const NAME: &str = "chat template";

/// An engine with `source` compiled into it.
pub fn compile(source: &str) -> Result<Environment<'static>, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("it has {} bytes, more than the {MAX_SOURCE} a chat template may have", source.len()));
    }
    // Long chains of `not` take the engine's compiler far more than linear time.
    if chain(source) > MAX_CHAIN {
        return Err(format!("it has more than {MAX_CHAIN} `not`s in a row"));
    }
    let source = without_generation_tags(source);
    apart(move || {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| sentence(&e))?);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_recursion_limit(200);
        env.set_debug(false);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(method);
        env.set_formatter(|out, state, value| match value.kind() {
            ValueKind::String | ValueKind::Undefined => escape_formatter(out, state, value),
            _ => out.write_str(&python::text(value)?).map_err(Error::from),
        });
        env.add_filter("tojson", tojson);
        env.add_filter("string", |value: &Value| match value.kind() {
            ValueKind::String => Ok(value.clone()),
            _ => python::text(value).map(Value::from),
        });
        // The engine's own walks endless lists without limit.
        env.add_filter("pprint", |value: &Value| python::text(value).map(Value::from));
        env.add_filter("trim", |text: &Value, set: Option<&str>| match text.as_str() {
            Some(text) => Ok(python::strip(text, set, true, true).to_string()),
            None => Ok::<_, Error>(python::strip(&python::text(text)?, set, true, true).to_string()),
        });
        env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, python::text(message)?))
        });
        env.add_function("strftime_now", |format: &str| python::strftime_now(format));
        env.add_template_owned(NAME, source).map_err(|e| sentence(&e))?;
        Ok(env)
    })
}

/// Renders; `size` is that of the conversation in bytes, for which there is fuel on top.
pub fn render(env: &Environment<'static>, context: Value, size: usize) -> Result<String, String> {
    let mut env = env.clone();
    apart(move || {
        env.set_fuel(Some(FUEL + size as u64));
        let template = env.get_template(NAME).map_err(|e| sentence(&e))?;
        let mut out = Limited(Vec::new());
        let rendered = template.render_captured_to(context, &mut out).map(drop);
        if out.0.len() > MAX_OUTPUT {
            return Err(format!("it makes more than {} MiB of text", MAX_OUTPUT >> 20));
        }
        rendered.map_err(|e| sentence(&e))?;
        String::from_utf8(out.0).map_err(|e| e.to_string())
    })
}

/// The longest run of `not` words.
fn chain(source: &str) -> usize {
    let (mut longest, mut run) = (0, 0);
    for word in source.split_whitespace() {
        run = if word == "not" { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// Runs on a thread with a stack of its own; a panic of the engine is an error. Work that the engine does
/// not charge fuel for (lists it joins without looking at them) may have no end: such a thread is left
/// behind after [`PATIENCE`].
fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
    // Nobody may be waiting any more.
    let spawned = thread.spawn(move || drop(send.send(work())));
    spawned.map_err(|e| format!("no thread for it: {e}"))?;
    receive.recv_timeout(PATIENCE).unwrap_or_else(|why| {
        Err(match why {
            RecvTimeoutError::Timeout => format!("it does not end within {} s", PATIENCE.as_secs()),
            RecvTimeoutError::Disconnected => "the template engine failed on it".into(),
        })
    })
}

/// What an engine error says: the template's own message alone when it raised one.
fn sentence(error: &Error) -> String {
    let detail = error.detail().unwrap_or_default();
    let place = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("it does more work than a prompt needs; the template does not end or is not meant for chat{place}")
        }
        ErrorKind::InvalidOperation if !detail.is_empty() => detail.to_string(),
        kind if detail.is_empty() => format!("{kind}{place}"),
        kind => format!("{kind}: {detail}{place}"),
    }
}

/// Output with an end.
struct Limited(Vec<u8>);

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        if self.0.len() > MAX_OUTPUT {
            return Err(io::Error::other("too much output"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `{% generation %}` marks what a model is trained on and prints nothing: a condition that always
/// holds keeps the white space rules of a tag.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[..end];
        let word = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let instead = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&inner.replace(word, &format!(" {instead} ")));
        rest = &tag[end..];
    }
    out + rest
}

/// Python's methods: the few whose rules differ from the engine's companion are done here.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), "strip" | "lstrip" | "rstrip") = (value.as_str(), name) {
        let (set,): (Option<&str>,) = minijinja::value::from_args(args)?;
        return Ok(Value::from(python::strip(text, set, name != "rstrip", name != "lstrip")));
    }
    if let (Some(text), "format") = (value.as_str(), name) {
        // The companion pads before it asks for fuel: widths are small numbers.
        let wide = text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4);
        if wide || text.contains("{:{") {
            return Err(failed("a width in `format` has at most four digits".into()));
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(state: &State<'_, '_>, value: &Value, ascii: Option<bool>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let indent = match indent {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) if v.as_str().is_some() => v.as_str().map(str::to_string),
        Some(v) => Some(" ".repeat(usize::try_from(v).map_err(|_| failed("indent is a small number".into()))?.min(64))),
    };
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let separators = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(failed("separators are two texts".into())),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let keyword: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let ascii = ascii.or(keyword).unwrap_or(false);
    let text = python::json(value, &Json { ascii, indent, separators, sort: sort.unwrap_or(false) })?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(Value::from(text))
}
