//! Text that is only text: what a user or a tool wrote must not become control tokens.

use std::collections::{HashMap, HashSet};

use tokenizers::{AddedVocabulary, Model, OffsetType, PreTokenizer};

use super::{Tokenizer, guard};
use crate::error::{Error, Result, shown};

/// Tags of plain documents that some vocabularies have whole; everything else between angle brackets
/// steers a model.
const HTML: [&str; 39] = [
    "a",
    "b",
    "i",
    "u",
    "s",
    "p",
    "br",
    "hr",
    "em",
    "ol",
    "ul",
    "li",
    "td",
    "th",
    "tr",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "dl",
    "dt",
    "dd",
    "sub",
    "sup",
    "img",
    "div",
    "span",
    "code",
    "pre",
    "table",
    "tbody",
    "thead",
    "tfoot",
    "strong",
    "caption",
    "blockquote",
    "hgroup",
];

/// How plain text is taken apart.
pub(super) struct Plain {
    /// Added tokens that are text all the same: runs of line breaks, tags of documents.
    allowed: AddedVocabulary,
    /// The others, with their ids.
    control: HashMap<Vec<u8>, u32>,
    /// Their lengths, longest first.
    lengths: Vec<usize>,
    /// Bytes they begin with.
    first: HashSet<u8>,
}

impl Plain {
    pub fn new(inner: &tokenizers::Tokenizer) -> Self {
        let (mut allowed, mut control) = (AddedVocabulary::new(), HashMap::new());
        let mut tokens: Vec<_> = inner.get_added_vocabulary().get_added_tokens_decoder().iter().collect();
        tokens.sort_by_key(|(id, _)| **id);
        let mut text = Vec::new();
        for (&id, token) in tokens {
            // A token outside the model's own vocabulary can't be found again by its text.
            if token.special || steers(&token.content) || inner.get_model().token_to_id(&token.content) != Some(id) {
                control.insert(token.content.clone().into_bytes(), id);
            } else {
                text.push(token.clone());
            }
        }
        // Without them the text is still encoded, only longer.
        let _ = allowed.add_tokens(text, inner.get_model(), inner.get_normalizer());
        let mut lengths: Vec<usize> = control.keys().map(Vec::len).collect::<HashSet<_>>().into_iter().collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let first = control.keys().filter_map(|t| t.first().copied()).collect();
        Self { allowed, control, lengths, first }
    }

    /// The first control token in `text` at or after byte `from`: where, how long, which.
    pub fn find(&self, text: &[u8], from: usize) -> Option<(usize, usize, u32)> {
        (from..text.len()).filter(|&at| self.first.contains(&text[at])).find_map(|at| {
            self.lengths.iter().find_map(|&n| {
                let id = self.control.get(text.get(at..at + n)?)?;
                Some((at, n, *id))
            })
        })
    }
}

/// Does a token that isn't marked as special steer the model all the same (`<think>`, `<tool_call>`)?
pub(super) fn steers(token: &str) -> bool {
    let bracketed =
        (token.starts_with('<') && token.ends_with('>')) || (token.starts_with('[') && token.ends_with(']'));
    let name = token.trim_matches(['<', '>', '/']);
    bracketed && token.len() > 2 && !HTML.contains(&name)
}

impl Tokenizer {
    /// Ids of `text` as nothing but text: the literals of control tokens in it are spelled out and never
    /// become the tokens. For what users and tools wrote.
    ///
    /// # Errors
    /// Text the tokenizer can't represent.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let plain = self.plain();
        if plain.find(text.as_bytes(), 0).is_none() {
            return self.encode(text, false);
        }
        let inner = self.inner();
        guard(|| {
            let mut pieces = plain.allowed.extract_and_normalize(inner.get_normalizer(), text);
            if let Some(splitter) = inner.get_pre_tokenizer() {
                splitter.pre_tokenize(&mut pieces)?;
            }
            pieces.tokenize(|piece| inner.get_model().tokenize(piece.get()))?;
            pieces.into_encoding(None, 0, OffsetType::Byte)
        })
        .map(|e| e.get_ids().to_vec())
        .map_err(|e| Error::malformed(format!("cannot tokenize {:?}: {e}", shown(text))))
    }

    /// Ids of a text in which `mark` stands inside every literal that is to stay text (see
    /// [`Tokenizer::guard_literals`]): other control literals become their tokens, the marks are
    /// taken out. No special tokens are added.
    ///
    /// # Errors
    /// Text the tokenizer can't represent.
    pub fn encode_guarded(&self, text: &str, mark: char) -> Result<Vec<u32>> {
        if !text.contains(mark) {
            return self.encode(text, false);
        }
        let (plain, bytes) = (self.plain(), text.as_bytes());
        let (mut ids, mut from) = (Vec::new(), 0);
        loop {
            let found = plain.find(bytes, from);
            let upto = found.map_or(text.len(), |(at, _, _)| at);
            ids.extend(self.encode_plain(&text[from..upto].replace(mark, ""))?);
            let Some((at, length, id)) = found else { return Ok(ids) };
            ids.push(id);
            from = at + length;
        }
    }

    /// `text` with `mark` behind the first character of every control literal in it (and without any
    /// mark of its own), for [`Tokenizer::encode_guarded`].
    pub fn guard_literals(&self, text: &str, mark: char) -> String {
        let text = text.replace(mark, "");
        let (plain, mut out, mut from) = (self.plain(), String::with_capacity(text.len()), 0);
        while let Some((at, _, _)) = plain.find(text.as_bytes(), from) {
            let next = at + text[at..].chars().next().map_or(1, char::len_utf8);
            out.push_str(&text[from..next]);
            out.push(mark);
            from = next;
        }
        out + &text[from..]
    }
}
