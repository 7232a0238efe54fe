//! What a compute device offers: every operation optional, the CPU's kernels where it has none.

use std::any::Any;
use std::sync::Arc;

use crate::attention::{self, Query};
use crate::conv::Conv1d;
use crate::{Epilogue, Matrix, Pool, ops};

/// An operation a device may run itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// [`Backend::matmul`].
    Matmul,
    /// [`Backend::attention`].
    Attention,
    /// [`Backend::attention_rows`].
    AttentionRows,
    /// [`Backend::conv1d`].
    Conv1d,
    /// [`Backend::layer_norm`].
    LayerNorm,
}

/// A matrix made known to a device.
pub struct Weight {
    host: Arc<Matrix>,
    device: Option<Box<dyn Any + Send + Sync>>,
}

impl Weight {
    /// A matrix with what the device keeps of it.
    pub fn new(host: Arc<Matrix>, device: Option<Box<dyn Any + Send + Sync>>) -> Self {
        Self { host, device }
    }

    /// The matrix in the CPU's memory.
    pub fn host(&self) -> &Arc<Matrix> {
        &self.host
    }

    /// The device's own copy, when it is a `T`.
    pub fn device<T: 'static>(&self) -> Option<&T> {
        self.device.as_deref().and_then(|d| d.downcast_ref())
    }
}

/// A compute device. Activations are in the CPU's memory; a device that overrides nothing computes
/// on the CPU.
pub trait Backend: Send + Sync {
    /// Which device this is: `cpu`, or a kind and a number.
    fn id(&self) -> &str;

    /// Does the device run this operation itself?
    fn runs(&self, op: Op) -> bool {
        let _ = op;
        false
    }

    /// Makes a matrix known to the device.
    fn upload(&self, matrix: Arc<Matrix>) -> Weight {
        Weight::new(matrix, None)
    }

    /// As [`Matrix::matmul_with`].
    fn matmul(&self, pool: &Pool, w: &Weight, x: &[f32], bias: Option<&[f32]>, epilogue: Epilogue, y: &mut [f32]) {
        w.host().matmul_with(pool, x, bias, epilogue, y);
    }

    /// As [`attention::full`].
    #[allow(clippy::too_many_arguments)]
    fn attention(&self, pool: &Pool, q: &[f32], k: &[f32], v: &[f32], heads: usize, dim: usize, out: &mut [f32]) {
        attention::full(pool, q, k, v, heads, dim, out);
    }

    /// As [`attention::rows`].
    fn attention_rows(&self, pool: &Pool, queries: &mut [Query<'_>]) {
        attention::rows(pool, queries);
    }

    /// As [`Conv1d::run_with`].
    fn conv1d(&self, pool: &Pool, conv: &Conv1d, x: &[f32], epilogue: Epilogue, out: &mut Vec<f32>) {
        conv.run_with(pool, x, epilogue, out);
    }

    /// As [`ops::layer_norm`].
    #[allow(clippy::too_many_arguments)]
    fn layer_norm(&self, pool: &Pool, x: &[f32], dim: usize, weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        ops::layer_norm(pool, x, dim, weight, bias, eps, out);
    }
}
