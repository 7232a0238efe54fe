//! The products in plain Rust: what the SIMD kernels must equal bit for bit.

use crate::packed::Job;
use crate::packed::layout::{BLOCK, ROWS, SLAB};

/// Tokens whose sums are kept beside one another.
const MOST: usize = 8;

/// All groups of a job times its tokens, added to `sums`: `[group][token][8]`.
pub(crate) fn run(job: &Job<'_>, sums: &mut [f32]) {
    let n = job.tokens.len();
    for (group, sums) in job.groups.chunks_exact(job.group).zip(sums.chunks_exact_mut(n * ROWS)) {
        for (i, sums) in sums.chunks_mut(MOST * ROWS).enumerate() {
            some(job, group, job.tokens.start + i * MOST, sums);
        }
    }
}

/// Tokens from `first` on, as many as there are sums.
fn some(job: &Job<'_>, group: &[u8], first: usize, sums: &mut [f32]) {
    let (layout, acts) = (job.layout, job.acts);
    let n = sums.len() / ROWS;
    let record_bytes = layout.record();
    let per_half = if layout.sub == 16 { 2 } else { 1 };
    for (i, record) in group.chunks_exact(record_bytes).enumerate() {
        let scale = |row: usize| layout.form.get(record, row);
        let float_min = |row: usize| layout.form.get(&record[layout.form.bytes()..], row);
        let (floats, subs) = (layout.floats(), layout.subs());
        let small = |sub: usize, row: usize| record[floats + sub / 2 * 16 + row * 2 + sub % 2] as i8;
        let small_min = |sub: usize, row: usize| record[floats + subs * ROWS + sub / 2 * 16 + row * 2 + sub % 2];
        // Whole sums of a super-block.
        let mut totals = [[0_i32; ROWS]; MOST];
        for (b, block) in record[layout.header()..].chunks_exact(layout.code.bytes()).enumerate() {
            let at = i * layout.blocks + b;
            let (slab, in_slab) = (at / SLAB, at % SLAB);
            let mut bytes = [0; 256];
            layout.unpack(block, &mut bytes);
            for t in 0..n {
                let token = slab * acts.tokens + first + t;
                let x = &acts.values[token * BLOCK * SLAB + in_slab * BLOCK..][..BLOCK];
                let mut halves = [[0_i32; ROWS]; 2];
                for s in 0..8 {
                    for r in 0..ROWS {
                        for j in 0..4 {
                            halves[s / 4][r] += layout.value(bytes[s * 32 + r * 4 + j]) * i32::from(x[s * 4 + j]);
                        }
                    }
                }
                for r in 0..ROWS {
                    if layout.sub == 0 {
                        let at = token * SLAB + in_slab;
                        let whole = halves[0][r] + halves[1][r] - layout.offset * acts.sums[at];
                        let sum = &mut sums[t * ROWS + r];
                        *sum = (whole as f32).mul_add(scale(r) * (acts.scales[at] * layout.factor), *sum);
                        if layout.min {
                            *sum = float_min(r).mul_add(acts.scaled_sums[at], *sum);
                        }
                        continue;
                    }
                    for (h, half) in halves.iter().enumerate() {
                        let sub = b * per_half + if per_half == 2 { h } else { 0 };
                        totals[t][r] += half[r] * i32::from(small(sub, r));
                    }
                }
            }
        }
        if layout.sub == 0 {
            continue;
        }
        for t in 0..n {
            let token = i * acts.tokens + first + t;
            let x_scale = acts.scales[token] * layout.factor;
            let sum_of = |sub: usize| {
                i32::from(if per_half == 2 { acts.sums16[token * 16 + sub] } else { acts.sums32[token * 8 + sub] })
            };
            for r in 0..ROWS {
                let of_scales: i32 = (0..subs).map(|s| i32::from(small(s, r)) * sum_of(s)).sum();
                let whole = totals[t][r] - layout.offset * of_scales;
                let sum = &mut sums[t * ROWS + r];
                *sum = (whole as f32).mul_add(scale(r) * x_scale, *sum);
                if layout.min {
                    let of_mins: i32 = (0..subs).map(|s| i32::from(small_min(s, r)) * sum_of(s)).sum();
                    *sum = (of_mins as f32).mul_add(-(float_min(r) * x_scale), *sum);
                }
            }
        }
    }
}
