//! Options of an `llm` model.

use std::borrow::Cow;

use oxiline_graph::{Error, Result, bail};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::decoder::{KvFormat, LoadOptions, Quant};

/// Options of an `llm` model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LlmOptions {
    /// A GGUF file, a checkpoint's folder, `org/name`, `org/name:QUANT`, or a known name.
    pub weights: String,
    /// Quantise weights that the files keep as floats.
    pub quant: Option<Quant>,
    /// Compute in float32 on dequantised weights: slow, for comparing with a reference.
    pub exact: bool,
    /// Most positions of a session, prompt and answer together; the model's own context when left out.
    pub context: Option<usize>,
    /// Caches of keys and values.
    pub kv: KvOptions,
    /// Positions of a prompt computed at once when nobody else waits.
    pub prefill_chunk: usize,
    /// A file with a chat template in place of the model's own.
    pub template: Option<String>,
    /// Where to compute: `cpu`, or left out.
    pub device: Option<String>,
}

impl Default for LlmOptions {
    fn default() -> Self {
        Self {
            weights: String::new(),
            quant: None,
            exact: false,
            context: None,
            kv: KvOptions::default(),
            prefill_chunk: 256,
            template: None,
            device: None,
        }
    }
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KvKind {
    /// 32-bit floats.
    F32,
    /// IEEE halves.
    F16,
    /// 8-bit integers with a scale a row.
    Int8,
}

/// Bounds of the caches of keys and values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KvOptions {
    /// How they are kept; halves when left out.
    pub format: Option<KvKind>,
    /// Most bytes of one session (`"192MiB"`); without it only its context bounds it.
    pub per_session: Option<Size>,
    /// Most bytes of all sessions and kept prefixes together; no bound when left out.
    pub total: Option<Size>,
    /// Most sessions with a cache; without it the model's `max_sessions`.
    pub sessions: Option<usize>,
    /// Most bytes of prompts kept for other sessions that begin alike (256 MiB when left out; 0: none).
    pub prefixes: Option<Size>,
    /// Whose cache goes first when the total is reached.
    pub evict: Evict,
}

/// Whose cache goes first when the total is reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Evict {
    /// Kept prefixes, then the session that has been idle longest: it computes its context again.
    #[default]
    IdleOldest,
    /// Kept prefixes only; then a request is refused.
    Never,
}

/// A number of bytes, written as `"256MiB"`, `"1GB"` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().ok()?;
        let factor = match unit.trim() {
            "" | "B" => 1.0,
            "kB" | "KB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            _ => return None,
        };
        let bytes = number * factor;
        (bytes.is_finite() && bytes < u64::MAX as f64).then_some(Self(bytes as u64))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        let bad = |what: &str| {
            serde::de::Error::custom(format!("{what} is not a size; write \"256MiB\", \"1GiB\" or a number of bytes"))
        };
        match Written::deserialize(from).map_err(|_| bad("this"))? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => Self::parse(&text).ok_or_else(|| bad(&format!("`{text}`"))),
        }
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a size",
            "anyOf": [{"type": "string", "pattern": "^[0-9.]+ *(B|kB|KB|MB|GB|KiB|MiB|GiB)?$"}, {"type": "integer", "minimum": 0}],
        })
    }
}

impl LlmOptions {
    /// What can be known to be wrong before anything is read.
    pub(crate) fn check(&self) -> Result<()> {
        if self.weights.is_empty() {
            return Err(Error::msg(
                "an `llm` model needs `weights`: a GGUF file, a checkpoint's folder, `org/name` or a known name",
            ));
        }
        if let Some(device) = self.device.as_deref().filter(|device| !matches!(*device, "cpu" | "auto")) {
            bail!("device `{device}` is not known to `llm`; use `cpu`");
        }
        if self.prefill_chunk == 0 {
            bail!("`prefill_chunk` is 0; at least one position has to be computed at a time");
        }
        if self.context == Some(0) {
            bail!("`context` is 0; a session needs room for a prompt and an answer");
        }
        if self.exact && self.quant.is_some() {
            bail!("`exact` computes in float32 and `quant` in integers; choose one");
        }
        Ok(())
    }

    /// How the decoder is loaded.
    pub(crate) fn load(&self) -> LoadOptions {
        LoadOptions {
            exact: self.exact,
            quant: self.quant,
            kv: self.kv.format.map(|format| match format {
                KvKind::F32 => KvFormat::F32,
                KvKind::F16 => KvFormat::F16,
                KvKind::Int8 => KvFormat::Int8,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [("1GiB", 1 << 30), ("192MiB", 192 << 20), ("1.5 kB", 1500), ("7", 7), ("0", 0)] {
            assert_eq!(Size::parse(text), Some(Size(bytes)), "{text}");
        }
        for text in ["", "GiB", "1TiB2", "-1", "1e300GiB", "..", "1 gib"] {
            assert_eq!(Size::parse(text), None, "{text}");
        }
        let options: LlmOptions =
            serde_json::from_value(serde_json::json!({"weights": "x", "kv": {"total": "1GiB", "evict": "never"}}))
                .unwrap();
        assert_eq!((options.kv.total, options.kv.evict), (Some(Size(1 << 30)), Evict::Never));
        let error = serde_json::from_value::<LlmOptions>(serde_json::json!({"kv": {"total": "much"}})).unwrap_err();
        assert!(error.to_string().contains("`much` is not a size"), "{error}");
    }
}
