//! Errors of opening and reading checkpoints. Every message names the file and, if applicable, the tensor.

use std::path::{Path, PathBuf};

use crate::incomplete::Incomplete;

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Opening or reading a file failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A header is invalid: truncated, damaged or malicious.
    #[error("{}: {reason}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// The problem, its location and the remedy.
        reason: String,
    },
    /// The description of a tensor is invalid.
    #[error("{}: tensor '{tensor}': {reason}", path.display())]
    InvalidTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The problem.
        reason: String,
    },
    /// Tensors are missing, duplicated, misshapen or unknown.
    #[error("{}: {incomplete}", path.display())]
    Incomplete {
        /// The file or folder.
        path: PathBuf,
        /// All problems.
        incomplete: Incomplete,
    },
    /// Reading the data of a tensor failed.
    #[error("{}: tensor '{tensor}': reading at byte {offset} failed: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Offset of the read in the file.
        offset: u64,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The checkpoint is valid, but uses an unsupported feature.
    #[error("{}: {what} is not supported: {fix}", path.display())]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// The unsupported feature.
        what: String,
        /// A supported alternative.
        fix: String,
    },
    /// A model that generates text is needed, but this one turns text into vectors.
    #[error(
        "{} is an embedding model, which turns text into vectors and generates none: use `indrik embed`, or choose a \
         model that generates text",
        path.display()
    )]
    IsEmbeddingModel {
        /// The file or folder.
        path: PathBuf,
    },
    /// An embedding model is needed, but this one generates text.
    #[error(
        "{} generates text and is not an embedding model: use `indrik generate` or `indrik chat`, or choose an embedding \
         model, for example all-minilm",
        path.display()
    )]
    IsGenerativeModel {
        /// The file or folder.
        path: PathBuf,
    },
}

impl Error {
    /// Opening or reading `path` failed.
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Error::Io { path: path.to_path_buf(), source }
    }

    /// The header of `path` is invalid.
    pub fn invalid(path: &Path, reason: impl Into<String>) -> Self {
        Error::InvalidFile { path: path.to_path_buf(), reason: reason.into() }
    }

    /// The description of `tensor` in `path` is invalid.
    pub fn tensor(path: &Path, tensor: &str, reason: impl Into<String>) -> Self {
        Error::InvalidTensor { path: path.to_path_buf(), tensor: tensor.to_string(), reason: reason.into() }
    }
}
