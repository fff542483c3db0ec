//! A model of the tile array, by behaviour: it runs an overlay's configuration and a stream on the CPU.
//!
//! | part | modelled |
//! |---|---|
//! | stream switches | circuits with branches; packet rules for completion tokens only |
//! | DMA | task queues, chains of buffer descriptors, dimensions, iteration, repeat counts, tokens |
//! | locks | acquire (at least n, or exactly n) and release, of a memory tile's neighbours too |
//! | memory | of core and memory tiles, and the host's |
//! | cores | by function, for programs known by SHA-256, or by their instructions ([`CoreLibrary`]) |
//! | cascades | of interpreted cores, from north to south |
//!
//! Not modelled: time, packets with data, zero padding, and events, whose registers are written without effect. What
//! else is not modelled is a [`Fault`], never ignored. A stream that waits for something that cannot happen is a
//! [`Fault::Hang`] with the channels that are blocked.
//!
//! Channels and cores are scheduled round-robin. [`Array::with_seed`] starves one of them, which then runs only when
//! all others are stalled. A correct configuration gives the same result in every schedule; one whose locks admit too
//! much does not.
//!
//! The model follows public descriptions of the registers and the public overlays. It has not been compared with
//! hardware by us.

mod core;
mod descriptor;
mod dma;
mod fault;
mod host;
mod interpreter;
mod scheduler;
mod state;
pub(crate) mod switch;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub use self::core::{CoreLibrary, GemmKernel, PingPong};
pub use fault::Fault;
pub use host::HostMemory;

use crate::tile::{Address, Direction, FIRST_CORE_ROW, ROWS, Register, TileKind, TilePlace};
use crate::txn::{Op, Stream, Sync};
use crate::xclbin::{Cdo, CdoCommand};
use dma::{ChannelPlace, FIFO_WORDS};
use scheduler::Scheduler;
use state::{CASCADE_WORDS, Tile};
use switch::follow;

/// Tasks that wait in a channel's queue.
const QUEUE_DEPTH: usize = 4;
/// Far more rounds than the largest product takes.
const DEFAULT_LIMIT: u64 = 1 << 32;
/// Channels in each direction of the tiles that have most.
const MAX_CHANNELS: usize = 6;

/// A configured partition.
#[derive(Debug, Clone)]
pub struct Array {
    columns: u8,
    tiles: Vec<Tile>,
    library: CoreLibrary,
    /// Input FIFO of each S2MM channel.
    inputs: Vec<VecDeque<u32>>,
    /// Ends of the route of each MM2S channel, once it has been followed.
    routes: Vec<Option<Arc<[usize]>>>,
    tokens: BTreeMap<(TilePlace, Direction, usize), u32>,
    processes: Vec<Process>,
    scheduler: Scheduler,
    /// Rounds that a stream may take.
    limit: u64,
    /// Rounds that the current stream has left.
    left: u64,
}

/// A process: something that runs by itself.
#[derive(Debug, Clone, Copy)]
enum Process {
    Channel(ChannelPlace),
    Core(usize),
}

impl Array {
    /// A partition of `columns` columns with the configuration `cdo`.
    pub fn load(columns: u8, cdo: &Cdo, library: CoreLibrary) -> Result<Self, Fault> {
        let places =
            (0..columns).flat_map(|column| (0..ROWS as u8).map(move |row| TilePlace { column, row }));
        let tiles: Vec<Tile> = places.map(Tile::new).collect();
        let processes = processes(&tiles);
        let inputs = vec![VecDeque::with_capacity(FIFO_WORDS); tiles.len() * MAX_CHANNELS];
        let routes = vec![None; inputs.len()];
        let tokens = BTreeMap::new();
        let (scheduler, limit) = (Scheduler::fair(processes.len()), DEFAULT_LIMIT);
        let mut array = Self {
            columns,
            tiles,
            library,
            inputs,
            routes,
            tokens,
            processes,
            scheduler,
            limit,
            left: limit,
        };
        for command in &cdo.commands {
            array.configure(command)?;
        }
        Ok(array)
    }

    /// Starves one channel or core: consecutive seeds choose consecutive ones.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.scheduler = Scheduler::starving(self.processes.len(), seed);
        self
    }

    /// Sets the maximum number of rounds per stream. In a round, each channel and core runs once.
    #[must_use]
    pub fn with_limit(mut self, rounds: u64) -> Self {
        self.limit = rounds;
        self
    }

    fn configure(&mut self, command: &CdoCommand) -> Result<(), Fault> {
        match command {
            CdoCommand::Nop { .. } => Ok(()),
            &CdoCommand::Write { address, value } => self.write(u64::from(address), value),
            &CdoCommand::MaskWrite { address, mask, value } => {
                self.mask_write(u64::from(address), mask, value)
            }
            CdoCommand::DmaWrite { address, data } => self.block_write(*address, data),
            CdoCommand::Other { id, .. } => Err(Fault::UnknownCommand(*id)),
        }
    }

    /// Runs a stream to its end.
    pub fn run(&mut self, stream: &Stream, host: &mut HostMemory) -> Result<(), Fault> {
        self.left = self.limit;
        for op in stream.ops() {
            match op {
                &Op::Write { address, value } => self.write(address, value)?,
                Op::BlockWrite { address, data } => self.block_write(u64::from(*address), data)?,
                &Op::MaskWrite { address, value, mask } => self.mask_write(address, mask, value)?,
                &Op::MaskPoll { address, value, mask } => {
                    let (at, tile) = self.locate(address)?;
                    check_poll(at, value, mask)?;
                    self.wait(host, &op.to_string(), |array| {
                        let tile = &mut array.tiles[tile];
                        let found = match at.register {
                            Register::LockRequest { index, acquires, amount } => {
                                u32::from(tile.request(index, acquires, amount)?)
                            }
                            _ => tile.read(at)?,
                        };
                        Ok(found & mask == value)
                    })?;
                }
                Op::Sync(sync) => self.sync(sync, host)?,
                &Op::Patch { address, argument, offset } => self.patch(address, argument, offset, host)?,
            }
        }
        while self.advance(host)? {}
        self.check_idle()
    }

    fn index(&self, place: TilePlace) -> Option<usize> {
        let inside = place.column < self.columns && usize::from(place.row) < ROWS;
        inside.then(|| usize::from(place.column) * ROWS + usize::from(place.row))
    }

    fn locate(&self, address: u64) -> Result<(Address, usize), Fault> {
        let at = u32::try_from(address).map(Address::of).map_err(|_| Fault::NoTile(address))?;
        Ok((at, self.index(at.place).ok_or(Fault::NoTile(address))?))
    }

    fn write(&mut self, address: u64, value: u32) -> Result<(), Fault> {
        let (at, tile) = self.locate(address)?;
        if matches!(
            at.register,
            Register::Master { .. } | Register::Slave { .. } | Register::ShimMux | Register::ShimDemux
        ) {
            self.routes.fill(None);
        }
        self.tiles[tile].write(at, value, &self.library)
    }

    fn mask_write(&mut self, address: u64, mask: u32, value: u32) -> Result<(), Fault> {
        let (at, tile) = self.locate(address)?;
        let old = self.tiles[tile].read(at)?;
        self.write(address, old & !mask | value & mask)
    }

    fn block_write(&mut self, address: u64, data: &[u32]) -> Result<(), Fault> {
        data.iter().zip(0u64..).try_for_each(|(&word, index)| self.write(address + 4 * index, word))
    }

    /// Writes the address of an argument into a shim tile's descriptor: words 1 and 2.
    fn patch(&mut self, address: u64, argument: u64, offset: u64, host: &HostMemory) -> Result<(), Fault> {
        let (at, tile) = self.locate(address)?;
        if !(at.place.kind() == TileKind::Shim && matches!(at.register, Register::Descriptor { word: 1, .. }))
        {
            return Err(Fault::UnknownRegister(at));
        }
        let arguments = host.arguments();
        let base = usize::try_from(argument).ok().and_then(|index| arguments.get(index));
        let base = base.ok_or(Fault::Argument { argument, given: arguments.len() })?;
        let target = base.wrapping_add(offset);
        let high = Address::of(address as u32 + 4);
        let old = self.tiles[tile].read(high)?;
        self.write(address, target as u32)?;
        self.write(address + 4, old & !0xffff | (target >> 32) as u32 & 0xffff)
    }

    /// Waits for a token of each tile of the rectangle, and takes it.
    fn sync(&mut self, sync: &Sync, host: &mut HostMemory) -> Result<(), Fault> {
        for column in 0..sync.columns {
            for row in 0..sync.rows {
                let place = TilePlace {
                    column: sync.place.column.saturating_add(column),
                    row: sync.place.row.saturating_add(row),
                };
                let key = (place, sync.direction, usize::from(sync.channel));
                let waits_for = format!("a token of {place} {}{}", sync.direction, sync.channel);
                self.wait(host, &waits_for, |array| {
                    Ok(array.tokens.get(&key).is_some_and(|&count| count > 0))
                })?;
                if let Some(count) = self.tokens.get_mut(&key) {
                    *count -= 1;
                }
            }
        }
        Ok(())
    }

    fn wait(
        &mut self,
        host: &mut HostMemory,
        waits_for: &str,
        mut done: impl FnMut(&mut Self) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        while !done(self)? {
            if !self.advance(host)? {
                let mut blocked = self.blocked();
                for tile in &self.tiles {
                    let waits = tile.core.as_ref().and_then(|core| core.waits());
                    blocked.extend(waits.map(|waits| format!("{} {waits}", tile.place)));
                }
                return Err(Fault::Hang { waits_for: waits_for.to_owned(), blocked: blocked.join("; ") });
            }
        }
        Ok(())
    }

    /// Runs channels and cores once; whether any of them made progress.
    fn advance(&mut self, host: &mut HostMemory) -> Result<bool, Fault> {
        loop {
            // Chains without locks can feed each other endlessly.
            self.left = self.left.checked_sub(1).ok_or(Fault::Endless(self.limit))?;
            let (first, budget) = self.scheduler.next_round();
            let mut progress = false;
            for step in 0..self.processes.len() {
                let index = (first + step) % self.processes.len();
                if self.scheduler.skips(index) {
                    continue;
                }
                progress |= match self.processes[index] {
                    Process::Channel(at) => self.advance_channel(at, budget, host)?,
                    Process::Core(index) => self.advance_core(index)?,
                };
            }
            if progress {
                self.scheduler.suspend_starved();
                return Ok(true);
            }
            if !self.scheduler.resume_starved() {
                return Ok(false);
            }
        }
    }

    /// Runs a core until it has to wait, and moves its cascade on; whether anything changed.
    fn advance_core(&mut self, index: usize) -> Result<bool, Fault> {
        let Some(mut core) = self.tiles[index].core.take() else { return Ok(false) };
        let result = core.advance(&mut self.tiles[index]);
        self.tiles[index].core = Some(core);
        let mut progress = result?;
        let TilePlace { column, row } = self.tiles[index].place;
        while let Some(&word) = self.tiles[index].cascade_out.front() {
            let south = TilePlace { column, row: row.saturating_sub(1) };
            let south = self.index(south).filter(|_| usize::from(row) > FIRST_CORE_ROW);
            let Some(south) = south else {
                let place = TilePlace { column, row };
                return Err(Fault::Cascade { place });
            };
            if self.tiles[south].cascade_in.len() >= CASCADE_WORDS {
                break;
            }
            self.tiles[south].cascade_in.push_back(word);
            self.tiles[index].cascade_out.pop_front();
            progress = true;
        }
        Ok(progress)
    }

    /// Place in `inputs` of an S2MM channel.
    fn input(tile: usize, channel: usize) -> usize {
        tile * MAX_CHANNELS + channel
    }

    /// The inputs that an MM2S channel feeds; none if no word can pass.
    fn route(&mut self, tile: usize, channel: usize) -> Result<Arc<[usize]>, Fault> {
        if let Some(ends) = &self.routes[Self::input(tile, channel)] {
            return Ok(Arc::clone(ends));
        }
        let place = self.tiles[tile].place;
        let mut ends = Vec::new();
        if let Some(slave) = self.tiles[tile].switch.dma_slave(channel) {
            let switch_at = |place| self.index(place).map(|index| &self.tiles[index].switch);
            let route = follow(&switch_at, place, slave)?;
            if !route.blocked {
                for (place, channel) in route.ends {
                    let tile = self.index(place).ok_or(Fault::NoTile(u64::from(place.address(0))))?;
                    ends.push(Self::input(tile, channel));
                }
            }
        }
        let ends: Arc<[usize]> = ends.into();
        self.routes[Self::input(tile, channel)] = Some(Arc::clone(&ends));
        Ok(ends)
    }

    /// Channels and cores with unfinished work.
    fn blocked(&self) -> Vec<String> {
        let mut blocked = Vec::new();
        for tile in &self.tiles {
            for direction in [Direction::S2mm, Direction::Mm2s] {
                for (channel, state) in tile.channels(direction).iter().enumerate() {
                    // Chains that wait for their first word or lock are idle, not blocked.
                    if let Some(active) = &state.active
                        && (tile.kind() == TileKind::Shim || active.holds_data(direction))
                    {
                        blocked.push(format!("{} {direction}{channel}: {}", tile.place, active.describe()));
                    }
                }
            }
            if let Some(work) = tile.core.as_ref().and_then(|core| core.pending(&tile.locks)) {
                blocked.push(format!("{}: {work}", tile.place));
            }
        }
        blocked
    }

    /// Checks that no work is unfinished.
    fn check_idle(&self) -> Result<(), Fault> {
        let mut left = self.blocked();
        let words: usize = self.inputs.iter().map(VecDeque::len).sum();
        if words > 0 {
            left.push(format!("{words} words in FIFOs"));
        }
        let cascades = self.tiles.iter().map(|tile| tile.cascade_in.len() + tile.cascade_out.len());
        let cascades: usize = cascades.sum();
        if cascades > 0 {
            left.push(format!("{cascades} words in cascades"));
        }
        let tokens: u32 = self.tokens.values().sum();
        if tokens > 0 {
            left.push(format!("{tokens} tokens"));
        }
        if left.is_empty() { Ok(()) } else { Err(Fault::Residue(left.join("; "))) }
    }
}

/// Checks that a poll is for something that the model has.
fn check_poll(address: Address, value: u32, mask: u32) -> Result<(), Fault> {
    let reason = match address.register {
        Register::ChannelStatus { .. } if value != 0 => "only the end of a channel's work is modelled",
        Register::LockRequest { .. } if (value, mask) != (1, 1) => {
            "a request is repeated until it is granted"
        }
        _ => return Ok(()),
    };
    Err(Fault::Value { address, value, reason })
}

fn processes(tiles: &[Tile]) -> Vec<Process> {
    let mut processes = Vec::new();
    for (tile, state) in tiles.iter().enumerate() {
        for direction in [Direction::S2mm, Direction::Mm2s] {
            for channel in 0..state.channels(direction).len() {
                processes.push(Process::Channel(ChannelPlace { tile, direction, channel }));
            }
        }
        if state.kind() == TileKind::Core {
            processes.push(Process::Core(tile));
        }
    }
    processes
}
