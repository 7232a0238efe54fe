//! Numbers only: thread pool, SIMD matmul, attention, norms, convolution, FFT.
//!
//! **One reduction order.** Every output element of [`Matrix::matmul`] is one chain of fused
//! multiply-adds over the input dimension, in order, starting from the bias (or zero). The
//! scalar and SIMD kernels, one token or many, one thread or many, all compute exactly that
//! chain, so a row's result never depends on what is computed beside it.

// Kernels index several arrays by one counter; iterators would hide which lanes belong together.
#![allow(clippy::needless_range_loop)]

pub mod attention;
mod backend;
pub mod bench;
mod buf;
pub mod causal;
pub mod conv;
pub mod fft;
mod gemm;
mod isa;
mod kv;
mod kvcache;
mod lanes;
pub mod limits;
mod math;
pub mod matrix;
pub mod ops;
mod packed;
pub mod pool;
mod q8;
pub mod quant;
pub mod ragged;
pub mod rope;
mod tile;

pub use backend::{Backend, Op, Weight};
pub use gemm::Epilogue;
pub use isa::Isa;
pub use kvcache::{KvCache, KvFormat, PAGE, SLACK};
pub use matrix::{Matrix, Product, Storage};
pub use pool::Pool;
pub use q8::quantise as quantise_q8;
pub use quant::BlockType;
pub use rope::Rope;
