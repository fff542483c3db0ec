//! Models as GPU programs, and the way from a prompt to tokens.
//!
//! - [`Model`] is a checkpoint's weights in GPU memory with what is computed once from its config.
//! - `gemma3` reads like the paper: it records the layers in the operations of `step`.
//! - A [`Runner`] holds the [`KvCache`], the buffers of a step and one recorded program per bucket of rows; it carries
//!   [`Sequence`]s forward, one step or a run of several at a time.
//! - [`pages`] says who holds which pages of that cache, and what is kept for texts that begin with the same tokens.
//! - [`generate`] goes from a prompt to tokens with one sequence.
//! - [`measure`] is for benchmarks: models of random weights, sequences that begin deep in their context, profiles of a step.
//! - [`language`] makes the tokenizer and the chat template of a checkpoint.
//!
//! docs/forward.md tells the data flow.

mod batch;
mod bucket;
mod decoder;
mod error;
pub mod estimate;
mod frequencies;
pub mod generate;
mod kv_cache;
pub mod language;
mod limits;
mod loaded;
pub mod measure;
mod pacer;
pub mod pages;
mod programs;
mod runner;
mod sampler;
mod sampling;
mod size;
mod state;
mod step;
mod tune;

pub use batch::{DecodeRow, MixedOutput, PrefillChunk, Sampled};
pub use error::{Error, Result};
pub use kernels::{Activations, matmul::tuning::TuningReport};
pub use kv_cache::KvCache;
pub use limits::{Limits, PAGE};
pub use loaded::Model;
pub use pages::Sequence;
pub use programs::SetupTime;
pub use runner::{Counters, MAX_OUTPUT_ROWS, Runner, check_tokens};
pub use sampling::Sampling;
pub use size::Size;
pub use state::MAX_CHUNKS_PER_STEP;
pub use tensor::KvScheme;
pub use tune::TuneMode;
