//! Kernel files that are read again and again.
//!
//! A sampler reads the same dozens of files every second. Looking each up by path costs more than reading it,
//! so a [`Probe`] opens its file once and reads from offset 0, at which sysfs and procfs produce the contents
//! anew. Opening a sysfs file does not reach the driver; only reading does.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longer than any number in sysfs.
const NUMBER: usize = 32;

/// A file that stays open; nothing can be read if it is absent or unreadable.
#[derive(Debug)]
pub(crate) struct Probe {
    file: Option<File>,
}

impl Probe {
    pub(crate) fn open(path: impl AsRef<Path>) -> Self {
        Self { file: File::open(path).ok() }
    }

    /// A probe of a file that is known not to exist.
    pub(crate) fn absent() -> Self {
        Self { file: None }
    }

    pub(crate) fn exists(&self) -> bool {
        self.file.is_some()
    }

    /// The contents, up to the length of `buffer`, in one read: sysfs has no short reads, and a second read
    /// would ask the driver again.
    pub(crate) fn bytes<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let file = self.file.as_ref()?;
        let len = loop {
            match file.read_at(buffer, 0) {
                Ok(len) => break len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        };
        Some(&buffer[..len])
    }

    /// The contents as text, without the newline at the end.
    pub(crate) fn text<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a str> {
        Some(std::str::from_utf8(self.bytes(buffer)?).ok()?.trim())
    }

    /// A file that holds one decimal number.
    pub(crate) fn number(&self) -> Option<u64> {
        self.text(&mut [0; NUMBER])?.parse().ok()
    }

    /// A file that holds one number, which may be negative, in thousandths: the unit of hwmon temperatures.
    pub(crate) fn thousandths(&self) -> Option<f64> {
        let value: i64 = self.text(&mut [0; NUMBER])?.parse().ok()?;
        Some(value as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn a_probe_sees_the_contents_change() {
        let tree = Tree::new();
        tree.write("value", "17\n");
        let probe = Probe::open(tree.path("value"));
        assert_eq!(probe.number(), Some(17));
        tree.write("value", "-2500\n");
        assert_eq!((probe.number(), probe.thousandths()), (None, Some(-2.5)));
    }

    #[test]
    fn unreadable_files_are_none() {
        let tree = Tree::new();
        tree.write("binary", b"\xff\xfe").write("directory/file", "");
        for path in ["absent", "binary", "directory"] {
            let probe = Probe::open(tree.path(path));
            assert_eq!((probe.number(), probe.text(&mut [0; 8])), (None, None), "{path}");
        }
        assert!(!Probe::absent().exists());
    }

    #[test]
    fn contents_longer_than_the_buffer_are_cut() {
        let tree = Tree::new();
        tree.write("long", "0123456789");
        assert_eq!(Probe::open(tree.path("long")).bytes(&mut [0; 4]), Some(&b"0123"[..]));
    }
}
