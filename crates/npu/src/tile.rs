//! Addresses of the tile array, and the registers behind them.
//!
//! An address has the column from bit 25 on, the row in bits 20 to 24 and the offset in the tile below. On XDNA1, row
//! 0 has shim tiles (DMA to the host's memory), row 1 memory tiles (512 KiB), and rows 2 to 5 cores (64 KiB each).

use std::fmt;

/// Rows of the array.
pub const ROWS: usize = 6;
/// The first row with cores.
pub const FIRST_CORE_ROW: usize = 2;

/// Bytes of a core tile's data memory.
pub const CORE_MEMORY: u32 = 64 << 10;
/// Bytes of a memory tile.
pub const MEMORY_TILE_MEMORY: u32 = 512 << 10;
/// Bytes of a core's program memory.
pub const PROGRAM_MEMORY: u32 = 16 << 10;

const PROGRAM_AT: u32 = 0x2_0000;
const CORE_CONTROL_AT: u32 = 0x3_2000;
const PROCESSOR_BUS_AT: u32 = 0x3_2038;
const CASCADE_CONTROL_AT: u32 = 0x3_6060;
const SHIM_MUX_AT: u32 = 0x1_f000;
const SHIM_DEMUX_AT: u32 = 0x1_f004;

/// A tile by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TilePlace {
    /// Column, counted from the start of the partition.
    pub column: u8,
    /// Row.
    pub row: u8,
}

impl TilePlace {
    /// Its kind, by its row.
    pub fn kind(self) -> TileKind {
        match self.row {
            0 => TileKind::Shim,
            1 => TileKind::Memory,
            _ => TileKind::Core,
        }
    }

    /// The address of `offset` in this tile.
    pub fn address(self, offset: u32) -> u32 {
        u32::from(self.column) << 25 | u32::from(self.row & 0x1f) << 20 | offset & 0xf_ffff
    }
}

impl fmt::Display for TilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            TileKind::Shim => "shim",
            TileKind::Memory => "memory",
            TileKind::Core => "core",
        };
        write!(f, "{kind}({},{})", self.column, self.row)
    }
}

/// Kind of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileKind {
    /// DMA between the array and the host's memory.
    Shim,
    /// Memory with DMA.
    Memory,
    /// A core with memory and DMA.
    Core,
}

/// Direction of a DMA channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From a stream to memory.
    S2mm,
    /// From memory to a stream.
    Mm2s,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::S2mm => "s2mm",
            Self::Mm2s => "mm2s",
        })
    }
}

/// How many of its parts a tile has, and where their registers are.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) memory: u32,
    pub(crate) bds: usize,
    pub(crate) bd_words: usize,
    pub(crate) locks: usize,
    /// DMA channels in each direction.
    pub(crate) channels: usize,
    pub(crate) masters: usize,
    pub(crate) slaves: usize,
    bd_at: u32,
    s2mm_at: u32,
    mm2s_at: u32,
    s2mm_status_at: u32,
    mm2s_status_at: u32,
    locks_at: u32,
    /// Registers that ask for a lock when they are read: one per lock, direction and amount.
    requests_at: Option<u32>,
    switch_at: u32,
    /// Events, their broadcasts and interrupts, from and to.
    events: &'static [(u32, u32)],
}

impl TileKind {
    pub(crate) fn layout(self) -> &'static Layout {
        match self {
            Self::Shim => &Layout {
                memory: 0,
                bds: 16,
                bd_words: 8,
                locks: 16,
                channels: 2,
                masters: 22,
                slaves: 23,
                bd_at: 0x1_d000,
                s2mm_at: 0x1_d200,
                mm2s_at: 0x1_d210,
                s2mm_status_at: 0x1_d220,
                mm2s_status_at: 0x1_d228,
                locks_at: 0x1_4000,
                requests_at: None,
                switch_at: 0x3_f000,
                events: &[(0x1_5000, 0x1_5014), (0x3_4000, 0x3_4600), (0x3_5000, 0x3_5054)],
            },
            Self::Memory => &Layout {
                memory: MEMORY_TILE_MEMORY,
                bds: 48,
                bd_words: 8,
                locks: 64,
                channels: 6,
                masters: 17,
                slaves: 18,
                bd_at: 0xa_0000,
                s2mm_at: 0xa_0600,
                mm2s_at: 0xa_0630,
                s2mm_status_at: 0xa_0660,
                mm2s_status_at: 0xa_0680,
                locks_at: 0xc_0000,
                requests_at: Some(0xd_0000),
                switch_at: 0xb_0000,
                events: &[(0x9_4000, 0x9_4600)],
            },
            Self::Core => &Layout {
                memory: CORE_MEMORY,
                bds: 16,
                bd_words: 6,
                locks: 16,
                channels: 2,
                masters: 23,
                slaves: 25,
                bd_at: 0x1_d000,
                s2mm_at: 0x1_de00,
                mm2s_at: 0x1_de10,
                s2mm_status_at: 0x1_df00,
                mm2s_status_at: 0x1_df10,
                locks_at: 0x1_f000,
                requests_at: Some(0x4_0000),
                switch_at: 0x3_f000,
                // Of the core, those that stop it after an error.
                events: &[(0x1_4000, 0x1_4600), (0x3_2034, 0x3_2038), (0x3_4000, 0x3_4600)],
            },
        }
    }
}

/// A register of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// A word of the data memory.
    Memory {
        /// Its byte offset.
        offset: u32,
    },
    /// A word of the core's program.
    Program {
        /// Its byte offset.
        offset: u32,
    },
    /// A word of a buffer descriptor.
    Descriptor {
        /// The descriptor.
        index: usize,
        /// The word.
        word: usize,
    },
    /// Control of a DMA channel.
    ChannelControl {
        /// Its direction.
        direction: Direction,
        /// Its number.
        channel: usize,
    },
    /// Task queue of a DMA channel.
    TaskQueue {
        /// Its direction.
        direction: Direction,
        /// Its number.
        channel: usize,
    },
    /// State of a DMA channel.
    ChannelStatus {
        /// Its direction.
        direction: Direction,
        /// Its number.
        channel: usize,
    },
    /// Value of a lock.
    Lock {
        /// The lock.
        index: usize,
    },
    /// Asks for a lock when it is read, and answers one if it got it.
    LockRequest {
        /// The lock.
        index: usize,
        /// Whether it is acquired; otherwise it is released.
        acquires: bool,
        /// The amount. Below zero, an acquisition waits for at least that much and takes it.
        amount: i32,
    },
    /// Output port of the stream switch.
    Master {
        /// The port.
        port: usize,
    },
    /// Input port of the stream switch.
    Slave {
        /// The port.
        port: usize,
    },
    /// Packet rule of an input port.
    Slot {
        /// The port.
        port: usize,
        /// The rule.
        slot: usize,
    },
    /// What feeds the stream switch of a shim tile from below.
    ShimMux,
    /// Where the stream switch of a shim tile leads below.
    ShimDemux,
    /// Reset and enable of a core.
    CoreControl,
    /// Whether a core can use the registers of its tile.
    ProcessorBus,
    /// Where a core's cascade comes from and leads to.
    CascadeControl,
    /// Events, broadcasts and interrupts.
    Event {
        /// Its byte offset.
        offset: u32,
    },
    /// A register that this crate has no use for.
    Other,
}

/// The index of `offset` in `count` records of `stride` bytes from `base` on, and the byte in the record.
fn record(offset: u32, base: u32, stride: u32, count: usize) -> Option<(usize, u32)> {
    let from = offset.checked_sub(base)?;
    let index = (from / stride) as usize;
    (index < count).then_some((index, from % stride))
}

impl Register {
    /// The register at `offset` in a tile of `kind`.
    pub fn at(kind: TileKind, offset: u32) -> Self {
        let layout = kind.layout();
        if !offset.is_multiple_of(4) {
            return Self::Other;
        }
        if offset < layout.memory {
            return Self::Memory { offset };
        }
        if let Some((index, byte)) = record(offset, layout.bd_at, 0x20, layout.bds) {
            let word = (byte / 4) as usize;
            return if word < layout.bd_words { Self::Descriptor { index, word } } else { Self::Other };
        }
        for (direction, base) in [(Direction::S2mm, layout.s2mm_at), (Direction::Mm2s, layout.mm2s_at)] {
            if let Some((channel, byte)) = record(offset, base, 8, layout.channels) {
                return match byte {
                    0 => Self::ChannelControl { direction, channel },
                    _ => Self::TaskQueue { direction, channel },
                };
            }
        }
        for (direction, base) in
            [(Direction::S2mm, layout.s2mm_status_at), (Direction::Mm2s, layout.mm2s_status_at)]
        {
            if let Some((channel, _)) = record(offset, base, 4, layout.channels) {
                return Self::ChannelStatus { direction, channel };
            }
        }
        if let Some(base) = layout.requests_at
            && let Some((index, byte)) = record(offset, base, 0x400, layout.locks)
        {
            let amount = (byte >> 2 & 0x7f) as i32;
            let amount = if amount < 0x40 { amount } else { amount - 0x80 };
            return Self::LockRequest { index, acquires: byte & 0x200 != 0, amount };
        }
        if layout.events.iter().any(|&(from, to)| (from..to).contains(&offset)) {
            return Self::Event { offset };
        }
        if let Some((index, byte)) = record(offset, layout.locks_at, 0x10, layout.locks)
            // The multiplexers of shim tiles are at no lock, but a core's locks are where shims have multiplexers.
            && byte == 0
        {
            return Self::Lock { index };
        }
        let switch = layout.switch_at;
        if let Some((port, _)) = record(offset, switch, 4, layout.masters) {
            return Self::Master { port };
        }
        if let Some((port, _)) = record(offset, switch + 0x100, 4, layout.slaves) {
            return Self::Slave { port };
        }
        if let Some((port, byte)) = record(offset, switch + 0x200, 0x10, layout.slaves) {
            return Self::Slot { port, slot: (byte / 4) as usize };
        }
        match (kind, offset) {
            (TileKind::Shim, SHIM_MUX_AT) => Self::ShimMux,
            (TileKind::Shim, SHIM_DEMUX_AT) => Self::ShimDemux,
            (TileKind::Core, CORE_CONTROL_AT) => Self::CoreControl,
            (TileKind::Core, PROCESSOR_BUS_AT) => Self::ProcessorBus,
            (TileKind::Core, CASCADE_CONTROL_AT) => Self::CascadeControl,
            (TileKind::Core, PROGRAM_AT..) if offset - PROGRAM_AT < PROGRAM_MEMORY => {
                Self::Program { offset: offset - PROGRAM_AT }
            }
            _ => Self::Other,
        }
    }

    /// The offset of this register in a tile of `kind`; `None` if tiles of that kind do not have it.
    pub fn offset(self, kind: TileKind) -> Option<u32> {
        let layout = kind.layout();
        let queue = |direction| match direction {
            Direction::S2mm => layout.s2mm_at,
            Direction::Mm2s => layout.mm2s_at,
        };
        let offset = match self {
            Self::Memory { offset } => offset,
            Self::Program { offset } => PROGRAM_AT + offset,
            Self::Descriptor { index, word } => layout.bd_at + 0x20 * index as u32 + 4 * word as u32,
            Self::ChannelControl { direction, channel } => queue(direction) + 8 * channel as u32,
            Self::TaskQueue { direction, channel } => queue(direction) + 8 * channel as u32 + 4,
            Self::ChannelStatus { direction: Direction::S2mm, channel } => {
                layout.s2mm_status_at + 4 * channel as u32
            }
            Self::ChannelStatus { direction: Direction::Mm2s, channel } => {
                layout.mm2s_status_at + 4 * channel as u32
            }
            Self::Lock { index } => layout.locks_at + 0x10 * index as u32,
            Self::LockRequest { index, acquires, amount } => {
                let request = 0x400 * index as u32 + 0x200 * u32::from(acquires) + 4 * (amount as u32 & 0x7f);
                layout.requests_at? + request
            }
            Self::Master { port } => layout.switch_at + 4 * port as u32,
            Self::Slave { port } => layout.switch_at + 0x100 + 4 * port as u32,
            Self::Slot { port, slot } => layout.switch_at + 0x200 + 0x10 * port as u32 + 4 * slot as u32,
            Self::ShimMux => SHIM_MUX_AT,
            Self::ShimDemux => SHIM_DEMUX_AT,
            Self::CoreControl => CORE_CONTROL_AT,
            Self::ProcessorBus => PROCESSOR_BUS_AT,
            Self::CascadeControl => CASCADE_CONTROL_AT,
            Self::Event { offset } => offset,
            Self::Other => return None,
        };
        (Self::at(kind, offset) == self).then_some(offset)
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { offset } => write!(f, "memory[{offset:#x}]"),
            Self::Program { offset } => write!(f, "program[{offset:#x}]"),
            Self::Descriptor { index, word } => write!(f, "bd{index}.{word}"),
            Self::ChannelControl { direction, channel } => write!(f, "{direction}{channel}.control"),
            Self::TaskQueue { direction, channel } => write!(f, "{direction}{channel}.queue"),
            Self::ChannelStatus { direction, channel } => write!(f, "{direction}{channel}.status"),
            Self::Lock { index } => write!(f, "lock{index}"),
            Self::LockRequest { index, acquires: true, amount } => write!(f, "lock{index}.acquire({amount})"),
            Self::LockRequest { index, acquires: false, amount } => {
                write!(f, "lock{index}.release({amount})")
            }
            Self::Master { port } => write!(f, "master{port}"),
            Self::Slave { port } => write!(f, "slave{port}"),
            Self::Slot { port, slot } => write!(f, "slave{port}.slot{slot}"),
            Self::ShimMux => f.write_str("mux"),
            Self::ShimDemux => f.write_str("demux"),
            Self::CoreControl => f.write_str("core.control"),
            Self::ProcessorBus => f.write_str("core.bus"),
            Self::CascadeControl => f.write_str("core.cascade"),
            Self::Event { offset } => write!(f, "event[{offset:#x}]"),
            Self::Other => f.write_str("register"),
        }
    }
}

/// A decoded address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The tile.
    pub place: TilePlace,
    /// The offset in the tile.
    pub offset: u32,
    /// The register there.
    pub register: Register,
}

impl Address {
    /// Decodes `address`.
    pub fn of(address: u32) -> Self {
        let place = TilePlace { column: (address >> 25) as u8, row: (address >> 20 & 0x1f) as u8 };
        let offset = address & 0xf_ffff;
        Self { place, offset, register: Register::at(place.kind(), offset) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.register {
            Register::Other => write!(f, "{} {:#07x}", self.place, self.offset),
            register => write!(f, "{} {register}", self.place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_is_found_at_its_own_offset() {
        let mut known = 0;
        for kind in [TileKind::Shim, TileKind::Memory, TileKind::Core] {
            for offset in (0..0x10_0000).step_by(4) {
                match Register::at(kind, offset) {
                    Register::Other => {}
                    register => {
                        known += 1;
                        assert_eq!(register.offset(kind), Some(offset), "{kind:?} {register}");
                    }
                }
            }
        }
        // Memory, programs, descriptors, channels, locks, ports and packet rules, multiplexers, core control.
        let memory = (512 + 64 + 16) * 256;
        let descriptors = 16 * 8 + 48 * 8 + 16 * 6;
        let channels = 2 * 2 * (2 + 6 + 2);
        let locks = 16 + 64 + 16;
        let ports = (22 + 5 * 23) + (17 + 5 * 18) + (23 + 5 * 25);
        let statuses = 2 * (2 + 6 + 2);
        let requests = (64 + 16) * 256;
        let events = 5 + 4 * 0x180 + 0x54 / 4 + 1;
        let rest = 2 + 3;
        let descriptors = descriptors + statuses;
        assert_eq!(known, memory + descriptors + channels + locks + requests + events + ports + rest);
    }

    #[test]
    fn addresses_of_the_public_overlays() {
        let cases = [
            (0x0001_d214, "shim(0,0) mm2s0.queue"),
            (0x0201_d204, "shim(1,0) s2mm0.queue"),
            (0x0001_d044, "shim(0,0) bd2.1"),
            (0x001a_0634, "memory(0,1) mm2s0.queue"),
            (0x001c_00a0, "memory(0,1) lock10"),
            (0x0023_f154, "core(0,2) slave21"),
            (0x0003_f200, "shim(0,0) slave0.slot0"),
            (0x0652_0000, "core(3,5) program[0x0]"),
            (0x0023_2000, "core(0,2) core.control"),
            (0x0001_f004, "shim(0,0) demux"),
            // The following are AMD's.
            (0x0024_3bfc, "core(0,2) lock14.acquire(-1)"),
            (0x0024_3c04, "core(0,2) lock15.release(1)"),
            (0x061d_0604, "memory(3,1) lock1.acquire(1)"),
            (0x0801_d220, "shim(4,0) s2mm0.status"),
            (0x061a_0684, "memory(3,1) mm2s1.status"),
            (0x0023_2038, "core(0,2) core.bus"),
            (0x0023_6060, "core(0,2) core.cascade"),
            (0x0019_40c0, "memory(0,1) event[0x940c0]"),
        ];
        for (address, text) in cases {
            assert_eq!(Address::of(address).to_string(), text);
        }
    }
}
