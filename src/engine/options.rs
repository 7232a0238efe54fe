//! Every setting of an engine by name: the flags of `oxiline chat` and the keys of programs are the same.

use std::path::Path;

use oxiline_graph::protocol::llm::{ContextFull, Generate, Grammar, Llm, OpenLlm, Prompt, Sampling};
use oxiline_graph::{ActorConfig, ActorHandle, Error, Load, Model, Result};
use oxiline_language::grammar;
use serde_json::{Map, Value};

/// A key of [`EngineOptions::set`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its name; `-` and `_` are the same.
    pub name: &'static str,
    /// What it sets.
    pub about: &'static str,
    /// It counts when the model is loaded, and not for a model that is there already.
    pub load: bool,
}

const fn key(name: &'static str, about: &'static str) -> Key {
    Key { name, about, load: false }
}

const fn load_key(name: &'static str, about: &'static str) -> Key {
    Key { name, about, load: true }
}

/// Every key.
pub const KEYS: &[Key] = &[
    load_key("quant", "quantise the weights at load: q8, q4"),
    load_key("kv", "how the cache is kept: f32, f16, int8"),
    load_key("exact", "compute in float32 on dequantised weights: true, false"),
    load_key("prefill_chunk", "most tokens of a prompt computed at a time"),
    load_key("threads", "compute threads of the process"),
    load_key("context", "most tokens of prompt and answer together"),
    load_key("context_full", "when the context is full: error, drop-oldest"),
    key("temperature", "0: always the most probable token"),
    key("top_k", "only the so many most probable tokens (0: all)"),
    key("top_p", "only the most probable tokens that reach this probability together (1: all)"),
    key("min_p", "only tokens at least this times as probable as the most probable one (0: all)"),
    key("typical", "locally typical sampling: the mass kept (1: off)"),
    key("xtc_probability", "XTC: how often the most probable tokens are taken out (0: off)"),
    key("xtc_threshold", "XTC: what counts as probable"),
    key("dry_multiplier", "DRY: strength against repetitions (0: off)"),
    key("dry_base", "DRY: growth with the length of a repetition"),
    key("dry_allowed_length", "DRY: repetitions up to this length are free"),
    key("repeat_penalty", "factor against tokens already there (1: off)"),
    key("presence_penalty", "taken off tokens already in the answer"),
    key("frequency_penalty", "taken off for every time a token is in the answer"),
    key("penalty_window", "so many last tokens count for penalties and DRY (0: all)"),
    key("logit_bias", "ID=BIAS, added to the logits of tokens; several joined by commas"),
    key("seed", "seed of the draws; random: a fresh one each turn"),
    key("max_tokens", "most tokens of an answer"),
    key("stop", "the answer ends before this text; set it again for more; empty: none"),
    key("json_schema", "the answer is JSON that this schema allows: the schema or its file; empty: none"),
    key("regex", "the answer matches this regular expression as a whole; empty: none"),
    key("ignore_end", "end tokens do not end the answer: true, false"),
    key("logprobs", "log-probabilities of so many tokens at each place"),
    key("show_tokens", "tell every token, special ones included: true, false"),
    key("think", "thinking on or off: true, false, auto (as the template has it)"),
    key("system", "the system message (empty: none)"),
    key("raw", "text as it is, without the chat template: true, false"),
];

/// How a model is loaded and how it answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineOptions {
    model: Map<String, Value>,
    threads: Option<usize>,
    open: OpenLlm,
    sampling: Sampling,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    grammar: Option<Grammar>,
    ignore_end: bool,
    logprobs: Option<usize>,
    tokens: bool,
    think: Option<bool>,
    system: Option<String>,
    raw: bool,
}

impl EngineOptions {
    /// The defaults: weights as stored, the most probable token, the model's own context.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key (see [`KEYS`]) to a value written as on the command line.
    ///
    /// # Errors
    /// A sentence that names the key: unknown, or a value it does not take.
    pub fn set(&mut self, key: &str, value: &str) -> Result<&mut Self> {
        let name = key.trim().trim_start_matches("--").replace('-', "_");
        let s = &mut self.sampling;
        match name.as_str() {
            "quant" => self.model("quant", &name, value, &["q8", "q4"])?,
            "kv" => self.model("kv", &name, value, &["f32", "f16", "int8"])?,
            "exact" => {
                let on = truth(&name, value)?;
                self.model.insert("exact".into(), on.into());
            }
            "prefill_chunk" => {
                let n = whole(&name, value, 1, 1 << 20)?;
                self.model.insert("prefill_chunk".into(), n.into());
            }
            "threads" => self.threads = Some(whole(&name, value, 1, 1024)?),
            "context" => self.open.context = Some(whole(&name, value, 1, 1 << 28)?),
            "context_full" => {
                self.open.full = match value.trim() {
                    "error" => ContextFull::Error,
                    "drop-oldest" | "drop_oldest" => ContextFull::DropOldest,
                    _ => return Err(bad(&name, value, "error or drop-oldest")),
                }
            }
            "temperature" | "temp" => s.temperature = number(&name, value, 0.0, 1e4)?,
            "top_k" => s.top_k = whole(&name, value, 0, 1 << 30)?,
            "top_p" => s.top_p = number(&name, value, 0.0, 1.0)?,
            "min_p" => s.min_p = number(&name, value, 0.0, 1.0)?,
            "typical" | "typical_p" => s.typical_p = number(&name, value, 0.0, 1.0)?,
            "xtc" | "xtc_probability" => s.xtc_probability = number(&name, value, 0.0, 1.0)?,
            "xtc_threshold" => s.xtc_threshold = number(&name, value, 0.0, 1.0)?,
            "dry" | "dry_multiplier" => s.dry_multiplier = number(&name, value, 0.0, 1e4)?,
            "dry_base" => s.dry_base = number(&name, value, 0.0, 1e4)?,
            "dry_allowed_length" => s.dry_allowed_length = whole(&name, value, 0, 1 << 20)?,
            "repeat_penalty" | "repetition_penalty" => s.repetition_penalty = number(&name, value, 0.01, 100.0)?,
            "presence_penalty" => s.presence_penalty = number(&name, value, -100.0, 100.0)?,
            "frequency_penalty" => s.frequency_penalty = number(&name, value, -100.0, 100.0)?,
            "penalty_window" => s.penalty_window = whole(&name, value, 0, 1 << 28)?,
            "logit_bias" => s.logit_bias = biases(&name, value)?,
            "seed" => {
                s.seed = match value.trim() {
                    "" | "random" => None,
                    text => Some(text.parse().map_err(|_| bad(&name, value, "a whole number, or random"))?),
                }
            }
            "max_tokens" => self.max_tokens = Some(whole(&name, value, 0, 1 << 28)?),
            "stop" if value.is_empty() => self.stop.clear(),
            "stop" => self.stop.push(value.to_string()),
            "json_schema" | "regex" if value.is_empty() => self.grammar = None,
            "json_schema" => self.grammar = Some(grammar::json_schema(value)?),
            "regex" => self.grammar = Some(grammar::regex(value)?),
            "ignore_end" => self.ignore_end = truth(&name, value)?,
            "logprobs" => self.logprobs = Some(whole(&name, value, 0, 1000)?),
            "show_tokens" => self.tokens = truth(&name, value)?,
            "think" => {
                self.think = match value.trim() {
                    "auto" => None,
                    _ => Some(truth(&name, value)?),
                }
            }
            "system" => self.system = (!value.is_empty()).then(|| value.to_string()),
            "no_system" => {
                if truth(&name, value)? {
                    self.system = None;
                }
            }
            "raw" => self.raw = truth(&name, value)?,
            _ => return Err(unknown(key)),
        }
        Ok(self)
    }

    /// The same, as a chain.
    ///
    /// # Errors
    /// As [`EngineOptions::set`].
    pub fn with(mut self, key: &str, value: &str) -> Result<Self> {
        self.set(key, value)?;
        Ok(self)
    }

    /// Sets a key of the model's own options, as its `[models.NAME]` table takes them; they are checked at load.
    pub fn set_model(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.model.insert(key.into(), value.into());
        self
    }

    fn model(&mut self, key: &str, name: &str, value: &str, words: &[&str]) -> Result<()> {
        let value = value.trim();
        if !words.contains(&value) {
            return Err(bad(name, value, &words.join(" or ")));
        }
        self.model.insert(key.into(), value.into());
        Ok(())
    }

    /// A request that answers `prompt` with these settings.
    pub fn generate(&self, prompt: Prompt) -> Generate {
        Generate {
            prompt,
            sampling: self.sampling.clone(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ignore_end: self.ignore_end,
            grammar: self.grammar.clone(),
            logprobs: self.logprobs,
            tokens: self.tokens || self.logprobs.is_some(),
        }
    }

    /// What a session is opened with.
    pub fn open(&self) -> OpenLlm {
        self.open.clone()
    }

    /// How tokens are chosen.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// How tokens are chosen, to change.
    pub fn sampling_mut(&mut self) -> &mut Sampling {
        &mut self.sampling
    }

    /// Options of the model actor beside its weights' place.
    pub fn model_options(&self) -> &Map<String, Value> {
        &self.model
    }

    /// Compute threads.
    pub fn threads(&self) -> Option<usize> {
        self.threads
    }

    /// Thinking on, off, or as the template has it.
    pub fn think(&self) -> Option<bool> {
        self.think
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Text as it is, without the chat template?
    pub fn raw(&self) -> bool {
        self.raw
    }
}

/// Loads the weights and starts an actor of the model kind `M`.
pub(super) fn start<M: Model<Protocol = Llm>>(
    weights: &Path,
    options: &EngineOptions,
    load: &Load,
) -> Result<ActorHandle<Llm>> {
    let mut table = options.model.clone();
    table.insert("weights".into(), weights.to_string_lossy().into_owned().into());
    if let Some(format) = table.get("kv").filter(|kv| kv.is_string()).cloned() {
        table.insert("kv".into(), serde_json::json!({ "format": format }));
    }
    let model = serde_json::from_value(Value::Object(table))
        .map_err(|e| Error::msg(format_args!("the model's options are not right: {e}")))?;
    let name = weights.file_name().unwrap_or(weights.as_os_str()).to_string_lossy();
    let config = ActorConfig { name: name.as_ref().into(), ..ActorConfig::default() };
    ActorHandle::load_with::<M>(model, super::CLASS, config, load)
}

fn bad(name: &str, value: &str, wanted: &str) -> Error {
    Error::msg(format_args!("`{name}` cannot be `{value}`: give {wanted}"))
}

fn unknown(key: &str) -> Error {
    let near = KEYS.iter().map(|k| (strsim::jaro_winkler(k.name, &key.replace('-', "_")), k.name));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((how, name)) if how > 0.8 => Error::msg(format_args!("there is no option `{key}`; is it `{name}`?")),
        _ => {
            let names: Vec<&str> = KEYS.iter().map(|k| k.name).collect();
            Error::msg(format_args!("there is no option `{key}`; there are {}", names.join(", ")))
        }
    }
}

fn truth(name: &str, value: &str) -> Result<bool> {
    match value.trim() {
        "true" | "on" | "yes" | "1" | "" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err(bad(name, value, "true or false")),
    }
}

fn whole(name: &str, value: &str, least: usize, most: usize) -> Result<usize> {
    let n = value.trim().parse().ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| bad(name, value, &format!("a whole number from {least} to {most}")))
}

fn number(name: &str, value: &str, least: f32, most: f32) -> Result<f32> {
    let n = value.trim().parse().ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| bad(name, value, &format!("a number from {least} to {most}")))
}

/// `ID=BIAS,ID=BIAS`; a bias may be `-inf`, which forbids the token.
fn biases(name: &str, value: &str) -> Result<Vec<(u32, f32)>> {
    let wanted = "ID=BIAS with a token's number, like 42=-1.5 or 42=-inf, several joined by commas";
    let one = |part: &str| {
        let (id, bias) = part.split_once('=').or_else(|| part.split_once(':'))?;
        let bias: f32 = bias.trim().parse().ok()?;
        Some((id.trim().parse().ok()?, bias)).filter(|(_, b)| !b.is_nan() && *b != f32::INFINITY)
    };
    let parts = value.split(',').filter(|part| !part.trim().is_empty());
    parts.map(|part| one(part).ok_or_else(|| bad(name, part, wanted))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_can_be_set_and_has_an_effect() {
        let values = [
            ("quant", "q8"),
            ("kv", "int8"),
            ("context_full", "drop-oldest"),
            ("logit_bias", "3=-inf, 4=1.5"),
            ("system", "x"),
            ("stop", "x"),
            ("typical", "0.5"),
            ("json_schema", "{}"),
            ("top_p", "0.5"),
            ("min_p", "0.5"),
            ("xtc_probability", "0.5"),
            ("xtc_threshold", "0.5"),
        ];
        for Key { name, .. } in KEYS {
            let value = values.iter().find(|(k, _)| k == name).map_or("3", |(_, v)| v);
            let value =
                if matches!(*name, "exact" | "ignore_end" | "show_tokens" | "think" | "raw") { "true" } else { value };
            for written in [name.to_string(), format!("--{}", name.replace('_', "-"))] {
                let mut options = EngineOptions::new();
                options.set(&written, value).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_ne!(options, EngineOptions::new(), "{name} changes nothing");
            }
        }
        let options = EngineOptions::new().with("logit_bias", "3=-inf, 4:1.5").unwrap();
        assert_eq!(options.sampling().logit_bias, [(3, f32::NEG_INFINITY), (4, 1.5)]);
    }

    #[test]
    fn what_a_key_does_not_take_is_one_sentence() {
        let mut options = EngineOptions::new();
        let cases = [
            ("temperature", "-1", "temperature"),
            ("temperature", "NaN", "temperature"),
            ("top_p", "1.5", "from 0 to 1"),
            ("top_k", "x", "top_k"),
            ("kv", "f8", "f32 or f16 or int8"),
            ("tempreature", "1", "is it `temperature`"),
            ("zzz", "1", "there are quant"),
            ("logit_bias", "a=1", "ID=BIAS"),
            ("logit_bias", "1=inf", "ID=BIAS"),
            ("context_full", "shift", "drop-oldest"),
            ("think", "perhaps", "true or false"),
            ("repeat_penalty", "0", "from 0.01"),
            ("json_schema", "{\"type\": 7}", "JSON schema"),
            ("json_schema", "no/such/file", "cannot be read"),
            ("regex", "(", "regular expression"),
        ];
        for (key, value, want) in cases {
            let error = options.set(key, value).unwrap_err().to_string();
            assert!(error.contains(want), "{key}={value}: {error}");
        }
        assert_eq!(options, EngineOptions::new(), "a refused value changes nothing");
    }
}
