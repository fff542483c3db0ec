//! Everything that runs on the GPU: one folder a kernel.
//!
//! A kernel's folder holds its shader (`.comp`), the host's call (`mod.rs`), the choice of variant for a shape and a
//! device (`policy.rs`, pure), the same computation on the CPU in the plainest way (`reference.rs`), the cases in which
//! the two are compared (`cases.rs`) and tests. The cases serve twice: `cargo test` runs them on Mesa's CPU driver with the
//! validation layer, `indrik doctor --selftest` on the user's own GPU.
//!
//! Shaders know nothing of the host and the host nothing of their layout: the build script reflects every compiled
//! shader and generates [`shaders`], with a struct for its push constants and one for its specialisation constants.
//!
//! To add a kernel: make its folder, and name it in the list below.

mod kv;
mod matrix;
mod product;
pub mod selftest;
pub mod tuning;
mod variant;
mod vectors;

pub use kv::{KvLayer, KvScheme, KvShape, KvTable};
pub use matrix::{Matrix, Part};
pub use product::{Epilogue, Stored, Target};
pub use tensor::{Encoding, GROUP, Layout, QUAD, STRIP, Scheme, quant};
pub use variant::{Kernel, Variant};
pub use vectors::{
    Activations, F16_ORDER, F16_UNIT, HALF_GROUP, VectorData, Vectors, f16_at, int16_scale_at,
};

/// Generated from the shaders: push constants, specialisation constants, SPIR-V.
pub mod shaders {
    include!(concat!(env!("OUT_DIR"), "/shaders.rs"));
}

macro_rules! kernels {
    ($($name:ident),* $(,)?) => {
        $(pub mod $name;)*

        /// Every kernel.
        pub static ALL: &[&Kernel] = &[$(&$name::KERNEL),*];
    };
}

kernels! {
    attend, attention, embed, flash, geglu, gemm, gemv, matmul, norm, probe, quantize_rows, random, rope, sample, score, transcode,
    warm,
}
