//! What is not taken, and what becomes of what was taken and cannot be done.

use std::time::Duration;

/// Why a request is not taken. Said at once, before anything is queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many wait as may.
    #[error("too many requests wait already: try again in {} s", retry_after.as_secs())]
    QueueFull {
        /// When there may be room, by how long requests took so far.
        retry_after: Duration,
    },
    /// The prompt alone is longer than the context.
    #[error(
        "the prompt has {tokens} tokens, and the context {context_length}: shorten it, or serve with a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions that a sequence may have.
        context_length: u32,
    },
    /// The engine ends, and takes nothing new.
    #[error("the engine is about to stop and takes no more requests")]
    Draining,
    /// It cannot be done, by any engine of this model.
    #[error("{0}")]
    Invalid(String),
}

/// What became of a request that was taken and has no whole answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The GPU was lost, again and again.
    #[error("the GPU was lost and could not be put back: see the kernel log (dmesg)")]
    DeviceLost,
    /// Alone on the GPU, and still without the memory it needs.
    #[error("out of GPU memory: close other programs that use the GPU, or serve with a smaller context")]
    OutOfMemory,
    /// Its deadline has passed.
    #[error("the deadline has passed")]
    DeadlineExceeded,
    /// The engine was stopped before it was done.
    #[error("the engine was stopped")]
    Stopped,
    /// The model computed no finite numbers for it.
    #[error(
        "the model computed no finite numbers: its weights may be damaged, or this device may compute wrongly (try `indrik doctor \
         --selftest`)"
    )]
    NonFiniteLogits,
    /// Its grammar cannot be followed any further.
    #[error("{0}")]
    Grammar(String),
    /// Anything else; a bug.
    #[error("{0}")]
    Internal(String),
}
