//! State and events of a running pull, shared by its sources.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    catalogue::{Licence, Model},
    download::{DownloadEvent, Session},
    folder::Store,
};

/// Progress of a pull.
#[derive(Clone, Debug, PartialEq)]
pub enum PullEvent {
    /// Another pull of the same model is running; this one waits for it.
    Waiting,
    /// The existing file does not match the catalogue and will be replaced.
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A download starts; continuing means accepting this licence.
    Licence(Licence),
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
    /// A downloaded file had the wrong content. It was deleted and is downloaded once more.
    Discarded {
        /// The problem.
        reason: String,
    },
    /// The checksum of the complete file is computed.
    Verifying,
}

/// A running pull.
pub(crate) struct PullTask<'a> {
    pub(crate) store: &'a Store,
    pub(crate) model: &'a Model,
    pub(crate) session: Session<'a>,
    /// The folder of partial downloads.
    pub(crate) part: &'a Path,
}

impl PullTask<'_> {
    /// Converts a download event to an event of the pull; `before` is the size of the parts that are already
    /// complete.
    pub(crate) fn event(&self, event: DownloadEvent, before: u64) -> PullEvent {
        match event {
            DownloadEvent::Progress(bytes) => {
                let total = self.model.bytes;
                PullEvent::Progress { done: (before + bytes).min(total), total }
            }
            DownloadEvent::Retry(error, delay) => PullEvent::Retrying { reason: error.to_string(), delay },
        }
    }
}
