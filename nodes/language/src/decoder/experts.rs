//! Mixtures of experts: each position is sent to the few that its router prefers.

use oxiline_kernels::{Matrix, Pool, Product, ops};

use super::load::ExpertWeights;
use super::local;
use super::spec::Experts;

/// The mixture's result for every row of `x`, into `out`. A row's result is summed over its experts in
/// their order, so it does not depend on the other rows.
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
    // The rows again, those of one expert together.
    let mut input = Vec::with_capacity(rows * spec.chosen * hidden);
    let mut busy = Vec::new();
    for (weights, rows) in w.experts.iter().zip(&sent).filter(|(_, rows)| !rows.is_empty()) {
        rows.iter().for_each(|(row, _)| input.extend_from_slice(&x[row * hidden..(row + 1) * hidden]));
        busy.push((weights, rows.len()));
    }
    let count = input.len() / hidden;
    let mut gate = vec![0.0; count * spec.inner];
    let mut up = vec![0.0; count * spec.inner];
    let mut jobs = Vec::new();
    let (mut x, mut g, mut u) = (&*input, &mut *gate, &mut *up);
    for (weights, rows) in &busy {
        let (own, rest) = x.split_at(rows * hidden);
        let (own_gate, rest_gate) = g.split_at_mut(rows * spec.inner);
        let (own_up, rest_up) = u.split_at_mut(rows * spec.inner);
        (x, g, u) = (rest, rest_gate, rest_up);
        jobs.push((&weights.gate, own, own_gate));
        jobs.push((&weights.up, own, own_up));
    }
    matmuls(pool, jobs);
    local::gate(pool, &mut gate, Some(&up), spec.activation);
    // The inputs are not needed any more: their room takes the results.
    let mut jobs = Vec::new();
    let (mut g, mut y) = (&*gate, &mut *input);
    for (weights, rows) in &busy {
        let (own, rest) = g.split_at(rows * spec.inner);
        let (own_out, rest_out) = y.split_at_mut(rows * hidden);
        (g, y) = (rest, rest_out);
        jobs.push((&weights.down, own, own_out));
    }
    matmuls(pool, jobs);
    out.fill(0.0);
    for ((row, weight), result) in sent.iter().flatten().zip(input.chunks_exact(hidden)) {
        let out = &mut out[row * hidden..(row + 1) * hidden];
        out.iter_mut().zip(result).for_each(|(o, r)| *o += weight * r);
    }
}

/// Products of different experts computed together.
fn matmuls<'a>(pool: &Pool, jobs: Vec<(&'a Matrix, &'a [f32], &'a mut [f32])>) {
    let mut products: Vec<Product<'_>> = jobs.into_iter().map(|(weight, x, y)| Product::new(weight, x, y)).collect();
    Matrix::matmul_group(pool, &mut products);
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
