//! Answers that keep to a grammar: which tokens may come next.
//!
//! The automaton is llguidance's: a JSON schema or a regular expression over the bytes of the answer,
//! met with a trie of the vocabulary's bytes. Control tokens have no bytes here and never may come; the
//! model's end tokens may where the grammar is satisfied.

use std::path::Path;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use oxiline_graph::protocol::llm::Grammar;
use oxiline_graph::{Error, Result, bail};
use oxiline_weights::Tokenizer;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// The vocabulary of a model, as grammars look at it. Made once a model: it takes a good part of a second
/// where tokens are many.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Ids of the model; the number after the last stands for all end tokens.
    size: usize,
    ends: Vec<u32>,
}

impl Vocabulary {
    /// The tokens of a model whose logits are `size` long.
    ///
    /// # Errors
    /// The vocabulary is larger than grammars can be.
    pub fn new(tokenizer: &Tokenizer, size: usize) -> Result<Self> {
        let plain = |id: u32| {
            let control = tokenizer.is_special(id) || tokenizer.is_end(id);
            if control { Vec::new() } else { tokenizer.token_bytes(id) }
        };
        let mut words: Vec<Vec<u8>> = (0..size as u32).map(plain).collect();
        words.push(b"\xffend".to_vec());
        let info = TokRxInfo::new(words.len() as u32, size as u32);
        let trie = TokTrie::from(&info, &words);
        let ends = tokenizer.ends().iter().copied().filter(|id| (*id as usize) < size).collect();
        Ok(Self { factory: factory(std::sync::Arc::new(ApproximateTokEnv::new(trie)))?, size, ends })
    }
}

fn factory(env: TokEnv) -> Result<ParserFactory> {
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices()).map_err(Error::msg)?;
    factory.quiet();
    Ok(factory)
}

/// Kinds of text that JSON strings are full of: their tokens are known without walking the trie.
fn slices() -> Vec<String> {
    llguidance::earley::SlicedBiasComputer::json_slices()
}

/// Where an answer is in its grammar.
pub struct Constraint {
    matcher: Matcher,
    size: usize,
    ends: Vec<u32>,
}

impl Constraint {
    /// The beginning of an answer.
    ///
    /// # Errors
    /// As [`check`].
    pub fn new(grammar: &Grammar, vocabulary: &Vocabulary) -> Result<Self> {
        let matcher = compile(grammar, &vocabulary.factory)?;
        Ok(Self { matcher, size: vocabulary.size, ends: vocabulary.ends.clone() })
    }

    /// Takes out of `logits` what may not come.
    ///
    /// # Errors
    /// The grammar is more than can be followed.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|e| lost(&e))?;
        let may_end = allowed.is_allowed(self.size as u32);
        let ends: Vec<(u32, f32)> = self.ends.iter().map(|id| (*id, logits[*id as usize])).collect();
        for (word, logits) in allowed.as_slice().iter().zip(logits.chunks_mut(u32::BITS as usize)) {
            if *word == u32::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if may_end {
            ends.into_iter().for_each(|(id, logit)| logits[id as usize] = logit);
        }
        Ok(())
    }

    /// Goes on by a token that [`Self::mask`] left. True: nothing but the end may follow.
    ///
    /// # Errors
    /// The token does not belong there.
    pub fn accept(&mut self, id: u32) -> Result<bool> {
        let id = if self.ends.contains(&id) { self.size as u32 } else { id };
        self.matcher.consume_token(id).map_err(|e| lost(&e))?;
        Ok(self.matcher.is_stopped())
    }
}

fn compile(grammar: &Grammar, factory: &ParserFactory) -> Result<Matcher> {
    let (what, written) = match grammar {
        Grammar::JsonSchema(schema) => ("JSON schema", TopLevelGrammar::from_json_schema(schema.clone())),
        Grammar::Regex(pattern) => ("regular expression", TopLevelGrammar::from_regex(pattern)),
    };
    let wrong = |why: &str| Error::msg(format_args!("the {what} cannot be used: {}", line(why)));
    let parser = factory.create_parser(written).map_err(|e| wrong(&format!("{e:#}")))?;
    let mut matcher = Matcher::new(Ok(parser));
    // Some mistakes only show at the first step: a grammar that nothing satisfies, for one.
    let first = matcher.compute_mask_or_eos().map_err(|e| wrong(&format!("{e:#}")))?;
    if first.is_zero() {
        return Err(wrong("no text satisfies it"));
    }
    match matcher.grammar_warnings().first() {
        Some(warning) => Err(wrong(warning)),
        None => Ok(matcher),
    }
}

fn lost(error: &dyn std::fmt::Display) -> Error {
    Error::msg(format_args!("the answer's grammar cannot be followed any further: {}", line(&error.to_string())))
}

/// A message of the automaton as part of one sentence.
fn line(text: &str) -> String {
    let mut words = text.split_whitespace();
    let mut out = words.next().unwrap_or("it says no more").to_string();
    for word in words {
        if out.len() + word.len() > 240 {
            return out + " ...";
        }
        out.push(' ');
        out.push_str(word);
    }
    out
}

/// Fails when a grammar cannot be used, whatever the model.
///
/// # Errors
/// A sentence that says what in it is wrong or not supported.
pub fn check(grammar: &Grammar) -> Result<()> {
    compile(grammar, &factory(ApproximateTokEnv::single_byte_env())?).map(drop)
}

/// A JSON schema that is written out (`{...}`), or that lies in a file; checked.
///
/// # Errors
/// The file cannot be read, or it is no schema that can be used.
pub fn json_schema(text: &str) -> Result<Grammar> {
    let inline = text.trim_start().starts_with('{');
    let (from, text) = if inline {
        ("the JSON schema".to_string(), text.to_string())
    } else {
        let read = std::fs::read_to_string(Path::new(text));
        let text = read.map_err(|e| Error::msg(format_args!("the JSON schema `{text}` cannot be read: {e}")))?;
        ("the JSON schema's file".to_string(), text)
    };
    let schema: Value = serde_json::from_str(&text)
        .map_err(|e| Error::msg(format_args!("{from} is not JSON: {}", line(&e.to_string()))))?;
    let grammar = Grammar::JsonSchema(schema);
    check(&grammar)?;
    Ok(grammar)
}

/// A regular expression that the whole answer matches; checked.
///
/// # Errors
/// It is no regular expression, or one that cannot be used.
pub fn regex(pattern: &str) -> Result<Grammar> {
    let grammar = Grammar::Regex(pattern.to_string());
    check(&grammar)?;
    Ok(grammar)
}

/// What a node's options `json_schema` and `regex` ask for.
pub(crate) fn of_options(schema: Option<&Value>, pattern: Option<&str>) -> Result<Option<Grammar>> {
    match (schema, pattern) {
        (Some(_), Some(_)) => bail!("`json_schema` and `regex` cannot both bind an answer; choose one"),
        (Some(Value::String(text)), None) => json_schema(text).map(Some),
        (Some(schema), None) => {
            let grammar = Grammar::JsonSchema(schema.clone());
            check(&grammar)?;
            Ok(Some(grammar))
        }
        (None, Some(pattern)) => regex(pattern).map(Some),
        (None, None) => Ok(None),
    }
}
