//! Binary form of streams.

use super::{Filler, Header, Instruction, Op, Stream, Sync};
use crate::bytes::{Bytes, put_words};
use crate::error::{Error, Format, Result};
use crate::tile::{Direction, TilePlace};

const HEADER: usize = 16;

const WRITE: u32 = 0;
const BLOCK_WRITE: u32 = 1;
const MASK_WRITE: u32 = 3;
const MASK_POLL: u32 = 4;
const SYNC: u32 = 128;
const PATCH: u32 = 129;

fn malformed(offset: usize, reason: impl Into<String>) -> Error {
    Error::malformed(Format::Txn, offset, reason)
}

impl Stream {
    /// Reads a stream, in binary or in text form.
    pub fn decode(data: &[u8]) -> Result<Self> {
        // The text form begins with a hexadecimal digit, the binary form with a major version below 32.
        match data.first() {
            Some(b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F' | b' ' | b'\n' | b'\r' | b'\t') => {
                Self::decode_binary(&super::text::parse(data)?)
            }
            _ => Self::decode_binary(data),
        }
    }

    fn decode_binary(data: &[u8]) -> Result<Self> {
        let bytes = Bytes::new(Format::Txn, data);
        let [major, minor, device, rows, columns, memory_rows] = bytes.array(0)?;
        let header =
            Header { version: (major, minor), device, rows, columns, memory_rows, reserved: bytes.u16(6)? };
        if header.version != (0, 1) {
            return Err(Error::unsupported(Format::Txn, format!("version {major}.{minor}")));
        }
        let (count, size) = (bytes.u32(8)?, bytes.u32(12)?);
        if size as usize != data.len() {
            return Err(malformed(12, format!("the header says {size} bytes, and there are {}", data.len())));
        }
        let mut instructions = Vec::new();
        let mut at = HEADER;
        while at < data.len() {
            let (instruction, len) = decode_instruction(&bytes, at)?;
            instructions.push(instruction);
            at += len;
        }
        if instructions.len() != count as usize {
            let reason =
                format!("the header says {count} instructions, and there are {}", instructions.len());
            return Err(malformed(8, reason));
        }
        Ok(Self { header, instructions })
    }

    /// The binary form.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = vec![0; HEADER];
        for instruction in &self.instructions {
            let words = encode_instruction(instruction, out.len())?;
            put_words(&mut out, &words);
        }
        let (Ok(count), Ok(size)) = (u32::try_from(self.instructions.len()), u32::try_from(out.len())) else {
            return Err(malformed(8, "a stream of more than 4 GiB"));
        };
        let Header { version: (major, minor), device, rows, columns, memory_rows, reserved } = self.header;
        out[..6].copy_from_slice(&[major, minor, device, rows, columns, memory_rows]);
        out[6..8].copy_from_slice(&reserved.to_le_bytes());
        out[8..12].copy_from_slice(&count.to_le_bytes());
        out[12..16].copy_from_slice(&size.to_le_bytes());
        Ok(out)
    }
}

fn decode_instruction(bytes: &Bytes<'_>, at: usize) -> Result<(Instruction, usize)> {
    let opcode = u32::from(bytes.u8(at)?);
    // Where the instruction has its size in bytes.
    let size_at = match opcode {
        WRITE => 20,
        BLOCK_WRITE => 12,
        MASK_WRITE | MASK_POLL => 24,
        SYNC | PATCH => 4,
        other => return Err(Error::unsupported(Format::Txn, format!("opcode {other} (byte {at:#x})"))),
    };
    let size = bytes.u32(at + size_at)? as usize;
    let sizes: &[usize] = match opcode {
        WRITE => &[24],
        MASK_WRITE | MASK_POLL => &[28, 32],
        SYNC => &[16],
        PATCH => &[48],
        _ => &[],
    };
    let fits =
        if opcode == BLOCK_WRITE { size >= 16 && size.is_multiple_of(4) } else { sizes.contains(&size) };
    if !fits {
        return Err(malformed(at, format!("an instruction of opcode {opcode} with {size} bytes")));
    }
    let words = bytes.words(at, size / 4)?;
    let pair = |index: usize| u64::from(words[index]) | u64::from(words[index + 1]) << 32;
    let op = match opcode {
        WRITE => Op::Write { address: pair(2), value: words[4] },
        BLOCK_WRITE => Op::BlockWrite { address: words[2], data: words[4..].to_vec() },
        MASK_WRITE => Op::MaskWrite { address: pair(2), value: words[4], mask: words[5] },
        MASK_POLL => Op::MaskPoll { address: pair(2), value: words[4], mask: words[5] },
        SYNC => Op::Sync(decode_sync(words[2], words[3], at)?),
        _ => Op::Patch { address: pair(6), argument: pair(8), offset: pair(10) },
    };
    let filler = Filler { bits: Vec::new(), padded: matches!(opcode, MASK_WRITE | MASK_POLL) && size == 32 };
    let mut instruction = Instruction { op, filler };
    let plain = encode_instruction(&instruction, at)?;
    for (index, (word, plain)) in words.iter().zip(&plain).enumerate() {
        if word != plain {
            instruction.filler.bits.push((index, word ^ plain));
        }
    }
    Ok((instruction, size))
}

fn decode_sync(first: u32, second: u32, at: usize) -> Result<Sync> {
    let [direction, row, column, _] = first.to_le_bytes();
    let [_, rows, columns, channel] = second.to_le_bytes();
    let direction = match direction {
        0 => Direction::S2mm,
        1 => Direction::Mm2s,
        other => return Err(malformed(at + 8, format!("a DMA channel of direction {other}"))),
    };
    Ok(Sync { place: TilePlace { column, row }, direction, channel, columns, rows })
}

fn encode_instruction(instruction: &Instruction, at: usize) -> Result<Vec<u32>> {
    let (low, high) = (|value: u64| value as u32, |value: u64| (value >> 32) as u32);
    let mut words = match &instruction.op {
        &Op::Write { address, value } => vec![WRITE, 0, low(address), high(address), value, 24],
        Op::BlockWrite { address, data } => {
            let Some(size) = data.len().checked_mul(4).and_then(|size| u32::try_from(size + 16).ok()) else {
                return Err(malformed(at, format!("a block of {} words", data.len())));
            };
            let mut words = vec![BLOCK_WRITE, 0, *address, size];
            words.extend_from_slice(data);
            words
        }
        &Op::MaskWrite { address, value, mask } => {
            vec![MASK_WRITE, 0, low(address), high(address), value, mask, 28]
        }
        &Op::MaskPoll { address, value, mask } => {
            vec![MASK_POLL, 0, low(address), high(address), value, mask, 28]
        }
        Op::Sync(sync) => {
            let direction = match sync.direction {
                Direction::S2mm => 0,
                Direction::Mm2s => 1,
            };
            let first = [direction, sync.place.row, sync.place.column, 0];
            let second = [0, sync.rows, sync.columns, sync.channel];
            vec![SYNC, 16, u32::from_le_bytes(first), u32::from_le_bytes(second)]
        }
        &Op::Patch { address, argument, offset } => {
            let mut words = vec![PATCH, 48, 0, 0, 0, 0];
            for value in [address, argument, offset] {
                words.extend_from_slice(&[low(value), high(value)]);
            }
            words
        }
    };
    if instruction.filler.padded
        && let Some(size) = words.last_mut()
    {
        *size = 32;
        words.push(0);
    }
    for &(index, bits) in &instruction.filler.bits {
        if let Some(word) = words.get_mut(index) {
            *word ^= bits;
        }
    }
    Ok(words)
}
