//! Decoder models as GPU programs: from tokens to sampled tokens.
//!
//! A [`Model`] is a checkpoint's weights in GPU memory. A [`Runner`] adds the state of its sequences: a
//! [`KvCache`], the buffers of a step, and recorded programs, one per bucket of rows, that it replays. A step
//! runs a batch through the model: [`Runner::decode`] takes one [`DecodeRow`] per sequence and samples
//! several tokens per submission, [`Runner::mixed`] adds [`PrefillChunk`]s of other prompts to the same step.
//! The caller decides what goes into a batch; the `engine` crate is the scheduler on top.
//!
//! | module | contents |
//! |---|---|
//! | `decoder` | the layers as the config describes them: a mixer and a feed-forward block each, recorded in the operations of `step` |
//! | `draft` | draft models, for speculative decoding |
//! | `programs` | recorded programs and their buffers; when a program is recorded again |
//! | `pacer` | how much work goes into one submission; pure |
//! | `sampler` | the sampler's parameters, masks and token counts on the GPU |
//! | [`pages`] | KV page allocation and the prefix cache, without a GPU |
//! | `prefix_disk` | the prefix cache on disk, without a GPU |
//! | `image`, `image_encoder` | images of a prompt and their tokens; from patches to soft tokens |
//! | `attention_offload` | attention of prefill chunks on the NPU |
//! | `offload` | products of encoders on the NPU: programs that are cut at them, and the fallback to the GPU |
//! | `text_encoder` | embedding models: from the tokens of texts to vectors |
//! | [`language`] | tokenizer and chat template of a checkpoint, and how it takes images |
//! | [`measure`], [`estimate`] | benchmarks: random weights, profiles of a step, estimated throughput of GPUs that cannot be measured |
//!
//! docs/forward.md describes the data flow.
//!
//! # Example
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use model::{DecodeRow, Limits, Model, Runner, Sampling};
//!
//! fn greedy(model: Model, prompt: &[u32], max_tokens: usize) -> model::Result<Vec<u32>> {
//!     let limits = Limits::new(model.device.info(), &model.config, 1, 4096);
//!     let mut runner = Runner::new(Arc::new(model), limits)?;
//!     let mut sequence = runner.start_with(prompt)?;
//!     let sampling = Sampling::default();
//!     let rest = &prompt[sequence.len() as usize..];
//!     let first = runner.prompt(&mut sequence, rest, &sampling, |_done| true)?;
//!     let mut tokens = vec![first.token];
//!     while tokens.len() < max_tokens {
//!         let row = DecodeRow::new(&mut sequence, tokens[tokens.len() - 1], &sampling);
//!         let steps = runner.decode(&mut [row], max_tokens - tokens.len())?;
//!         tokens.extend(steps.iter().map(|step| step[0].token));
//!     }
//!     Ok(tokens)
//! }
//! ```

mod attention_offload;
mod batch;
mod bucket;
mod decoder;
mod draft;
mod error;
pub mod estimate;
mod frequencies;
mod image;
mod image_encoder;
mod kv_cache;
pub mod language;
mod limits;
mod loaded;
pub mod measure;
mod npu_operation;
mod offload;
mod pacer;
pub mod pages;
mod prefix_disk;
mod programs;
mod runner;
mod sampler;
mod sampling;
mod size;
mod state;
mod step;
mod text_encoder;
mod tune;

pub use batch::{DecodeRow, MixedOutput, PrefillChunk, Sampled, VerifyRows};
pub use draft::{DraftInput, DraftRunner, DraftSequence};
pub use error::{Error, Result};
pub use image::{
    IMAGE_TOKEN, Image, ImageProcessor, floor_image_boundary, image_blocks, is_image_token, join_images,
    whole_image_prefix,
};
pub use image_encoder::{EncoderLimits, ImageEncoder};
pub use kernels::{Activations, matmul::tuning::TuningReport};
pub use kv_cache::{KvCache, WriteBehind};
pub use limits::{DEFAULT_PAGE_SIZE, Limits};
pub use loaded::{MAX_VERIFY_ROWS, Model, NoExactVerify, max_verify_rows};
pub use pages::Sequence;
pub use prefix_disk::{Fingerprint, PrefixDisk, PrefixDiskError, PrefixDiskStats};
pub use programs::SetupTime;
pub use runner::{
    Counters, EncoderLoadOptions, LoadOptions, MAX_OUTPUT_ROWS, Runner, VerifySteps, check_tokens,
};
pub use sampling::Sampling;
pub use size::Size;
pub use state::MAX_CHUNKS_PER_STEP;
pub use tensor::KvScheme;
pub use text_encoder::{TextEncoder, TextLimits};
pub use tune::TuneMode;
