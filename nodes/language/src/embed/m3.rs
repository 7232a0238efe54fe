//! BGE-M3's other two results: a weight a token, and a vector a token.

use std::path::Path;

use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::Pool;
use oxiline_weights::{Checkpoint, Mode, Tokenizer};

use super::pooling::normalise;
use crate::encoder::{Linear, project};

/// The heads beside the dense vector.
pub(super) struct M3 {
    sparse: Linear,
    colbert: Linear,
    /// Ids without a meaning of their own in a text.
    special: Vec<u32>,
}

impl M3 {
    /// Reads `sparse_linear.pt` and `colbert_linear.pt`, where both are there.
    pub(super) fn load(folder: &Path, hidden: usize, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let (sparse, colbert) = (folder.join("sparse_linear.pt"), folder.join("colbert_linear.pt"));
        if !sparse.is_file() || !colbert.is_file() {
            return Ok(None);
        }
        let open = |path: &Path| -> Result<Linear> {
            let checkpoint = Checkpoint::open(path, Mode::Read).map_err(Error::msg)?;
            let info = checkpoint.info("weight").map_err(Error::msg)?;
            let [out_dim, columns] = info.shape[..] else {
                bail!("{}: `weight` has shape {:?}; a matrix is expected", path.display(), info.shape);
            };
            if columns != hidden || out_dim == 0 {
                bail!("{}: `weight` has shape {:?}, not rows of {hidden}", path.display(), info.shape);
            }
            let bias = checkpoint.contains("bias").then(|| checkpoint.f32_shaped("bias", &[out_dim])).transpose();
            Ok(Linear {
                weight: checkpoint
                    .matrix("weight", out_dim, hidden, oxiline_kernels::Storage::F32)
                    .map_err(Error::msg)?,
                bias: bias.map_err(Error::msg)?,
            })
        };
        let special = ["<s>", "</s>", "<pad>", "<unk>"].iter().filter_map(|t| tokenizer.token_to_id(t)).collect();
        Ok(Some(Self { sparse: open(&sparse)?, colbert: open(&colbert)?, special }))
    }

    /// The greatest weight of each token id of a text, ids rising; weights of 0 are left out.
    pub(super) fn sparse(&self, pool: &Pool, ids: &[u32], hidden: &[f32]) -> Vec<(u32, f32)> {
        let weights = project(pool, &self.sparse, hidden);
        let width = self.sparse.weight.out_dim();
        let mut found: Vec<(u32, f32)> = Vec::new();
        for (id, weight) in ids.iter().zip(weights.chunks_exact(width)) {
            if weight[0] > 0.0 && !self.special.contains(id) {
                found.push((*id, weight[0]));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        found.dedup_by_key(|(id, _)| *id);
        found
    }

    /// A vector of length 1 for every token but the first.
    pub(super) fn colbert(&self, pool: &Pool, hidden: &[f32], width: usize) -> Vec<Vec<f32>> {
        let mut vectors = project(pool, &self.colbert, &hidden[width.min(hidden.len())..]);
        let rows = vectors.chunks_exact_mut(self.colbert.weight.out_dim());
        rows.map(|row| {
            normalise(row);
            row.to_vec()
        })
        .collect()
    }
}
