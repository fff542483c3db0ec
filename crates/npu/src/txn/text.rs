//! Text forms of streams: hexadecimal words, and disassembly.

use std::fmt;

use super::{Op, Stream};
use crate::bytes::words_of;
use crate::error::{Error, Format, Result};
use crate::tile::Address;

/// The bytes of a text of hexadecimal words.
pub(super) fn parse(text: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut at = 0;
    for word in text.split(u8::is_ascii_whitespace) {
        if !word.is_empty() {
            let digits =
                std::str::from_utf8(word).ok().filter(|word| word.bytes().all(|b| b.is_ascii_hexdigit()));
            let Some(value) = digits.and_then(|word| u32::from_str_radix(word, 16).ok()) else {
                return Err(Error::malformed(Format::Txn, at, "a word that is not hexadecimal"));
            };
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        at += word.len() + 1;
    }
    Ok(bytes)
}

impl Stream {
    /// The text form: a word of eight hexadecimal digits per line.
    pub fn encode_text(&self) -> Result<String> {
        Ok(words_of(&self.encode()?).iter().map(|word| format!("{word:08X}\n")).collect())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tiles have 32-bit addresses; an address beyond is printed as a number.
        let place = |address: u64| match u32::try_from(address) {
            Ok(address) => Address::of(address).to_string(),
            Err(_) => format!("{address:#x}"),
        };
        match self {
            &Self::Write { address, value } => write!(f, "write       {} = {value:#010x}", place(address)),
            Self::BlockWrite { address, data } => {
                write!(f, "block_write {} =", Address::of(*address))?;
                data.iter().try_for_each(|word| write!(f, " {word:#010x}"))
            }
            &Self::MaskWrite { address, value, mask } => {
                write!(f, "mask_write  {} = {value:#010x} & {mask:#010x}", place(address))
            }
            &Self::MaskPoll { address, value, mask } => {
                write!(f, "mask_poll   {} & {mask:#010x} == {value:#010x}", place(address))
            }
            Self::Sync(sync) => {
                write!(f, "sync        {} {}{}", sync.place, sync.direction, sync.channel)?;
                match (sync.columns, sync.rows) {
                    (1, 1) => Ok(()),
                    (columns, rows) => write!(f, " of {columns} × {rows} tiles"),
                }
            }
            &Self::Patch { address, argument, offset } => {
                write!(f, "patch       {} = argument {argument} + {offset:#x}", place(address))
            }
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = self.header;
        let (major, minor) = header.version;
        writeln!(
            f,
            "; version {major}.{minor}, device {}, {} × {} tiles, {} instructions",
            header.device,
            header.columns,
            header.rows,
            self.instructions.len()
        )?;
        self.ops().enumerate().try_for_each(|(index, op)| writeln!(f, "{index:5}  {op}"))
    }
}
