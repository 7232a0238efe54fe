//! Qwen 3's mixtures of experts.

use oxiline_graph::{Result, bail};

use super::keys::Keys;
use super::qwen::{self, Kind};
use super::{Config, Described, Family, Gguf};
use crate::decoder::spec::{Activation, Experts, Mlp, QkNorm};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_moe",
    model_types: &["qwen3_moe"],
    architectures: &["Qwen3MoeForCausalLM"],
    gguf: &["qwen3moe"],
    config,
    from_gguf: gguf,
};

const KIND: Kind = Kind { name: "qwen3_moe", qkv_bias: false, qk_norm: QkNorm::Head, head_dim: None, all_slide: true };

fn experts(keys: &dyn Keys, names: [&str; 3], renormalise: bool, activation: Activation) -> Result<Experts> {
    let [count, chosen, inner] = names;
    let experts = Experts {
        count: keys.need(count, 1..=4096)?,
        chosen: keys.need(chosen, 1..=4096)?,
        renormalise,
        inner: keys.need(inner, 1..=1 << 20)?,
        activation,
    };
    if experts.chosen > experts.count {
        bail!("{} {} is more than the {} experts there are", keys.place(chosen), experts.chosen, experts.count);
    }
    Ok(experts)
}

fn config(c: &Config<'_>) -> Result<Described> {
    let j = &c.json;
    let step = j.size("decoder_sparse_step", 1..=1 << 20)?.unwrap_or(1);
    let dense_only = j.sizes("mlp_only_layers")?.unwrap_or_default();
    let renormalise = j.flag("norm_topk_prob")?.unwrap_or(false);
    // Newer files name the count as other families do.
    let count = if j.has("num_experts") { "num_experts" } else { "num_local_experts" };
    qwen::config(c, &KIND, |sizes, i, activation| {
        if dense_only.contains(&i) || (i + 1) % step != 0 {
            return Ok(sizes.dense(activation, false));
        }
        let names = [count, "num_experts_per_tok", "moe_intermediate_size"];
        Ok(Mlp::Experts(experts(j, names, renormalise, activation)?))
    })
}

fn gguf(g: &Gguf<'_>) -> Result<Described> {
    let names = ["expert_count", "expert_used_count", "expert_feed_forward_length"];
    // Metadata don't carry norm_topk_prob: every published file renormalises, as does llama.cpp.
    let renormalise = g.meta.flag("expert_weights_norm")?.unwrap_or(true);
    qwen::gguf(g, &KIND, |sizes, i| {
        if !g.checkpoint.contains(&format!("blk.{i}.ffn_gate_inp.weight")) {
            return Ok(sizes.dense(Activation::Silu, false));
        }
        Ok(Mlp::Experts(experts(&g.meta, names, renormalise, Activation::Silu)?))
    })
}
