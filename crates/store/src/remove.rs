//! Taking a model out of the store.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    download::At,
    entries::PULL_FILES,
    error::{Error, Result},
    folder::{Store, canonical},
    lock::Lock,
};

/// What is, or was, to be removed.
#[derive(Clone, Debug, PartialEq)]
pub struct Removal {
    /// The model's name.
    pub name: String,
    /// Its file or folder, as [`Store::resolve`] has it.
    pub path: PathBuf,
    /// All its files and folders, all of them directly in the store's folder.
    pub paths: Vec<PathBuf>,
    /// Bytes that this frees: links free none.
    pub bytes: u64,
}

impl Store {
    /// What there is to remove of a model, by its name or an alias: its files, its record, what of it is unfinished.
    pub fn removal(&self, name: &str) -> Result<Removal> {
        let not_here = || Error::NotHere { name: name.to_string() };
        let entry = self.entry_of(&canonical(name))?.ok_or_else(not_here)?;
        let mut paths = entry.files;
        let beside = PULL_FILES.iter().filter(|ending| **ending != LOCK);
        paths.extend(beside.filter_map(|ending| self.beside(&entry.path, &entry.name, ending)));
        paths.retain(|path| path.symlink_metadata().is_ok());
        paths.sort();
        paths.dedup();
        let bytes = paths.iter().map(|path| freed(path)).sum();
        Ok(Removal { name: entry.name, path: entry.path, paths, bytes })
    }

    /// Removes a model. One that is being pulled stays.
    pub fn remove(&self, name: &str) -> Result<Removal> {
        // Found before anything is written: a name that nobody has leaves no lock.
        let found = self.removal(name)?;
        let lock = match self.beside(&found.path, &found.name, LOCK) {
            Some(path) => Some(Lock::try_take(&path)?.ok_or(Error::Busy { name: found.name })?),
            None => None,
        };
        // A pull may have ended between the two.
        let found = self.removal(name)?;
        for path in &found.paths {
            delete(path)?;
        }
        lock.map_or(Ok(()), Lock::delete)?;
        Ok(found)
    }

    /// A file of a pull, where `path` is what a pull makes. Beside other models such a name is somebody else's.
    fn beside(&self, path: &Path, name: &str, ending: &str) -> Option<PathBuf> {
        let made = ["gguf", "part", "json"].iter().filter_map(|made| self.path(name, made));
        if made.into_iter().any(|made| made == path) { self.path(name, ending) } else { None }
    }
}

const LOCK: &str = "lock";

/// Deletes a file, a link (not what it leads to) or a folder.
fn delete(path: &Path) -> Result<()> {
    let found = path.symlink_metadata().at(path)?;
    let deleted = if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match deleted {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

/// Bytes that deleting a path gives back.
fn freed(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| freed(&entry.path())).sum()
        }
        // A file that has a second name stays.
        Ok(found) if found.is_file() && found.nlink() == 1 => found.len(),
        _ => 0,
    }
}
