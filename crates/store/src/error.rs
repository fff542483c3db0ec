//! The errors of the store. Every message says what failed, where, and what to do.

use std::path::{Path, PathBuf};

use std::time::Duration;

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
    /// The environment determines no folder for overlays.
    #[error("no folder for overlays is configured: set INDRIK_OVERLAYS_DIR or HOME")]
    NoOverlayFolder,
    /// A model of the catalogue that is not in the store.
    #[error("'{argument}' is not a file, and the model is not downloaded yet: run `indrik pull {name}`")]
    NotPulled {
        /// The requested model.
        argument: String,
        /// Its name in the catalogue, or its address.
        name: String,
    },
    /// Neither a file, nor in the store, nor in the catalogue.
    #[error(
        "'{}' is not a file and not a known model{}; `indrik search` lists the models that can be pulled{}",
        printable(argument),
        suggestions(nearest),
        in_store(present)
    )]
    NotFound {
        /// The requested model.
        argument: String,
        /// Names of the models in the store.
        present: Vec<String>,
        /// Similar names in the catalogue.
        nearest: Vec<&'static str>,
    },
    /// Not in the catalogue.
    #[error(
        "unknown model '{}'{}; known names: {}; `indrik search` lists all models, and `indrik pull hf.co/OWNER/REPO` pulls \
         any supported one",
        printable(name),
        suggestions(nearest),
        catalogue::name_prefixes()
    )]
    UnknownModel {
        /// The requested model.
        name: String,
        /// Similar names in the catalogue.
        nearest: Vec<&'static str>,
    },
    /// A request that cannot be understood.
    #[error("'{}': {reason}", printable(request))]
    InvalidRequest {
        /// The request, without credentials.
        request: String,
        /// What is wrong, and what to write instead.
        reason: String,
    },
    /// Another model in the store has the name.
    #[error(
        "the store already has another model named '{}' ({}): choose another name with --name, or remove that \
         model first with `indrik rm`",
        printable(name),
        printable(existing)
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The source of the existing model.
        existing: String,
    },
    /// A repository that requires its terms to be accepted.
    #[error("{}", gated(repository, page, tokens, *has_token))]
    Gated {
        /// Owner and name.
        repository: String,
        /// Its page.
        page: String,
        /// The page where tokens are created.
        tokens: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// A repository that does not exist, or is private.
    #[error("{}", no_repository(page, *has_token))]
    NoRepository {
        /// Its page.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// A revision that does not exist.
    #[error("{repository} has no branch, tag or commit '{}': check --revision", printable(revision))]
    NoRevision {
        /// Owner and name.
        repository: String,
        /// The requested revision.
        revision: String,
    },
    /// The hub does not accept the token.
    #[error(
        "the hub does not accept the token in HF_TOKEN (or the one saved by `hf auth login`): create a \
         new one at {page}, or unset it"
    )]
    InvalidToken {
        /// The page where tokens are created.
        page: String,
    },
    /// A token that cannot be sent.
    #[error(
        "the token in HF_TOKEN (or the one saved by `hf auth login`) is malformed: it contains spaces or other \
         invalid characters; set it again, or unset it"
    )]
    MalformedToken,
    /// A repository without files that can be used.
    #[error("{repository}: {reason}")]
    NoModel {
        /// Owner and name.
        repository: String,
        /// What is missing, and what to do.
        reason: String,
    },
    /// A hub's response that is not to be trusted.
    #[error("{url}: {reason}; check HF_ENDPOINT and the network")]
    Hub {
        /// The requested address.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// A redirect that is not followed.
    #[error("{url}: {reason}")]
    Redirect {
        /// The redirecting address.
        url: String,
        /// What is wrong.
        reason: String,
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
    #[error("{url}: the server responded with {status}{}", advice(*status, *retry_after))]
    Status {
        /// The requested address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
        /// The hub's name of the error (`X-Error-Code`).
        code: Option<String>,
        /// The hub's message (`X-Error-Message`).
        message: Option<String>,
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
        name: String,
        /// Each source with its failure.
        reasons: Vec<(String, String)>,
    },
    /// A download was cancelled by the user.
    #[error("cancelled; the partial download is kept, and the same command resumes it")]
    Cancelled,
    /// An import was cancelled by the user.
    #[error("cancelled; nothing was added to the store")]
    ImportCancelled,
}

impl Error {
    pub(crate) fn invalid_name(name: &str) -> Self {
        Self::InvalidRequest {
            request: name.to_string(),
            reason: "not a valid name: use lower-case letters, digits, '-', '_' and '.', and at most one ':'"
                .into(),
        }
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    /// The message without the address, for output that already has it.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Network { reason, .. } => format!("network error ({reason})"),
            Self::Status { status, retry_after, .. } => {
                format!("the server responded with {status}{}", advice(*status, *retry_after))
            }
            Self::Index { reason, .. } | Self::Hub { reason, .. } | Self::Redirect { reason, .. } => {
                reason.clone()
            }
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
                | Self::MalformedToken
                | Self::NoStoreFolder
                | Self::NoOverlayFolder
        )
    }
}

fn advice(status: u16, retry_after: Option<Duration>) -> String {
    match (status, retry_after) {
        (401 | 403, _) => {
            " (no access: accept the model's terms on the hub and set HF_TOKEN; a package index may need \
                           credentials in its URL)"
                .to_string()
        }
        (404, _) => " (not found)".to_string(),
        (407, _) => " (the proxy requires credentials: add them to HTTPS_PROXY)".to_string(),
        (429, Some(time)) => format!(" (too many requests: try again in {} s)", time.as_secs()),
        (429, None) => {
            " (too many requests: try again later, or set HF_TOKEN for a higher limit)".to_string()
        }
        _ => String::new(),
    }
}

fn gated(repository: &str, page: &str, tokens: &str, has_token: bool) -> String {
    match has_token {
        false => format!(
            "{repository} is gated: open {page}, sign in and click \"Agree and access repository\"; then create a \
             token at {tokens} and set HF_TOKEN to it"
        ),
        true => format!(
            "{repository} is gated, and the account of your token has no access: open {page} with that account and \
             click \"Agree and access repository\" (the owner may have to approve it); a fine-grained token also needs \
             the permission to read gated repositories ({tokens})"
        ),
    }
}

fn no_repository(page: &str, has_token: bool) -> String {
    match has_token {
        false => {
            format!("{page}: there is no such repository, or it is private: check the name, or set HF_TOKEN")
        }
        true => {
            format!("{page}: there is no such repository, or your token has no access to it: check the name")
        }
    }
}

/// Similar names, for messages.
fn suggestions(nearest: &[&str]) -> String {
    if nearest.is_empty() {
        return String::new();
    }
    format!(" (did you mean {}?)", nearest.join(" or "))
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
