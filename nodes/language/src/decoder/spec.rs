//! A model described as data: what a family's short file produces and the skeleton runs.

use super::rope::Rope;

/// Everything the skeleton needs to know of a model besides its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The family's name, such as `qwen3`.
    pub family: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the output layer; ids are below this.
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Added to the mean square in every norm.
    pub eps: f32,
    /// Embeddings are multiplied by this.
    pub embedding_scale: f32,
    /// The output layer is the embedding.
    pub tied: bool,
    /// Logits are `cap * tanh(logits / cap)`.
    pub logit_softcap: Option<f32>,
    /// Added to every norm weight as it is loaded: 1 where files keep `w` of `1 + w`.
    pub norm_offset: f32,
    /// Positions see those after them too: it embeds text and does not generate.
    pub bidirectional: bool,
    /// Rotations of positions that layers choose from.
    pub ropes: Vec<Rope>,
    /// The layers in order.
    pub layers: Vec<Layer>,
}

/// One block: a mixer of positions and an MLP, each around the residual.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// How positions see one another.
    pub mixer: Mixer,
    /// What happens at each position.
    pub mlp: Mlp,
    /// The mixer's and the MLP's results are normed before they are added (Gemma).
    pub post_norms: bool,
}

/// How positions see one another.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Softmax attention with grouped key-value heads.
    Attention(Attention),
}

/// Norm of queries and keys before their rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// RMS norm of each head with one weight of the head's width.
    Head,
}

/// Which projections have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The output projection.
    pub out: bool,
}

/// An attention layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// A position sees itself and the `window - 1` before it; None: all before it.
    pub window: Option<usize>,
    /// Index into [`Spec::ropes`]; None: positions are not rotated.
    pub rope: Option<usize>,
    /// Norm of queries and keys.
    pub qk_norm: QkNorm,
    /// Biases.
    pub bias: Biases,
    /// Scores are multiplied by this.
    pub scale: f32,
    /// Scores are `cap * tanh(scores / cap)`.
    pub softcap: Option<f32>,
}

/// What happens at each position.
#[derive(Debug, Clone, PartialEq)]
pub enum Mlp {
    /// One MLP for all.
    Dense(Dense),
    /// A router chooses experts for each position.
    Experts(Experts),
}

/// The function inside an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

/// `down(act(gate(x)) * up(x))`, or `down(act(up(x)))`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// Width inside.
    pub inner: usize,
    /// With a gate?
    pub gated: bool,
    /// The function.
    pub activation: Activation,
    /// All its projections have biases.
    pub bias: bool,
}

/// A mixture of gated MLPs.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    /// Experts there are.
    pub count: usize,
    /// Experts a position is sent to, the most probable ones.
    pub chosen: usize,
    /// The chosen ones' probabilities are divided by their sum.
    pub renormalise: bool,
    /// Width inside an expert.
    pub inner: usize,
    /// The function.
    pub activation: Activation,
}

impl Attention {
    /// Width of all query heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
