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
//! To add a kernel: make its folder, and add it to [`ALL`].

pub mod attention;
pub mod bench;
pub mod embed;
pub mod matmul;
mod matrix;
pub mod norm;
pub mod sample;
pub mod score;
pub mod selftest;
pub mod transcode;
mod variant;
mod vectors;

pub use attention::kv::{KvLayer, KvShape, KvTable};
pub use matmul::common::{Epilogue, OutputFormat, Target};
pub use matrix::{Matrix, MatrixBlock};
use tensor::{Encoding, GROUP, Layout, QUAD, STRIP, Scheme, quant};
pub use variant::{Kernel, Variant};
pub use vectors::{
    Activations, F16_ORDER, F16_UNIT, HALF_GROUP, VectorData, Vectors, f16_at, int16_scale_at,
};

/// Generated from the shaders: push constants, specialisation constants, SPIR-V.
pub mod shaders {
    include!(concat!(env!("OUT_DIR"), "/shaders.rs"));
}

/// Every kernel, in the order in which `indrik kernels` and `indrik doctor --selftest` list them.
pub static ALL: &[&Kernel] = &[
    &attention::decode::KERNEL,
    &attention::flash::KERNEL,
    &attention::paged::KERNEL,
    &attention::rope::KERNEL,
    &embed::KERNEL,
    &matmul::coopmat::KERNEL,
    &matmul::gated::KERNEL,
    &matmul::gemm::KERNEL,
    &matmul::gemv::KERNEL,
    &matmul::prefetch::KERNEL,
    &matmul::quantize_rows::KERNEL,
    &norm::KERNEL,
    &sample::KERNEL,
    &score::KERNEL,
    &transcode::KERNEL,
    &bench::probe::KERNEL,
    &bench::random::KERNEL,
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::ALL;

    /// The folders below `folder` that hold a shader.
    fn kernel_folders(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                kernel_folders(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "comp") {
                found.insert(folder.file_name().unwrap().to_str().unwrap().to_string());
            }
        }
    }

    #[test]
    fn every_kernel_folder_is_listed() {
        let mut folders = BTreeSet::new();
        kernel_folders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut folders);
        let listed: BTreeSet<String> =
            ALL.iter().map(|kernel| kernel.name.trim_start_matches("attention_").to_string()).collect();
        assert_eq!(listed, folders, "a folder with a shader needs its KERNEL in ALL, named after the folder");
        assert_eq!(listed.len(), ALL.len(), "a kernel is listed twice");
    }
}
