//! The bounded reader for all fields of a header.

use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Bytes per system call: a header of megabytes has millions of fields.
const BUFFER_BYTES: usize = 256 << 10;

/// Arrays of numbers are read in chunks of this many bytes, a multiple of every element size.
const CHUNK: usize = 4096;

/// Maximum characters of a name in an error: a malicious name can be megabytes long.
const MAX_SHOWN: usize = 80;

/// Advice in errors about damaged files.
pub(super) const DAMAGED: &str = "the file is damaged, download it again";

/// The subject of an error message: the item that a field belongs to.
#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    /// A fixed field of the header.
    Field(&'static str),
    /// The name of a metadata key.
    Key {
        /// Index of the key.
        index: usize,
        /// Number of keys.
        count: usize,
    },
    /// The value of a metadata key.
    Value(&'a str),
    /// The name of a tensor.
    TensorName {
        /// Index of the tensor.
        index: usize,
        /// Number of tensors.
        count: usize,
    },
    /// The entry of a tensor, except its name.
    Tensor(&'a str),
}

/// A header being read sequentially.
pub(super) struct Header<'a, R> {
    path: &'a Path,
    bytes: BufReader<R>,
    at: u64,
    /// Size of the file in bytes.
    len: u64,
    /// Maximum bytes of the header.
    limit: u64,
}

impl<'a, R: Read> Header<'a, R> {
    pub fn new(path: &'a Path, bytes: R, len: u64, limit: u64) -> Self {
        Header { path, bytes: BufReader::with_capacity(BUFFER_BYTES, bytes), at: 0, len, limit }
    }

    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Bytes read so far.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// An error about `subject`.
    #[cold]
    pub fn error(&self, subject: Subject, reason: impl AsRef<str>) -> Error {
        let reason = reason.as_ref();
        match subject {
            Subject::Field(name) => Error::invalid(self.path, format!("{name}: {reason}")),
            Subject::Key { index, count } => {
                Error::invalid(self.path, format!("name of metadata key {} of {count}: {reason}", index + 1))
            }
            Subject::Value(key) => {
                Error::invalid(self.path, format!("metadata key '{}': {reason}", shown(key)))
            }
            Subject::TensorName { index, count } => {
                Error::invalid(self.path, format!("name of tensor {} of {count}: {reason}", index + 1))
            }
            Subject::Tensor(name) => Error::tensor(self.path, &shown(name), reason),
        }
    }

    /// An error about `subject` that only a damaged file causes.
    #[cold]
    pub fn damaged(&self, subject: Subject, reason: impl Display) -> Error {
        self.error(subject, format!("{reason}: {DAMAGED}"))
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self, subject: Subject) -> Result<[u8; N]> {
        // Fast path: almost all of the millions of fields are in the buffer already.
        if let Some(bytes) = self.bytes.buffer().first_chunk::<N>().copied()
            && self.fits(N as u64)
        {
            self.bytes.consume(N);
            self.at += N as u64;
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        self.fill(&mut bytes, subject)?;
        Ok(bytes)
    }

    pub fn u32(&mut self, subject: Subject) -> Result<u32> {
        self.array(subject).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, subject: Subject) -> Result<u64> {
        self.array(subject).map(u64::from_le_bytes)
    }

    /// A length-prefixed UTF-8 string.
    pub fn string(&mut self, subject: Subject) -> Result<String> {
        let at = self.at;
        let mut bytes = Vec::new();
        self.append_string(&mut bytes, subject)?;
        String::from_utf8(bytes)
            .map_err(|_| self.damaged(subject, format!("the string at byte {at} is not UTF-8")))
    }

    /// Appends the bytes of a length-prefixed string to `bytes`. The caller checks for UTF-8.
    #[inline]
    pub fn append_string(&mut self, bytes: &mut Vec<u8>, subject: Subject) -> Result<()> {
        let len = self.u64(subject)?;
        if !self.fits(len) {
            return Err(self.too_much("a string", len, subject));
        }
        // Lossless: `len` is at most the header's limit.
        let len = len as usize;
        if let Some(buffered) = self.bytes.buffer().get(..len) {
            bytes.extend_from_slice(buffered);
            self.bytes.consume(len);
            self.at += len as u64;
            return Ok(());
        }
        let start = bytes.len();
        bytes.resize(start + len, 0);
        self.fill(&mut bytes[start..], subject)
    }

    /// `count` numbers of `N` bytes each; the caller has bounded `count`.
    pub fn numbers<T, const N: usize>(
        &mut self,
        count: usize,
        subject: Subject,
        number: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let mut numbers = Vec::with_capacity(count);
        let mut chunk = [0; CHUNK];
        while numbers.len() < count {
            let bytes = ((count - numbers.len()) * N).min(CHUNK);
            self.fill(&mut chunk[..bytes], subject)?;
            let (elements, _) = chunk[..bytes].as_chunks::<N>();
            numbers.extend(elements.iter().map(|bytes| number(*bytes)));
        }
        Ok(numbers)
    }

    /// `count` as a size that is safe to allocate: at most `max`, and `count` items of at least `min_bytes`
    /// each fit into the rest of the header.
    pub fn bounded_count(
        &self,
        items: &str,
        count: u64,
        min_bytes: u64,
        max: u64,
        subject: Subject,
    ) -> Result<usize> {
        if count > max {
            return Err(self.error(subject, format!("{count} {items}, but the limit is {max}")));
        }
        let bytes = count.saturating_mul(min_bytes);
        match usize::try_from(count) {
            Ok(size) if self.fits(bytes) => Ok(size),
            _ => Err(self.too_much(&format!("{count} {items}"), bytes, subject)),
        }
    }

    fn fill(&mut self, bytes: &mut [u8], subject: Subject) -> Result<()> {
        let wanted = bytes.len() as u64;
        if !self.fits(wanted) {
            return Err(self.too_much("the next field", wanted, subject));
        }
        match self.bytes.read_exact(bytes) {
            Ok(()) => {
                self.at += wanted;
                Ok(())
            }
            Err(source) if source.kind() == ErrorKind::UnexpectedEof => {
                Err(self
                    .error(subject, format!("the file ended while being read, at byte {} or later", self.at)))
            }
            Err(source) => Err(Error::io(self.path, source)),
        }
    }

    #[inline]
    fn fits(&self, bytes: u64) -> bool {
        self.at.checked_add(bytes).is_some_and(|end| end <= self.len.min(self.limit))
    }

    #[cold]
    fn too_much(&self, item: &str, bytes: u64, subject: Subject) -> Error {
        let at = self.at;
        let reason = match at.checked_add(bytes) {
            Some(end) if end <= self.len => {
                format!(
                    "{item} at byte {at}: {bytes} bytes make the header longer than the limit of {} bytes",
                    self.limit
                )
            }
            _ => {
                format!(
                    "{item} at byte {at}: {bytes} bytes do not fit into the remaining {} bytes: the file is truncated \
                     or damaged, download it again",
                    self.len.saturating_sub(at)
                )
            }
        };
        self.error(subject, reason)
    }
}

/// A name from a file for use in messages: truncated, and without terminal control characters.
pub(super) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(MAX_SHOWN).is_some() {
        text.push('…');
    }
    text
}
