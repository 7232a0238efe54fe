//! Qwen 3: norms of queries and keys, a head width of its own.

use oxiline_graph::Result;

use super::qwen::{self, Kind};
use super::{Config, Described, Family, Gguf};
use crate::decoder::spec::{Activation, QkNorm};

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    model_types: &["qwen3"],
    architectures: &["Qwen3ForCausalLM"],
    gguf: &["qwen3"],
    config,
    from_gguf: gguf,
};

const KIND: Kind =
    Kind { name: "qwen3", qkv_bias: false, qk_norm: QkNorm::Head, head_dim: Some(128), all_slide: false };

fn config(c: &Config<'_>) -> Result<Described> {
    qwen::config(c, &KIND, |sizes, _, activation| Ok(sizes.dense(activation, false)))
}

fn gguf(g: &Gguf<'_>) -> Result<Described> {
    qwen::gguf(g, &KIND, |sizes, _| Ok(sizes.dense(Activation::Silu, false)))
}
