//! Configuration data objects: the register writes that configure the tile array.
//!
//! A header of five words, then commands. A command's first word has its number in the lower and the length of its
//! payload in the upper half; from 255 words on, the length is in a word of its own.

use crate::bytes::{put_words, words_of};
use crate::error::{Error, Format, Result};

const HEADER: usize = 5;
const HEADER_VERSION: u32 = 4;
/// "CDO" and a zero.
const MAGIC: u32 = 0x004f_4443;
const VERSION: u32 = 0x200;

const MASK_WRITE: u16 = 0x102;
const WRITE: u16 = 0x103;
const DMA_WRITE: u16 = 0x105;
const NOP: u16 = 0x111;
/// A length in the first word that says that the next word has it.
const LONG: usize = 255;

/// The register writes of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cdo {
    /// The commands in their order.
    pub commands: Vec<CdoCommand>,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CdoCommand {
    /// Does nothing; its payload aligns the next command.
    Nop {
        /// Words to skip.
        payload: Vec<u32>,
    },
    /// Writes a register.
    Write {
        /// Address of the register.
        address: u32,
        /// The value.
        value: u32,
    },
    /// Writes some bits of a register.
    MaskWrite {
        /// Address of the register.
        address: u32,
        /// The bits that change.
        mask: u32,
        /// Their value.
        value: u32,
    },
    /// Writes consecutive words.
    DmaWrite {
        /// Address of the first word.
        address: u64,
        /// The words.
        data: Vec<u32>,
    },
    /// A command that this crate does not know.
    Other {
        /// Its number.
        id: u16,
        /// Its payload.
        payload: Vec<u32>,
    },
}

impl Cdo {
    /// A CDO of these commands.
    pub fn new(commands: Vec<CdoCommand>) -> Self {
        Self { commands }
    }

    /// Reads a CDO.
    pub fn decode(data: &[u8]) -> Result<Self> {
        if !data.len().is_multiple_of(4) {
            return Err(Error::malformed(Format::Cdo, data.len(), "the length is not a multiple of four"));
        }
        let words = words_of(data);
        let Some((header, mut rest)) = words.split_at_checked(HEADER) else {
            return Err(Error::malformed(Format::Cdo, 0, "it is shorter than its header"));
        };
        if header[..3] != [HEADER_VERSION, MAGIC, VERSION] {
            return Err(Error::malformed(Format::Cdo, 0, "its header is not that of version 2.0"));
        }
        if header[4] != checksum(&header[..4]) {
            return Err(Error::malformed(Format::Cdo, 16, "the checksum of its header is wrong"));
        }
        if header[3] as usize != rest.len() {
            let reason = format!("its header says {} words, and there are {}", header[3], rest.len());
            return Err(Error::malformed(Format::Cdo, 12, reason));
        }
        let mut commands = Vec::new();
        while !rest.is_empty() {
            let at = data.len() - 4 * rest.len();
            let (command, after) =
                decode_command(rest).map_err(|reason| Error::malformed(Format::Cdo, at, reason))?;
            commands.push(command);
            rest = after;
        }
        Ok(Self { commands })
    }

    /// The bytes of the CDO.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut words = Vec::new();
        for command in &self.commands {
            encode_command(command, &mut words)?;
        }
        let Ok(len) = u32::try_from(words.len()) else {
            return Err(Error::malformed(Format::Cdo, 12, format!("{} words", words.len())));
        };
        let mut header = [HEADER_VERSION, MAGIC, VERSION, len, 0];
        header[4] = checksum(&header[..4]);
        let mut out = Vec::with_capacity(4 * (HEADER + words.len()));
        put_words(&mut out, &header);
        put_words(&mut out, &words);
        Ok(out)
    }
}

fn checksum(words: &[u32]) -> u32 {
    !words.iter().fold(0, |sum: u32, &word| sum.wrapping_add(word))
}

fn decode_command(words: &[u32]) -> std::result::Result<(CdoCommand, &[u32]), String> {
    let Some((&first, mut rest)) = words.split_first() else { return Err("a command is missing".to_owned()) };
    let id = first as u16;
    let mut len = (first >> 16 & 0xff) as usize;
    if first >> 24 != 0 {
        return Err(format!("{first:#010x} does not begin a command"));
    }
    if len == LONG {
        let Some((&long, after)) = rest.split_first() else { return Err("a length is missing".to_owned()) };
        if (long as usize) < LONG {
            return Err(format!("a length of {long} in long form"));
        }
        (len, rest) = (long as usize, after);
    }
    let Some((payload, rest)) = rest.split_at_checked(len) else {
        return Err(format!("command {id:#x} has {len} words, and {} are left", rest.len()));
    };
    let command = match (id, payload) {
        (NOP, payload) => CdoCommand::Nop { payload: payload.to_vec() },
        (WRITE, &[address, value]) => CdoCommand::Write { address, value },
        (MASK_WRITE, &[address, mask, value]) => CdoCommand::MaskWrite { address, mask, value },
        (DMA_WRITE, &[high, low, ref data @ ..]) => {
            CdoCommand::DmaWrite { address: u64::from(high) << 32 | u64::from(low), data: data.to_vec() }
        }
        (WRITE | MASK_WRITE | DMA_WRITE, payload) => {
            return Err(format!("command {id:#x} with {} words", payload.len()));
        }
        (id, payload) => CdoCommand::Other { id, payload: payload.to_vec() },
    };
    Ok((command, rest))
}

fn encode_command(command: &CdoCommand, out: &mut Vec<u32>) -> Result<()> {
    let (id, head, data): (u16, &[u32], &[u32]) = match command {
        CdoCommand::Nop { payload } => (NOP, &[], payload),
        CdoCommand::Write { address, value } => (WRITE, &[*address, *value], &[]),
        CdoCommand::MaskWrite { address, mask, value } => (MASK_WRITE, &[*address, *mask, *value], &[]),
        CdoCommand::DmaWrite { address, data } => {
            (DMA_WRITE, &[(*address >> 32) as u32, *address as u32], data)
        }
        CdoCommand::Other { id, payload } => (*id, &[], payload),
    };
    let len = head.len() + data.len();
    if len < LONG {
        out.push(u32::from(id) | (len as u32) << 16);
    } else {
        let Ok(long) = u32::try_from(len) else {
            return Err(Error::malformed(Format::Cdo, 4 * out.len(), format!("a command of {len} words")));
        };
        out.extend_from_slice(&[u32::from(id) | (LONG as u32) << 16, long]);
    }
    out.extend_from_slice(head);
    out.extend_from_slice(data);
    Ok(())
}
