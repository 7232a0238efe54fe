//! Which tensor becomes what, and which file it goes to.

use super::{ConvertOptions, Quant};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{Error, Result, shown};

/// Largest file, unless one tensor alone is larger.
const MAX_SHARD: u64 = 1 << 30;
/// Tensors start at multiples of this.
pub(super) const ALIGN: u64 = 16 << 10;

/// A tensor of the source.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub name: String,
    /// None: as it is.
    pub quant: Option<Quant>,
    pub outputs: Vec<Output>,
    /// Bytes in the source.
    pub read: u64,
}

/// A tensor of the result.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: u64,
}

/// A file of the result.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub file: String,
    pub items: Vec<Item>,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub options: ConvertOptions,
    pub shards: Vec<Shard>,
    /// Bytes in the source.
    pub total: u64,
}

impl Plan {
    pub(super) fn new(checkpoint: &Checkpoint, options: ConvertOptions) -> Result<Self> {
        let (mut tables, mut others) = (Vec::new(), Vec::new());
        for name in checkpoint.names() {
            let info = checkpoint.info(name)?;
            let real =
                info.dtype.is_quantised() || matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64);
            let rows = info.shape.len() >= 2 && info.shape.last().is_some_and(|d| *d > 0 && d.is_multiple_of(32));
            let table = is_table(name);
            let quant = if table { options.tables } else { Some(options.quant) };
            let quant = quant.filter(|_| real && rows && name.ends_with(".weight") && !is_router(name));
            let item = Item {
                name: name.to_string(),
                quant,
                outputs: outputs(name, &info.shape, info.dtype, quant)?,
                read: info.bytes as u64,
            };
            if table { &mut tables } else { &mut others }.push(item);
        }
        if !tables.iter().chain(&others).any(|i| i.quant.is_some()) {
            return Err(Error::unsupported("no matrix in it can be quantised (rows of a multiple of 32 weights)"));
        }
        let total = tables.iter().chain(&others).map(|i| i.read).sum();
        let mut shards = cut("model", others);
        shards.extend(cut("model-tables", tables));
        Ok(Self { options, shards, total })
    }
}

/// Embedding tables and heads, by Hugging Face's names and GGUF's.
fn is_table(name: &str) -> bool {
    ["embed_tokens.weight", "lm_head.weight", "wte.weight", "token_embd.weight"].iter().any(|end| name.ends_with(end))
        || name == "output.weight"
}

/// Which experts are chosen must not depend on rounding.
fn is_router(name: &str) -> bool {
    ["mlp.gate.weight", "router.weight", "router.proj.weight", "block_sparse_moe.gate.weight", "ffn_gate_inp.weight"]
        .iter()
        .any(|end| name.ends_with(end))
}

fn outputs(name: &str, shape: &[usize], dtype: Dtype, quant: Option<Quant>) -> Result<Vec<Output>> {
    let last = shape.last().copied().unwrap_or(1);
    let with = |end: &str, dtype: Dtype, last: usize| {
        let mut shape = shape.to_vec();
        if let Some(d) = shape.last_mut() {
            *d = last;
        }
        let bytes = crate::safetensors::byte_size(&shape, dtype).map(|b| b as u64);
        let bytes = bytes.ok_or_else(|| Error::malformed(format!("tensor {}: its size overflows", shown(name))))?;
        Ok(Output { name: format!("{name}{end}"), dtype, shape, bytes })
    };
    match quant {
        Some(Quant::Q8) => Ok(vec![with(".q8", Dtype::I8, last)?, with(".q8s", Dtype::F32, last / 32)?]),
        Some(Quant::Q4) => Ok(vec![with(".q4", Dtype::U8, last / 2)?, with(".q4s", Dtype::F16, last / 32)?]),
        // Quantised, but not to be: as floats.
        None => Ok(vec![with("", if dtype.is_quantised() { Dtype::F32 } else { dtype }, last)?]),
    }
}

/// Deals tensors into files.
fn cut(stem: &str, items: Vec<Item>) -> Vec<Shard> {
    let mut shards: Vec<Shard> = Vec::new();
    let mut room = 0;
    for item in items {
        let size: u64 = item.outputs.iter().map(|o| o.bytes.next_multiple_of(ALIGN)).sum();
        if shards.is_empty() || size > room {
            shards.push(Shard::default());
            // The header takes some too.
            room = MAX_SHARD - (16 << 20);
        }
        room = room.saturating_sub(size);
        if let Some(shard) = shards.last_mut() {
            shard.items.push(item);
        }
    }
    let count = shards.len();
    for (i, shard) in shards.iter_mut().enumerate() {
        shard.file = format!("{stem}-{:05}-of-{count:05}.safetensors", i + 1);
    }
    shards
}
