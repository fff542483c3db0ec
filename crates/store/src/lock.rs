//! The lock of a model: who holds it may change what the store has of that model.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags};

use crate::{
    download::{IoContext, remove},
    error::{Error, Result},
};

const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits() as i32;

/// A lock that is held; it is given back when this goes.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes a lock, or nothing where somebody else holds it.
    pub fn try_take(path: &Path) -> Result<Option<Self>> {
        loop {
            let mut options = OpenOptions::new();
            // A link in its place would lead out of the folder.
            options.create(true).truncate(false).write(true).custom_flags(NOFOLLOW);
            let file = options.open(path).with_path(path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(Error::io(path, error.into())),
            }
            // Whoever held it may have deleted the file after it was opened here: a third one would then lock another
            // file of the same name.
            let lock = Self { file, path: path.to_path_buf() };
            if lock.is_the_one_of_its_name()? {
                return Ok(Some(lock));
            }
        }
    }

    /// Gives it back and leaves no file behind.
    pub fn delete(self) -> Result<()> {
        remove(&self.path)
    }

    fn is_the_one_of_its_name(&self) -> Result<bool> {
        let ours = self.file.metadata().with_path(&self.path)?;
        match fs::symlink_metadata(&self.path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io(&self.path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn one_holds_it_at_a_time_though_everyone_deletes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let (inside, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut left = 200;
                    while left > 0 {
                        let Some(lock) = Lock::try_take(&path).unwrap() else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                        taken.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if left % 2 == 0 {
                            lock.delete().unwrap()
                        } else {
                            drop(lock)
                        }
                        left -= 1;
                    }
                });
            }
        });
        assert_eq!(taken.load(Ordering::SeqCst), 800);
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
        assert!(Lock::try_take(&path).is_err());
    }
}
