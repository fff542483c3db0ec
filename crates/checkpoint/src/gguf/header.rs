//! The bounded reader that every field of a header goes through.

use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// One system call brings this much: a header of megabytes is millions of fields.
const BUFFER: usize = 256 << 10;

/// Numbers of an array are read this many bytes at a time; a multiple of the size of each.
const CHUNK: usize = 4096;

/// Names in errors are cut after this many characters: a hostile one can be megabytes long.
const SHOWN: usize = 80;

/// What an error about a file's contents ends with.
pub(super) const DAMAGED: &str = "the file is damaged, get it again";

/// What a field belongs to, for the error when it is wrong.
#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    /// A fixed field of the header.
    Field(&'static str),
    /// The name of a metadata key.
    Key {
        /// Which, from 0.
        index: usize,
        /// Of how many.
        count: usize,
    },
    /// The value of a metadata key.
    Value(&'a str),
    /// The name of a tensor.
    TensorName {
        /// Which, from 0.
        index: usize,
        /// Of how many.
        count: usize,
    },
    /// What a tensor's entry says apart from its name.
    Tensor(&'a str),
}

/// A header being read from its first byte on.
pub(super) struct Header<'a, R> {
    path: &'a Path,
    bytes: BufReader<R>,
    at: u64,
    /// Bytes of the file.
    len: u64,
    /// Bytes that a header may have.
    limit: u64,
}

impl<'a, R: Read> Header<'a, R> {
    pub fn new(path: &'a Path, bytes: R, len: u64, limit: u64) -> Self {
        Header { path, bytes: BufReader::with_capacity(BUFFER, bytes), at: 0, len, limit }
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

    /// An error about `subject` that no sound file gives.
    #[cold]
    pub fn damaged(&self, subject: Subject, reason: impl Display) -> Error {
        self.error(subject, format!("{reason}: {DAMAGED}"))
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self, subject: Subject) -> Result<[u8; N]> {
        // Almost every field of millions is in the buffer already.
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

    /// A length and as many bytes of UTF-8.
    pub fn string(&mut self, subject: Subject) -> Result<String> {
        let at = self.at;
        let mut bytes = Vec::new();
        self.append_string(&mut bytes, subject)?;
        String::from_utf8(bytes)
            .map_err(|_| self.damaged(subject, format!("the string at byte {at} is not UTF-8")))
    }

    /// The bytes of a string, behind those that `bytes` has. Whether they are UTF-8 is left to the caller.
    #[inline]
    pub fn append_string(&mut self, bytes: &mut Vec<u8>, subject: Subject) -> Result<()> {
        let len = self.u64(subject)?;
        if !self.fits(len) {
            return Err(self.too_much("a string", len, subject));
        }
        // Not cut: no longer than a header may be.
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

    /// `count` numbers of `N` bytes, for which there is room.
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
            let (whole, _) = chunk[..bytes].as_chunks::<N>();
            numbers.extend(whole.iter().map(|bytes| number(*bytes)));
        }
        Ok(numbers)
    }

    /// `count` as a size to allocate by: proves that it is at most `most`, and that as many items of at least
    /// `min_bytes` can still come in this header.
    pub fn room(
        &self,
        items: &str,
        count: u64,
        min_bytes: u64,
        most: u64,
        subject: Subject,
    ) -> Result<usize> {
        if count > most {
            return Err(
                self.error(subject, format!("{count} {items}, where {most} is the most that is read"))
            );
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
            Err(source) if source.kind() == ErrorKind::UnexpectedEof => Err(self
                .error(subject, format!("the file ended while it was read, at byte {} or later", self.at))),
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
                    "{item} at byte {at}: {bytes} bytes make the header longer than the {} that are read",
                    self.limit
                )
            }
            _ => {
                format!(
                    "{item} at byte {at}: {bytes} bytes do not fit in the {} that the file has left: it is truncated \
                     or damaged, get it again",
                    self.len.saturating_sub(at)
                )
            }
        };
        self.error(subject, reason)
    }
}

/// A name from a file as errors show it: not longer than a line, and without bytes that a terminal would obey.
pub(super) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN).is_some() {
        text.push('…');
    }
    text
}
