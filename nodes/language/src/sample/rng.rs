//! Random numbers from a seed: SplitMix64 (Steele, Lea, Flood 2014), one step a draw.

use std::hash::{BuildHasher, Hasher};

/// A generator whose n-th draw depends on the seed and n only.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// From a seed nobody knows.
    pub fn fresh() -> Self {
        Self::new(std::hash::RandomState::new().build_hasher().finish())
    }

    /// Sixty-four random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
