//! Prompts kept for sessions that begin alike.

use crate::decoder::SequenceState;

/// Prompts shorter than this are computed again sooner than they are looked for.
const SHORTEST: usize = 16;
/// Most prompts kept, however small.
const MOST: usize = 64;

/// Computed prompts, the one used longest ago goes first.
pub(crate) struct Prefixes<S> {
    entries: Vec<Entry<S>>,
    budget: u64,
    clock: u64,
}

struct Entry<S> {
    tokens: Vec<u32>,
    state: S,
    used: u64,
}

/// Positions that two sequences have in common from the start.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<S: SequenceState> Prefixes<S> {
    /// Room for `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self { entries: Vec::new(), budget, clock: 0 }
    }

    /// Bytes kept.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|e| e.state.bytes() as u64).sum()
    }

    /// A state that holds more than `held` of `tokens`' first positions, at most `most` of them.
    pub fn find(&mut self, tokens: &[u32], held: usize, most: usize) -> Option<S> {
        let length = |e: &Entry<S>| common(&e.tokens[..e.tokens.len().min(e.state.len())], tokens).min(most);
        let best = self.entries.iter_mut().max_by_key(|e| length(e))?;
        let found = length(best);
        if found <= held || found < SHORTEST {
            return None;
        }
        self.clock += 1;
        best.used = self.clock;
        let mut state = best.state.fork();
        state.truncate(found);
        (state.len() > held).then_some(state)
    }

    /// Keeps a computed prompt; what it begins with need not be kept beside it.
    pub fn keep(&mut self, tokens: &[u32], state: &S) {
        if tokens.len() < SHORTEST || state.len() < tokens.len() || self.budget == 0 {
            return;
        }
        if self.entries.iter().any(|e| e.tokens.starts_with(tokens)) {
            return;
        }
        self.entries.retain(|e| !tokens.starts_with(&e.tokens));
        self.clock += 1;
        self.entries.push(Entry { tokens: tokens.to_vec(), state: state.fork(), used: self.clock });
        while self.entries.len() > MOST || self.bytes() > self.budget {
            self.forget();
        }
    }

    /// Drops the prompt used longest ago; false when there is none.
    pub fn forget(&mut self) -> bool {
        let oldest = self.entries.iter().enumerate().min_by_key(|(_, e)| e.used).map(|(i, _)| i);
        oldest.map(|i| self.entries.swap_remove(i)).is_some()
    }
}
