//! Values of a configuration, checked as they are read: `config.json` and GGUF metadata alike.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use oxiline_graph::{Result, bail};
use oxiline_weights::gguf::{Metadata, Value as Gguf};
use serde_json::{Map, Value};

/// Named values of one file. A null is as good as an absent key.
pub(crate) trait Keys {
    /// The file and the key, for messages.
    fn place(&self, key: &str) -> String;
    fn has(&self, key: &str) -> bool;
    fn number(&self, key: &str) -> Result<Option<f64>>;
    fn flag(&self, key: &str) -> Result<Option<bool>>;
    fn text(&self, key: &str) -> Result<Option<String>>;

    /// A whole number in `range`.
    fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(v) = self.number(key)? else { return Ok(None) };
        let whole = v.fract() == 0.0 && v >= *range.start() as f64 && v <= *range.end() as f64;
        if !whole {
            bail!("{} is {v}; a whole number from {} to {} is expected", self.place(key), range.start(), range.end());
        }
        Ok(Some(v as usize))
    }

    /// The same where there must be one.
    fn need(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        match self.size(key, range)? {
            Some(v) => Ok(v),
            None => bail!("{} is missing; is this file of a language model, and whole?", self.place(key)),
        }
    }

    /// A finite number above zero.
    fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.number(key)? {
            Some(v) if !(v > 0.0 && v <= 1e12) => bail!("{} is {v}; a number above zero is expected", self.place(key)),
            v => Ok(v),
        }
    }
}

/// An object of a JSON file.
pub(crate) struct Json {
    file: PathBuf,
    /// `text_config.` or nothing.
    path: String,
    map: Map<String, Value>,
}

impl Json {
    pub(crate) fn new(file: PathBuf, value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { file, path: String::new(), map }),
            _ => bail!("{}: not a JSON object; download the file again", file.display()),
        }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// The object at `key`.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Self { file: self.file.clone(), path: format!("{}{key}.", self.path), map: map.clone() }))
            }
            Some(_) => bail!("{} is not an object", self.place(key)),
        }
    }

    /// The strings at `key`.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().and_then(|l| l.iter().map(|v| v.as_str().map(str::to_owned)).collect());
        if list.is_none() {
            bail!("{} is not a list of strings", self.place(key));
        }
        Ok(list)
    }

    /// The whole numbers at `key`.
    pub(crate) fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let whole = |v: &Value| v.as_u64().and_then(|v| usize::try_from(v).ok());
        let list = value.as_array().and_then(|l| l.iter().map(whole).collect());
        if list.is_none() {
            bail!("{} is not a list of whole numbers", self.place(key));
        }
        Ok(list)
    }
}

impl Keys for Json {
    fn place(&self, key: &str) -> String {
        format!("{}: key `{}{key}`", self.file.display(), self.path)
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                Some(v) => Ok(Some(v)),
                None => bail!("{} is not a number", self.place(key)),
            },
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(_) => bail!("{} is neither true nor false", self.place(key)),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(v)) => Ok(Some(v.clone())),
            Some(_) => bail!("{} is not a string", self.place(key)),
        }
    }
}

/// The keys of an architecture in GGUF metadata: `head_count` is `llama.attention.head_count`.
pub(crate) struct Meta<'a> {
    pub file: PathBuf,
    pub arch: String,
    pub meta: &'a Metadata,
}

impl Meta<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn get(&self, key: &str) -> Option<&Gguf> {
        self.meta.get(&self.full(key))
    }
}

impl Keys for Meta<'_> {
    fn place(&self, key: &str) -> String {
        format!("{}: metadata key `{}`", self.file.display(), self.full(key))
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A list of equal numbers is that number (values may be given for every layer).
    fn number(&self, key: &str) -> Result<Option<f64>> {
        let same = |list: Vec<f64>| list.first().copied().filter(|first| list.iter().all(|v| v == first));
        let value = match self.get(key) {
            None => return Ok(None),
            Some(Gguf::U64s(list)) => same(list.iter().map(|v| *v as f64).collect()),
            Some(Gguf::I64s(list)) => same(list.iter().map(|v| *v as f64).collect()),
            Some(_) => self.meta.f64(&self.full(key)),
        };
        match value {
            Some(v) => Ok(Some(v)),
            None => bail!("{} is not one number for all layers", self.place(key)),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Gguf::Bool(v)) => Ok(Some(*v)),
            Some(_) => bail!("{} is neither true nor false", self.place(key)),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        match self.get(key) {
            None => Ok(None),
            Some(Gguf::String(v)) => Ok(Some(v.clone())),
            Some(_) => bail!("{} is not a string", self.place(key)),
        }
    }
}
