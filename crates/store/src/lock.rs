//! Per-model file locks. The holder may change the model's files in the store.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags};

use crate::{
    download::{IoContext, remove_if_exists},
    error::{Error, Result},
};

const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits() as i32;

/// A held lock, released on drop.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Acquires a lock; `None` if another process holds it.
    pub fn try_acquire(path: &Path) -> Result<Option<Self>> {
        loop {
            let mut options = OpenOptions::new();
            // A symbolic link in its place could lead out of the folder.
            options.create(true).truncate(false).write(true).custom_flags(NOFOLLOW);
            let file = options.open(path).with_path(path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(Error::io(path, error.into())),
            }
            // The previous holder may have deleted the file after it was opened here. A third process would
            // then create and lock a new file of the same name.
            let lock = Self { file, path: path.to_path_buf() };
            if lock.is_current_file()? {
                return Ok(Some(lock));
            }
        }
    }

    /// Releases the lock and deletes its file.
    pub fn delete(self) -> Result<()> {
        remove_if_exists(&self.path)
    }

    fn is_current_file(&self) -> Result<bool> {
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
    fn the_lock_is_exclusive_even_when_holders_delete_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let (holders, acquired) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut left = 200;
                    while left > 0 {
                        let Some(lock) = Lock::try_acquire(&path).unwrap() else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two threads hold the lock");
                        acquired.fetch_add(1, Ordering::SeqCst);
                        holders.fetch_sub(1, Ordering::SeqCst);
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
        assert_eq!(acquired.load(Ordering::SeqCst), 800);
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
        assert!(Lock::try_acquire(&path).is_err());
    }
}
