//! Model files on disk: opened, validated and described, without a GPU.
//!
//! A *checkpoint* is a model in one of four formats. [`Checkpoint::open`] detects the format and does the
//! following:
//!
//! 1. A reader ([`gguf`], [`folder`], [`layerwise`], [`native`]) parses headers only and returns a
//!    [`Source`]: every tensor with its shape, its [`Encoding`](tensor::Encoding) and the location of its
//!    bytes. Headers may be damaged or malicious: every length is bounded and every offset checked before
//!    anything relies on it.
//! 2. [`Config`] is read from config.json or GGUF metadata. [`family`] holds the facts of each model family,
//!    and [`layer`] describes each layer as a mixer and a feed-forward block.
//! 3. [`names`] maps every tensor name to a [`Slot`] (tower, layer, role).
//! 4. [`complete`] checks that every slot of the model is filled with a tensor of the right shape, and
//!    reports all problems at once.
//!
//! [`Checkpoint::vision`] does the same for the image encoder of a model that sees, which may be in a file of its own
//! ([`vision`]).
//!
//! [`EmbeddingCheckpoint`] does the same for models that turn text into vectors ([`embedding`]).
//!
//! [`tokenizer`] extracts the tokenizer data; the `text` crate interprets it. Tensor data is read by the
//! `weights` crate, which loads it onto the GPU.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use checkpoint::{Checkpoint, Mixer, Role};
//!
//! let checkpoint = Checkpoint::open(Path::new("gemma-3-270m-it-Q8_0.gguf"))?;
//! println!("{}, {} layers", checkpoint.config.architecture.name(), checkpoint.config.layers);
//! for (index, layer) in (0..).zip(checkpoint.config.layer_specs()) {
//!     let Mixer::Attention(attention) = layer.mixer;
//!     let query = checkpoint.tensor(Some(index), Role::Query)?;
//!     println!("layer {index}: {:?}, query {:?} in {}", attention.span, query.shape, query.encoding);
//! }
//! # Ok::<(), checkpoint::Error>(())
//! ```

mod architecture;
mod checkpoint;
pub mod complete;
pub mod config;
pub mod embedding;
mod error;
pub mod family;
pub mod folder;
pub mod gguf;
mod incomplete;
pub mod layer;
pub mod layerwise;
pub mod names;
pub mod native;
pub mod safetensors;
mod slot;
mod source;
pub mod tokenizer;
pub mod vision;

pub use architecture::Architecture;
pub use checkpoint::Checkpoint;
pub use config::Config;
pub use embedding::{Bert, EmbeddingCheckpoint, EmbeddingConfig, ModelKind, Pooling, Prompts, TextLayers};
pub use error::{Error, Result};
pub use incomplete::{Incomplete, Problem};
pub use layer::{Attention, AttentionSpan, Dense, Experts, FeedForward, LayerSpec, Mixer, Values};
pub use slot::{Role, Slot, Tower};
pub use source::{Format, Source, Span, Tensor};
pub use vision::{ClipRanges, EncoderKind, MIN_SOFT_TOKENS, PatchOrder, Transformer, Vision, VisionConfig};
