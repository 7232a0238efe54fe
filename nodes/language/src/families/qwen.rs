//! What Qwen 2, Qwen 3 and its mixtures have in common.

use oxiline_graph::Result;

use super::common::{self, Defaults, Sizes, activation, layer};
use super::keys::Keys;
use super::{Config, Described, Gguf};
use crate::decoder::names::Names;
use crate::decoder::spec::{Activation, Biases, Mlp, QkNorm};

/// What tells one Qwen from another.
pub(super) struct Kind {
    pub name: &'static str,
    /// Queries, keys and values have biases whatever the file says.
    pub qkv_bias: bool,
    pub qk_norm: QkNorm,
    /// Width of a head when the file doesn't say.
    pub head_dim: Option<usize>,
    /// Every layer slides when one does.
    pub all_slide: bool,
}

pub(super) fn config(
    c: &Config<'_>,
    kind: &Kind,
    mlp: impl Fn(&Sizes, usize, Activation) -> Result<Mlp>,
) -> Result<Described> {
    let j = &c.json;
    let sizes = Sizes::json(j, &Defaults { head_dim: kind.head_dim, context: 32_768, ..Defaults::default() })?;
    let activation = activation(j, &["hidden_act"], Activation::Silu)?;
    let bias = j.flag("attention_bias")?.unwrap_or(false);
    let slides = common::layer_types(j, sizes.layers)?;
    let sliding = j.flag("use_sliding_window")?.unwrap_or(false) || slides.is_some();
    let window = if sliding { common::window(j, "sliding_window")? } else { None };
    let first = if kind.all_slide { 0 } else { j.size("max_window_layers", 0..=1 << 20)?.unwrap_or(28) };
    let mut layers = Vec::new();
    for i in 0..sizes.layers {
        let mut attention = sizes.attention();
        attention.qk_norm = kind.qk_norm;
        attention.bias = Biases { qkv: bias || kind.qkv_bias, out: bias && !kind.qkv_bias };
        attention.window = window.filter(|_| slides.as_ref().map_or(i >= first, |s| s[i]));
        layers.push(layer(attention, mlp(&sizes, i, activation)?));
    }
    let names = common::names(c.checkpoint);
    let tied = common::tied(j, &c.outer, c.checkpoint, &names, None)?;
    let rope = common::rope(j, &sizes, 10_000.0)?;
    let mut spec = sizes.spec(kind.name, tied, rope, layers);
    spec.bidirectional = bidirectional(c)?;
    Ok((spec, names))
}

/// Embedding models of this shape see in both directions: their files say so, or name code of their
/// own that does.
fn bidirectional(c: &Config<'_>) -> Result<bool> {
    if let Some(causal) = c.json.flag("is_causal")? {
        return Ok(!causal);
    }
    let Some(map) = c.outer.object("auto_map")? else { return Ok(false) };
    Ok(map.text("AutoModel").is_ok_and(|code| code.is_some_and(|code| code.starts_with("modeling_qwen"))))
}

pub(super) fn gguf(g: &Gguf<'_>, kind: &Kind, mlp: impl Fn(&Sizes, usize) -> Result<Mlp>) -> Result<Described> {
    let (m, checkpoint) = (&g.meta, g.checkpoint);
    let sizes = Sizes::gguf(m, checkpoint)?;
    let mut layers = Vec::new();
    for i in 0..sizes.layers {
        let mut attention = sizes.attention();
        attention.qk_norm = kind.qk_norm;
        attention.bias = common::gguf_biases(checkpoint);
        layers.push(layer(attention, mlp(&sizes, i)?));
    }
    let rope = common::gguf_rope(m, checkpoint, &sizes, 10_000.0)?;
    let tied = !checkpoint.contains("output.weight");
    Ok((sizes.spec(kind.name, tied, rope, layers), Names::Gguf { permuted: false }))
}
