//! What several tests of the kernels need: values, instruction sets, pools.
#![allow(dead_code)]

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use oxiline_kernels::{Isa, Pool};

/// The instruction set is the process's: tests that force one take turns.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pools of 1 to 3 threads.
pub fn pools() -> &'static [Pool] {
    static POOLS: OnceLock<Vec<Pool>> = OnceLock::new();
    POOLS.get_or_init(|| (1..=3).map(Pool::new).collect())
}

/// The instruction sets of this machine.
pub fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

/// Reproducible random bits.
pub fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    }
}

/// Reproducible values in +-1.
pub fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut next = random(seed);
    (0..len).map(|_| ((next() >> 24) & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Runs on every instruction set and 1 to 3 threads; all must give the same bits.
pub fn everywhere(task: impl Fn(&Pool) -> Vec<f32>) -> Vec<f32> {
    let _turn = turn();
    let mut first: Option<Vec<f32>> = None;
    for isa in Isa::ALL.into_iter().filter(|isa| isa.force()) {
        for pool in pools() {
            let result = task(pool);
            let first = first.get_or_insert_with(|| result.clone());
            let same = first.iter().zip(&result).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
            assert!(same && first.len() == result.len(), "{isa:?} with {} threads differs", pool.threads());
        }
    }
    Isa::detect().force();
    first.expect("at least the plain instructions")
}
