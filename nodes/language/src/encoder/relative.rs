//! Relative positions in T5's buckets: near distances one each, far ones on a logarithmic scale.

use oxiline_kernels::ragged::Relative;

use super::spec::Buckets;

/// The bucket of a key `distance` positions after the query (before it when negative).
fn bucket(buckets: Buckets, distance: i64) -> usize {
    let half = buckets.count / 2;
    let exact = half / 2;
    // Keys after the query have the upper half.
    let side = if distance > 0 { half } else { 0 };
    let away = distance.unsigned_abs() as usize;
    if away < exact {
        return side + away;
    }
    // In f32 as the reference computes it: the borders of buckets depend on it.
    let scale = (buckets.furthest as f32 / exact as f32).ln();
    let far = (away as f32 / exact as f32).ln() / scale * (half - exact) as f32;
    side + (exact + far as usize).min(half - 1)
}

/// The value of every distance up to `reach`, from the table `[buckets, heads]`.
pub(super) fn values(buckets: Buckets, heads: usize, table: &[f32], reach: usize) -> Relative {
    let reach_i = reach as i64;
    let rows: Vec<usize> = (-reach_i..=reach_i).map(|d| bucket(buckets, d)).collect();
    let values = (0..heads).flat_map(|h| rows.iter().map(move |row| table[row * heads + h])).collect();
    Relative { values, reach }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grow_with_distance_and_end_at_the_furthest() {
        let buckets = Buckets { count: 32, furthest: 128 };
        let of = |d| bucket(buckets, d);
        assert_eq!([of(0), of(-1), of(-7), of(-8), of(-11), of(-12)], [0, 1, 7, 8, 8, 9]);
        assert_eq!([of(1), of(7), of(8)], [17, 23, 24]);
        assert_eq!([of(-127), of(-128), of(-5000), of(5000)], [15, 15, 15, 31]);
    }
}
