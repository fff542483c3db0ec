//! What can be wrong with a tokenizer's data, a template or a list of stop strings.

/// Shorthand used through the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why text cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system could not read a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The tokenizer's data contradicts itself: damaged, incomplete or hostile.
    #[error("tokenizer: {0}")]
    Invalid(String),
    /// The tokenizer is well-formed, but of a kind that is not built.
    #[error("tokenizer: {0}")]
    Unsupported(String),
    /// The chat template cannot be compiled or failed on a conversation.
    #[error("chat template: {0}")]
    Template(String),
    /// The chat template refuses the conversation, in its own words.
    #[error("{0}")]
    Refused(String),
    /// A stop string that would stop at once.
    #[error("stop string {0} is empty: leave it out")]
    EmptyStop(usize),
}

pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::Invalid(text.into())
}

pub(crate) fn unsupported(text: impl Into<String>) -> Error {
    Error::Unsupported(text.into())
}
