//! Where an encoder's tensors are: a naming scheme a family.

use crate::decoder::names::{Names as DecoderNames, Part as DecoderPart};

/// A tensor of an encoder, without its `.weight` or `.bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Part {
    Words,
    Positions,
    Types,
    EmbeddingNorm,
    Relative,
    AttentionNorm,
    PostAttentionNorm,
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
    FinalNorm,
}

/// A naming scheme, with what stands before every name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// BERT, RoBERTa, XLM-RoBERTa.
    Bert(String),
    /// MPNet.
    Mpnet(String),
    /// ModernBERT.
    ModernBert(String),
    /// NomicBERT.
    Nomic(String),
    /// GGUF's names of BERTs; fused queries, keys and values where the file has them so.
    Gguf {
        /// `attn_qkv` instead of `attn_q`, `attn_k`, `attn_v`.
        fused: bool,
    },
    /// A decoder's.
    Decoder {
        /// Its scheme.
        names: DecoderNames,
        /// There are norms after attention and MLP too.
        around: bool,
    },
}

impl Names {
    /// The tensor's name without `.weight`, and where it is one of several equal parts of it: which.
    pub fn of(&self, part: Part, layer: usize) -> (String, Option<(usize, usize)>) {
        let third = match part {
            Part::Query => Some((0, 3)),
            Part::Key => Some((1, 3)),
            Part::Value => Some((2, 3)),
            _ => None,
        };
        match self {
            Self::Bert(prefix) | Self::Mpnet(prefix) => {
                let mpnet = matches!(self, Self::Mpnet(_));
                let inside = match part {
                    Part::Words => return (format!("{prefix}embeddings.word_embeddings"), None),
                    Part::Positions => return (format!("{prefix}embeddings.position_embeddings"), None),
                    Part::Types => return (format!("{prefix}embeddings.token_type_embeddings"), None),
                    Part::EmbeddingNorm => return (format!("{prefix}embeddings.LayerNorm"), None),
                    Part::Relative => return (format!("{prefix}encoder.relative_attention_bias"), None),
                    Part::Query if mpnet => "attention.attn.q",
                    Part::Key if mpnet => "attention.attn.k",
                    Part::Value if mpnet => "attention.attn.v",
                    Part::Out if mpnet => "attention.attn.o",
                    Part::AttentionNorm if mpnet => "attention.LayerNorm",
                    Part::Query => "attention.self.query",
                    Part::Key => "attention.self.key",
                    Part::Value => "attention.self.value",
                    Part::Out => "attention.output.dense",
                    Part::AttentionNorm => "attention.output.LayerNorm",
                    Part::Up => "intermediate.dense",
                    Part::Down => "output.dense",
                    _ => "output.LayerNorm",
                };
                (format!("{prefix}encoder.layer.{layer}.{inside}"), None)
            }
            Self::ModernBert(prefix) => {
                let (inside, share) = match part {
                    Part::Words => return (format!("{prefix}embeddings.tok_embeddings"), None),
                    Part::EmbeddingNorm => return (format!("{prefix}embeddings.norm"), None),
                    Part::FinalNorm => return (format!("{prefix}final_norm"), None),
                    Part::Query | Part::Key | Part::Value => ("attn.Wqkv", third),
                    Part::Out => ("attn.Wo", None),
                    Part::AttentionNorm => ("attn_norm", None),
                    Part::Gate => ("mlp.Wi", Some((0, 2))),
                    Part::Up => ("mlp.Wi", Some((1, 2))),
                    Part::Down => ("mlp.Wo", None),
                    _ => ("mlp_norm", None),
                };
                (format!("{prefix}layers.{layer}.{inside}"), share)
            }
            Self::Nomic(prefix) => {
                let (inside, share) = match part {
                    Part::Words => return (format!("{prefix}embeddings.word_embeddings"), None),
                    Part::Types => return (format!("{prefix}embeddings.token_type_embeddings"), None),
                    Part::EmbeddingNorm => return (format!("{prefix}emb_ln"), None),
                    Part::Query | Part::Key | Part::Value => ("attn.Wqkv", third),
                    Part::Out => ("attn.out_proj", None),
                    Part::AttentionNorm => ("norm1", None),
                    Part::Up => ("mlp.fc11", None),
                    Part::Gate => ("mlp.fc12", None),
                    Part::Down => ("mlp.fc2", None),
                    _ => ("norm2", None),
                };
                (format!("{prefix}encoder.layers.{layer}.{inside}"), share)
            }
            Self::Gguf { fused } => {
                let (inside, share) = match part {
                    Part::Words => return ("token_embd".into(), None),
                    Part::Positions => return ("position_embd".into(), None),
                    Part::Types => return ("token_types".into(), None),
                    Part::EmbeddingNorm => return ("token_embd_norm".into(), None),
                    Part::Query | Part::Key | Part::Value if *fused => ("attn_qkv", third),
                    Part::Query => ("attn_q", None),
                    Part::Key => ("attn_k", None),
                    Part::Value => ("attn_v", None),
                    Part::Out => ("attn_output", None),
                    Part::AttentionNorm => ("attn_output_norm", None),
                    Part::Gate => ("ffn_gate", None),
                    Part::Up => ("ffn_up", None),
                    Part::Down => ("ffn_down", None),
                    _ => ("layer_output_norm", None),
                };
                (format!("blk.{layer}.{inside}"), share)
            }
            Self::Decoder { names, around } => {
                let part = match part {
                    Part::Words => DecoderPart::Embedding,
                    Part::FinalNorm => DecoderPart::FinalNorm,
                    Part::AttentionNorm => DecoderPart::MixerNorm,
                    Part::PostAttentionNorm => DecoderPart::PostMixerNorm,
                    Part::PostMlpNorm => DecoderPart::PostMlpNorm,
                    Part::Query => DecoderPart::Query,
                    Part::Key => DecoderPart::Key,
                    Part::Value => DecoderPart::Value,
                    Part::Out => DecoderPart::Out,
                    Part::QueryNorm => DecoderPart::QueryNorm,
                    Part::KeyNorm => DecoderPart::KeyNorm,
                    Part::Gate => DecoderPart::Gate,
                    Part::Up => DecoderPart::Up,
                    Part::Down => DecoderPart::Down,
                    _ => DecoderPart::MlpNorm,
                };
                (names.of(part, layer, *around), None)
            }
        }
    }
}
