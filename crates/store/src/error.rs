//! The errors of the store. Every message says what failed, where, and what to do.

use std::path::{Path, PathBuf};

use crate::{catalogue, printable};

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model could not be found, downloaded or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The environment determines no folder for the store.
    #[error("no folder for models is configured: set INDRIK_MODELS_DIR or HOME")]
    NoStoreFolder,
    /// A model of the catalogue that is not in the store.
    #[error("'{argument}' is not a file, and the model is not downloaded yet: run `indrik pull {name}`")]
    NotPulled {
        /// The requested model.
        argument: String,
        /// Its name in the catalogue.
        name: &'static str,
    },
    /// Neither a file, nor in the store, nor in the catalogue.
    #[error(
        "'{}' is not a file and not a known model; known: {}{}",
        printable(argument),
        catalogue::names(),
        in_store(present)
    )]
    NotFound {
        /// The requested model.
        argument: String,
        /// Names of the models in the store.
        present: Vec<String>,
    },
    /// Not in the catalogue.
    #[error("unknown model '{name}'; known: {}", catalogue::names())]
    UnknownModel {
        /// The requested model.
        name: String,
    },
    /// No entry of the store has this name.
    #[error("there is no model '{}' in the store; `indrik models` lists the models", printable(name))]
    NotInStore {
        /// The requested model.
        name: String,
    },
    /// In the store's folder, but not a model.
    #[error("{} is not a model and was not removed ({reason}): remove it by hand", printable(path.display()))]
    Unrecognized {
        /// The file or folder.
        path: PathBuf,
        /// Why it is not a model.
        reason: &'static str,
    },
    /// The model changed between planning and executing its removal.
    #[error(
        "{}: it has changed in the meantime, so nothing was removed: run the command again",
        printable(name)
    )]
    Changed {
        /// The model.
        name: String,
    },
    /// Another process is pulling the model.
    #[error("{name} is being pulled by another process: wait for it, or stop it")]
    PullInProgress {
        /// The model.
        name: String,
    },
    /// Not enough disk space.
    #[error(
        "{}: {} MiB are needed, but only {} MiB are free: free some space, or set INDRIK_MODELS_DIR to a folder on \
         another disk",
        folder.display(), needed.div_ceil(1 << 20), free >> 20
    )]
    DiskFull {
        /// The store's folder.
        folder: PathBuf,
        /// Bytes still needed.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// The file of root certificates cannot be used.
    #[error("{}: not usable as root certificates ({reason}); it is set by {setting}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The setting that refers to it.
        setting: String,
        /// The problem.
        reason: String,
    },
    /// A connection failed, was interrupted, or stalled.
    #[error("{url}: {reason}")]
    Network {
        /// The requested address.
        url: String,
        /// The problem.
        reason: String,
    },
    /// The server responded with an error status.
    #[error("{url}: the server responded with {status}{}", advice(*status))]
    Status {
        /// The requested address.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The package index lacks the file, or is not a package index.
    #[error("{url}: {reason}")]
    Index {
        /// The index page.
        url: String,
        /// The problem.
        reason: String,
    },
    /// A package's archive is damaged or has unexpected content.
    #[error("{archive}: {reason}")]
    Archive {
        /// The archive.
        archive: String,
        /// The problem.
        reason: String,
    },
    /// The server's file has another size than the catalogue's.
    #[error("{url}: the file has {found} bytes, expected {expected}")]
    Size {
        /// The file.
        url: String,
        /// Size in the catalogue.
        expected: u64,
        /// Size on the server.
        found: u64,
    },
    /// A file's checksum is wrong.
    #[error("{what}: its SHA-256 is {found}, expected {expected}")]
    Checksum {
        /// The file.
        what: String,
        /// Checksum in the catalogue or index.
        expected: String,
        /// Checksum of the file.
        found: String,
    },
    /// No source provided the file.
    #[error("{name} could not be pulled:{}", list(reasons))]
    AllSourcesFailed {
        /// The model.
        name: &'static str,
        /// Each source with its failure.
        reasons: Vec<(String, String)>,
    },
    /// Cancelled by the user.
    #[error("cancelled; the partial download is kept, and the same command resumes it")]
    Cancelled,
}

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    /// The message without the address, for output that already has it.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Network { reason, .. } => format!("network error ({reason})"),
            Self::Status { status, .. } => format!("the server responded with {status}{}", advice(*status)),
            Self::Index { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Whether the failure is local, so that another source would fail the same way.
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Io { .. }
                | Self::DiskFull { .. }
                | Self::Certificates { .. }
                | Self::Cancelled
                | Self::NoStoreFolder
        )
    }
}

fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            " (no access: a hub may require that its terms are accepted and HF_TOKEN is set; an index may require credentials in its address)"
        }
        404 => " (not found)",
        407 => " (the proxy requires credentials: add them to HTTPS_PROXY)",
        _ => "",
    }
}

/// The list of names in the store, for messages.
fn in_store(present: &[String]) -> String {
    if present.is_empty() {
        return String::new();
    }
    format!("; in the store: {}", present.iter().map(printable).collect::<Vec<_>>().join(", "))
}

fn list(reasons: &[(String, String)]) -> String {
    reasons.iter().map(|(source, reason)| format!("\n  {source}: {reason}")).collect()
}
