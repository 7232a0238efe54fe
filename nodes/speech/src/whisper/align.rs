//! When each token was said: dynamic time warping over the decoder's cross-attention.

use super::CrossAttention;

/// Seconds of one encoder position.
pub const POSITION_S: f64 = 0.02;

/// Median filter of odd `width` along a row, its ends mirrored without repeating the edge. Rows not
/// longer than half the width stay as they are.
pub fn median_filter(row: &mut [f32], width: usize) {
    let half = width / 2;
    if half == 0 || row.len() <= half {
        return;
    }
    let source = row.to_vec();
    let n = source.len() as isize;
    let mirrored = |i: isize| {
        let i = i.abs();
        source[(if i >= n { 2 * (n - 1) - i } else { i }) as usize]
    };
    let mut window = vec![0.0_f32; 2 * half + 1];
    for (i, out) in row.iter_mut().enumerate() {
        for (k, slot) in window.iter_mut().enumerate() {
            *slot = mirrored(i as isize + k as isize - half as isize);
        }
        window.sort_unstable_by(f32::total_cmp);
        *out = window[half];
    }
}

/// What the warping minimises, `[tokens, columns]`: each head's attention normalised per column over
/// the tokens (mean 0, population deviation 1), median-filtered along time, averaged over the heads,
/// negated.
pub fn cost(attention: &CrossAttention, median_width: usize) -> Vec<f32> {
    let (tokens, columns, heads) = (attention.tokens(), attention.columns, attention.heads.len());
    if columns == 0 {
        return Vec::new();
    }
    let mut sum = vec![0.0_f32; tokens * columns];
    let mut plane = vec![0.0_f32; tokens * columns];
    for head in 0..heads {
        for token in 0..tokens {
            plane[token * columns..][..columns].copy_from_slice(attention.row(token, head));
        }
        for column in 0..columns {
            let values = || (0..tokens).map(|token| f64::from(plane[token * columns + column]));
            let mean = values().sum::<f64>() / tokens as f64;
            let deviation = (values().map(|v| (v - mean) * (v - mean)).sum::<f64>() / tokens as f64).sqrt();
            for token in 0..tokens {
                let value = &mut plane[token * columns + column];
                // A column all tokens look at alike says nothing.
                *value = if deviation > 0.0 { ((f64::from(*value) - mean) / deviation) as f32 } else { 0.0 };
            }
        }
        for (row, total) in plane.chunks_exact_mut(columns).zip(sum.chunks_exact_mut(columns)) {
            median_filter(row, median_width);
            for (total, &value) in total.iter_mut().zip(&*row) {
                *total += value;
            }
        }
    }
    let scale = 1.0 / heads.max(1) as f32;
    for value in &mut sum {
        *value = -(*value * scale);
    }
    sum
}

/// The cheapest monotone path through a `[rows, columns]` cost matrix, first to last, as (row, column).
///
/// Costs add up in f32. A diagonal step is taken only where it is strictly best, then a step down
/// where that is strictly best, else a step to the right.
pub fn warp(cost: &[f32], rows: usize, columns: usize) -> Vec<(usize, usize)> {
    if rows == 0 || columns == 0 || cost.len() < rows * columns {
        return Vec::new();
    }
    #[derive(Clone, Copy)]
    enum Step {
        Diagonal,
        Down,
        Right,
    }
    let width = columns + 1;
    let mut total = vec![f32::INFINITY; (rows + 1) * width];
    let mut steps = vec![Step::Right; (rows + 1) * width];
    total[0] = 0.0;
    for i in 1..=rows {
        for j in 1..=columns {
            let diagonal = total[(i - 1) * width + j - 1];
            let down = total[(i - 1) * width + j];
            let right = total[i * width + j - 1];
            let (before, step) = if diagonal < down && diagonal < right {
                (diagonal, Step::Diagonal)
            } else if down < diagonal && down < right {
                (down, Step::Down)
            } else {
                (right, Step::Right)
            };
            total[i * width + j] = (f64::from(cost[(i - 1) * columns + j - 1]) + f64::from(before)) as f32;
            steps[i * width + j] = step;
        }
    }
    let mut path = Vec::with_capacity(rows + columns);
    let (mut i, mut j) = (rows, columns);
    while i > 0 && j > 0 {
        path.push((i - 1, j - 1));
        match steps[i * width + j] {
            Step::Diagonal => (i, j) = (i - 1, j - 1),
            Step::Down => i -= 1,
            Step::Right => j -= 1,
        }
    }
    path.reverse();
    path
}

/// The column at which each row of a path begins.
pub fn row_starts(path: &[(usize, usize)]) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut last = None;
    for &(row, column) in path {
        if last != Some(row) {
            starts.push(column);
            last = Some(row);
        }
    }
    starts
}

/// Seconds from the window's start at which each of `tokens` generated tokens had been said:
/// where the step that consumed it begins to look. The last token, which no step consumed, repeats
/// the one before. All zero where there is nothing to look at.
pub fn token_times(attention: &CrossAttention, tokens: usize, median_width: usize) -> Vec<f64> {
    let rows = attention.tokens();
    let starts = row_starts(&warp(&cost(attention, median_width), rows, attention.columns));
    let mut times: Vec<f64> = starts.iter().map(|&column| column as f64 * POSITION_S).collect();
    let last = times.last().copied().unwrap_or(0.0);
    times.resize(tokens, last);
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_look_at_is_no_failure() {
        let none = CrossAttention::new(&[(0, 0)], 0);
        assert_eq!(token_times(&none, 3, 7), [0.0; 3]);
        let mut flat = CrossAttention::new(&[(0, 0)], 4);
        flat.data = vec![0.25; 8];
        assert_eq!(token_times(&flat, 3, 7).len(), 3);
        assert!(cost(&flat, 7).iter().all(|c| *c == 0.0));
        assert!(warp(&[], 0, 5).is_empty());
    }
}
