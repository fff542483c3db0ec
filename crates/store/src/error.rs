//! What can go wrong between a name and a file. Every text says what, where and what to do.

use std::path::{Path, PathBuf};

use crate::{catalogue, printable};

/// Shorthand used through the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model is not here and cannot be brought here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system could not open, read or write a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No folder for models can be derived from the environment.
    #[error("there is no folder for models: set INDRIK_MODELS_DIR, or HOME")]
    NoStoreFolder,
    /// A known model that is not in the store.
    #[error("'{argument}' is not a file, and the model is not here yet: run `indrik pull {name}`")]
    NotPulled {
        /// What was asked for.
        argument: String,
        /// The model's name.
        name: &'static str,
    },
    /// Neither a file nor a model that is known.
    #[error(
        "'{}' is not a file, and no model is called so; known: {}{}",
        printable(argument),
        catalogue::names(),
        beside(here)
    )]
    NotFound {
        /// What was asked for.
        argument: String,
        /// The names of the models in the store.
        here: Vec<String>,
    },
    /// Not a name of the catalogue.
    #[error("no model is called '{name}'; known: {}", catalogue::names())]
    UnknownModel {
        /// What was asked for.
        name: String,
    },
    /// Nothing in the store is called so.
    #[error("no model here is called '{}'; `indrik models` lists those that are", printable(name))]
    NotInStore {
        /// What was asked for.
        name: String,
    },
    /// In the store's folder, but not a model.
    #[error("{} is not a model of the store and stays ({why}): remove it by hand", printable(path.display()))]
    Unrecognized {
        /// The file or folder.
        path: PathBuf,
        /// Why it is none.
        why: &'static str,
    },
    /// What was to be removed is no longer what it was.
    #[error(
        "{}: it has changed since it was found, and nothing was removed: run the command again",
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
    /// The disk is too full.
    #[error(
        "{}: {} MiB are needed and {} MiB are free: free some space, or set INDRIK_MODELS_DIR to a folder on \
         another disk",
        folder.display(), needed.div_ceil(1 << 20), free >> 20
    )]
    DiskFull {
        /// Where the model would go.
        folder: PathBuf,
        /// Bytes that are still needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A file of root certificates cannot be used.
    #[error("{}: not usable as root certificates ({reason}); {setting} names it", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The setting that names it.
        setting: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A connection could not be made, was cut, or stalled.
    #[error("{url}: {reason}")]
    Network {
        /// What was asked for.
        url: String,
        /// What happened.
        reason: String,
    },
    /// A server answered, but not with what was asked for.
    #[error("{url}: the server answered {status}{}", advice(*status))]
    Status {
        /// What was asked for.
        url: String,
        /// HTTP's status.
        status: u16,
    },
    /// The package index has no such file, or is not one.
    #[error("{url}: {reason}")]
    Index {
        /// The page of the index.
        url: String,
        /// What is missing or wrong.
        reason: String,
    },
    /// A package's archive is damaged, or does not hold what it should.
    #[error("{archive}: {reason}")]
    Archive {
        /// The archive.
        archive: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A server has a file of another size.
    #[error("{url}: the file has {found} bytes there, expected were {expected}")]
    Size {
        /// The file.
        url: String,
        /// As the catalogue has it.
        expected: u64,
        /// As the server says.
        found: u64,
    },
    /// Bytes that came are not those that were expected.
    #[error("{what}: its sha256 is {found}, expected was {expected}")]
    Checksum {
        /// The file.
        what: String,
        /// As the catalogue or the index has it.
        expected: String,
        /// As it came.
        found: String,
    },
    /// No source gave the file.
    #[error("{name} could not be pulled:{}", list(reasons))]
    AllSourcesFailed {
        /// The model.
        name: &'static str,
        /// Each source and why it did not.
        reasons: Vec<(String, String)>,
    },
    /// Stopped from outside.
    #[error("stopped; what has come is kept, and the same command goes on from there")]
    Cancelled,
}

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    /// The text without the address, for where it is told already.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Network { reason, .. } => format!("no connection ({reason})"),
            Self::Status { status, .. } => format!("the server answered {status}{}", advice(*status)),
            Self::Index { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }

    /// Whether the same request may well succeed a moment later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Whether another source would meet the same.
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
            " (no access: a hub may want its terms accepted and HF_TOKEN set, an index credentials in its address)"
        }
        404 => " (not there)",
        407 => " (the proxy wants credentials: put them into HTTPS_PROXY)",
        _ => "",
    }
}

/// Names in the store, after those that can be pulled.
fn beside(here: &[String]) -> String {
    if here.is_empty() {
        return String::new();
    }
    format!("; in the store: {}", here.iter().map(printable).collect::<Vec<_>>().join(", "))
}

fn list(reasons: &[(String, String)]) -> String {
    reasons.iter().map(|(source, reason)| format!("\n  {source}: {reason}")).collect()
}
