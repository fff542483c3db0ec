//! Taking a model out of the store.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    download::IoContext,
    entries::{EntryKind, PULL_FILES, StoreEntry, meant},
    error::{Error, Result},
    folder::Store,
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
    pub fn plan_removal(&self, name: &str) -> Result<Removal> {
        let (foreign, models): (Vec<StoreEntry>, Vec<StoreEntry>) =
            self.entries()?.into_iter().partition(|entry| matches!(entry.kind, EntryKind::Unrecognized(_)));
        // What is listed under the name is what is meant, even where it cannot go.
        if models.iter().all(|entry| entry.name != name)
            && let Some(StoreEntry { path, kind: EntryKind::Unrecognized(why), .. }) =
                foreign.into_iter().find(|entry| entry.name == name)
        {
            return Err(Error::Unrecognized { path, why });
        }
        let entry = meant(models, name).ok_or_else(|| Error::NotInStore { name: name.to_string() })?;
        Ok(self.removal_of(entry))
    }

    /// Removes what [`Store::plan_removal`] found, and nothing else that has come under its name since. A model that is being
    /// pulled stays.
    pub fn remove(&self, found: &Removal) -> Result<Removal> {
        let lock = match self.beside(&found.path, &found.name, LOCK) {
            Some(path) => Some(
                Lock::try_take(&path)?.ok_or_else(|| Error::PullInProgress { name: found.name.clone() })?,
            ),
            None => None,
        };
        // A pull may have ended since, or somebody else removed it.
        let same = |entry: &StoreEntry| {
            !matches!(entry.kind, EntryKind::Unrecognized(_)) && entry.path == found.path
        };
        let Some(entry) = self.entries()?.into_iter().find(same) else {
            lock.map_or(Ok(()), Lock::delete)?;
            return Err(Error::Changed { name: found.name.clone() });
        };
        let removal = self.removal_of(entry);
        for path in &removal.paths {
            delete(path)?;
        }
        lock.map_or(Ok(()), Lock::delete)?;
        Ok(removal)
    }

    fn removal_of(&self, entry: StoreEntry) -> Removal {
        let mut paths = entry.files;
        let beside = PULL_FILES.iter().filter(|ending| **ending != LOCK);
        paths.extend(beside.filter_map(|ending| self.beside(&entry.path, &entry.name, ending)));
        paths.retain(|path| path.symlink_metadata().is_ok());
        paths.sort();
        paths.dedup();
        let bytes = paths.iter().map(|path| freed(path)).sum();
        Removal { name: entry.name, path: entry.path, paths, bytes }
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
    let found = path.symlink_metadata().with_path(path)?;
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
