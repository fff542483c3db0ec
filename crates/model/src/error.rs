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
    /// The sequence would be longer than the context.
    #[error(
        "{wanted} positions do not fit the context of {context}: {}",
        if context < most {
            format!("shorten the prompt, or raise the context (-c), for this model up to {most}")
        } else {
            "this model has no more; ask for fewer (-n, -c) or shorten the prompt".to_string()
        }
    )]
    ContextFull {
        /// Positions that were asked for.
        wanted: u64,
        /// Positions that a sequence may have.
        context: u32,
        /// Positions that the model was trained for.
        most: u32,
    },
    /// As many sequences are under way as there may be.
    #[error(
        "no room in the KV cache: all {sequences} sequences are under way; end one first, or make the cache for more"
    )]
    NoSequence {
        /// How many there may be.
        sequences: u32,
    },
    /// Other sequences hold the pages that this one needs.
    #[error(
        "no room in the KV cache: too few of its {pages} pages are free; end a sequence first, or make the cache larger"
    )]
    NoPage {
        /// How many there are.
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
    /// The logits are no numbers.
    #[error(
        "the model computed no finite numbers at position {position}: its weights may be damaged, or this device may \
         compute wrongly (try `indrik doctor --selftest`)"
    )]
    NotFinite {
        /// Where.
        position: u32,
    },
}
