//! Reads the runtime's own keys: durations, sizes, capacities, policies, restarts.

use std::time::Duration;

use super::message::{Reports, clip, list, suggest};
use super::value::{Kind, Table, Value};
use crate::payload::{Param, PortType};
use crate::plan::{Cap, Class, ClockKind, Full, Restart};
use crate::time::Span;

/// Restart without details: 3 times in a minute, waiting 200 ms to 10 s.
pub(crate) const RESTART: Restart =
    Restart { max: 3, within: Span::secs(60), backoff: Span::ms(200), backoff_max: Span::secs(10) };

/// Says what `key` wanted and got.
pub(crate) fn wrong(key: &str, want: &str, value: &Value, reports: &mut Reports) {
    reports.error(value.spot, format!("`{key}` wants {want}, but got {}", value.describe()));
}

pub(crate) fn text(key: &str, value: &Value, reports: &mut Reports) -> Option<String> {
    match (&value.kind, &value.raw) {
        (Kind::Str(s), _) => Some(s.clone()),
        (_, Some(raw)) => Some(raw.to_string()),
        _ => {
            wrong(key, "a text in quotes", value, reports);
            None
        }
    }
}

pub(crate) fn texts(key: &str, value: &Value, reports: &mut Reports) -> Option<Vec<String>> {
    match &value.kind {
        Kind::List(items) => items.iter().map(|v| text(key, v, reports)).collect(),
        Kind::Str(s) => Some(vec![s.clone()]),
        _ => {
            wrong(key, "a list of texts", value, reports);
            None
        }
    }
}

pub(crate) fn flag(key: &str, value: &Value, reports: &mut Reports) -> Option<bool> {
    match value.kind {
        Kind::Bool(b) => Some(b),
        _ => {
            wrong(key, "true or false", value, reports);
            None
        }
    }
}

pub(crate) fn count(key: &str, least: i64, value: &Value, reports: &mut Reports) -> Option<u32> {
    match value.kind {
        Kind::Int(n) if n >= least && n <= i64::from(u32::MAX) => u32::try_from(n).ok(),
        _ => {
            wrong(key, &format!("a whole number from {least} on"), value, reports);
            None
        }
    }
}

pub(crate) fn span(key: &str, value: &Value, reports: &mut Reports) -> Option<Span> {
    let Some(text) = value.as_str() else {
        wrong(key, "a duration such as \"250ms\" or \"2s\"", value, reports);
        return None;
    };
    match Span::parse(text) {
        Ok(span) => Some(span),
        Err(why) => {
            reports.error(value.spot, format!("`{key}`: {}", short(text, &why)));
            None
        }
    }
}

/// `why` with the text it quotes made short enough for a sentence.
pub(crate) fn short(text: &str, why: &str) -> String {
    why.replacen(text.trim(), &clip(text.trim()), 1)
}

pub(crate) fn duration(key: &str, value: &Value, reports: &mut Reports) -> Option<Duration> {
    span(key, value, reports).map(|s| s.0)
}

/// One of a fixed set of words.
pub(crate) fn word<T: Copy>(key: &str, words: &[(&str, T)], value: &Value, reports: &mut Reports) -> Option<T> {
    let names = words.iter().map(|(name, _)| *name);
    let Some(text) = value.as_str() else {
        let all: Vec<&str> = names.collect();
        wrong(key, &format!("one of {}", list(&all)), value, reports);
        return None;
    };
    let found = words.iter().find(|(name, _)| *name == text).map(|(_, v)| *v);
    if found.is_none() {
        reports.error(value.spot, format!("`{key}` cannot be \"{}\"{}", clip(text), suggest(text, names)));
    }
    found
}

/// `"8MiB"` in bytes.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let scale: u64 = match unit.trim() {
        "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

pub(crate) fn size(key: &str, value: &Value, reports: &mut Reports) -> Option<u64> {
    let size = match &value.kind {
        Kind::Int(n) => u64::try_from(*n).ok(),
        Kind::Str(s) => parse_size(s),
        _ => None,
    };
    if size.is_none() {
        wrong(key, "a size such as \"64KiB\" or \"8MiB\"", value, reports);
    }
    size
}

/// `16`, `"2s"`, `"8MiB"` or a table of them.
pub(crate) fn cap(key: &str, value: &Value, reports: &mut Reports) -> Option<Cap> {
    const ZERO: &str = "nothing could ever pass; use at least 1 item, or a time or size above zero";
    let mut cap = Cap::default();
    match &value.kind {
        Kind::Int(0) => {
            reports.error(value.spot, format!("`{key}` is 0: {ZERO}"));
            return None;
        }
        Kind::Int(n) if *n > 0 => cap.items = u64::try_from(*n).ok(),
        Kind::Str(text) => match parse_size(text) {
            Some(bytes) => cap.bytes = Some(bytes),
            None => match Span::parse(text) {
                Ok(time) => cap.time = Some(time),
                Err(why) if why.contains("longer than") => {
                    reports.error(value.spot, format!("`{key}`: {}", short(text, &why)));
                    return None;
                }
                Err(_) => {
                    wrong(key, "a number of items, a time (\"2s\") or a size (\"8MiB\")", value, reports);
                    return None;
                }
            },
        },
        Kind::Table(table) => {
            unknown(table, &["items", "time", "bytes"], key, reports);
            if let Some(v) = table.get("items") {
                cap.items = Some(u64::from(count(&format!("{key}.items"), 1, v, reports)?));
            }
            if let Some(v) = table.get("time") {
                cap.time = Some(span(&format!("{key}.time"), v, reports)?);
            }
            if let Some(v) = table.get("bytes") {
                cap.bytes = Some(size(&format!("{key}.bytes"), v, reports)?);
            }
            if cap == Cap::default() {
                reports.error(value.spot, format!("`{key}` sets no limit; give `items`, `time` or `bytes`"));
                return None;
            }
        }
        _ => {
            wrong(key, "a number of items, a time (\"2s\") or a size (\"8MiB\")", value, reports);
            return None;
        }
    }
    if cap.bytes == Some(0) || cap.time.is_some_and(|t| t.0.is_zero()) {
        reports.error(value.spot, format!("`{key}` is 0: {ZERO}"));
        return None;
    }
    Some(cap)
}

/// A full-policy.
pub(crate) fn full(key: &str, value: &Value, reports: &mut Reports) -> Option<Full> {
    if value.as_str() == Some("degrade") {
        reports.error(
            value.spot,
            format!("`{key} = \"degrade\"` needs a consumer that can widen its step, which comes with live audio; use \"block\" or \"drop-oldest\""),
        );
        return None;
    }
    let words = [
        ("block", Full::Block),
        ("drop-oldest", Full::DropOldest),
        ("drop-newest", Full::DropNewest),
        ("latest", Full::Latest),
        ("fail", Full::Fail),
    ];
    word(key, &words, value, reports)
}

/// Classes by name.
pub(crate) const CLASSES: [(&str, Class); 3] =
    [("interactive", Class::Interactive), ("live", Class::Live), ("batch", Class::Batch)];

/// Clocks by name.
pub(crate) const CLOCKS: [(&str, ClockKind); 4] = [
    ("auto", ClockKind::Auto),
    ("virtual", ClockKind::Virtual),
    ("paced", ClockKind::Paced),
    ("monotonic", ClockKind::Monotonic),
];

/// `true` or `{ on, max, within, backoff, backoff_max }`.
pub(crate) fn restart(key: &str, value: &Value, reports: &mut Reports) -> Option<Restart> {
    let mut out = RESTART;
    let table = match &value.kind {
        Kind::Bool(true) => return Some(out),
        Kind::Bool(false) => return None,
        Kind::Table(table) => table,
        _ => {
            wrong(key, "true or a table such as { max = 3, within = \"60s\" }", value, reports);
            return None;
        }
    };
    unknown(table, &["on", "max", "within", "backoff", "backoff_max"], key, reports);
    if let Some(v) = table.get("on") {
        word(&format!("{key}.on"), &[("failure", ())], v, reports)?;
    }
    if let Some(v) = table.get("max") {
        out.max = count(&format!("{key}.max"), 1, v, reports)?;
    }
    for (name, slot) in
        [("within", &mut out.within), ("backoff", &mut out.backoff), ("backoff_max", &mut out.backoff_max)]
    {
        if let Some(v) = table.get(name) {
            *slot = span(&format!("{key}.{name}"), v, reports)?;
        }
    }
    Some(out)
}

/// Reports every key of `table` that is not in `known`.
pub(crate) fn unknown(table: &Table, known: &[&str], whose: &str, reports: &mut Reports) {
    for (key, _) in &table.entries {
        if !known.contains(&key.name.as_str()) {
            let hint = suggest(&key.name, known.iter().copied());
            reports.error(key.spot, format!("`{whose}` has no key `{}`{hint}", clip(&key.name)));
        }
    }
}

/// Port types by name.
pub(crate) fn port_type(name: &str) -> Option<PortType> {
    Some(match name {
        "audio" => PortType::Audio { rate: Param::Any, channels: Param::Any },
        "packet" => PortType::Packet,
        "video" => PortType::Video,
        "image" => PortType::Image,
        "tensor" => PortType::Tensor,
        "embed" => PortType::Embed,
        "tokens" => PortType::Tokens,
        "codes" => PortType::Codes,
        "text" => PortType::Text,
        "transcript" => PortType::Transcript,
        "event" => PortType::Event,
        "any" => PortType::Any,
        _ => return None,
    })
}

/// The names [`port_type`] knows.
pub(crate) const PORT_TYPES: [&str; 12] =
    ["audio", "packet", "video", "image", "tensor", "embed", "tokens", "codes", "text", "transcript", "event", "any"];

/// May this be the name of a node, model or scope?
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && !name.starts_with('-')
}
