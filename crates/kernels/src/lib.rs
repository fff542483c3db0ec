//! The GPU kernels: GLSL compute shaders and the Rust code that selects, compiles and records them.
//!
//! # Layout
//!
//! | module | kernels |
//! |---|---|
//! | [`attention`] | RoPE with the KV cache write; bias with the KV cache write; decode, paged and flash attention |
//! | [`matmul`] | GEMV, GEMM, products on cooperative matrices, gated activations, autotuning |
//! | [`norm`], [`embed`] | RMSNorm with residual add; embedding lookup |
//! | [`layer_norm`], [`bias_gelu`], [`clip`] | image encoder: LayerNorm, MLP activation, clipped linear layers |
//! | [`patch_values`], [`grid_positions`] | image encoder: pixels of patches, position embeddings |
//! | [`pool`], [`soft_tokens`] | image encoder: average pooling, soft tokens |
//! | [`row_mean`] | text encoder: pooling; it shares LayerNorm and MLP activation with image encoders |
//! | [`softcap`], [`sample`], [`score`] | soft cap of logits; logits to tokens; logits to negative log-likelihoods |
//! | [`transcode`] | weights from a file's encoding to the tiled layout |
//! | [`mod@bench`] | bandwidth and dispatch probes, random data |
//!
//! A kernel's folder holds its shader (`.comp`), the host code (`mod.rs`), the selection of a variant for a shape and a
//! device (`policy.rs`, pure), a straightforward CPU reference (`reference.rs`), the cases that compare the two
//! (`cases.rs`), and tests. The cases have two users: `cargo test` runs them on Mesa's CPU driver under the validation
//! layer, `indrik doctor --selftest` on the user's own GPU.
//!
//! Every kernel has the same life cycle. Its `policy` maps a `Shape` (what to compute) and the device's
//! [`Caps`](gpu::Caps) to a `Plan` (how); `new` compiles that variant; `record` appends dispatches to a
//! [`Recorder`](gpu::Recorder). Nothing is allocated or submitted in between: memory belongs to the caller.
//!
//! Operands carry their own format: a weight [`Matrix`] its scheme, layout and scales, [`Vectors`] their
//! [`Activations`] format. A kernel rejects operands that do not fit, with an error that names them.
//!
//! `make shaders` compiles and reflects every shader and generates [`shaders`], with one struct of push constants and
//! one of specialisation constants per shader: host and shader cannot disagree about their interface.
//!
//! To add a kernel: create its folder, declare it in its parent module, and add it to [`ALL`]. A test fails if a folder
//! with a shader is missing there.
//!
//! # Example
//!
//! y = W · x on the GPU, for one column of f32 activations:
//!
//! ```no_run
//! use gpu::{Arena, Device, Lifetime, Memory};
//! use kernels::{
//!     Activations, Matrix, Target, Vectors,
//!     matmul::gemv::{Gemv, Source, policy::Shape},
//! };
//! use tensor::{Layout, Scheme};
//!
//! # fn run(device: &Device) -> gpu::Result<Vec<f32>> {
//! let (rows, k) = (1024, 640);
//! let layout = Layout::new(Scheme::Int8, rows, k).expect("K is a multiple of the group size");
//! let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Shared);
//! let weights = Matrix::allocate(&mut arena, "weights", layout, device.caps())?;
//! let x = Vectors::new(&mut arena, "x", Activations::F32, k, 1)?;
//! let y = arena.buffer("y", rows as u64 * 4)?;
//! // Fill `weights` and `x` here.
//!
//! let kernel = Gemv::new(device, Shape::plain(layout, 1, Activations::F32))?;
//! let mut recorder = device.recorder()?;
//! kernel.record(&mut recorder, "product", &weights, Source::Vectors(&x), &Target::contiguous(&y, rows))?;
//! recorder.seal()?.run(std::time::Duration::from_secs(1))?;
//! y.read_vec()
//! # }
//! ```

/// Identifies the kernels' code: a hash of each shader and of what it was compiled to.
pub const SHADER_FINGERPRINTS: &str = include_str!("../generated/fingerprints.txt");

pub mod attention;
pub mod bench;
pub mod bias_gelu;
mod case;
pub mod clip;
pub mod embed;
pub mod experts;
pub mod grid_positions;
pub mod layer_norm;
pub mod matmul;
mod matrix;
pub mod norm;
pub mod patch_values;
pub mod per_layer;
pub mod pool;
mod row;
pub mod row_mean;
pub mod sample;
pub mod score;
pub mod selftest;
pub mod shaders;
pub mod soft_tokens;
pub mod softcap;
pub mod transcode;
mod variant;
mod vectors;

pub use attention::{
    kv::{KvLayer, KvShape, KvTable},
    rope::{KeysAndValues, QueryTemperature, Rotation},
};
pub use matmul::common::{Epilogue, OutputFormat, Target};
pub use matrix::{Matrix, MatrixBlock};
pub use variant::{Kernel, Variant};
pub use vectors::{
    Activations, F16_ORDER, F16_UNIT, HALF_GROUP, VectorData, Vectors, f16_at, int16_scale_at,
};

/// Every kernel, in the order in which `indrik kernels` and `indrik doctor --selftest` list them.
pub static ALL: &[&Kernel] = &[
    &attention::decode::KERNEL,
    &attention::flash::KERNEL,
    &attention::paged::KERNEL,
    &attention::rope::KERNEL,
    &attention::split_qkv::KERNEL,
    &bias_gelu::KERNEL,
    &clip::KERNEL,
    &embed::KERNEL,
    &experts::combine::KERNEL,
    &experts::group::KERNEL,
    &experts::router::KERNEL,
    &grid_positions::KERNEL,
    &layer_norm::KERNEL,
    &matmul::coopmat::KERNEL,
    &matmul::gated::KERNEL,
    &matmul::gemm::KERNEL,
    &matmul::gemv::KERNEL,
    &matmul::gemv_norm::KERNEL,
    &matmul::prefetch::KERNEL,
    &matmul::quantize_rows::KERNEL,
    &norm::KERNEL,
    &patch_values::KERNEL,
    &per_layer::KERNEL,
    &pool::KERNEL,
    &row_mean::KERNEL,
    &sample::KERNEL,
    &score::KERNEL,
    &soft_tokens::KERNEL,
    &softcap::KERNEL,
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
