//! Text out of ids as they come.

use super::Tokenizer;
use crate::error::Result;

/// Tokens a character may be spread over before it is given up as broken. UTF-8 has at most four
/// bytes; the rest is slack for tokens that give no text.
const MAX_PENDING: usize = 8;

/// Turns ids into text as they come; never cuts a character. The pieces, with that of
/// [`DecodeStream::finish`], join to the text of all ids.
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// The last piece shown and what came after it: decoders treat the first token of a text
    /// differently, so a piece is always decoded behind the one before it.
    ids: Vec<u32>,
    /// How many of `ids` have been shown.
    shown: usize,
}

impl DecodeStream {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, ids: Vec::new(), shown: 0 }
    }

    /// Adds an id; `Some` when there is new text.
    ///
    /// # Errors
    /// The file's decoder fails.
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        // What gives no text is not kept: the work of a token does not grow with the silence before it.
        if (self.skip_special && self.tokenizer.is_special(id)) || self.tokenizer.id_to_token(id).is_none() {
            return Ok(None);
        }
        self.ids.push(id);
        self.flush(false)
    }

    /// What is left at the end: the replacement character for a cut one.
    ///
    /// # Errors
    /// The file's decoder fails.
    pub fn finish(mut self) -> Result<Option<String>> {
        self.flush(true)
    }

    fn flush(&mut self, force: bool) -> Result<Option<String>> {
        let before = self.tokenizer.decode(&self.ids[..self.shown], self.skip_special)?;
        let now = self.tokenizer.decode(&self.ids, self.skip_special)?;
        let complete = !now.ends_with('\u{fffd}') || self.ids.len() - self.shown > MAX_PENDING;
        // `get`: a decoder that rewrites earlier text must not cut a character.
        let Some(new) = now.get(before.len()..).filter(|new| !new.is_empty() && (complete || force)) else {
            if self.ids.len() - self.shown > MAX_PENDING {
                self.ids.truncate(self.shown);
            }
            return Ok(None);
        };
        let new = new.to_string();
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        Ok(Some(new))
    }
}
