//! Where a model's tensors are: the two naming schemes of checkpoints.

/// A tensor of a decoder, without its `.weight` or `.bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Part {
    Embedding,
    FinalNorm,
    Head,
    MixerNorm,
    PostMixerNorm,
    MlpNorm,
    PostMlpNorm,
    Query,
    Key,
    Value,
    Out,
    QueryNorm,
    KeyNorm,
    Gate,
    Up,
    Down,
    Router,
}

/// The naming scheme of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// Hugging Face's names, and MLX's.
    HuggingFace {
        /// What stands before `embed_tokens`, `layers` and `norm`: `model.`, `language_model.model.`.
        prefix: String,
        /// The name of the output layer.
        head: String,
    },
    /// GGUF's names.
    Gguf {
        /// Rows of queries and keys are interleaved for rotations of neighbours (llama).
        permuted: bool,
    },
}

impl Names {
    /// The tensor's name without `.weight`; `post_norms` because the name of the norm before the MLP
    /// depends on whether there is one after the mixer.
    pub fn of(&self, part: Part, layer: usize, post_norms: bool) -> String {
        match self {
            Self::HuggingFace { prefix, head } => {
                let inside = match part {
                    Part::Embedding => return format!("{prefix}embed_tokens"),
                    Part::FinalNorm => return format!("{prefix}norm"),
                    Part::Head => return head.clone(),
                    Part::MixerNorm => "input_layernorm",
                    Part::MlpNorm if post_norms => "pre_feedforward_layernorm",
                    Part::PostMixerNorm | Part::MlpNorm => "post_attention_layernorm",
                    Part::PostMlpNorm => "post_feedforward_layernorm",
                    Part::Query => "self_attn.q_proj",
                    Part::Key => "self_attn.k_proj",
                    Part::Value => "self_attn.v_proj",
                    Part::Out => "self_attn.o_proj",
                    Part::QueryNorm => "self_attn.q_norm",
                    Part::KeyNorm => "self_attn.k_norm",
                    Part::Gate => "mlp.gate_proj",
                    Part::Up => "mlp.up_proj",
                    Part::Down => "mlp.down_proj",
                    Part::Router => "mlp.gate",
                };
                format!("{prefix}layers.{layer}.{inside}")
            }
            Self::Gguf { .. } => {
                let inside = match part {
                    Part::Embedding => return "token_embd".into(),
                    Part::FinalNorm => return "output_norm".into(),
                    Part::Head => return "output".into(),
                    Part::MixerNorm => "attn_norm",
                    Part::MlpNorm => "ffn_norm",
                    Part::PostMixerNorm => "post_attention_norm",
                    Part::PostMlpNorm => "post_ffw_norm",
                    Part::Query => "attn_q",
                    Part::Key => "attn_k",
                    Part::Value => "attn_v",
                    Part::Out => "attn_output",
                    Part::QueryNorm => "attn_q_norm",
                    Part::KeyNorm => "attn_k_norm",
                    Part::Gate => "ffn_gate",
                    Part::Up => "ffn_up",
                    Part::Down => "ffn_down",
                    Part::Router => "ffn_gate_inp",
                };
                format!("blk.{layer}.{inside}")
            }
        }
    }

    /// Names under which all experts' matrices of a kind may lie as one tensor `[experts, out, in]`.
    pub fn stacked(&self, part: Part, layer: usize) -> Vec<String> {
        let (theirs, gguf) = match part {
            Part::Gate => ("gate_proj", "ffn_gate_exps"),
            Part::Up => ("up_proj", "ffn_up_exps"),
            _ => ("down_proj", "ffn_down_exps"),
        };
        match self {
            Self::HuggingFace { prefix, .. } => {
                let at = format!("{prefix}layers.{layer}.mlp");
                let mut names =
                    vec![format!("{at}.switch_mlp.{theirs}.weight"), format!("{at}.switch_glu.{theirs}.weight")];
                if part == Part::Down {
                    names.push(format!("{at}.experts.down_proj"));
                }
                names
            }
            Self::Gguf { .. } => vec![format!("blk.{layer}.{gguf}.weight")],
        }
    }

    /// The name under which gate and up of all experts lie as `[experts, 2 inner, hidden]`.
    pub fn fused_gate_up(&self, layer: usize) -> Option<String> {
        match self {
            Self::HuggingFace { prefix, .. } => Some(format!("{prefix}layers.{layer}.mlp.experts.gate_up_proj")),
            Self::Gguf { .. } => None,
        }
    }

    /// The name of one expert's matrix, where each has its own.
    pub fn expert(&self, part: Part, layer: usize, expert: usize) -> String {
        let kind = match part {
            Part::Gate => "gate_proj",
            Part::Up => "up_proj",
            _ => "down_proj",
        };
        match self {
            Self::HuggingFace { prefix, .. } => format!("{prefix}layers.{layer}.mlp.experts.{expert}.{kind}.weight"),
            Self::Gguf { .. } => self.stacked(part, layer).remove(0),
        }
    }
}
