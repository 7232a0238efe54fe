//! Sound of unknown length on its way to one shared slice.

use std::sync::Arc;

/// Samples of a part: 4 MiB, so that a part that is given back really goes back to the system.
const PART: usize = 1 << 20;

/// Samples that grow without ever being held twice: parts are filled one after the other, and given
/// back one after the other while the shared slice is filled. A growing `Vec` doubles, and turning it
/// into an `Arc` copies it, which for a clip of two hours is hundreds of megabytes each.
#[derive(Debug, Default)]
pub struct Samples {
    parts: Vec<Vec<f32>>,
    len: usize,
}

impl Samples {
    /// Samples so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None so far?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds samples.
    pub fn extend_from_slice(&mut self, mut samples: &[f32]) {
        self.len += samples.len();
        while !samples.is_empty() {
            let room = match self.parts.last() {
                Some(part) if part.len() < PART => PART - part.len(),
                _ => {
                    self.parts.push(Vec::with_capacity(if self.parts.is_empty() { 0 } else { PART }));
                    PART
                }
            };
            let (now, later) = samples.split_at(samples.len().min(room));
            if let Some(part) = self.parts.last_mut() {
                part.extend_from_slice(now);
            }
            samples = later;
        }
    }

    /// Adds silence up to `len` samples.
    pub fn pad_to(&mut self, len: usize) {
        const SILENCE: [f32; 4096] = [0.0; 4096];
        while self.len < len {
            self.extend_from_slice(&SILENCE[..SILENCE.len().min(len - self.len)]);
        }
    }
}

impl From<Samples> for Arc<[f32]> {
    fn from(samples: Samples) -> Self {
        let mut each = samples.parts.into_iter().flatten();
        // A range knows its length: one allocation, filled in order, and every part is freed behind.
        (0..samples.len).map(|_| each.next().unwrap_or(0.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_in_order() {
        let mut samples = Samples::default();
        let mut wanted = Vec::new();
        for step in [1, 700_000, PART, 3 * PART + 17, 0, 5] {
            let piece: Vec<f32> = (0..step).map(|i| (i % 1013) as f32).collect();
            samples.extend_from_slice(&piece);
            wanted.extend(piece);
        }
        samples.pad_to(wanted.len() + 10_000);
        wanted.resize(wanted.len() + 10_000, 0.0);
        samples.pad_to(3);
        assert_eq!(samples.len(), wanted.len());
        assert!(*Arc::<[f32]>::from(samples) == *wanted);
        assert!(Arc::<[f32]>::from(Samples::default()).is_empty());
    }
}
