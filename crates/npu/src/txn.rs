//! Transaction streams: what the NPU's controller does for one command.
//!
//! A stream is a header and a list of instructions: register writes, waits, and patches that put the address of a
//! command's buffer into a buffer descriptor. [`Stream::decode`] takes the binary form, or the text form that
//! mlir-aie also writes: a hexadecimal word per line. Printing a stream disassembles it.
//!
//! | opcode | instruction | bytes |
//! |---|---|---|
//! | 0 | [`Op::Write`] | 24 |
//! | 1 | [`Op::BlockWrite`] | 16 + data |
//! | 3 | [`Op::MaskWrite`] | 28 or 32 |
//! | 4 | [`Op::MaskPoll`] | 28 or 32 |
//! | 128 | [`Op::Sync`] | 16 |
//! | 129 | [`Op::Patch`] | 48 |
//!
//! Encoders leave garbage in undefined fields. It is preserved with the instruction, so that encoding a decoded stream
//! gives the same bytes.
//!
//! ```
//! use npu::txn::{Op, Stream};
//!
//! let stream = Stream::new(4, vec![Op::Write { address: 0x1_d214, value: 0x7_0000 }]);
//! assert_eq!(Stream::decode(&stream.encode()?)?, stream);
//! assert!(stream.to_string().contains("write       shim(0,0) mm2s0.queue = 0x00070000"));
//! # Ok::<(), npu::Error>(())
//! ```

mod codec;
mod text;

use crate::tile::{Direction, TilePlace};

/// The facts in a stream's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: (u8, u8),
    /// Generation of the device: 3 is XDNA1.
    pub device: u8,
    /// Rows of the array.
    pub rows: u8,
    /// Columns of the partition.
    pub columns: u8,
    /// Rows of memory tiles.
    pub memory_rows: u8,
    pub(crate) reserved: u16,
}

impl Header {
    /// The header of a stream for XDNA1.
    pub fn xdna1(columns: u8) -> Self {
        Self { version: (0, 1), device: 3, rows: 6, columns, memory_rows: 1, reserved: 0 }
    }
}

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Its header.
    pub header: Header,
    /// Its instructions in their order.
    pub instructions: Vec<Instruction>,
}

impl Stream {
    /// A stream for a partition of XDNA1.
    pub fn new(columns: u8, ops: Vec<Op>) -> Self {
        Self {
            header: Header::xdna1(columns),
            instructions: ops.into_iter().map(Instruction::from).collect(),
        }
    }

    /// What the instructions do.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.instructions.iter().map(|instruction| &instruction.op)
    }
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub op: Op,
    filler: Filler,
}

impl From<Op> for Instruction {
    fn from(op: Op) -> Self {
        Self { op, filler: Filler::default() }
    }
}

/// The bits of an encoded instruction that mean nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Filler {
    /// Index of a word, and its bits that are set without meaning.
    bits: Vec<(usize, u32)>,
    /// Whether a word follows that fills the structure to a multiple of eight bytes.
    padded: bool,
}

/// What an instruction does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a register.
    Write {
        /// Address of the register.
        address: u64,
        /// The value.
        value: u32,
    },
    /// Writes consecutive words.
    BlockWrite {
        /// Address of the first word.
        address: u32,
        /// The words.
        data: Vec<u32>,
    },
    /// Writes some bits of a register.
    MaskWrite {
        /// Address of the register.
        address: u64,
        /// The bits' value.
        value: u32,
        /// The bits that change.
        mask: u32,
    },
    /// Waits until some bits of a register have a value.
    MaskPoll {
        /// Address of the register.
        address: u64,
        /// The bits' value.
        value: u32,
        /// The bits that are compared.
        mask: u32,
    },
    /// Waits for a completion token of a DMA channel, in each tile of a rectangle.
    Sync(Sync),
    /// Writes the address of a command's buffer into a shim tile's buffer descriptor.
    Patch {
        /// Address of the descriptor's second word.
        address: u64,
        /// Number of the buffer among the command's arguments.
        argument: u64,
        /// Offset into the buffer in bytes.
        offset: u64,
    },
}

/// The tokens that [`Op::Sync`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sync {
    /// The first tile.
    pub place: TilePlace,
    /// Direction of the channel.
    pub direction: Direction,
    /// The channel.
    pub channel: u8,
    /// Columns of the rectangle.
    pub columns: u8,
    /// Rows of the rectangle.
    pub rows: u8,
}
