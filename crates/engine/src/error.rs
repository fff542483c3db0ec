//! Errors of submission, and errors that end a submitted request.

use std::time::Duration;

/// Why a request was rejected. Returned by [`Engine::submit`](crate::Engine::submit), before anything is
/// queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue holds [`Options::queue_capacity`](crate::Options::queue_capacity) requests.
    #[error("the request queue is full: try again in {} s", retry_after.as_secs())]
    QueueFull {
        /// When a place may be free, estimated from the mean request latency so far.
        retry_after: Duration,
    },
    /// The prompt alone exceeds the context length.
    #[error(
        "the prompt has {tokens} tokens, but the context length is {context_length}: shorten it, or serve \
         with a longer context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Maximum tokens per sequence.
        context_length: u32,
    },
    /// The engine is draining and accepts no more requests.
    #[error("the engine is shutting down and accepts no more requests")]
    Draining,
    /// A parameter is out of range for this model.
    #[error("{0}")]
    Invalid(String),
}

/// Why a submitted request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The GPU was lost repeatedly, or could not be reopened.
    #[error("the GPU was lost and could not be recovered: see the kernel log (dmesg)")]
    DeviceLost,
    /// Not enough memory, even with no other request running.
    #[error("out of GPU memory: close other programs that use the GPU, or serve with a shorter context")]
    OutOfMemory,
    /// [`Request::deadline`](crate::Request::deadline) has passed.
    #[error("the deadline has passed")]
    DeadlineExceeded,
    /// The engine was stopped before the request finished.
    #[error("the engine was stopped")]
    Stopped,
    /// The model produced NaN or Inf logits for this request.
    #[error(
        "the model produced NaN or Inf logits: its weights may be damaged, or this device may compute \
         wrongly (try `indrik doctor --selftest`)"
    )]
    NonFiniteLogits,
    /// The grammar allows no further token, or its matcher failed.
    #[error("{0}")]
    Grammar(String),
    /// Any other error; a bug.
    #[error("{0}")]
    Internal(String),
}
