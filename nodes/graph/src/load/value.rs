//! The tree of a graph file: TOML values that remember their place.

use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml_parser::lexer::TokenKind;

use super::message::{Reports, Spot, clip};

/// A graph file larger than this is not a graph file.
pub(crate) const MAX_FILE: usize = 8 << 20;
/// Dotted keys deeper than this overflow the stack of every TOML reader.
const MAX_DOTS: usize = 32;

/// A key with its place.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub name: String,
    pub spot: Spot,
}

/// A value with its place.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    pub spot: Spot,
    pub kind: Kind,
    /// The text behind a `--set` value, for keys that want text where TOML would read a number.
    pub raw: Option<Arc<str>>,
}

/// What a value is.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Str(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Value>),
    Table(Table),
}

/// Keys and values in file order. Tables of a graph file are short: lookups walk them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub entries: Vec<(Key, Value)>,
}

impl Table {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.entries.iter().find(|(k, _)| k.name == name).map(|(_, v)| v)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.entries.iter_mut().find(|(k, _)| k.name == name).map(|(_, v)| v)
    }

    pub fn take(&mut self, name: &str) -> Option<(Key, Value)> {
        let at = self.entries.iter().position(|(k, _)| k.name == name)?;
        Some(self.entries.remove(at))
    }

    /// Replaces or adds.
    pub fn set(&mut self, name: &str, value: Value) {
        match self.get_mut(name) {
            Some(old) => *old = value,
            None => self.entries.push((Key { name: name.into(), spot: value.spot }, value)),
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.entries.iter().map(|(k, _)| k.name.as_str())
    }
}

impl Value {
    pub fn new(spot: Spot, kind: Kind) -> Self {
        Self { spot, kind, raw: None }
    }

    pub fn text(spot: Spot, text: impl Into<String>) -> Self {
        Self::new(spot, Kind::Str(text.into()))
    }

    /// What it is, for messages: "the number 3", "the text \"abc\"".
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Str(s) => format!("the text \"{}\"", clip(s)),
            Kind::Int(n) => format!("the number {n}"),
            Kind::Float(x) => format!("the number {x}"),
            Kind::Bool(b) => format!("{b}"),
            Kind::List(_) => "a list".into(),
            Kind::Table(_) => "a table".into(),
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match &self.kind {
            Kind::Str(s) => Some(s),
            _ => None,
        }
    }

    pub fn as_table(&self) -> Option<&Table> {
        match &self.kind {
            Kind::Table(t) => Some(t),
            _ => None,
        }
    }

    /// As JSON; `None` for numbers JSON has no word for (nan, inf).
    pub fn to_json(&self) -> Option<serde_json::Value> {
        use serde_json::Value as J;
        Some(match &self.kind {
            Kind::Str(s) => J::String(s.clone()),
            Kind::Int(n) => J::from(*n),
            Kind::Float(x) => J::Number(serde_json::Number::from_f64(*x)?),
            Kind::Bool(b) => J::Bool(*b),
            Kind::List(items) => J::Array(items.iter().map(Value::to_json).collect::<Option<_>>()?),
            Kind::Table(t) => table_to_json(t)?,
        })
    }

    /// From JSON, for graphs from code. `null` has no TOML: keys holding it are left out.
    pub fn from_json(json: &serde_json::Value) -> Option<Self> {
        use serde_json::Value as J;
        let kind = match json {
            J::Null => return None,
            J::Bool(b) => Kind::Bool(*b),
            J::Number(n) => match n.as_i64() {
                Some(n) => Kind::Int(n),
                None => Kind::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            J::String(s) => Kind::Str(s.clone()),
            J::Array(items) => Kind::List(items.iter().filter_map(Self::from_json).collect()),
            J::Object(map) => {
                let mut table = Table::default();
                for (name, value) in map {
                    if let Some(value) = Self::from_json(value) {
                        table.entries.push((Key { name: name.clone(), spot: Spot::NONE }, value));
                    }
                }
                Kind::Table(table)
            }
        };
        Some(Self::new(Spot::NONE, kind))
    }
}

/// A table as a JSON object.
pub(crate) fn table_to_json(table: &Table) -> Option<serde_json::Value> {
    let mut map = serde_json::Map::new();
    for (key, value) in &table.entries {
        map.insert(key.name.clone(), value.to_json()?);
    }
    Some(serde_json::Value::Object(map))
}

/// Reads TOML text. Errors go to `reports`; `None` when nothing can be done with the file.
pub(crate) fn parse(file: u32, text: &str, reports: &mut Reports) -> Option<Table> {
    if let Some(at) = text.find('\0') {
        reports.error(
            Spot::new(file, at),
            format!("there is a NUL byte at offset {at}: a graph file is text; save it as UTF-8 again"),
        );
        return None;
    }
    if let Some(at) = too_many_dots(text) {
        reports.error(
            Spot::new(file, at),
            format!("this key has more than {MAX_DOTS} dotted parts; write tables instead"),
        );
        return None;
    }
    match DeTable::parse(text) {
        Ok(table) => convert_table(file, table.get_ref(), reports),
        Err(error) => {
            let at = error.span().map_or(0, |s| s.start);
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            let message = if message.contains("duplicate key") {
                let line = text.get(at..).and_then(|t| t.lines().next()).unwrap_or_default();
                let name = text.get(error.span().unwrap_or(0..0)).unwrap_or(line).trim();
                format!("`{}` is declared twice; rename or remove one of them", clip(name))
            } else {
                format!("this is not TOML: {}", clip_long(&message))
            };
            reports.error(Spot::new(file, at), message);
            None
        }
    }
}

fn clip_long(text: &str) -> String {
    text.chars()
        .take(200)
        .flat_map(|c| if c.is_control() { c.escape_debug().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}

fn too_many_dots(text: &str) -> Option<usize> {
    let mut dots = 0;
    for token in toml_parser::Source::new(text).lex() {
        match token.kind() {
            TokenKind::Dot => {
                dots += 1;
                if dots > MAX_DOTS {
                    return Some(token.span().start());
                }
            }
            TokenKind::Atom | TokenKind::BasicString | TokenKind::LiteralString | TokenKind::Whitespace => {}
            _ => dots = 0,
        }
    }
    None
}

fn convert_table(file: u32, table: &DeTable<'_>, reports: &mut Reports) -> Option<Table> {
    let mut out = Table::default();
    let mut whole = true;
    out.entries.reserve(table.len());
    for (key, value) in table.iter() {
        let key = Key { name: key.get_ref().to_string(), spot: Spot::new(file, key.span().start) };
        match convert(file, &key.name, value, reports) {
            Some(value) => out.entries.push((key, value)),
            None => whole = false,
        }
    }
    whole.then_some(out)
}

fn convert(file: u32, key: &str, value: &Spanned<DeValue<'_>>, reports: &mut Reports) -> Option<Value> {
    let spot = Spot::new(file, value.span().start);
    let kind = match value.get_ref() {
        DeValue::String(s) => Kind::Str(s.to_string()),
        DeValue::Integer(n) => match i64::from_str_radix(n.as_str(), n.radix()) {
            Ok(n) => Kind::Int(n),
            Err(_) => {
                reports.error(spot, format!("`{}` holds a number beyond 64 bits", clip(key)));
                return None;
            }
        },
        DeValue::Float(x) => match x.as_str().parse::<f64>() {
            Ok(x) if x.is_finite() => Kind::Float(x),
            _ => {
                reports.error(spot, format!("`{}` must be a finite number", clip(key)));
                return None;
            }
        },
        DeValue::Boolean(b) => Kind::Bool(*b),
        DeValue::Datetime(_) => {
            reports.error(
                spot,
                format!("`{}` holds a date, which no key of a graph takes; write it as text in quotes", clip(key)),
            );
            return None;
        }
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|v| convert(file, key, v, reports)).collect();
            Kind::List(items.into_iter().collect::<Option<_>>()?)
        }
        DeValue::Table(table) => Kind::Table(convert_table(file, table, reports)?),
    };
    Some(Value::new(spot, kind))
}

/// Reads the value of `--set key=VALUE`: TOML if it is, else text.
pub(crate) fn parse_set(text: &str) -> Value {
    let mut value = Value::text(Spot::NONE, text);
    if !text.contains('\0')
        && text.len() < MAX_FILE
        && too_many_dots(text).is_none()
        && let Ok(parsed) = DeValue::parse(text)
    {
        let mut ignored = Reports::default();
        if let Some(parsed) = convert(u32::MAX, "--set", &parsed, &mut ignored) {
            value = parsed;
        }
    }
    value.raw = Some(text.into());
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_values_are_toml_or_text() {
        assert!(matches!(parse_set("3").kind, Kind::Int(3)));
        assert!(matches!(parse_set("true").kind, Kind::Bool(true)));
        assert_eq!(parse_set("400ms").as_str(), Some("400ms"));
        assert_eq!(parse_set("\"x\"").as_str(), Some("x"));
        assert_eq!(parse_set("a/b.wav").as_str(), Some("a/b.wav"));
    }

    #[test]
    fn deep_dotted_keys_are_refused_before_they_are_read() {
        let mut reports = Reports::default();
        let text = format!("{}a = 1", "a.".repeat(100_000));
        let file = reports.add_source("g.toml", &text);
        assert!(parse(file, &text, &mut reports).is_none());
        assert!(reports.into_messages()[0].text.contains("dotted parts"));
    }
}
