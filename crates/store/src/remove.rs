//! Removing a model from the store.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    download::IoContext,
    entries::{EntryKind, PULL_EXTENSIONS, StoreEntry},
    error::{Error, Result},
    folder::Store,
    lock::Lock,
    resolve::find_entry,
};

/// A planned or completed removal.
#[derive(Clone, Debug, PartialEq)]
pub struct Removal {
    /// The model's name.
    pub name: String,
    /// Its file or folder, as [`Store::resolve`] returns it.
    pub path: PathBuf,
    /// All its files and folders; all are directly in the store's folder.
    pub paths: Vec<PathBuf>,
    /// Bytes that are freed; symbolic links free none.
    pub bytes: u64,
}

impl Store {
    /// The removal of a model, by name or alias: its files, its record and its partial downloads. Nothing is
    /// deleted yet.
    pub fn plan_removal(&self, name: &str) -> Result<Removal> {
        let (unrecognized, models): (Vec<StoreEntry>, Vec<StoreEntry>) =
            self.entries()?.into_iter().partition(|entry| matches!(entry.kind, EntryKind::Unrecognized(_)));
        // A listed name refers to that entry, even if the entry cannot be removed.
        if models.iter().all(|entry| entry.name != name)
            && let Some(StoreEntry { path, kind: EntryKind::Unrecognized(reason), .. }) =
                unrecognized.into_iter().find(|entry| entry.name == name)
        {
            return Err(Error::Unrecognized { path, reason });
        }
        let entry = find_entry(models, name).ok_or_else(|| Error::NotInStore { name: name.to_string() })?;
        Ok(self.removal(entry))
    }

    /// Executes a removal planned by [`Store::plan_removal`]. Fails if another model has taken the name
    /// since, or if the model is being pulled.
    pub fn remove(&self, found: &Removal) -> Result<Removal> {
        let lock = match self.pull_file(&found.path, &found.name, LOCK) {
            Some(path) => Some(
                Lock::try_acquire(&path)?
                    .ok_or_else(|| Error::PullInProgress { name: found.name.clone() })?,
            ),
            None => None,
        };
        // Since then, a pull may have completed, or another process may have removed the model.
        let same = |entry: &StoreEntry| {
            !matches!(entry.kind, EntryKind::Unrecognized(_)) && entry.path == found.path
        };
        let Some(entry) = self.entries()?.into_iter().find(same) else {
            lock.map_or(Ok(()), Lock::delete)?;
            return Err(Error::Changed { name: found.name.clone() });
        };
        let removal = self.removal(entry);
        for path in &removal.paths {
            delete(path)?;
        }
        lock.map_or(Ok(()), Lock::delete)?;
        Ok(removal)
    }

    fn removal(&self, entry: StoreEntry) -> Removal {
        let mut paths = entry.files;
        let extensions = PULL_EXTENSIONS.iter().filter(|extension| **extension != LOCK);
        paths.extend(extensions.filter_map(|extension| self.pull_file(&entry.path, &entry.name, extension)));
        paths.retain(|path| path.symlink_metadata().is_ok());
        paths.sort();
        paths.dedup();
        let bytes = paths.iter().map(|path| freed_bytes(path)).sum();
        Removal { name: entry.name, path: entry.path, paths, bytes }
    }

    /// Path of a file that a pull creates, if `path` itself is from a pull. Next to other models, a file of
    /// such a name belongs to the user.
    fn pull_file(&self, path: &Path, name: &str, extension: &str) -> Option<PathBuf> {
        let mut pulled = ["gguf", "part", "json"].iter().filter_map(|extension| self.path(name, extension));
        let is_pulled = pulled.any(|pulled| pulled == path) || self.read_record(name).is_some();
        if is_pulled { self.path(name, extension) } else { None }
    }
}

const LOCK: &str = "lock";

/// Deletes a file, a symbolic link (not its target) or a folder.
fn delete(path: &Path) -> Result<()> {
    let found = path.symlink_metadata().with_path(path)?;
    let deleted = if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match deleted {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

/// Bytes that deleting a path frees.
fn freed_bytes(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| freed_bytes(&entry.path())).sum()
        }
        // A file with a second hard link is not freed.
        Ok(found) if found.is_file() && found.nlink() == 1 => found.len(),
        _ => 0,
    }
}
