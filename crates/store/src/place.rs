//! Putting a local file into the store without copying its bytes where the file system allows that.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use serde::Serialize;

use crate::{
    download::{IoContext, remove_if_exists},
    error::{Error, Result},
};

/// How a file was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placed {
    /// As a reflink: an own file that shares its blocks with the original until one of them is changed.
    Reflink,
    /// As a hard link: another name of the same file.
    HardLink,
    /// As a copy.
    Copy,
}

impl std::fmt::Display for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Placed::Reflink => "reflink, takes no space",
            Placed::HardLink => "hard link, takes no space",
            Placed::Copy => "copy",
        })
    }
}

/// Places `from`, a regular file, at `to`, which must not exist. `progress` gets the bytes copied so far.
pub fn place(from: &Path, to: &Path, cancel: &AtomicBool, progress: &mut dyn FnMut(u64)) -> Result<Placed> {
    // The file itself, not a link to it: the store's entry must survive the removal of the link.
    let from = fs::canonicalize(from).with_path(from)?;
    let mut source = File::open(&from).with_path(&from)?;
    let mut target = OpenOptions::new().write(true).create_new(true).open(to).with_path(to)?;
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(Placed::Reflink);
    }
    // A link needs the name to be free. Nobody else uses it: the caller holds the model's lock.
    fs::remove_file(to).with_path(to)?;
    if fs::hard_link(&from, to).is_ok() {
        return Ok(Placed::HardLink);
    }
    target = OpenOptions::new().write(true).create_new(true).open(to).with_path(to)?;
    let copied = copy(&mut source, &from, &mut target, to, cancel, progress);
    if copied.is_err() {
        remove_if_exists(to)?;
    }
    copied.map(|()| Placed::Copy)
}

fn copy(
    source: &mut File,
    from: &Path,
    target: &mut File,
    to: &Path,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut copied = 0;
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let count = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::io(from, error)),
        };
        target.write_all(&buffer[..count]).with_path(to)?;
        copied += count as u64;
        progress(copied);
    }
    target.sync_all().with_path(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placed_file_has_the_content_and_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (from, link, to) =
            (folder.path().join("from"), folder.path().join("link"), folder.path().join("to"));
        fs::write(&from, "content").unwrap();
        std::os::unix::fs::symlink("from", &link).unwrap();
        let cancel = AtomicBool::new(false);
        let placed = place(&link, &to, &cancel, &mut |_| {}).unwrap();
        assert_ne!(placed, Placed::Copy, "both are on one file system");
        assert_eq!(fs::read_to_string(&to).unwrap(), "content");
        assert!(!to.is_symlink());
        let error = place(&from, &to, &cancel, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        assert_eq!(fs::read_to_string(&to).unwrap(), "content");
    }

    #[test]
    fn a_copy_is_complete_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::write(&from, vec![7; 3 << 20]).unwrap();
        let run = |cancel: bool| {
            let (mut source, mut target) = (File::open(&from).unwrap(), File::create(&to).unwrap());
            let mut last = 0;
            let cancel = AtomicBool::new(cancel);
            (copy(&mut source, &from, &mut target, &to, &cancel, &mut |bytes| last = bytes), last)
        };
        assert!(matches!(run(false), (Ok(()), 3_145_728)));
        assert_eq!(fs::read(&to).unwrap(), vec![7; 3 << 20]);
        assert!(matches!(run(true).0, Err(Error::Cancelled)));
    }
}
