//! Gemma 3, text: windows on most layers, two rotations, norms around every part.

use oxiline_graph::Result;

use super::common::{self, Defaults, Sizes, activation};
use super::keys::{Json, Keys};
use super::{Config, Described, Family, Gguf};
use crate::decoder::names::Names;
use crate::decoder::rope::{Rope, Scaling};
use crate::decoder::spec::{Activation, Biases, Layer, Mixer, Mlp, QkNorm, Spec};

pub(super) const FAMILY: Family = Family {
    name: "gemma3",
    model_types: &["gemma3", "gemma3_text"],
    architectures: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    gguf: &["gemma3"],
    config,
    from_gguf: gguf,
};

/// What layers have besides their sizes.
struct Rules {
    slides: Vec<bool>,
    window: usize,
    scale: f32,
    bias: Biases,
    attention_cap: Option<f32>,
    logit_cap: Option<f32>,
    activation: Activation,
    offset: f32,
    tied: bool,
    /// Of the full and of the sliding layers.
    ropes: [Rope; 2],
}

fn build(sizes: &Sizes, rules: Rules) -> Spec {
    let [full, sliding] = rules.ropes;
    let layers = rules.slides.iter().map(|&slides| {
        let mut attention = sizes.attention();
        attention.window = slides.then_some(rules.window);
        attention.rope = Some(usize::from(slides));
        attention.qk_norm = QkNorm::Head;
        attention.scale = rules.scale;
        attention.bias = rules.bias;
        attention.softcap = rules.attention_cap;
        let mlp: Mlp = sizes.dense(rules.activation, false);
        Layer { mixer: Mixer::Attention(attention), mlp, post_norms: true }
    });
    let mut spec = sizes.spec("gemma3", rules.tied, full, layers.collect());
    spec.ropes.push(sliding);
    spec.embedding_scale = (sizes.hidden as f32).sqrt();
    spec.norm_offset = rules.offset;
    spec.logit_softcap = rules.logit_cap;
    spec
}

fn scale(scalar: f64) -> f32 {
    (1.0 / scalar.sqrt()) as f32
}

fn pattern(layers: usize, every: usize) -> Vec<bool> {
    (0..layers).map(|i| !(i + 1).is_multiple_of(every)).collect()
}

fn ropes(j: &Json, sizes: &Sizes) -> Result<[Rope; 2]> {
    let (full, sliding) = (1_000_000.0, 10_000.0);
    let params = j.object("rope_parameters")?;
    if let Some(params) = params.as_ref().filter(|p| p.has("full_attention") || p.has("sliding_attention")) {
        let of = |kind: &str, key: &str, theta| common::rope_of(j, params.object(kind)?.as_ref(), key, sizes, theta);
        return Ok([
            of("full_attention", "rope_theta", full)?,
            of("sliding_attention", "rope_local_base_freq", sliding)?,
        ]);
    }
    Ok([common::rope(j, sizes, full)?, common::rope_of(j, None, "rope_local_base_freq", sizes, sliding)?])
}

fn config(c: &Config<'_>) -> Result<Described> {
    let j = &c.json;
    let defaults =
        Defaults { heads: Some(8), kv_heads: Some(4), head_dim: Some(256), vocab: Some(262_208), context: 131_072 };
    let sizes = Sizes::json(j, &defaults)?;
    let every = match j.size("sliding_window_pattern", 1..=1024)? {
        Some(v) => v,
        None => j.size("_sliding_window_pattern", 1..=1024)?.unwrap_or(6),
    };
    let bias = j.flag("attention_bias")?.unwrap_or(false);
    let names = common::names(c.checkpoint);
    let cap = |key| Ok::<_, oxiline_graph::Error>(j.positive(key)?.map(|v| v as f32));
    let rules = Rules {
        slides: common::layer_types(j, sizes.layers)?.unwrap_or_else(|| pattern(sizes.layers, every)),
        window: common::window(j, "sliding_window")?.unwrap_or(4096),
        scale: scale(j.positive("query_pre_attn_scalar")?.unwrap_or(256.0)),
        bias: Biases { qkv: bias, out: bias },
        attention_cap: cap("attn_logit_softcapping")?,
        logit_cap: cap("final_logit_softcapping")?,
        activation: activation(j, &["hidden_activation", "hidden_act"], Activation::GeluTanh)?,
        offset: 1.0,
        tied: common::tied(j, &c.outer, c.checkpoint, &names, Some(true))?,
        ropes: ropes(j, &sizes)?,
    };
    let mut spec = build(&sizes, rules);
    spec.bidirectional = j.flag("use_bidirectional_attention")?.unwrap_or(false);
    Ok((spec, names))
}

fn gguf(g: &Gguf<'_>) -> Result<Described> {
    let (m, checkpoint) = (&g.meta, g.checkpoint);
    let sizes = Sizes::gguf(m, checkpoint)?;
    let full = common::gguf_rope(m, checkpoint, &sizes, 1_000_000.0)?;
    let local = m.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let sliding = Rope { theta: local, scaling: Scaling::Default, ..full.clone() };
    // Metadata don't carry query_pre_attn_scalar: it is the head's width but for the 27B model.
    let scalar = if sizes.layers == 62 { sizes.hidden / sizes.heads } else { sizes.head_dim };
    let every = m.size("attention.sliding_window_pattern", 1..=1024)?.unwrap_or(6);
    let cap = |key| Ok::<_, oxiline_graph::Error>(m.positive(key)?.map(|v| v as f32));
    let rules = Rules {
        slides: pattern(sizes.layers, every),
        window: m.need("attention.sliding_window", 1..=1 << 30)?,
        scale: scale(scalar as f64),
        bias: common::gguf_biases(checkpoint),
        attention_cap: cap("attn_logit_softcapping")?,
        logit_cap: cap("final_logit_softcapping")?,
        activation: Activation::GeluTanh,
        // The conversion has added the one.
        offset: 0.0,
        tied: !checkpoint.contains("output.weight"),
        ropes: [full, sliding],
    };
    Ok((build(&sizes, rules), Names::Gguf { permuted: false }))
}
