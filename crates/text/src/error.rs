//! The errors of tokenizers, chat templates and stop strings.

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a tokenizer or template could not be loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The tokenizer's data is inconsistent: damaged, incomplete or malicious.
    #[error("tokenizer: {0}")]
    Invalid(String),
    /// The tokenizer is valid but of an unsupported kind.
    #[error("tokenizer: {0}")]
    Unsupported(String),
    /// The chat template could not be compiled, or failed to render a conversation.
    #[error("chat template: {0}")]
    Template(String),
    /// The chat template rejected the conversation with this message (`raise_exception`).
    #[error("{0}")]
    Rejected(String),
    /// The stop string with this index is empty, which would stop at once.
    #[error("stop string {0} is empty: remove it")]
    EmptyStopString(usize),
}

pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::Invalid(text.into())
}

pub(crate) fn unsupported(text: impl Into<String>) -> Error {
    Error::Unsupported(text.into())
}
