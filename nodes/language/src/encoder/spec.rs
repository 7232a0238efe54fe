//! An encoder described as data: what a family's short file produces and the skeleton runs.

use crate::decoder::rope::Rope;

/// Everything the skeleton needs to know of a model besides its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The family's name, such as `bert`.
    pub family: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding; ids are below this.
    pub vocab: usize,
    /// Most tokens of a text.
    pub context: usize,
    /// A learned vector a position.
    pub learned: Option<Learned>,
    /// Rows of the table of token types; 0: none.
    pub token_types: usize,
    /// Embeddings are normed.
    pub embedding_norm: bool,
    /// Embeddings are multiplied by this.
    pub embedding_scale: f32,
    /// The norms.
    pub norm: Norm,
    /// Where a layer's norms are.
    pub placement: Placement,
    /// The residual stream is normed at its end.
    pub final_norm: bool,
    /// Rotations of positions that layers choose from.
    pub ropes: Vec<Rope>,
    /// Values by distance that all layers add to their scores.
    pub relative: Option<Buckets>,
    /// The layers in order.
    pub layers: Vec<Layer>,
}

/// A learned vector a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// Rows of the table.
    pub rows: usize,
    /// Row of the first token.
    pub first: usize,
}

/// T5's buckets of distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    /// Rows of the table.
    pub count: usize,
    /// Distances from here on share the last bucket of their side.
    pub furthest: usize,
}

/// The kind of all norms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Root mean square norm instead of layer norm.
    pub rms: bool,
    /// Added to the variance.
    pub eps: f32,
    /// Layer norms have biases.
    pub bias: bool,
    /// Added to every weight as it is loaded: 1 where files keep `w` of `1 + w`.
    pub offset: f32,
}

/// Where a layer's norms are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// After the residual was added (BERT).
    After,
    /// Before attention and MLP.
    Before,
    /// Before and after each of them, inside the residual (Gemma).
    Around,
}

/// The function inside an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Exact GELU.
    Gelu,
    /// GELU by its tanh formula.
    GeluTanh,
    /// `x * sigmoid(x)`.
    Silu,
}

/// One block: attention and an MLP, each around the residual.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// A position sees so many before it; None: all.
    pub back: Option<usize>,
    /// A position sees so many after it; None: all.
    pub ahead: Option<usize>,
    /// Index into [`Spec::ropes`]; None: positions are not rotated.
    pub rope: Option<usize>,
    /// Queries and keys are normed by head before their rotation.
    pub qk_norm: bool,
    /// Scores are multiplied by this.
    pub scale: f32,
    /// The norm before attention is there (with [`Placement::Before`]).
    pub first_norm: bool,
    /// Width inside the MLP.
    pub inner: usize,
    /// The MLP is `down(act(gate(x)) * up(x))`, not `down(act(up(x)))`.
    pub gated: bool,
    /// The function.
    pub activation: Activation,
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The output projection has one.
    pub out_bias: bool,
    /// The MLP's projections have.
    pub mlp_bias: bool,
}

impl Layer {
    /// Plain attention over everything and an MLP without a gate, biases everywhere: BERT's layer.
    pub fn plain(heads: usize, head_dim: usize, inner: usize, activation: Activation) -> Self {
        Self {
            heads,
            kv_heads: heads,
            head_dim,
            back: None,
            ahead: None,
            rope: None,
            qk_norm: false,
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            first_norm: true,
            inner,
            gated: false,
            activation,
            qkv_bias: true,
            out_bias: true,
            mlp_bias: true,
        }
    }
}
