//! The library's error type.

use std::path::PathBuf;

/// A result whose error is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model could not be opened, loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No file has this path and no model in the local store has this name, or the store cannot be read.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The checkpoint is damaged, incomplete or of an unsupported architecture.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The weights could not be read into device memory.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The model does not fit into the device's memory, according to the plan made before anything is
    /// allocated.
    #[error(transparent)]
    Memory(#[from] weights::plan::PlanError),
    /// No usable device, or Vulkan reported an error.
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    /// A prompt, a limit or a sampling parameter is out of range, or a step failed on the device.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The tokenizer or the chat template rejected its input, or a stop string is empty.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// A tool's JSON schema cannot be compiled to a grammar.
    #[error(transparent)]
    Grammar(#[from] grammar::Error),
    /// The engine did not accept the request: the queue is full, the prompt too long, or the engine is
    /// stopping.
    #[error(transparent)]
    Submit(#[from] engine::SubmitError),
    /// The engine accepted the request but could not complete it.
    #[error(transparent)]
    Request(#[from] engine::RequestError),
    /// The checkpoint has no chat template and its family has no default one.
    #[error("{} has no chat template, and its family has no default one: use plain completions", path.display())]
    NoChatTemplate {
        /// The checkpoint.
        path: PathBuf,
    },
    /// Tools were offered to a model whose chat template does not support them.
    #[error("the chat template of {} {reason}", path.display())]
    ToolsUnsupported {
        /// The checkpoint.
        path: PathBuf,
        /// What the template lacks.
        reason: &'static str,
    },
    /// A draft model cannot be used.
    #[error("the draft model {} cannot be used: {reason}", path.display())]
    DraftModelUnusable {
        /// The draft model.
        path: PathBuf,
        /// Why, as a clause.
        reason: String,
    },
    /// Images were given to a model without an image encoder, or with one that cannot be used.
    #[error("images cannot be used: {reason}")]
    ImagesUnsupported {
        /// Why, as a clause.
        reason: String,
    },
    /// The model's images cannot have crops.
    #[error("crops of images are not supported: {reason}")]
    PanAndScan {
        /// Why, as a clause.
        reason: String,
    },
    /// The model's images cannot have as many tokens as was asked for.
    #[error("{reason}")]
    ImageTokens {
        /// Why.
        reason: String,
    },
    /// An image could not be read.
    #[error("cannot read the image {}: {reason}", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The number of images differs from the number of image parts of the message.
    #[error("the message has {parts} image parts, but {given} images were given")]
    ImageCount {
        /// Image parts of the message.
        parts: usize,
        /// Images.
        given: usize,
    },
    /// A text has more tokens than an embedding model takes.
    #[error(
        "text {number} has {tokens} tokens, but at most {max_tokens} fit: shorten it, split it, or allow truncation"
    )]
    TextTooLong {
        /// Which of the texts, counted from 1.
        number: usize,
        /// Its tokens, special tokens included.
        tokens: usize,
        /// Maximum tokens of a text.
        max_tokens: u32,
    },
    /// A text without any token.
    #[error(
        "text {number} is empty, and this model has no special tokens that would stand for it: leave it out"
    )]
    EmptyText {
        /// Which of the texts, counted from 1.
        number: usize,
    },
    /// Vectors cannot have this many dimensions.
    #[error("{dimensions} dimensions: the vectors of this model have 1 to {max_dimensions}")]
    Dimensions {
        /// As requested.
        dimensions: u32,
        /// Those of the model.
        max_dimensions: u32,
    },
    /// An embedding model has no prompt with this name.
    #[error(
        "the model has no prompt '{name}': {}",
        if known.is_empty() { "it has none at all".to_owned() } else { format!("it has {}", known.join(", ")) }
    )]
    UnknownPrompt {
        /// The name.
        name: String,
        /// Names of the prompts that it has.
        known: Vec<String>,
    },
    /// A reply was requested before the chat had a user message.
    #[error("the conversation has no user message to reply to")]
    EmptyChat,
    /// `max_tokens` is 0.
    #[error("max_tokens is 0: it must be at least 1")]
    NoTokensRequested,
    /// A thread could not be started, or an address could not be bound.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Error {
    /// The error as the engine's reload callback reports it. A lost device must stay recognisable: it is
    /// retried.
    pub(crate) fn into_model_error(self) -> model::Error {
        match self {
            Error::Model(error) => error,
            Error::Gpu(error) => error.into(),
            Error::Weights(error) => error.into(),
            error => model::Error::Limits(error.to_string()),
        }
    }
}
