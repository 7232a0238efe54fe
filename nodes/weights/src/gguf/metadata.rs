//! The key-value part of a GGUF file.

use std::collections::BTreeMap;

/// A value of a GGUF file's metadata.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    /// Any of the unsigned integers.
    U64(u64),
    /// Any of the signed integers.
    I64(i64),
    /// Either float.
    F64(f64),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    /// Numbers of an array of unsigned integers.
    U64s(Vec<u64>),
    /// Numbers of an array of signed integers.
    I64s(Vec<i64>),
    /// Numbers of an array of either float; the wider ones rounded.
    F32s(Vec<f32>),
    Bools(Vec<bool>),
}

/// The metadata of a GGUF file, by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata(pub BTreeMap<String, Value>);

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// A whole number that is not negative, whatever integer type it is stored as.
    pub fn u64(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::U64(v) => Some(*v),
            Value::I64(v) => u64::try_from(*v).ok(),
            _ => None,
        }
    }

    /// A number, whatever type it is stored as.
    pub fn f64(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::F64(v) => Some(*v),
            Value::U64(v) => Some(*v as f64),
            Value::I64(v) => Some(*v as f64),
            _ => None,
        }
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// A string.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.get(key)? {
            Value::Strings(v) => Some(v),
            _ => None,
        }
    }

    /// An array of floats.
    pub fn f32s(&self, key: &str) -> Option<&[f32]> {
        match self.get(key)? {
            Value::F32s(v) => Some(v),
            _ => None,
        }
    }

    /// An array of truth values.
    pub fn bools(&self, key: &str) -> Option<&[bool]> {
        match self.get(key)? {
            Value::Bools(v) => Some(v),
            _ => None,
        }
    }

    /// An array of whole numbers of any integer type; `None` when one doesn't fit in an `i64`.
    pub fn i64s(&self, key: &str) -> Option<Vec<i64>> {
        match self.get(key)? {
            Value::I64s(v) => Some(v.clone()),
            Value::U64s(v) => v.iter().map(|n| i64::try_from(*n).ok()).collect(),
            _ => None,
        }
    }
}
