//! State and events of a running pull, shared by its sources.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    catalogue::Pinned,
    download::{DownloadEvent, Session},
    place::Placed,
};

/// Progress of a pull.
#[derive(Clone, Debug, PartialEq)]
pub enum PullEvent {
    /// Another pull of the same model is running; this one waits for it.
    Waiting,
    /// The existing file does not have the expected content and will be replaced.
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A download starts; continuing means accepting this licence.
    Licence {
        /// The licence's name.
        name: String,
        /// Address of its text, if known.
        url: Option<String>,
    },
    /// A source is tried.
    TryingSource(String),
    /// The source did not provide the file.
    SourceFailed {
        /// The source.
        source: String,
        /// The problem.
        reason: String,
    },
    /// An earlier, interrupted pull is resumed.
    Resuming {
        /// Bytes already on disk.
        done: u64,
    },
    /// More bytes were received.
    Progress {
        /// Bytes of the model so far. Archives are compressed, so this changes slightly when one is
        /// extracted.
        done: u64,
        /// Size of the model in bytes.
        total: u64,
    },
    /// A request failed and will be retried.
    Retrying {
        /// The problem.
        reason: String,
        /// Time until the retry.
        delay: Duration,
    },
    /// The hub cannot be reached; the cache of its own client has the repository.
    Offline {
        /// The repository.
        repository: String,
        /// The problem.
        reason: String,
    },
    /// A file is taken from the cache of the hub's own client.
    Cached {
        /// The file in the cache.
        path: PathBuf,
        /// How it was taken.
        placed: Placed,
    },
    /// The server does not support ranges, so the download starts over with one connection.
    OneConnection,
    /// A downloaded file had the wrong content. It was deleted and is downloaded once more.
    Discarded {
        /// The problem.
        reason: String,
    },
    /// The checksum of a complete file is computed.
    Verifying,
    /// The hub publishes no checksum of this file, so that only its size could be checked.
    Unverified {
        /// The file.
        file: String,
    },
}

/// A running pull of a pinned file.
pub(crate) struct PullTask<'a> {
    /// The model's name.
    pub(crate) name: &'a str,
    pub(crate) pinned: &'a Pinned,
    pub(crate) session: &'a Session<'a>,
    /// The folder of partial downloads.
    pub(crate) part: &'a Path,
}

/// Converts a download event to an event of the pull; `before` is the size of the parts that are already
/// complete.
pub(crate) fn pull_event(event: DownloadEvent, before: u64, total: u64) -> PullEvent {
    match event {
        DownloadEvent::Progress(bytes) => PullEvent::Progress { done: (before + bytes).min(total), total },
        DownloadEvent::Retry(error, delay) => PullEvent::Retrying { reason: error.to_string(), delay },
        DownloadEvent::OneConnection => PullEvent::OneConnection,
    }
}

impl PullTask<'_> {
    /// [`pull_event`] for this file.
    pub(crate) fn event(&self, event: DownloadEvent, before: u64) -> PullEvent {
        pull_event(event, before, self.pinned.bytes)
    }
}
