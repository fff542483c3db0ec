//! What can be wrong with a model's files. Every text names the file and, where there is one, the tensor.

use std::path::{Path, PathBuf};

use crate::incomplete::Incomplete;

/// Shorthand used through the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system could not open or read a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file's header is not what its format demands: truncated, damaged or hostile.
    #[error("{}: {reason}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, where, and what to do.
        reason: String,
    },
    /// One tensor's description is not what it should be.
    #[error("{}: tensor '{tensor}': {reason}", path.display())]
    InvalidTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Tensors are missing, doubled, misshapen or unknown.
    #[error("{}: {incomplete}", path.display())]
    Incomplete {
        /// The file or folder.
        path: PathBuf,
        /// All that is wrong.
        incomplete: Incomplete,
    },
    /// Reading a tensor's data failed half-way.
    #[error("{}: tensor '{tensor}': reading at byte {offset} failed: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Where the read began.
        offset: u64,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is sound, but of a kind that is not read.
    #[error("{}: {what} is not supported: {fix}", path.display())]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// What it is.
        what: String,
        /// What would work instead.
        fix: String,
    },
}

impl Error {
    /// The system could not open or read `path`.
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Error::Io { path: path.to_path_buf(), source }
    }

    /// The header of `path` is wrong.
    pub fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Error::InvalidFile { path: path.to_path_buf(), reason: reason.into() }
    }

    /// The description of `tensor` in `path` is wrong.
    pub fn tensor(path: &Path, tensor: &str, reason: impl Into<String>) -> Self {
        Error::InvalidTensor { path: path.to_path_buf(), tensor: tensor.to_string(), reason: reason.into() }
    }
}
