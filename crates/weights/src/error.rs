//! Errors of planning, loading and quantising weights.

use std::path::Path;

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why weights cannot be planned, loaded or quantised.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// Cancelled through [`Control::cancel`](crate::stream::Control::cancel).
    #[error("cancelled")]
    Cancelled,
    /// The GPU layer failed.
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
}

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        checkpoint::Error::io(path, source).into()
    }

    pub(crate) fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        checkpoint::Error::invalid(path, reason).into()
    }

    pub(crate) fn tensor(path: &Path, tensor: &str, reason: impl Into<String>) -> Self {
        checkpoint::Error::tensor(path, tensor, reason).into()
    }
}
