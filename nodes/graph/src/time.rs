//! Graph time and the durations of graph files.

use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nanoseconds of graph time (signed: media may start before zero).
pub type Nanos = i64;

/// A duration as graph files write it: `"250ms"`, `"2s"`, `"1m"`, `"10us"`, `"1h"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Duration);

impl Span {
    /// `n` milliseconds.
    pub const fn ms(n: u64) -> Self {
        Self(Duration::from_millis(n))
    }

    /// `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    /// The duration in nanoseconds, saturating.
    pub fn nanos(self) -> Nanos {
        Nanos::try_from(self.0.as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// The duration in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0.as_secs_f64()
    }

    /// Parses `"250ms"`; the error is a sentence without its end ("... is not a duration ...").
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let scale = match unit.trim() {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(format!("`{text}` is not a duration; write it like \"250ms\", \"2s\" or \"1m\"")),
        };
        let value: f64 = number
            .parse()
            .map_err(|_| format!("`{text}` is not a duration; write it like \"250ms\", \"2s\" or \"1m\""))?;
        let seconds = value * scale;
        // 100 years: anything larger is a typing error and would overflow graph time.
        if !seconds.is_finite() || seconds > 3.2e9 {
            return Err(format!("`{text}` is longer than any graph can run; use at most 100 years"));
        }
        Ok(Self(Duration::from_secs_f64(seconds)))
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            write!(f, "0s")
        } else if nanos.is_multiple_of(1_000_000_000) {
            write!(f, "{}s", nanos / 1_000_000_000)
        } else if nanos.is_multiple_of(1_000_000) {
            write!(f, "{}ms", nanos / 1_000_000)
        } else if nanos.is_multiple_of(1_000) {
            write!(f, "{}us", nanos / 1_000)
        } else {
            write!(f, "{nanos}ns")
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        let text = String::deserialize(de)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, ser: S) -> Result<S::Ok, S::Error> {
        ser.collect_str(self)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A duration: \"250ms\", \"2s\", \"1m\".",
            "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(ns|us|µs|ms|s|m|min|h)\s*$"
        })
    }
}
