//! Rotations and gates as the decoder's descriptions name them, over the kernels.

use oxiline_kernels::{Pool, Rope as Table, ops};

use super::rope::{Frequencies, Rope, Scaling};
use super::spec::Activation;

/// A rotation ready for use.
pub(super) struct Rotation {
    table: Table,
    /// Frequencies that change past the trained positions.
    dynamic: Option<Frequencies>,
}

impl Rotation {
    pub(super) fn new(rope: &Rope) -> Self {
        let frequencies = rope.frequencies();
        let table = Table::new(frequencies.inverse().to_vec(), frequencies.attention());
        let dynamic = matches!(rope.scaling, Scaling::Dynamic { .. }).then_some(frequencies);
        Self { table, dynamic }
    }

    /// Rotates the heads of rows at `positions`.
    pub(super) fn apply(&self, pool: &Pool, x: &mut [f32], head_dim: usize, positions: &[usize]) {
        let Some(frequencies) = &self.dynamic else {
            self.table.apply(pool, x, head_dim, positions);
            return;
        };
        let (pairs, width) = (frequencies.pairs(), x.len() / positions.len().max(1));
        let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
        for (row, &position) in x.chunks_exact_mut(width.max(1)).zip(positions) {
            frequencies.at(position, &mut cos, &mut sin);
            for head in row.chunks_exact_mut(head_dim) {
                let (a, b) = head[..2 * pairs].split_at_mut(pairs);
                for i in 0..pairs {
                    (a[i], b[i]) = (a[i] * cos[i] - b[i] * sin[i], b[i] * cos[i] + a[i] * sin[i]);
                }
            }
        }
    }
}

/// `gate = act(gate) * up`, or `act(gate)`.
pub(super) fn gate(pool: &Pool, gate: &mut [f32], up: Option<&[f32]>, activation: Activation) {
    match (activation, up) {
        (Activation::Silu, Some(up)) => ops::silu_mul(pool, gate, up),
        (Activation::Silu, None) => ops::silu(pool, gate),
        (Activation::GeluTanh, Some(up)) => ops::gelu_tanh_mul(pool, gate, up),
        (Activation::GeluTanh, None) => ops::gelu_tanh(pool, gate),
    }
}
