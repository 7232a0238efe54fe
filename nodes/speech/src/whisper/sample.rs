//! Choosing a token from processed logits.

/// A small, fast generator (SplitMix64, Steele et al. 2014): the same numbers on every machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// From a seed and what tells this use of it apart (the window, the attempt), so that a window's
    /// numbers do not depend on what was decoded before it.
    pub fn new(seed: u64, parts: &[u64]) -> Self {
        let mut state = Self(seed);
        for &part in parts {
            state = Self(state.next_u64() ^ part.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        state
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The likeliest token; the first of equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// log(sum(exp(logits))), over the tokens that are not masked.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if top == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    f64::from(top) + logits.iter().map(|&l| f64::from(l - top).exp()).sum::<f64>().ln()
}

/// Log-probability of a token under the processed logits.
pub fn log_probability(logits: &[f32], token: u32) -> f32 {
    (f64::from(logits[token as usize]) - log_sum_exp(logits)) as f32
}

/// Probability of a token under raw logits.
pub fn probability(logits: &[f32], token: u32) -> f32 {
    match logits.get(token as usize) {
        Some(&l) => (f64::from(l) - log_sum_exp(logits)).exp() as f32,
        None => 0.0,
    }
}

/// Draws a token at a temperature; at 0 the likeliest.
pub fn draw(logits: &[f32], temperature: f32, random: &mut Random) -> u32 {
    if temperature <= 0.0 {
        return argmax(logits);
    }
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |l: f32| (f64::from(l - top) / f64::from(temperature)).exp();
    let total: f64 = logits.iter().map(|&l| weight(l)).sum();
    let mut left = random.unit() * total;
    let mut last = argmax(logits);
    for (i, &l) in logits.iter().enumerate() {
        let w = weight(l);
        if w > 0.0 {
            last = i as u32;
            if left < w {
                return last;
            }
            left -= w;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_distribution_and_the_seed() {
        let logits = [0.0, f32::NEG_INFINITY, (3.0_f32).ln(), f32::NEG_INFINITY];
        let mut random = Random::new(7, &[1, 2]);
        let drawn: Vec<u32> = (0..4000).map(|_| draw(&logits, 1.0, &mut random)).collect();
        assert!(drawn.iter().all(|&t| t == 0 || t == 2));
        let share = drawn.iter().filter(|&&t| t == 2).count() as f64 / 4000.0;
        assert!((share - 0.75).abs() < 0.03, "{share}");
        let mut again = Random::new(7, &[1, 2]);
        assert!(drawn.iter().all(|&t| t == draw(&logits, 1.0, &mut again)));
        let mut other = Random::new(7, &[1, 3]);
        assert!(drawn.iter().any(|&t| t != draw(&logits, 1.0, &mut other)));
        assert_eq!(draw(&[1.0, 5.0, 5.0], 0.0, &mut other), 1);
    }
}
