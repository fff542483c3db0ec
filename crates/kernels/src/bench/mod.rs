//! Kernels that only benchmarks and autotuning use.

pub mod probe;
pub mod random;
