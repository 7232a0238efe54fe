//! What all families read alike: sizes, rotations, activations, where tensors are.

use oxiline_graph::{Error, Result, bail};
use oxiline_weights::Checkpoint;

use super::keys::{Json, Keys, Meta};
use crate::decoder::names::Names;
use crate::decoder::rope::{Rope, Scaling, yarn_attention};
use crate::decoder::spec::{Activation, Attention, Biases, Dense, Layer, Mixer, Mlp, QkNorm, Spec};

const WIDTH: std::ops::RangeInclusive<usize> = 1..=1 << 17;
const HEADS: std::ops::RangeInclusive<usize> = 1..=4096;
const HEAD_DIM: std::ops::RangeInclusive<usize> = 2..=4096;
const INNER: std::ops::RangeInclusive<usize> = 1..=1 << 20;
const VOCAB: std::ops::RangeInclusive<usize> = 1..=1 << 23;
const CONTEXT: std::ops::RangeInclusive<usize> = 1..=1 << 30;
const LAYERS: std::ops::RangeInclusive<usize> = 1..=1024;

/// The sizes every decoder has.
pub(super) struct Sizes {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub vocab: usize,
    pub context: usize,
    pub eps: f32,
}

/// What a family takes for keys that its `config.json` may leave out; None: the key is needed.
#[derive(Default)]
pub(super) struct Defaults {
    pub heads: Option<usize>,
    /// None: as many as heads.
    pub kv_heads: Option<usize>,
    /// None: hidden / heads.
    pub head_dim: Option<usize>,
    pub vocab: Option<usize>,
    pub context: usize,
}

fn needed(keys: &dyn Keys, key: &str, range: std::ops::RangeInclusive<usize>, default: Option<usize>) -> Result<usize> {
    match (keys.size(key, range.clone())?, default) {
        (Some(v), _) => Ok(v),
        (None, Some(v)) => Ok(v),
        (None, None) => keys.need(key, range),
    }
}

impl Sizes {
    pub(super) fn json(j: &Json, d: &Defaults) -> Result<Self> {
        let hidden = j.need("hidden_size", WIDTH)?;
        let heads = needed(j, "num_attention_heads", HEADS, d.heads)?;
        let kv_heads = needed(j, "num_key_value_heads", HEADS, Some(d.kv_heads.unwrap_or(heads)))?;
        let head_dim = match (j.size("head_dim", HEAD_DIM)?, d.head_dim) {
            (Some(v), _) | (None, Some(v)) => v,
            (None, None) if hidden.is_multiple_of(heads) => hidden / heads,
            _ => bail!("{} {heads} does not divide hidden_size {hidden}", j.place("num_attention_heads")),
        };
        let sizes = Self {
            hidden,
            layers: j.need("num_hidden_layers", LAYERS)?,
            heads,
            kv_heads,
            head_dim,
            inner: j.need("intermediate_size", INNER)?,
            vocab: needed(j, "vocab_size", VOCAB, d.vocab)?,
            context: needed(j, "max_position_embeddings", CONTEXT, Some(d.context))?,
            eps: eps(j, "rms_norm_eps")?.unwrap_or(1e-6),
        };
        sizes.checked(j, "num_key_value_heads", "head_dim")
    }

    pub(super) fn gguf(m: &Meta<'_>, checkpoint: &Checkpoint) -> Result<Self> {
        let hidden = m.need("embedding_length", WIDTH)?;
        let heads = m.need("attention.head_count", HEADS)?;
        let head_dim = match m.size("attention.key_length", HEAD_DIM)? {
            Some(v) => v,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => bail!("{} {heads} does not divide the width {hidden}", m.place("attention.head_count")),
        };
        if let Some(v) = m.size("attention.value_length", HEAD_DIM)?.filter(|v| *v != head_dim) {
            bail!("{} is {v}, but keys have {head_dim}; they must be alike", m.place("attention.value_length"));
        }
        // A conversion may cut or pad the vocabulary: the table itself tells.
        let table = checkpoint.info("token_embd.weight").map_err(Error::msg)?.shape;
        let vocab = match table[..] {
            [rows, columns] if columns == hidden && VOCAB.contains(&rows) => rows,
            _ => bail!(
                "{}: tensor `token_embd.weight` has shape {table:?}, but rows of {hidden} are expected",
                m.file.display()
            ),
        };
        let Some(eps) = eps(m, "attention.layer_norm_rms_epsilon")? else {
            bail!("{} is missing", m.place("attention.layer_norm_rms_epsilon"))
        };
        let sizes = Self {
            hidden,
            layers: m.need("block_count", LAYERS)?,
            heads,
            kv_heads: m.size("attention.head_count_kv", HEADS)?.unwrap_or(heads),
            head_dim,
            inner: m.need("feed_forward_length", INNER)?,
            vocab,
            context: m.need("context_length", CONTEXT)?,
            eps,
        };
        sizes.checked(m, "attention.head_count_kv", "attention.key_length")
    }

    fn checked(self, keys: &dyn Keys, kv_key: &str, dim_key: &str) -> Result<Self> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            bail!("{} {} does not divide the {} attention heads", keys.place(kv_key), self.kv_heads, self.heads);
        }
        if !self.head_dim.is_multiple_of(2) {
            bail!("{} {} is odd; rotations need pairs", keys.place(dim_key), self.head_dim);
        }
        Ok(self)
    }

    /// A plain attention layer of these sizes.
    pub(super) fn attention(&self) -> Attention {
        Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: None,
            rope: Some(0),
            qk_norm: QkNorm::None,
            bias: Biases::default(),
            scale: (1.0 / (self.head_dim as f64).sqrt()) as f32,
            softcap: None,
        }
    }

    /// A gated MLP of these sizes.
    pub(super) fn dense(&self, activation: Activation, bias: bool) -> Mlp {
        Mlp::Dense(Dense { inner: self.inner, gated: true, activation, bias })
    }

    /// A model of these sizes.
    pub(super) fn spec(&self, family: &'static str, tied: bool, rope: Rope, layers: Vec<Layer>) -> Spec {
        // Stretched rotations may reach further than the trained positions.
        let reach = match rope.scaling {
            Scaling::Yarn { factor, original, .. } | Scaling::Dynamic { factor, original } => factor * original,
            _ => 0.0,
        };
        Spec {
            family,
            hidden: self.hidden,
            vocab: self.vocab,
            context: self.context.max((reach as usize).min(*CONTEXT.end())),
            eps: self.eps,
            embedding_scale: 1.0,
            tied,
            logit_softcap: None,
            norm_offset: 0.0,
            bidirectional: false,
            ropes: vec![rope],
            layers,
        }
    }
}

/// A layer without norms after its parts.
pub(super) fn layer(attention: Attention, mlp: Mlp) -> Layer {
    Layer { mixer: Mixer::Attention(attention), mlp, post_norms: false }
}

fn eps(keys: &dyn Keys, key: &str) -> Result<Option<f32>> {
    match keys.positive(key)? {
        Some(v) if v >= 1.0 => bail!("{} is {v}; a small number is expected", keys.place(key)),
        v => Ok(v.map(|v| v as f32)),
    }
}

/// The function of the MLPs.
pub(super) fn activation(j: &Json, keys: &[&str], default: Activation) -> Result<Activation> {
    for key in keys {
        if let Some(name) = j.text(key)? {
            return match name.as_str() {
                "silu" | "swish" => Ok(Activation::Silu),
                "gelu_pytorch_tanh" | "gelu_new" | "gelu_tanh" => Ok(Activation::GeluTanh),
                _ => bail!("{} is `{name}`; supported are silu and gelu_pytorch_tanh", j.place(key)),
            };
        }
    }
    Ok(default)
}

/// A window of attention: a position count, or none.
pub(super) fn window(keys: &dyn Keys, key: &str) -> Result<Option<usize>> {
    keys.size(key, 1..=*CONTEXT.end())
}

/// Which layers slide, when the file lists their types.
pub(super) fn layer_types(j: &Json, layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(types) = j.texts("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        bail!("{} has {} entries, but num_hidden_layers is {layers}", j.place("layer_types"), types.len());
    }
    let slides = |kind: &String| match kind.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        _ => bail!("{} has `{kind}`; supported are full_attention and sliding_attention", j.place("layer_types")),
    };
    types.iter().map(slides).collect::<Result<Vec<bool>>>().map(Some)
}

/// Rotated dimensions of a head.
fn rotated(j: &Json, params: Option<&Json>, head_dim: usize) -> Result<usize> {
    for keys in params.into_iter().chain([j]) {
        if let Some(part) = keys.positive("partial_rotary_factor")? {
            let dims = (head_dim as f64 * part) as usize;
            if part > 1.0 || dims < 2 || !dims.is_multiple_of(2) {
                let place = keys.place("partial_rotary_factor");
                bail!("{place} is {part}: of heads of {head_dim} it does not leave an even number of dimensions");
            }
            return Ok(dims);
        }
    }
    Ok(head_dim)
}

/// The rotation a `config.json` describes, in either generation of its keys.
pub(super) fn rope(j: &Json, sizes: &Sizes, theta: f64) -> Result<Rope> {
    let params = match j.object("rope_parameters")? {
        Some(params) => Some(params),
        None => j.object("rope_scaling")?,
    };
    rope_of(j, params.as_ref(), "rope_theta", sizes, theta)
}

/// The same with the parameters already found.
pub(super) fn rope_of(j: &Json, params: Option<&Json>, key: &str, sizes: &Sizes, default: f64) -> Result<Rope> {
    let dims = rotated(j, params, sizes.head_dim)?;
    let theta = match params.map_or(Ok(None), |p| p.positive("rope_theta"))? {
        Some(theta) => theta,
        None => j.positive(key)?.unwrap_or(default),
    };
    let Some(p) = params else { return Ok(Rope { theta, dims, scaling: Scaling::Default }) };
    let kind = match p.text("rope_type")? {
        Some(kind) => kind,
        None => p.text("type")?.unwrap_or_else(|| "default".into()),
    };
    let need = |key: &str| match p.positive(key)? {
        Some(v) => Ok(v),
        None => bail!("{} is missing; rope type `{kind}` needs it", p.place(key)),
    };
    let trained = match p.positive("original_max_position_embeddings")? {
        Some(v) => v,
        None => j.positive("original_max_position_embeddings")?.unwrap_or(sizes.context as f64),
    };
    let scaling = match kind.as_str() {
        "default" => Scaling::Default,
        "linear" => Scaling::Linear { factor: need("factor")? },
        "dynamic" => Scaling::Dynamic { factor: need("factor")?, original: sizes.context as f64 },
        "llama3" => {
            let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
            if low >= high {
                bail!("{} {low} is not below high_freq_factor {high}", p.place("low_freq_factor"));
            }
            Scaling::Llama3 { factor: need("factor")?, low, high, original: trained }
        }
        "yarn" => {
            let factor = p.positive("factor")?.unwrap_or(sizes.context as f64 / trained);
            let scales = (p.number("mscale")?.unwrap_or(0.0), p.number("mscale_all_dim")?.unwrap_or(0.0));
            let attention = match (p.positive("attention_factor")?, scales) {
                (Some(v), _) => v,
                (None, (one, all)) if one != 0.0 && all != 0.0 => {
                    yarn_attention(factor, one) / yarn_attention(factor, all)
                }
                _ => yarn_attention(factor, 1.0),
            };
            Scaling::Yarn {
                factor,
                original: trained,
                beta_fast: p.positive("beta_fast")?.unwrap_or(32.0),
                beta_slow: p.positive("beta_slow")?.unwrap_or(1.0),
                truncate: p.flag("truncate")?.unwrap_or(true),
                attention,
            }
        }
        _ => bail!(
            "{} is `{kind}`; supported are default, linear, dynamic, llama3 and yarn",
            p.place(if p.has("rope_type") { "rope_type" } else { "type" })
        ),
    };
    Ok(Rope { theta, dims, scaling })
}

/// The rotation GGUF metadata describe.
pub(super) fn gguf_rope(m: &Meta<'_>, checkpoint: &Checkpoint, sizes: &Sizes, default: f64) -> Result<Rope> {
    let theta = m.positive("rope.freq_base")?.unwrap_or(default);
    let dims = m.size("rope.dimension_count", 2..=sizes.head_dim)?.unwrap_or(sizes.head_dim);
    if !dims.is_multiple_of(2) {
        bail!("{} {dims} is odd; rotations need pairs", m.place("rope.dimension_count"));
    }
    if checkpoint.contains("rope_freqs.weight") {
        let divisors = checkpoint.f32_shaped("rope_freqs.weight", &[dims / 2]).map_err(Error::msg)?;
        if divisors.iter().any(|d| !(*d > 0.0 && d.is_finite())) {
            bail!("{}: tensor `rope_freqs.weight` has a divisor that is no number above zero", m.file.display());
        }
        return Ok(Rope { theta, dims, scaling: Scaling::Divisors(divisors) });
    }
    let kind = m.text("rope.scaling.type")?.unwrap_or_else(|| "none".into());
    let factor = m.positive("rope.scaling.factor")?;
    let scaling = match (kind.as_str(), factor) {
        ("none", _) | ("linear", None) => Scaling::Default,
        ("linear", Some(factor)) => Scaling::Linear { factor },
        ("yarn", Some(factor)) => Scaling::Yarn {
            factor,
            original: m.positive("rope.scaling.original_context_length")?.unwrap_or(sizes.context as f64),
            beta_fast: m.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: m.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            truncate: true,
            attention: m.positive("rope.scaling.attn_factor")?.unwrap_or(1.0) * yarn_attention(factor, 1.0),
        },
        ("yarn", None) => bail!("{} is missing; rope type `yarn` needs it", m.place("rope.scaling.factor")),
        _ => bail!("{} is `{kind}`; supported are none, linear and yarn", m.place("rope.scaling.type")),
    };
    Ok(Rope { theta, dims, scaling })
}

/// Where the tensors of a checkpoint with Hugging Face's names are.
pub(super) fn names(checkpoint: &Checkpoint) -> Names {
    const PREFIXES: [&str; 4] = ["model.", "language_model.model.", "model.language_model.", ""];
    let has = |p: &&str| checkpoint.contains(&format!("{p}embed_tokens.weight"));
    let prefix = PREFIXES.into_iter().find(has).unwrap_or("model.");
    let wrapped = checkpoint.contains("language_model.lm_head.weight");
    let head = if wrapped { "language_model.lm_head" } else { "lm_head" };
    Names::HuggingFace { prefix: prefix.into(), head: head.into() }
}

/// Is the output layer the embedding? Where the file doesn't say and `default` doesn't either, when
/// there is no other.
pub(super) fn tied(
    j: &Json,
    outer: &Json,
    checkpoint: &Checkpoint,
    names: &Names,
    default: Option<bool>,
) -> Result<bool> {
    let told = match j.flag("tie_word_embeddings")? {
        Some(v) => Some(v),
        None => outer.flag("tie_word_embeddings")?.or(default),
    };
    let head = format!("{}.weight", names.of(crate::decoder::names::Part::Head, 0, false));
    Ok(told.unwrap_or_else(|| !checkpoint.contains(&head)))
}

/// Which projections of a GGUF file have biases.
pub(super) fn gguf_biases(checkpoint: &Checkpoint) -> Biases {
    Biases { qkv: checkpoint.contains("blk.0.attn_q.bias"), out: checkpoint.contains("blk.0.attn_output.bias") }
}
