//! Mixtures of experts: each position is sent to the few that its router prefers.

use std::sync::{Mutex, PoisonError};

use oxiline_kernels::{Pool, ops};

use super::load::ExpertWeights;
use super::local;
use super::spec::Experts;

/// Adds the mixture's result for every row of `x` to nothing: writes it into `out`. A row's result
/// is summed over its experts in their order, so it does not depend on the other rows.
pub(super) fn run(pool: &Pool, spec: &Experts, w: &ExpertWeights, x: &[f32], hidden: usize, out: &mut [f32]) {
    let rows = x.len() / hidden;
    let mut scores = vec![0.0; rows * spec.count];
    w.router.matmul(pool, x, None, &mut scores);
    // For each expert, the rows sent to it with their weights.
    let mut sent: Vec<Vec<(usize, f32)>> = vec![Vec::new(); spec.count];
    for (row, scores) in scores.chunks_exact_mut(spec.count).enumerate() {
        for (expert, weight) in choose(scores, spec) {
            sent[expert].push((row, weight));
        }
    }
    let busy: Vec<(usize, &[(usize, f32)])> =
        sent.iter().enumerate().filter(|(_, rows)| !rows.is_empty()).map(|(e, rows)| (e, rows.as_slice())).collect();
    let results: Vec<Mutex<Vec<f32>>> = busy.iter().map(|_| Mutex::default()).collect();
    pool.run(busy.len(), |i| {
        let (expert, rows) = busy[i];
        let result = one(pool, spec, w, expert, rows, x, hidden);
        *results[i].lock().unwrap_or_else(PoisonError::into_inner) = result;
    });
    out.fill(0.0);
    for ((_, rows), result) in busy.iter().zip(results) {
        let result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        for ((row, weight), result) in rows.iter().zip(result.chunks_exact(hidden)) {
            let out = &mut out[row * hidden..(row + 1) * hidden];
            out.iter_mut().zip(result).for_each(|(o, r)| *o += weight * r);
        }
    }
}

/// The chosen experts of one row with their weights, in the order of their numbers.
fn choose(scores: &mut [f32], spec: &Experts) -> Vec<(usize, f32)> {
    ops::softmax(scores);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Stable: of equals the first.
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(spec.chosen);
    let sum: f32 = if spec.renormalise { order.iter().map(|&e| scores[e]).sum() } else { 1.0 };
    order.sort_unstable();
    order.into_iter().map(|e| (e, scores[e] / sum)).collect()
}

/// One expert on the rows sent to it.
fn one(
    pool: &Pool,
    spec: &Experts,
    w: &ExpertWeights,
    expert: usize,
    rows: &[(usize, f32)],
    x: &[f32],
    hidden: usize,
) -> Vec<f32> {
    let weights = &w.experts[expert];
    let mut input = Vec::with_capacity(rows.len() * hidden);
    for (row, _) in rows {
        input.extend_from_slice(&x[row * hidden..(row + 1) * hidden]);
    }
    let mut up = vec![0.0; rows.len() * spec.inner];
    weights.up.weight.matmul(pool, &input, None, &mut up);
    if let Some(gate) = &weights.gate {
        let mut gated = vec![0.0; up.len()];
        gate.weight.matmul(pool, &input, None, &mut gated);
        local::gate(pool, &mut gated, Some(&up), spec.inner, spec.activation);
        up = gated;
    }
    let mut out = vec![0.0; rows.len() * hidden];
    weights.down.weight.matmul(pool, &up, None, &mut out);
    out
}
