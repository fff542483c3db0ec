//! Model files: what is in them, where it goes, and the way into GPU memory.
//!
//! 1. A reader ([`gguf`], [`folder`], [`layerwise`], [`native`]) looks at headers only and yields a [`Source`]: every tensor with its
//!    shape, its [`Encoding`] and where its bytes are.
//! 2. [`family`] has what sets families of models apart; [`config`] holds a model's dimensions, from config.json or from GGUF's metadata; [`names`] turns a tensor's name
//!    into a slot (tower, layer, role), once; [`complete`] checks that every slot is filled with the right shape, and says
//!    all that is wrong at once.
//!    [`checkpoint`] does all of this for any format.
//! 3. [`blueprint`] says which matrices that makes; [`plan`] decides which heap each goes to, or what does not fit and what would make it fit.
//! 4. [`load`] takes the memory; [`stream`] carries the bytes there within a fixed amount of
//!    extra memory.
//!
//! [`tokenizer`] takes out what a checkpoint carries to make text of tokens; what it means is another crate's business.
//! [`quantize`] writes a checkpoint as a file of our own, in the layout of the GPU.

pub mod blueprint;
pub mod checkpoint;
pub mod complete;
pub mod config;
mod error;
pub mod family;
pub mod folder;
pub mod gguf;
pub mod layerwise;
pub mod load;
pub mod names;
pub mod native;
pub mod plan;
pub mod quantize;
pub mod safetensors;
mod source;
pub mod stream;
pub mod tokenizer;

pub use checkpoint::Checkpoint;
pub use error::{Error, Result};
pub use kernels::{Encoding, quant};
pub use source::{Format, Source, Span, Tensor};
