//! Errors of loading and running a model.

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model cannot be loaded, or a step cannot be run.
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
        /// The model's path.
        path: String,
        /// Why it cannot be used.
        reason: text::Error,
    },
    /// The model has no tokenizer.
    #[error(
        "{path} has no tokenizer: put its tokenizer.json into the folder, or give token ids instead of text \
         (--ids)"
    )]
    NoTokenizer {
        /// The model's path.
        path: String,
    },
    /// An image for a model without an image encoder.
    #[error("no image encoder is loaded: send text only, or add the encoder with `indrik pull --mmproj`")]
    NoImageEncoder,
    /// The prompt has no tokens.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// A token id beyond the vocabulary.
    #[error("token {token} is not in the model's vocabulary of {vocab}: ids go from 0 to {}", vocab - 1)]
    UnknownToken {
        /// The id.
        token: u32,
        /// Number of tokens in the vocabulary.
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
            "this is the model's maximum; shorten the prompt, or generate fewer tokens (-n, -c)".to_string()
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
        "all {max_sequences} sequence slots of the KV cache are in use: finish a sequence first, or raise the \
         maximum"
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
    /// A sampling parameter is out of range.
    #[error("{name} is {value}, but must be {range}")]
    Sampling {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed range.
        range: &'static str,
    },
    /// A batch or a limit that the runner cannot serve.
    #[error("{0}")]
    Limits(String),
    /// Cancelled by the caller.
    #[error("cancelled")]
    Cancelled,
    /// Logits are NaN or infinite.
    #[error(
        "the model produced NaN or Inf logits at position {position}: its weights may be damaged, or this device \
         may compute wrongly (try `indrik doctor --selftest`)"
    )]
    NonFiniteLogits {
        /// The position of the row.
        position: u32,
    },
    /// The vector of a text is NaN or infinite.
    #[error(
        "the model produced NaN or Inf for a text of {tokens} tokens: its weights may be damaged, or this device may \
         compute wrongly (try `indrik doctor --selftest`)"
    )]
    NonFiniteVector {
        /// Tokens of the text.
        tokens: usize,
    },
}
