//! The bytes of a file: a header, the content of the page, a checksum of both.

use std::io::{self, Read, Write};

use crc32fast::Hasher;

use super::{
    folder::PageContent,
    key::{Digest, Fingerprint},
};
use crate::pages::PageKind;

/// Changes with the format.
const MAGIC: &[u8; 8] = b"INDRIKK1";

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// Bytes of the checksum.
const CHECKSUM: usize = 4;

/// What a page holds, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageLabel {
    pub fingerprint: Fingerprint,
    /// Of all tokens before the page.
    pub parent: Digest,
    /// Pages before it.
    pub depth: u32,
    pub kind: PageKind,
    pub tokens: Vec<u32>,
    /// Of keys and values.
    pub bytes: u64,
}

impl PageLabel {
    fn header(&self) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.extend(self.fingerprint.0);
        header.extend(self.parent.0);
        header.extend(self.depth.to_le_bytes());
        header.extend((self.kind as u32).to_le_bytes());
        header.extend((self.tokens.len() as u64).to_le_bytes());
        header.extend(self.bytes.to_le_bytes());
        header.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        header
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> u64 {
        (self.header().len() + CHECKSUM) as u64 + self.bytes
    }

    /// Writes the file.
    pub fn write(&self, content: &mut dyn PageContent, mut to: impl Write) -> io::Result<()> {
        let mut checksum = Hasher::new();
        let mut write = |bytes: &[u8]| {
            checksum.update(bytes);
            to.write_all(bytes)
        };
        write(&self.header())?;
        let mut piece = vec![0; PIECE.min(self.bytes as usize)];
        for start in (0..self.bytes).step_by(PIECE) {
            let piece = &mut piece[..(self.bytes - start).min(PIECE as u64) as usize];
            content.read(start, piece).map_err(io::Error::other)?;
            write(piece)?;
        }
        to.write_all(&checksum.finalize().to_le_bytes())
    }

    /// Reads the content of the page into `content`. An error of kind [`io::ErrorKind::InvalidData`] if the file holds
    /// another page, or is damaged.
    pub fn read(&self, mut from: impl Read, content: &mut Vec<u8>) -> io::Result<()> {
        let damaged = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        let expected = self.header();
        let mut header = Vec::with_capacity(expected.len());
        from.by_ref().take(expected.len() as u64).read_to_end(&mut header)?;
        if header != expected {
            return damaged("its header is not that of this page");
        }
        content.clear();
        // One more than expected, to notice a longer file.
        from.take(self.bytes + CHECKSUM as u64 + 1).read_to_end(content)?;
        if content.len() as u64 != self.bytes + CHECKSUM as u64 {
            return damaged("its length is wrong");
        }
        let end = content.len() - CHECKSUM;
        let mut checksum = Hasher::new();
        checksum.update(&header);
        checksum.update(&content[..end]);
        if checksum.finalize().to_le_bytes() != content[end..] {
            return damaged("its checksum is wrong");
        }
        content.truncate(end);
        Ok(())
    }
}
