//! Model files on disk: opened, validated and described, without a GPU.

mod architecture;
mod checkpoint;
pub mod complete;
pub mod config;
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

pub use architecture::Architecture;
pub use checkpoint::Checkpoint;
pub use config::Config;
pub use error::{Error, Result};
pub use incomplete::{Complaint, Incomplete};
pub use layer::{Attention, AttentionSpan, FeedForward, LayerSpec, Mixer};
pub use slot::{Role, Slot, Tower};
pub use source::{Format, Source, Span, Tensor};
