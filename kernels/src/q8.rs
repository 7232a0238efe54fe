//! Blocks of 8-bit integers with a float scale.

/// Rounds floats up to 2^22 to whole numbers.
const ROUND: f32 = 12_582_912.0;

/// Scale and whole numbers of up to 32 values; a NaN or infinity makes the scale NaN or infinite.
pub fn quantise(x: &[f32], q: &mut [i8]) -> f32 {
    let mut greatest = 0.0_f32;
    for v in x {
        let v = v.abs();
        if v > greatest || v.is_nan() {
            greatest = v;
        }
    }
    let inverse = if greatest > 0.0 { 127.0 / greatest } else { 0.0 };
    // A greatest value so small that its inverse is infinite counts as zero.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    for (q, v) in q.iter_mut().zip(x) {
        *q = ((v * inverse + ROUND) - ROUND).clamp(-127.0, 127.0) as i8;
    }
    greatest / 127.0
}
