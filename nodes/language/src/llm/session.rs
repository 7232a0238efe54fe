//! A session's place in the model: what it holds, and going back in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oxiline_graph::protocol::llm::{ContextFull, LlmMark};
use oxiline_graph::{Result, bail};

use super::answer::Answer;
use super::prefix::common;
use crate::decoder::SequenceState;

/// A session of the model.
pub struct LlmSession<S> {
    /// What it holds; the model looks at it too, to keep its budget.
    pub(super) slot: Arc<Mutex<Slot<S>>>,
    /// Most positions.
    pub(super) limit: usize,
    pub(super) full: ContextFull,
    pub(super) turn: u64,
    /// The request being served.
    pub(super) work: Option<Answer>,
    /// Where the last answer's text is in the tokens.
    pub(super) last: Option<Written>,
}

/// Tokens of a session and as much of their caches as is computed.
pub(super) struct Slot<S> {
    pub state: S,
    /// The context; the state holds the first `state.len()` of them.
    pub tokens: Vec<u32>,
    /// When it was used last, by the model's count of steps.
    pub used: u64,
    /// An answer is being made: its caches are not given up for others.
    pub busy: bool,
}

/// An answer's tokens and how much visible text each of them completed.
#[derive(Debug, Clone, Default)]
pub(super) struct Written {
    /// Index of its first token in the context.
    pub start: usize,
    /// Bytes of text after each of its tokens.
    pub ends: Vec<usize>,
    /// The text.
    pub text: String,
}

impl<S: SequenceState> Slot<S> {
    /// Tokens not computed yet.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.state.len()
    }

    /// Makes `tokens` the context. What is computed of their beginning stays computed.
    pub fn set(&mut self, tokens: Vec<u32>) {
        let same = common(&self.tokens[..self.state.len()], &tokens);
        self.tokens = tokens;
        self.state.truncate(same);
    }

    /// Forgets positions from `len` on.
    pub fn cut(&mut self, len: usize) {
        self.tokens.truncate(len);
        let held = self.state.len().min(self.tokens.len());
        self.state.truncate(held);
    }
}

impl<S: SequenceState> LlmSession<S> {
    pub(super) fn new(state: S, limit: usize, full: ContextFull) -> Self {
        let slot = Arc::new(Mutex::new(Slot { state, tokens: Vec::new(), used: 0, busy: false }));
        Self { slot, limit, full, turn: 0, work: None, last: None }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Slot<S>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is.
    pub(super) fn mark(&self) -> LlmMark {
        LlmMark { position: self.lock().tokens.len(), turn: self.turn }
    }

    /// Back to a mark.
    pub(super) fn rollback(&mut self, mark: LlmMark) -> Result<()> {
        let held = self.lock().tokens.len();
        if mark.turn > self.turn || mark.position > held {
            bail!(
                "the mark is at position {} of turn {}, but the session is only at position {held} of turn {}: \
                 it has been rolled back or reset since",
                mark.position,
                mark.turn,
                self.turn
            );
        }
        self.lock().cut(mark.position);
        self.turn = mark.turn;
        self.last = None;
        Ok(())
    }

    /// Forgets everything.
    pub(super) fn reset(&mut self) {
        self.lock().cut(0);
        self.last = None;
    }

    /// Cuts the last answer to its first `bytes`. A cut inside a token keeps the tokens before it and
    /// puts the rest of the text behind them, made of tokens by `encode`.
    pub(super) fn truncate_answer(&mut self, bytes: usize, encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<()> {
        let Some(mut last) = self.last.take() else {
            bail!("there is no answer to cut: the session has not generated one since it began or was reset");
        };
        let mut bytes = bytes.min(last.text.len());
        while !last.text.is_char_boundary(bytes) {
            bytes -= 1;
        }
        let whole = last.ends.partition_point(|end| *end <= bytes);
        let kept = if whole == 0 { 0 } else { last.ends[whole - 1] };
        let rest = encode(&last.text[kept..bytes])?;
        let mut slot = self.lock();
        slot.cut(last.start + whole);
        slot.tokens.extend(&rest);
        drop(slot);
        last.text.truncate(bytes);
        last.ends.truncate(whole);
        last.ends.resize(whole + rest.len(), bytes);
        self.last = Some(last);
        Ok(())
    }
}
