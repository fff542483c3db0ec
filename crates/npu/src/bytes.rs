//! Checked access to little-endian bytes.

use crate::error::{Error, Format, Result};

/// Bytes of one format. Offsets are from the start of that format's data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes<'a> {
    format: Format,
    data: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(format: Format, data: &'a [u8]) -> Self {
        Self { format, data }
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn slice(&self, offset: usize, len: usize) -> Result<&'a [u8]> {
        let end = offset.checked_add(len);
        end.and_then(|end| self.data.get(offset..end)).ok_or_else(|| {
            let reason = format!("{len} bytes are needed here, and the data has {}", self.data.len());
            Error::malformed(self.format, offset, reason)
        })
    }

    pub(crate) fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(offset, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&self, offset: usize) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array(offset)?))
    }

    pub(crate) fn u16(&self, offset: usize) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array(offset)?))
    }

    pub(crate) fn u32(&self, offset: usize) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(offset)?))
    }

    pub(crate) fn u64(&self, offset: usize) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(offset)?))
    }

    /// `count` words.
    pub(crate) fn words(&self, offset: usize, count: usize) -> Result<Vec<u32>> {
        let len = count
            .checked_mul(4)
            .ok_or_else(|| Error::malformed(self.format, offset, format!("a length of {count} words")))?;
        Ok(words_of(self.slice(offset, len)?))
    }

    /// The text from `offset` to its terminating zero.
    pub(crate) fn text(&self, offset: usize) -> Result<String> {
        let rest = self.slice(offset, self.data.len().saturating_sub(offset))?;
        let Some(end) = rest.iter().position(|&byte| byte == 0) else {
            return Err(Error::malformed(self.format, offset, "a name without a terminating zero"));
        };
        match std::str::from_utf8(&rest[..end]) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(Error::malformed(self.format, offset, "a name that is not UTF-8")),
        }
    }
}

/// The whole words in `bytes`.
pub(crate) fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// Appends `words` to `out`.
pub(crate) fn put_words(out: &mut Vec<u8>, words: &[u32]) {
    let start = out.len();
    out.resize(start + 4 * words.len(), 0);
    for (bytes, word) in out[start..].chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Appends zeros until the length is a multiple of `align`.
pub(crate) fn pad_to(out: &mut Vec<u8>, align: usize) {
    out.resize(out.len().next_multiple_of(align), 0);
}
