//! Llama 2 and 3, SmolLM2, Mistral and what else is built alike.

use oxiline_graph::{Result, bail};

use super::common::{self, Defaults, Sizes, activation, layer};
use super::keys::Keys;
use super::{Config, Described, Family, Gguf};
use crate::decoder::names::Names;
use crate::decoder::spec::{Activation, Biases};

pub(super) const FAMILY: Family = Family {
    name: "llama",
    model_types: &["llama", "mistral"],
    architectures: &["LlamaForCausalLM", "MistralForCausalLM"],
    gguf: &["llama"],
    config,
    from_gguf: gguf,
};

fn config(c: &Config<'_>) -> Result<Described> {
    let j = &c.json;
    let mistral = c.model_type == "mistral";
    let defaults = Defaults { context: if mistral { 131_072 } else { 2048 }, ..Defaults::default() };
    let sizes = Sizes::json(j, &defaults)?;
    let bias = j.flag("attention_bias")?.unwrap_or(false);
    let activation = activation(j, &["hidden_act"], Activation::Silu)?;
    let mlp = sizes.dense(activation, j.flag("mlp_bias")?.unwrap_or(false));
    let window = if mistral { common::window(j, "sliding_window")? } else { None };
    let slides = common::layer_types(j, sizes.layers)?;
    let layers = (0..sizes.layers).map(|i| {
        let mut attention = sizes.attention();
        attention.bias = Biases { qkv: bias, out: bias };
        attention.window = window.filter(|_| slides.as_ref().is_none_or(|s| s[i]));
        layer(attention, mlp.clone())
    });
    let names = common::names(c.checkpoint);
    let tied = common::tied(j, &c.outer, c.checkpoint, &names, None)?;
    let rope = common::rope(j, &sizes, 10_000.0)?;
    Ok((sizes.spec("llama", tied, rope, layers.collect()), names))
}

fn gguf(g: &Gguf<'_>) -> Result<Described> {
    let (m, checkpoint) = (&g.meta, g.checkpoint);
    if let Some(experts) = m.size("expert_count", 0..=65_536)?.filter(|n| *n > 0) {
        bail!("{} is {experts}: mixtures of experts of this architecture are not supported", m.place("expert_count"));
    }
    let sizes = Sizes::gguf(m, checkpoint)?;
    let mut attention = sizes.attention();
    attention.bias = common::gguf_biases(checkpoint);
    attention.window = m.size("attention.sliding_window", 0..=1 << 30)?.filter(|w| *w > 0);
    let mlp = sizes.dense(Activation::Silu, checkpoint.contains("blk.0.ffn_up.bias"));
    let layers = vec![layer(attention, mlp); sizes.layers];
    let rope = common::gguf_rope(m, checkpoint, &sizes, 10_000.0)?;
    let tied = !checkpoint.contains("output.weight");
    Ok((sizes.spec("llama", tied, rope, layers), Names::Gguf { permuted: true }))
}
