//! Run language models on any Vulkan GPU.
//!
//! ```no_run
//! use indrik::{GenerateOptions, Model, Options};
//!
//! # fn main() -> indrik::Result<()> {
//! let model = Model::open("gemma3:270m", Options::default())?;
//! let options = GenerateOptions { max_tokens: Some(64), ..GenerateOptions::default() };
//! for piece in model.generate("The mitochondria is", options)? {
//!     print!("{}", piece?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Data flow
//!
//! 1. [`ModelFiles::open`] resolves a path or a name in the local store and reads the checkpoint's metadata:
//!    configuration, tokenizer, chat template. The device is not touched.
//! 2. [`ModelFiles::load`] opens the device, plans its memory, reads the weights and tunes the kernels. The
//!    result is a [`Model`]. [`Model::open`] does both steps.
//! 3. [`Model::engine`] starts the continuous-batching engine on its own thread. Everything that generates text
//!    is a client of it: requests from all clones of a model run in one batch, share the prefix cache and survive
//!    a lost device.
//!    - [`Model::generate`] returns a [`Generation`], a blocking iterator over text and token ids.
//!    - [`Model::chat`] returns a [`Chat`], which keeps the messages, applies the chat template and parses tool
//!      calls.
//!    - Both take images, if the model has an image encoder: [`Model::image_reader`] reads them.
//!    - [`router()`], [`bind()`] and [`serve()`] add an OpenAI-compatible HTTP API.
//! 4. [`Model::logits`] and [`Model::with_runner`] use the runner directly, between two engine steps.
//!
//! | type | what it is | ends with |
//! |---|---|---|
//! | [`ModelFiles`] | an opened checkpoint | drop |
//! | [`Model`] | weights and KV cache in device memory | drop of the last clone, which stops the engine |
//! | [`Generation`] | one request | [`Generation::finish_completion`], or drop, which cancels |
//! | [`Chat`], [`Reply`] | a conversation, its next message | [`Reply::finish`], or drop, which discards the message |
//!
//! Embedding models turn texts into vectors and generate none: [`EmbeddingFiles`] and [`EmbeddingModel`] are to them what
//! [`ModelFiles`] and [`Model`] are to the others.
//!
//! All errors are variants of [`Error`].

mod backend;
mod chat;
mod conversation;
mod device;
mod draft;
mod embedding;
mod error;
mod files;
mod generate;
mod image;
mod load;
mod memory;
mod model;
mod sampling;
mod serve;
mod serve_embeddings;

pub use backend::HeapProbe;
pub use chat::{Chat, ChatReply, Reply, ReplyEvent, ToolChoice};
pub use device::DeviceSelector;
pub use embedding::{EmbedOptions, Embedding, EmbeddingFiles, EmbeddingModel, EmbeddingOptions};
pub use error::{Error, Result};
pub use files::ModelFiles;
pub use generate::{
    Completion, FinishReason, GenerateOptions, Generation, GenerationEvent, Piece, Prompt, Timings,
};
pub use image::{ImageReader, PromptImage};
pub use load::{LoadHooks, LoadProgress, LoadReport, Options, Speculate, tune};
pub use memory::{amd_apu, device_memory, memory_on};
pub use model::{Model, Preparation};
pub use npu::{matmul::Mode as NpuMode, settings::Settings as NpuSettings};
pub use sampling::{random_seed, recommended_sampling};
pub use serve::{bind, router, serve};

pub use ::model::{KvScheme, Sampling, language::Language};
pub use engine::{Engine, Token};
pub use server::Config as ServerConfig;
pub use text::{Content, Message, Part, Tool, ToolCall};
pub use weights::stream::Control;
