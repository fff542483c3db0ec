//! What can go wrong between a prompt and its answer.

/// Shorthand used through the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model cannot be run, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The GPU layer failed.
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    /// The model's files cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The model's weights cannot be planned or loaded.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The model's tokenizer or chat template cannot be used.
    #[error("{path}: {reason}")]
    Text {
        /// The model.
        path: String,
        /// What is wrong with it.
        reason: text::Error,
    },
    /// The model comes without a tokenizer.
    #[error(
        "{path} has no tokenizer: put its tokenizer.json into the folder, or give token ids instead of text (--ids)"
    )]
    NoTokenizer {
        /// The model.
        path: String,
    },
    /// There is nothing to go on from.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// A token that the model does not have.
    #[error("token {token} is not in the model's vocabulary of {vocab}: ids go from 0 to {}", vocab - 1)]
    UnknownToken {
        /// The id.
        token: u32,
        /// How many there are.
        vocab: u32,
    },
    /// The sequence would be longer than the context length.
    #[error(
        "{tokens} tokens exceed the context length of {context_length}: {}",
        if context_length < max_context_length {
            format!(
                "shorten the prompt, or raise the context length (-c), for this model up to {max_context_length}"
            )
        } else {
            "this is the model's maximum; ask for fewer tokens (-n, -c) or shorten the prompt".to_string()
        }
    )]
    ContextLengthExceeded {
        /// Tokens that the sequence would have.
        tokens: u64,
        /// Maximum tokens per sequence.
        context_length: u32,
        /// The context length that the model was trained for.
        max_context_length: u32,
    },
    /// The maximum number of sequences is running.
    #[error(
        "all {max_sequences} sequence slots of the KV cache are in use: finish a sequence first, or raise the maximum"
    )]
    NoFreeSlot {
        /// The maximum number of sequences.
        max_sequences: u32,
    },
    /// Other sequences hold the KV pages that this one needs.
    #[error(
        "too few of the KV cache's {pages} pages are free: finish a sequence first, or make the cache larger"
    )]
    NoFreePages {
        /// All pages of the cache.
        pages: u32,
    },
    /// A setting of the sampler is out of range.
    #[error("{name} is {value}, but must be {range}")]
    Sampling {
        /// The setting.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// A setting of the runner that cannot be.
    #[error("{0}")]
    Limits(String),
    /// Stopped from outside.
    #[error("cancelled")]
    Cancelled,
    /// Logits are NaN or infinite.
    #[error(
        "the model produced NaN or Inf logits at position {position}: its weights may be damaged, or this device may \
         compute wrongly (try `indrik doctor --selftest`)"
    )]
    NonFiniteLogits {
        /// Where.
        position: u32,
    },
}
