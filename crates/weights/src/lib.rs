//! The weights of a checkpoint: planning their memory, loading them onto the GPU, and quantising them.
//!
//! 1. [`blueprint`] lists the GPU matrices of a [`Checkpoint`](checkpoint::Checkpoint): projections that one
//!    kernel computes share a matrix.
//! 2. [`plan`] assigns weights, KV cache and scratch memory to the device's heaps before anything is
//!    allocated, or reports how much memory is missing and which changes would make the model fit.
//! 3. [`load`] allocates the matrices and fills them through [`stream`], which transcodes files chunk by
//!    chunk within a fixed amount of host memory.
//!
//! [`vision`] does the same for image encoders, [`embedding`] for embedding models. [`quantize`] converts a checkpoint to
//! a native file in int8 or int4, in the layout of the GPU.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use checkpoint::Checkpoint;
//! use weights::{
//!     blueprint::{Blueprint, Reservation},
//!     load::load,
//!     plan,
//!     stream::{Control, Options},
//! };
//!
//! # fn example(device: &gpu::Device, memory: &plan::Memory) -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::open(Path::new("model.gguf"))?;
//! let demand = Blueprint::new(&checkpoint)?.demand(&checkpoint.config, &Reservation::WEIGHTS_ONLY);
//! let placement = plan::plan(memory, &demand)?;
//! let (weights, stats) =
//!     load(device, &checkpoint, &placement, &Options::default(), &Control::default())?;
//! println!("{} matrices, {:.1} s", weights.matrices.len(), stats.seconds);
//! # Ok(())
//! # }
//! ```

pub mod blueprint;
pub mod embedding;
mod error;
pub mod load;
pub mod plan;
pub mod quantize;
pub mod stream;
pub mod vision;

pub use error::{Error, Result};
