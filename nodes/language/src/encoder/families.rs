//! The families, each a short function: from a checkpoint's configuration to a [`Spec`].

use std::path::Path;

use oxiline_graph::{Result, bail};
use oxiline_weights::Checkpoint;

use super::names::Names;
use super::spec::{Activation, Buckets, Layer, Learned, Norm, Placement, Spec};
use crate::decoder::rope::{Rope, Scaling};
use crate::decoder::spec as decoder;
use crate::families::keys::{Json, Keys, Meta};

const WIDTH: std::ops::RangeInclusive<usize> = 1..=1 << 17;
const HEADS: std::ops::RangeInclusive<usize> = 1..=4096;
const INNER: std::ops::RangeInclusive<usize> = 1..=1 << 20;
const VOCAB: std::ops::RangeInclusive<usize> = 1..=1 << 23;
const LAYERS: std::ops::RangeInclusive<usize> = 1..=1024;
/// Positions; tables by distance grow with them.
const CONTEXT: std::ops::RangeInclusive<usize> = 8..=1 << 20;

/// What a checkpoint is and where its tensors are.
type Described = (Spec, Names);

/// What the encoder of the checkpoint that was opened from `path` is, every value checked.
///
/// # Errors
/// Keys are missing, contradict one another or are absurd, or the family is unknown.
pub fn describe(path: &Path, checkpoint: &Checkpoint) -> Result<Described> {
    if let Some(meta) = checkpoint.gguf() {
        let arch = meta.str("general.architecture").unwrap_or_default();
        if matches!(arch, "bert" | "nomic-bert") {
            return gguf(checkpoint, &Meta { file: path.into(), arch: arch.into(), meta });
        }
        return from_decoder(checkpoint);
    }
    let file = checkpoint.folder().join("config.json");
    let value = checkpoint.config("config.json").map_err(oxiline_graph::Error::msg)?;
    let j = Json::new(file, value)?;
    match j.text("model_type")?.as_deref() {
        Some("bert") => bert(checkpoint, &j, "bert", 0),
        Some(kind @ ("roberta" | "xlm-roberta" | "camembert")) => {
            let family = if kind == "xlm-roberta" { "xlm-roberta" } else { "roberta" };
            bert(checkpoint, &j, family, j.size("pad_token_id", 0..=1 << 20)?.unwrap_or(1) + 1)
        }
        Some("mpnet") => {
            let (mut spec, _) = bert(checkpoint, &j, "mpnet", j.size("pad_token_id", 0..=1 << 20)?.unwrap_or(1) + 1)?;
            let count = j.size("relative_attention_num_buckets", 4..=4096)?.unwrap_or(32);
            spec.relative = Some(Buckets { count, furthest: 128 });
            spec.token_types = 0;
            Ok((spec, Names::Mpnet(prefix(checkpoint, "embeddings.word_embeddings"))))
        }
        Some("modernbert") => modernbert(checkpoint, &j),
        Some("nomic_bert") => nomic(checkpoint, &j),
        Some("gemma3" | "gemma3_text" | "qwen2" | "qwen3" | "llama" | "mistral") => from_decoder(checkpoint),
        Some(other) => bail!(
            "{} is `{}`, no family of embedding models that is supported; supported: bert, roberta, xlm-roberta, mpnet, \
             modernbert, nomic_bert, gemma3_text, qwen2, qwen3",
            j.place("model_type"),
            other.chars().take(80).flat_map(char::escape_debug).collect::<String>()
        ),
        None => bail!("{} is missing; is this the configuration of an embedding model?", j.place("model_type")),
    }
}

/// What stands before `inside` in the checkpoint's names.
fn prefix(checkpoint: &Checkpoint, inside: &str) -> String {
    const PREFIXES: [&str; 7] = ["", "bert.", "roberta.", "mpnet.", "model.", "encoder.", "auto_model."];
    let has = |p: &&str| checkpoint.contains(&format!("{p}{inside}.weight"));
    PREFIXES.into_iter().find(has).unwrap_or("").into()
}

fn activation(j: &Json, key: &str) -> Result<Activation> {
    match j.text(key)?.as_deref() {
        None | Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Ok(Activation::GeluTanh),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some(name) => bail!("{} is `{name}`; supported are gelu, gelu_new and silu", j.place(key)),
    }
}

fn head_dim(keys: &dyn Keys, hidden: usize, heads: usize, key: &str) -> Result<usize> {
    if !hidden.is_multiple_of(heads) {
        bail!("{} {heads} does not divide the width {hidden}", keys.place(key));
    }
    Ok(hidden / heads)
}

fn eps(keys: &dyn Keys, key: &str, default: f32) -> Result<f32> {
    match keys.positive(key)? {
        Some(v) if v >= 1.0 => bail!("{} is {v}; a small number is expected", keys.place(key)),
        v => Ok(v.map_or(default, |v| v as f32)),
    }
}

/// BERT's shape; `first` is the row of the first token in the table of positions.
fn bert(checkpoint: &Checkpoint, j: &Json, family: &'static str, first: usize) -> Result<Described> {
    if let Some(kind) = j.text("position_embedding_type")?.filter(|kind| kind != "absolute") {
        bail!("{} is `{kind}`; supported is absolute", j.place("position_embedding_type"));
    }
    let hidden = j.need("hidden_size", WIDTH)?;
    let heads = j.need("num_attention_heads", HEADS)?;
    let head_dim = head_dim(j, hidden, heads, "num_attention_heads")?;
    let rows = j.need("max_position_embeddings", CONTEXT)?;
    if first >= rows {
        bail!("{} {rows} leaves no position after the {first} that are not used", j.place("max_position_embeddings"));
    }
    let layer = Layer::plain(heads, head_dim, j.need("intermediate_size", INNER)?, activation(j, "hidden_act")?);
    let spec = Spec {
        family,
        hidden,
        vocab: j.need("vocab_size", VOCAB)?,
        context: rows - first,
        learned: Some(Learned { rows, first }),
        token_types: j.size("type_vocab_size", 0..=1024)?.unwrap_or(2),
        embedding_norm: true,
        embedding_scale: 1.0,
        norm: Norm { rms: false, eps: eps(j, "layer_norm_eps", 1e-12)?, bias: true, offset: 0.0 },
        placement: Placement::After,
        final_norm: false,
        ropes: Vec::new(),
        relative: None,
        layers: vec![layer; j.need("num_hidden_layers", LAYERS)?],
    };
    Ok((spec, Names::Bert(prefix(checkpoint, "embeddings.word_embeddings"))))
}

/// Attention to everything on every n-th layer and to neighbours on the others, each with its rotation.
fn modernbert(checkpoint: &Checkpoint, j: &Json) -> Result<Described> {
    let hidden = j.need("hidden_size", WIDTH)?;
    let heads = j.need("num_attention_heads", HEADS)?;
    let head_dim = head_dim(j, hidden, heads, "num_attention_heads")?;
    if !head_dim.is_multiple_of(2) {
        bail!("{} leaves heads of {head_dim}; rotations need pairs", j.place("num_attention_heads"));
    }
    let count = j.need("num_hidden_layers", LAYERS)?;
    let every = j.size("global_attn_every_n_layers", 1..=1024)?.unwrap_or(3);
    let window = j.size("local_attention", 1..=1 << 30)?.unwrap_or(128);
    let (attention_bias, mlp_bias) = (j.flag("attention_bias")?.unwrap_or(false), j.flag("mlp_bias")?.unwrap_or(false));
    let global: Vec<bool> = match j.texts("layer_types")? {
        Some(types) if types.len() == count => types.iter().map(|t| t == "full_attention").collect(),
        Some(types) => {
            bail!("{} has {} entries, but num_hidden_layers is {count}", j.place("layer_types"), types.len())
        }
        None => (0..count).map(|i| i % every == 0).collect(),
    };
    let parameters = j.object("rope_parameters")?;
    let theta = |kind: &str, key: &str, default| -> Result<f64> {
        let own = parameters.as_ref().map(|p| p.object(kind)).transpose()?.flatten();
        match own.map(|own| own.positive("rope_theta")).transpose()?.flatten() {
            Some(theta) => Ok(theta),
            None => Ok(j.positive(key)?.unwrap_or(default)),
        }
    };
    let everything = theta("full_attention", "global_rope_theta", 160_000.0)?;
    let near = theta("sliding_attention", "local_rope_theta", 10_000.0)?;
    let inner = j.need("intermediate_size", INNER)?;
    let activation = activation(j, "hidden_activation")?;
    let layers = global.iter().enumerate().map(|(i, &global)| {
        let reach = (!global).then_some(window / 2);
        Layer {
            back: reach,
            ahead: reach,
            rope: Some(usize::from(!global)),
            first_norm: i > 0,
            gated: true,
            qkv_bias: attention_bias,
            out_bias: attention_bias,
            mlp_bias,
            ..Layer::plain(heads, head_dim, inner, activation)
        }
    });
    let spec = Spec {
        family: "modernbert",
        hidden,
        vocab: j.need("vocab_size", VOCAB)?,
        context: j.need("max_position_embeddings", CONTEXT)?,
        learned: None,
        token_types: 0,
        embedding_norm: true,
        embedding_scale: 1.0,
        norm: Norm {
            rms: false,
            eps: eps(j, "norm_eps", 1e-5)?,
            bias: j.flag("norm_bias")?.unwrap_or(false),
            offset: 0.0,
        },
        placement: Placement::Before,
        final_norm: true,
        ropes: vec![Rope::plain(everything, head_dim), Rope::plain(near, head_dim)],
        relative: None,
        layers: layers.collect(),
    };
    Ok((spec, Names::ModernBert(prefix(checkpoint, "embeddings.tok_embeddings"))))
}

/// Rotated positions, fused projections, a gated MLP, norms after the residual.
fn nomic(checkpoint: &Checkpoint, j: &Json) -> Result<Described> {
    for (key, supported) in [("prenorm", false), ("parallel_block", false), ("rotary_emb_interleaved", false)] {
        if j.flag(key)?.is_some_and(|v| v != supported) {
            bail!("{} is {}; only {supported} is supported", j.place(key), !supported);
        }
    }
    let fraction = j.number("rotary_emb_fraction")?.unwrap_or(1.0);
    if fraction != 1.0 {
        bail!("{} is {fraction}; only 1 is supported", j.place("rotary_emb_fraction"));
    }
    let hidden = j.need("n_embd", WIDTH)?;
    let heads = j.need("n_head", HEADS)?;
    let head_dim = head_dim(j, hidden, heads, "n_head")?;
    if !head_dim.is_multiple_of(2) {
        bail!("{} leaves heads of {head_dim}; rotations need pairs", j.place("n_head"));
    }
    let (gated, activation) = match j.text("activation_function")?.as_deref() {
        Some("swiglu") => (true, Activation::Silu),
        Some("gelu") => (false, Activation::Gelu),
        other => bail!("{} is {other:?}; supported are swiglu and gelu", j.place("activation_function")),
    };
    let context = j.need("n_positions", CONTEXT)?;
    let theta = j.positive("rotary_emb_base")?.unwrap_or(10_000.0);
    let trained = j.positive("max_trained_positions")?.unwrap_or(2048.0);
    let scaling = match j.positive("rotary_scaling_factor")? {
        Some(factor) => Scaling::Dynamic { factor, original: trained },
        None => Scaling::Default,
    };
    let bias = |key| Ok::<_, oxiline_graph::Error>(j.flag(key)?.unwrap_or(true));
    let qkv_bias = bias("qkv_proj_bias")?;
    let layer = Layer {
        rope: Some(0),
        gated,
        qkv_bias,
        out_bias: qkv_bias,
        mlp_bias: bias("mlp_fc1_bias")? || bias("mlp_fc2_bias")?,
        ..Layer::plain(heads, head_dim, j.size("n_inner", INNER)?.unwrap_or(4 * hidden), activation)
    };
    let spec = Spec {
        family: "nomic_bert",
        hidden,
        vocab: j.need("vocab_size", VOCAB)?,
        context,
        learned: None,
        token_types: j.size("type_vocab_size", 0..=1024)?.unwrap_or(0),
        embedding_norm: true,
        embedding_scale: 1.0,
        norm: Norm { rms: false, eps: eps(j, "layer_norm_epsilon", 1e-12)?, bias: true, offset: 0.0 },
        placement: Placement::After,
        final_norm: false,
        ropes: vec![Rope { theta, dims: head_dim, scaling }],
        relative: None,
        layers: vec![layer; j.need("n_layer", LAYERS)?],
    };
    Ok((spec, Names::Nomic(prefix(checkpoint, "embeddings.word_embeddings"))))
}

/// A BERT or NomicBERT in a GGUF file.
fn gguf(checkpoint: &Checkpoint, m: &Meta<'_>) -> Result<Described> {
    let hidden = m.need("embedding_length", WIDTH)?;
    let heads = m.need("attention.head_count", HEADS)?;
    let head_dim = head_dim(m, hidden, heads, "attention.head_count")?;
    let nomic = m.arch == "nomic-bert";
    if nomic && !head_dim.is_multiple_of(2) {
        bail!("{} leaves heads of {head_dim}; rotations need pairs", m.place("attention.head_count"));
    }
    let shape = |name: &str| -> Result<[usize; 2]> {
        let info = checkpoint.info(name).map_err(oxiline_graph::Error::msg)?;
        match info.shape[..] {
            [rows, columns] if columns == hidden => Ok([rows, columns]),
            // One type only: its row.
            [columns] if columns == hidden => Ok([1, columns]),
            _ => bail!("{}: tensor `{name}` has shape {:?}, not rows of {hidden}", info.file.display(), info.shape),
        }
    };
    let [vocab, _] = shape("token_embd.weight")?;
    let context = m.need("context_length", CONTEXT)?;
    let learned = match nomic {
        true => None,
        false => Some(Learned { rows: shape("position_embd.weight")?[0], first: 0 }),
    };
    let has = |name: &str| checkpoint.contains(name);
    let token_types = if has("token_types.weight") { shape("token_types.weight")?[0] } else { 0 };
    let fused = has("blk.0.attn_qkv.weight");
    let gated = has("blk.0.ffn_gate.weight");
    let layer = Layer {
        rope: nomic.then_some(0),
        gated,
        qkv_bias: has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias"),
        out_bias: has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_up.bias"),
        ..Layer::plain(
            heads,
            head_dim,
            m.need("feed_forward_length", INNER)?,
            if gated { Activation::Silu } else { Activation::Gelu },
        )
    };
    let theta = m.positive("rope.freq_base")?.unwrap_or(10_000.0);
    let spec = Spec {
        family: if nomic { "nomic_bert" } else { "bert" },
        hidden,
        vocab,
        context: learned.map_or(context, |l| l.rows.min(context)),
        learned,
        token_types,
        embedding_norm: true,
        embedding_scale: 1.0,
        norm: Norm { rms: false, eps: eps(m, "attention.layer_norm_epsilon", 1e-12)?, bias: true, offset: 0.0 },
        placement: Placement::After,
        final_norm: false,
        ropes: if nomic { vec![Rope::plain(theta, head_dim)] } else { Vec::new() },
        relative: None,
        layers: vec![layer; m.need("block_count", LAYERS)?],
    };
    Ok((spec, Names::Gguf { fused }))
}

/// A model of a decoder's shape that embeds: its layers, seeing one or both directions.
fn from_decoder(checkpoint: &Checkpoint) -> Result<Described> {
    let (d, names) = crate::families::describe(checkpoint)?;
    let place = checkpoint.folder().display();
    let around = d.layers.iter().any(|l| l.post_norms);
    let mut layers = Vec::with_capacity(d.layers.len());
    for layer in &d.layers {
        let decoder::Mixer::Attention(a) = &layer.mixer;
        let decoder::Mlp::Dense(dense) = &layer.mlp else {
            bail!("{place}: mixtures of experts are not supported as embedding models");
        };
        if a.softcap.is_some() || names == (crate::decoder::names::Names::Gguf { permuted: true }) {
            bail!("{place}: an embedding model with capped scores or interleaved heads is not supported");
        }
        // Of a window that reaches both ways half is on each side, its middle counted once.
        let (back, ahead) = match (d.bidirectional, a.window) {
            (true, window) => (window.map(|w| w / 2), window.map(|w| w / 2)),
            (false, window) => (window.map(|w| w - 1), Some(0)),
        };
        layers.push(Layer {
            heads: a.heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            back,
            ahead,
            rope: a.rope,
            qk_norm: a.qk_norm == decoder::QkNorm::Head,
            scale: a.scale,
            first_norm: true,
            inner: dense.inner,
            gated: dense.gated,
            activation: match dense.activation {
                decoder::Activation::Silu => Activation::Silu,
                decoder::Activation::GeluTanh => Activation::GeluTanh,
            },
            qkv_bias: a.bias.qkv,
            out_bias: a.bias.out,
            mlp_bias: dense.bias,
        });
    }
    let spec = Spec {
        family: d.family,
        hidden: d.hidden,
        vocab: d.vocab,
        context: d.context,
        learned: None,
        token_types: 0,
        embedding_norm: false,
        embedding_scale: d.embedding_scale,
        norm: Norm { rms: true, eps: d.eps, bias: false, offset: d.norm_offset },
        placement: if around { Placement::Around } else { Placement::Before },
        final_norm: true,
        ropes: d.ropes,
        relative: None,
        layers,
    };
    Ok((spec, Names::Decoder { names, around }))
}
