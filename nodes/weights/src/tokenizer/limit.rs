//! Texts cut to a model's length before their special tokens are put around them.

use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, TruncationStrategy, truncate_encodings};
use tokenizers::{Encoding, PostProcessor, TokenizerImpl};

use super::{Tokenizer, guard};
use crate::error::{Error, Result, shown};

/// A text, or a pair of texts, as ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids with the special ones.
    pub ids: Vec<u32>,
    /// Which text of a pair a token belongs to, as the file's post-processor says.
    pub types: Vec<u32>,
    /// Tokens that were cut off.
    pub cut: usize,
}

impl Tokenizer {
    /// Ids of `text` with special tokens, at most `most`: what is too much is cut from the text's end.
    ///
    /// # Errors
    /// Text the tokenizer can't represent, or `most` leaves no room beside the special tokens.
    pub fn encode_within(&self, text: &str, most: usize) -> Result<Encoded> {
        self.within(text, None, most)
    }

    /// Ids of two texts as a pair, at most `most`: tokens are cut from the end of the longer one.
    ///
    /// # Errors
    /// As [`Self::encode_within`].
    pub fn encode_pair(&self, first: &str, second: &str, most: usize) -> Result<Encoded> {
        self.within(first, Some(second), most)
    }

    fn within(&self, text: &str, pair: Option<&str>, most: usize) -> Result<Encoded> {
        let failed = |e: String| Error::malformed(format!("cannot tokenize {:?}: {e}", shown(text)));
        let inner = self.inner();
        let added = inner.get_post_processor().map_or(0, |p| p.added_tokens(pair.is_some()));
        let Some(room) = most.checked_sub(added) else {
            return Err(Error::malformed(format!(
                "a length of {most} tokens leaves no room for text: {added} are special"
            )));
        };
        let encode = |text: &str| guard(|| inner.encode_fast(text, false)).map_err(failed);
        let first = encode(text)?;
        let second = pair.map(encode).transpose()?;
        let before = first.len() + second.as_ref().map_or(0, Encoding::len);
        let (first, second) = if before > room { cut(first, second, room).map_err(failed)? } else { (first, second) };
        let kept = first.len() + second.as_ref().map_or(0, Encoding::len);
        let whole = guard(|| TokenizerImpl::post_process(inner, first, second, true)).map_err(failed)?;
        let (ids, types) = (whole.get_ids().to_vec(), whole.get_type_ids().to_vec());
        Ok(Encoded { ids, types, cut: before - kept })
    }
}

fn cut(first: Encoding, second: Option<Encoding>, room: usize) -> Result<(Encoding, Option<Encoding>), String> {
    let strategy = TruncationStrategy::LongestFirst;
    let params = TruncationParams { max_length: room, strategy, ..TruncationParams::default() };
    guard(|| truncate_encodings(first, second, &params))
}

impl Tokenizer {
    /// Ids of `text` in pieces of at most `most` ids, special tokens around each.
    ///
    /// # Errors
    /// As [`Self::encode_within`].
    pub fn encode_pieces(&self, text: &str, most: usize) -> Result<Vec<Encoded>> {
        let failed = |e: String| Error::malformed(format!("cannot tokenize {:?}: {e}", shown(text)));
        let inner = self.inner();
        let added = inner.get_post_processor().map_or(0, |p| p.added_tokens(false));
        let Some(room) = most.checked_sub(added).filter(|room| *room > 0) else {
            return Err(Error::malformed(format!(
                "a length of {most} tokens leaves no room for text: {added} are special"
            )));
        };
        let mut all = guard(|| inner.encode_fast(text, false)).map_err(failed)?;
        if all.len() > room {
            all.truncate(room, 0, TruncationDirection::Right);
        }
        let rest = all.take_overflowing();
        let piece = |part: Encoding| {
            let whole = guard(|| TokenizerImpl::post_process(inner, part, None, true)).map_err(failed)?;
            Ok(Encoded { ids: whole.get_ids().to_vec(), types: whole.get_type_ids().to_vec(), cut: 0 })
        };
        std::iter::once(all).chain(rest).map(piece).collect()
    }
}
