//! Qwen 2 and 2.5: biases on queries, keys and values.

use oxiline_graph::Result;

use super::qwen::{self, Kind};
use super::{Config, Described, Family, Gguf};
use crate::decoder::spec::{Activation, QkNorm};

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    model_types: &["qwen2"],
    architectures: &["Qwen2ForCausalLM"],
    gguf: &["qwen2"],
    config,
    from_gguf: gguf,
};

const KIND: Kind = Kind { name: "qwen2", qkv_bias: true, qk_norm: QkNorm::None, head_dim: None, all_slide: false };

fn config(c: &Config<'_>) -> Result<Described> {
    qwen::config(c, &KIND, |sizes, _, activation| Ok(sizes.dense(activation, false)))
}

fn gguf(g: &Gguf<'_>) -> Result<Described> {
    qwen::gguf(g, &KIND, |sizes, _| Ok(sizes.dense(Activation::Silu, false)))
}
