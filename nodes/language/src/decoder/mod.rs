//! The one decoder skeleton of all families: embedding, blocks, norm, head, caches.

mod experts;
mod load;
mod local;
mod model;
pub mod names;
pub mod rope;
pub mod spec;
mod state;

pub use model::Decoder;
pub use oxiline_kernels::KvFormat;
pub use spec::Spec;
pub use state::State;

use oxiline_graph::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How to load a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// Compute in float32 on dequantised weights: the mode that is compared with references.
    pub exact: bool,
    /// Quantise the weights at load.
    pub quant: Option<Quant>,
    /// How keys and values are kept; None: f32 in exact mode, else f16.
    pub kv: Option<KvFormat>,
}

/// Integer weights made at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Quant {
    /// 8 bits in blocks of 32.
    Q8,
    /// 4 bits in blocks of 32.
    Q4,
}

/// Looks at the residual stream of a forward pass. Rows are those of the whole batch in order; more
/// than one pass is made of large batches.
pub trait Observer {
    /// The decoder's input, `[rows, hidden]`.
    fn embeddings(&mut self, x: &[f32]);
    /// The residual stream after layer `layer`, `[rows, hidden]`.
    fn layer(&mut self, layer: usize, x: &[f32]);
}

/// What a sequence has been through: its caches. Cheap to fork (pages are shared until written).
pub trait SequenceState: Send {
    /// Positions it holds.
    fn len(&self) -> usize;
    /// No position yet?
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Forgets all positions from `len` on. A model with recurrent state may only be able to go back
    /// to certain positions: it goes to the last of them at or before `len`, and [`Self::len`] says where.
    fn truncate(&mut self, len: usize);
    /// Another sequence with the same past.
    fn fork(&self) -> Self
    where
        Self: Sized;
    /// Bytes held (shared pages counted in full).
    fn bytes(&self) -> usize;
}

/// Which positions of a span want logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// None: prefill that is not at its end.
    Nothing,
    /// The last position's.
    Last,
    /// Every position's.
    All,
}

/// Tokens that continue one sequence, as a part of a batch.
pub struct Span<'a, S> {
    /// The sequence; grows by `tokens`.
    pub state: &'a mut S,
    /// Ids, each below the vocabulary's size.
    pub tokens: &'a [u32],
    /// Which logits are wanted.
    pub want: Want,
    /// Filled with `[wanted positions, vocab]`.
    pub logits: Vec<f32>,
    /// Filled with `[wanted positions, hidden]` after the final norm when `keep_hidden`.
    pub hidden: Vec<f32>,
    /// Is `hidden` wanted?
    pub keep_hidden: bool,
}

impl<'a, S> Span<'a, S> {
    /// A span whose last logits are wanted.
    pub fn new(state: &'a mut S, tokens: &'a [u32], want: Want) -> Self {
        Self { state, tokens, want, logits: Vec::new(), hidden: Vec::new(), keep_hidden: false }
    }
}

/// A causal language model: what the LLM actor runs. Results of a span depend on its state and tokens
/// only, bit for bit: not on the other spans, not on how a prompt is cut into spans, not on threads.
pub trait CausalLm: Send + 'static {
    /// Caches of a sequence.
    type State: SequenceState + 'static;
    /// Rows of the output layer.
    fn vocab(&self) -> usize;
    /// Positions the model was made for.
    fn context(&self) -> usize;
    /// An empty sequence.
    fn new_state(&self) -> Self::State;
    /// Bytes a sequence's caches take per position.
    fn bytes_per_position(&self) -> usize;
    /// Runs all spans as one batch.
    ///
    /// # Errors
    /// A token outside the vocabulary; the states of the batch are then unchanged.
    fn forward(&self, batch: &mut [Span<'_, Self::State>]) -> Result<()>;
    /// Bytes of weights and scratch.
    fn memory(&self) -> u64;
}
