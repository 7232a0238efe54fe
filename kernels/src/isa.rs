//! Which instructions kernels are compiled for, chosen at run time.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::lanes::{Lanes, Scalar};

/// An instruction set the kernels exist for. Every kernel gives bitwise the same result on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust. Fused multiply-adds are exact, in software where the target has none.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F with the above.
    Avx512,
}

/// 0: not chosen yet; otherwise 1 + position in [`Isa::ALL`].
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// A computation written once over [`Lanes`] and compiled for every instruction set. `run` must be
/// `#[inline(always)]`, so that its body is compiled with the caller's instructions.
pub(crate) trait Kernel {
    type Out;
    fn run<L: Lanes>(self) -> Self::Out;
}

impl Isa {
    /// All, the plainest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// Does this machine have it?
    pub fn available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx2() && std::arch::is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The best this machine has. NEON has its place here: until it is written, `Scalar` compiles
    /// to it on aarch64, where fused multiply-add is part of the base instructions.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Self::Scalar)
    }

    /// The one in use: [`Isa::detect`] unless [`Isa::force`] said otherwise.
    pub fn current() -> Self {
        match CHOSEN.load(Ordering::Relaxed) {
            0 => {
                let isa = Self::detect();
                isa.force();
                isa
            }
            n => Self::ALL[usize::from(n - 1)],
        }
    }

    /// Uses this one from now on in the whole process (tests, benches, a doubtful machine).
    /// False, and nothing changes, when the machine does not have it.
    pub fn force(self) -> bool {
        if !self.available() {
            return false;
        }
        CHOSEN.store(1 + self as u8, Ordering::Relaxed);
        true
    }

    /// Runs a kernel with this instruction set, or the plain one where the machine lacks it.
    #[inline]
    pub(crate) fn call<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the instructions.
            Self::Avx2 if self.available() => unsafe { call_avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the instructions.
            Self::Avx512 if self.available() => unsafe { call_avx512(kernel) },
            _ => kernel.run::<Scalar>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn call_avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<crate::lanes::x86::Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
fn call_avx512<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<crate::lanes::x86::Avx512>()
}
