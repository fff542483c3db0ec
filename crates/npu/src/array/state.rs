//! The state of one tile, and what writes to its registers do.

use std::collections::VecDeque;

use super::core::{Core, CoreLibrary};
use super::descriptor::Condition;
use super::dma::{Active, MAX_LOCK};
use super::switch::Switch;
use super::{Fault, QUEUE_DEPTH};
use crate::tile::{Address, Direction, Register, TileKind, TilePlace};

/// A task of a DMA channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) descriptor: usize,
    /// Executions of the chain of descriptors.
    pub(super) times: u32,
    /// Whether a token announces its end.
    pub(super) token: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Channel {
    pub(super) control: u32,
    pub(super) queue: VecDeque<Task>,
    pub(super) active: Option<Active>,
}

impl Channel {
    fn uses(&self, descriptor: usize) -> bool {
        let active = self.active.as_ref().is_some_and(|active| active.uses(descriptor));
        active || self.queue.iter().any(|task| task.descriptor == descriptor)
    }

    pub(super) fn controller_id(&self) -> u32 {
        self.control >> 8 & 0xff
    }

    /// The status register: zero if there is nothing to do. Of what it does, only that it runs is modelled.
    fn status(&self) -> u32 {
        let running = u32::from(self.active.is_some());
        (self.queue.len() as u32) << 20 | running << 19 | running << 1
    }
}

#[derive(Debug, Clone)]
pub(super) struct Tile {
    pub(super) place: TilePlace,
    pub(super) memory: Vec<u32>,
    program: Vec<u32>,
    pub(super) locks: Vec<i32>,
    pub(super) descriptors: Vec<[u32; 8]>,
    s2mm: Vec<Channel>,
    mm2s: Vec<Channel>,
    pub(super) switch: Switch,
    core_control: u32,
    /// Whether the core can use the tile's registers.
    pub(super) has_bus: bool,
    /// Words of the cascade that come from the core to the north, and those that wait for the core to the south.
    pub(super) cascade_in: VecDeque<CascadeWord>,
    pub(super) cascade_out: VecDeque<CascadeWord>,
    pub(super) core: Option<Core>,
}

/// What the cascade moves at a time: half of an accumulator.
pub(super) type CascadeWord = [[u32; 8]; 2];

/// Words that a core's cascade holds in each direction. The number does not change results, only how far a core runs
/// ahead.
pub(super) const CASCADE_WORDS: usize = 4;

const CORE_ENABLE: u32 = 1;
const CORE_RESET: u32 = 2;
const CHANNEL_RESET: u32 = 2;
/// Controller id; and, outside shim tiles, reset and a bit without meaning.
const SHIM_CONTROL: u32 = 0xff00;
const TILE_CONTROL: u32 = 0xff03;

impl Tile {
    pub(super) fn new(place: TilePlace) -> Self {
        let kind = place.kind();
        let layout = kind.layout();
        Self {
            place,
            memory: vec![0; layout.memory as usize / 4],
            program: Vec::new(),
            locks: vec![0; layout.locks],
            descriptors: vec![[0; 8]; layout.bds],
            s2mm: vec![Channel::default(); layout.channels],
            mm2s: vec![Channel::default(); layout.channels],
            switch: Switch::new(kind),
            core_control: 0,
            has_bus: false,
            cascade_in: VecDeque::new(),
            cascade_out: VecDeque::new(),
            core: None,
        }
    }

    pub(super) fn kind(&self) -> TileKind {
        self.place.kind()
    }

    pub(super) fn channels(&self, direction: Direction) -> &[Channel] {
        match direction {
            Direction::S2mm => &self.s2mm,
            Direction::Mm2s => &self.mm2s,
        }
    }

    pub(super) fn channels_mut(&mut self, direction: Direction) -> &mut [Channel] {
        match direction {
            Direction::S2mm => &mut self.s2mm,
            Direction::Mm2s => &mut self.mm2s,
        }
    }

    pub(super) fn read(&self, address: Address) -> Result<u32, Fault> {
        let value = match address.register {
            Register::Memory { offset } => self.memory.get(offset as usize / 4).copied(),
            Register::Program { offset } => Some(self.program.get(offset as usize / 4).copied().unwrap_or(0)),
            Register::Descriptor { index, word } => self.descriptors.get(index).map(|words| words[word]),
            Register::ChannelControl { direction, channel } => {
                self.channels(direction).get(channel).map(|channel| channel.control)
            }
            Register::ChannelStatus { direction, channel } => {
                self.channels(direction).get(channel).map(Channel::status)
            }
            Register::Lock { index } => self.locks.get(index).map(|&value| value as u32),
            Register::Master { port } => self.switch.masters.get(port).copied(),
            Register::Slave { port } => self.switch.slaves.get(port).copied(),
            Register::Slot { port, slot } => self.switch.slots.get(port).map(|slots| slots[slot]),
            Register::ShimMux => Some(self.switch.mux),
            Register::ShimDemux => Some(self.switch.demux),
            Register::CoreControl => Some(self.core_control),
            Register::ProcessorBus => Some(u32::from(self.has_bus)),
            Register::Event { .. } => Some(0),
            // Reading a request changes a lock.
            Register::TaskQueue { .. }
            | Register::LockRequest { .. }
            | Register::CascadeControl
            | Register::Other => None,
        };
        value.ok_or(Fault::UnknownRegister(address))
    }

    /// What reading a request for a lock does; whether it was granted.
    pub(super) fn request(&mut self, index: usize, acquires: bool, amount: i32) -> Result<bool, Fault> {
        let place = self.place;
        let Some(lock) = self.locks.get_mut(index) else {
            return Err(Fault::LockOverflow { place, index });
        };
        if acquires {
            return Ok(Condition::of(amount).take(lock));
        }
        *lock += amount;
        if !(0..=MAX_LOCK).contains(lock) {
            return Err(Fault::LockOverflow { place, index });
        }
        Ok(true)
    }

    /// The register at an offset, for the tile's own core.
    fn core_register(&self, offset: u32) -> Result<Address, Fault> {
        let address = Address::of(self.place.address(offset));
        if !self.has_bus {
            let reason = "the core uses it while its processor bus is off";
            return Err(Fault::Value { address, value: 0, reason });
        }
        Ok(address)
    }

    /// A read by the tile's own core.
    pub(super) fn read_by_core(&self, offset: u32) -> Result<u32, Fault> {
        let address = self.core_register(offset)?;
        match address.register {
            Register::ChannelStatus { .. } | Register::Lock { .. } => self.read(address),
            _ => Err(Fault::UnknownRegister(address)),
        }
    }

    /// A write by the tile's own core.
    pub(super) fn write_by_core(&mut self, offset: u32, value: u32) -> Result<(), Fault> {
        let address = self.core_register(offset)?;
        match address.register {
            Register::Descriptor { .. } | Register::TaskQueue { .. } | Register::Lock { .. } => {
                self.write(address, value, &CoreLibrary::new())
            }
            _ => Err(Fault::UnknownRegister(address)),
        }
    }

    pub(super) fn write(&mut self, address: Address, value: u32, library: &CoreLibrary) -> Result<(), Fault> {
        let refuse = |reason| Err(Fault::Value { address, value, reason });
        match address.register {
            Register::Memory { offset } => self.memory[offset as usize / 4] = value,
            Register::Program { offset } => {
                let index = offset as usize / 4;
                if self.program.len() <= index {
                    self.program.resize(index + 1, 0);
                }
                self.program[index] = value;
            }
            Register::Descriptor { index, word } => {
                if self.s2mm.iter().chain(&self.mm2s).any(|channel| channel.uses(index)) {
                    return Err(Fault::DescriptorInUse { place: self.place, index });
                }
                self.descriptors[index][word] = value;
            }
            Register::ChannelControl { direction, channel } => {
                let known = if self.kind() == TileKind::Shim { SHIM_CONTROL } else { TILE_CONTROL };
                if value & !known != 0 {
                    return refuse("out-of-order, compressed and paused channels are not modelled");
                }
                let resets = self.kind() != TileKind::Shim && value & CHANNEL_RESET != 0;
                let channel = &mut self.channels_mut(direction)[channel];
                if resets {
                    *channel = Channel::default();
                }
                channel.control = value;
            }
            Register::TaskQueue { direction, channel } => self.push(direction, channel, address, value)?,
            Register::Lock { index } => {
                if value > 63 {
                    return refuse("a lock holds 0 to 63");
                }
                self.locks[index] = value as i32;
            }
            Register::Master { port } => self.switch.masters[port] = value,
            Register::Slave { port } => self.switch.slaves[port] = value,
            Register::Slot { port, slot } => self.switch.slots[port][slot] = value,
            Register::ShimMux => self.switch.mux = value,
            Register::ShimDemux => self.switch.demux = value,
            Register::CoreControl => {
                if value & !(CORE_ENABLE | CORE_RESET) != 0 {
                    return refuse("a core is enabled or reset");
                }
                if value & CORE_RESET != 0 {
                    self.core = None;
                } else if value & CORE_ENABLE != 0 && self.core.is_none() {
                    self.core = Some(library.core(self.place, &self.program)?);
                }
                self.core_control = value;
            }
            Register::ProcessorBus => match value {
                0 | 1 => self.has_bus = value == 1,
                _ => return refuse("the processor bus is on or off"),
            },
            Register::CascadeControl if value == 0 => {}
            Register::CascadeControl => return refuse("only cascades from north to south are modelled"),
            Register::Event { .. } => {}
            Register::ChannelStatus { .. } | Register::LockRequest { .. } | Register::Other => {
                return Err(Fault::UnknownRegister(address));
            }
        }
        Ok(())
    }

    fn push(
        &mut self,
        direction: Direction,
        channel: usize,
        address: Address,
        value: u32,
    ) -> Result<(), Fault> {
        let place = self.place;
        let refuse = |reason| Err(Fault::Value { address, value, reason });
        let mask = if self.kind() == TileKind::Memory { 0x3f } else { 0xf };
        if value & !(0x80ff_0000 | mask) != 0 {
            return refuse("a task has a descriptor, a repeat count and a token");
        }
        let descriptor = (value & mask) as usize;
        if !self.reaches(channel, descriptor) {
            return refuse("the channel cannot use this descriptor");
        }
        let queue = &mut self.channels_mut(direction)[channel].queue;
        if queue.len() >= QUEUE_DEPTH {
            return Err(Fault::QueueFull { place, direction, channel });
        }
        let times = (value >> 16 & 0xff) + 1;
        queue.push_back(Task { descriptor, times, token: value >> 31 != 0 });
        Ok(())
    }

    /// Whether a channel can use a descriptor. Those of memory tiles are split between even and odd channels.
    pub(super) fn reaches(&self, channel: usize, descriptor: usize) -> bool {
        let half = self.descriptors.len() / 2;
        match self.kind() {
            TileKind::Memory if channel.is_multiple_of(2) => descriptor < half,
            TileKind::Memory => (half..self.descriptors.len()).contains(&descriptor),
            _ => descriptor < self.descriptors.len(),
        }
    }
}
