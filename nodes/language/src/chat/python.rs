//! What Python prints: `json.dumps`, `repr`, `str.strip`, `strftime`. Templates were written against
//! these, and prompts are compared byte for byte.

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Deepest nesting of a value that is printed.
const MAX_DEPTH: usize = 200;
/// Most items of one list that are printed: a template's lists can be endless without taking room.
const MAX_ITEMS: usize = 1 << 20;
/// Longest text a value is printed as.
const MAX_TEXT: usize = 32 << 20;

/// How `json.dumps` is asked to print.
#[derive(Debug, Clone)]
pub struct Json {
    /// Non-ASCII characters as `\uXXXX`.
    pub ascii: bool,
    /// Spaces a level, on lines of their own.
    pub indent: Option<String>,
    /// Between items, and between key and value.
    pub separators: (String, String),
    /// Keys in order of their characters.
    pub sort: bool,
}

/// `json.dumps(value)`.
pub fn json(value: &Value, form: &Json) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, form, 0)?;
    Ok(out)
}

fn write_json(out: &mut String, value: &Value, form: &Json, depth: usize) -> Result<(), Error> {
    check(out, depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, ["NaN", "Infinity", "-Infinity"])),
        ValueKind::String => quote(out, value.as_str().unwrap_or_default(), form.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = items(value)?;
            bracket(out, form, depth, ['[', ']'], items.len(), |out, i| write_json(out, &items[i], form, depth + 1))?;
        }
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in items(value)? {
                pairs.push((key_text(&key)?, value.get_item(&key)?));
            }
            if form.sort {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            bracket(out, form, depth, ['{', '}'], pairs.len(), |out, i| {
                quote(out, &pairs[i].0, form.ascii);
                out.push_str(&form.separators.1);
                write_json(out, &pairs[i].1, form, depth + 1)
            })?;
        }
        ValueKind::Undefined => return Err(failed("a value that is not defined cannot be written as JSON".into())),
        other => return Err(failed(format!("a value of type {other} cannot be written as JSON"))),
    }
    Ok(())
}

fn bracket(
    out: &mut String,
    form: &Json,
    depth: usize,
    [open, close]: [char; 2],
    count: usize,
    mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &form.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    for i in 0..count {
        if i > 0 {
            out.push_str(&form.separators.0);
        }
        line(out, depth + 1);
        item(out, i)?;
    }
    if count > 0 {
        line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_string(),
        ValueKind::None => "null".into(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
        ValueKind::Number => number(key, ["NaN", "Infinity", "-Infinity"]),
        other => return Err(failed(format!("a key of type {other} cannot be written as JSON"))),
    })
}

/// A JSON string.
fn quote(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 || (ascii && !matches!(c, ' '..='~')) => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as Python prints it; `odd` names not-a-number and the infinities.
fn number(value: &Value, odd: [&str; 3]) -> String {
    match f64::try_from(value.clone()) {
        Ok(v) if !value.is_integer() => float(v, odd),
        _ => value.to_string(),
    }
}

/// `repr(float)`: the shortest digits that read back as the same number, with an exponent from 1e16
/// up and below 1e-4.
pub fn float(v: f64, [nan, inf, minus_inf]: [&str; 3]) -> String {
    if v.is_nan() {
        return nan.into();
    }
    if v.is_infinite() {
        return if v > 0.0 { inf } else { minus_inf }.into();
    }
    let scientific = format!("{v:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if v != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{v}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `str(value)`, what `{{ value }}` prints.
pub fn text(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        _ => repr(&mut out, value, 0)?,
    }
    Ok(out)
}

fn repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check(out, depth)?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value, ["nan", "inf", "-inf"])),
        ValueKind::String => repr_string(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let (items, tuple) = (items(value)?, value.downcast_object_ref::<Tuple>().is_some());
            out.push(if tuple { '(' } else { '[' });
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, item, depth + 1)?;
            }
            if tuple && items.len() == 1 {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in items(value)?.into_iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &key, depth + 1)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Refuses what would not end.
fn check(out: &str, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(failed(format!("a value nested more than {MAX_DEPTH} levels deep cannot be printed")));
    }
    if out.len() > MAX_TEXT {
        return Err(failed(format!("a value printed makes more than {} MiB of text", MAX_TEXT >> 20)));
    }
    Ok(())
}

fn items(value: &Value) -> Result<Vec<Value>, Error> {
    let items: Vec<Value> = value.try_iter()?.take(MAX_ITEMS + 1).collect();
    if items.len() > MAX_ITEMS {
        return Err(failed(format!("a list of more than {MAX_ITEMS} items cannot be printed")));
    }
    Ok(items)
}

/// `repr(str)`: single quotes unless only single ones are inside; what can't be printed is escaped.
fn repr_string(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 || matches!(c, '\u{7f}'..='\u{a0}' | '\u{ad}') => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c if c != ' '
                && (c.is_whitespace() || c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{feff}')) =>
            {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Python's white space: Unicode's and the four ASCII separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `str.strip(set)` on the sides asked for.
pub fn strip<'a>(text: &'a str, set: Option<&str>, left: bool, right: bool) -> &'a str {
    let cut = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if left { text.trim_start_matches(cut) } else { text };
    if right { text.trim_end_matches(cut) } else { text }
}

/// `datetime.now().strftime(format)`.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::ZonedDateTime::now().datetime();
    jiff::fmt::strtime::format(format, now).map_err(|e| failed(format!("strftime_now({format:?}): {e}")))
}

pub fn failed(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
