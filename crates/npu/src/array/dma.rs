//! DMA channels: tasks, descriptors, locks, and words between memory and streams.

use std::ops::Range;

use super::descriptor::{self, Descriptor, Release};
use super::host::HostMemory;
use super::state::Task;
use super::{Array, Fault};
use crate::bytes::words_of;
use crate::tile::{Direction, MEMORY_TILE_MEMORY, TileKind, TilePlace};

/// Words that an input port holds. Its size does not change results, only how far a sender runs ahead.
pub(super) const FIFO_WORDS: usize = 64;
pub(super) const MAX_LOCK: i32 = 63;

/// A task that is being executed.
#[derive(Debug, Clone)]
pub(super) struct Active {
    task: Task,
    /// Executions left, including this one.
    left: u32,
    /// Current descriptor of the chain.
    current: usize,
    transfer: Option<Transfer>,
}

/// A descriptor whose lock has been acquired.
#[derive(Debug, Clone)]
struct Transfer {
    descriptor: Descriptor,
    execution: u64,
    done: u64,
}

impl Transfer {
    fn left(&self) -> u64 {
        self.descriptor.length - self.done
    }

    /// The byte address and number of the consecutive words that are next, up to word `end`.
    fn next_run(&mut self, end: u64) -> (u64, u64) {
        let (address, words) = self.descriptor.run(self.done, self.execution, end - self.done);
        self.done += words;
        (address, words)
    }
}

/// Where words are.
enum Place {
    /// In the host's memory.
    Host,
    /// In a tile: its index, and the words of its memory.
    Tile(usize, Range<usize>),
}

impl Active {
    fn new(task: Task) -> Self {
        Self { task, left: task.times, current: task.descriptor, transfer: None }
    }

    pub(super) fn uses(&self, descriptor: usize) -> bool {
        self.current == descriptor || self.task.descriptor == descriptor
    }

    pub(super) fn describe(&self) -> String {
        match &self.transfer {
            None => format!("bd{} waits for its lock", self.current),
            Some(transfer) => {
                format!("bd{} moved {} of {} words", self.current, transfer.done, transfer.descriptor.length)
            }
        }
    }

    /// Whether a descriptor is partly transferred, or has acquired data to send.
    pub(super) fn holds_data(&self, direction: Direction) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| direction == Direction::Mm2s || transfer.done > 0)
    }
}

/// A channel by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChannelPlace {
    pub(super) tile: usize,
    pub(super) direction: Direction,
    pub(super) channel: usize,
}

impl Array {
    /// Moves at most `budget` words on a channel; whether anything changed.
    pub(super) fn advance_channel(
        &mut self,
        at: ChannelPlace,
        budget: usize,
        host: &mut HostMemory,
    ) -> Result<bool, Fault> {
        let channel = &mut self.tiles[at.tile].channels_mut(at.direction)[at.channel];
        let mut active = match channel.active.take() {
            Some(active) => active,
            None => match channel.queue.pop_front() {
                Some(task) => Active::new(task),
                None => return Ok(false),
            },
        };
        let (progress, ended) = self.advance_task(at, &mut active, budget, host)?;
        if ended {
            self.end_task(at, active.task)?;
        } else {
            self.tiles[at.tile].channels_mut(at.direction)[at.channel].active = Some(active);
        }
        Ok(progress)
    }

    /// Whether anything changed, and whether the task has ended.
    fn advance_task(
        &mut self,
        at: ChannelPlace,
        active: &mut Active,
        budget: usize,
        host: &mut HostMemory,
    ) -> Result<(bool, bool), Fault> {
        let mut progress = false;
        if active.transfer.is_none() {
            active.transfer = self.start(at, active.current)?;
            progress = active.transfer.is_some();
        }
        let Some(transfer) = &mut active.transfer else { return Ok((false, false)) };
        let moved = match at.direction {
            Direction::S2mm => self.receive(at, active.current, transfer, budget, host)?,
            Direction::Mm2s => self.send(at, active.current, transfer, budget, host)?,
        };
        progress |= moved > 0;
        if transfer.done < transfer.descriptor.length {
            return Ok((progress, false));
        }
        let (release, next) = (transfer.descriptor.release, transfer.descriptor.next);
        active.transfer = None;
        if let Some(action) = release {
            self.release(at.tile, active.current, action)?;
        }
        match next {
            Some(next) => active.current = next,
            None => {
                active.left -= 1;
                active.current = active.task.descriptor;
            }
        }
        Ok((true, active.left == 0))
    }

    /// Acquires the lock of a descriptor; `None` if it has to wait.
    fn start(&mut self, at: ChannelPlace, index: usize) -> Result<Option<Transfer>, Fault> {
        let tile = &self.tiles[at.tile];
        let (place, kind) = (tile.place, tile.kind());
        let fault = |reason| Fault::Descriptor { place, index, reason };
        if !tile.reaches(at.channel, index) {
            return Err(fault("the channel cannot use it"));
        }
        let descriptor = Descriptor::decode(kind, &tile.descriptors[index]).map_err(fault)?;
        if let Some(acquire) = descriptor.acquire
            && !acquire.condition.take(self.lock(at.tile, index, acquire.id)?)
        {
            return Ok(None);
        }
        let execution = descriptor.iteration_current;
        let next = (execution + 1) % descriptor.iteration.wrap;
        descriptor::set_iteration(kind, &mut self.tiles[at.tile].descriptors[index], next);
        Ok(Some(Transfer { descriptor, execution, done: 0 }))
    }

    fn release(&mut self, tile: usize, index: usize, release: Release) -> Result<(), Fault> {
        let place = self.tiles[tile].place;
        let lock = self.lock(tile, index, release.id)?;
        *lock += release.amount;
        if !(0..=MAX_LOCK).contains(lock) {
            return Err(Fault::LockOverflow { place, index: release.id });
        }
        Ok(())
    }

    /// The lock that a descriptor names. Memory tiles name those of the west, their own, and those of the east.
    fn lock(&mut self, tile: usize, index: usize, id: usize) -> Result<&mut i32, Fault> {
        let place = self.tiles[tile].place;
        let fault = Fault::Descriptor { place, index, reason: "it names a lock that does not exist" };
        let (owner, id) = match place.kind() {
            TileKind::Memory => (self.neighbour(tile, (id / 64) as u64), id % 64),
            _ => (Some(tile), id),
        };
        owner.and_then(|owner| self.tiles[owner].locks.get_mut(id)).ok_or(fault)
    }

    /// The tile to the west (0), itself (1), or the one to the east (2).
    fn neighbour(&self, tile: usize, side: u64) -> Option<usize> {
        let TilePlace { column, row } = self.tiles[tile].place;
        let column = match side {
            0 => column.checked_sub(1),
            1 => Some(column),
            2 => column.checked_add(1),
            _ => None,
        };
        self.index(TilePlace { column: column?, row })
    }

    /// Moves words from a stream to memory; how many.
    fn receive(
        &mut self,
        at: ChannelPlace,
        index: usize,
        transfer: &mut Transfer,
        budget: usize,
        host: &mut HostMemory,
    ) -> Result<usize, Fault> {
        let input = Self::input(at.tile, at.channel);
        let count = transfer.left().min(budget.min(self.inputs[input].len()) as u64);
        let end = transfer.done + count;
        while transfer.done < end {
            let (address, words) = transfer.next_run(end);
            match self.place_of(at.tile, index, address, words)? {
                Place::Host => {
                    let place = self.tiles[at.tile].place;
                    let bytes =
                        host.bytes(address, 4 * words).ok_or(Fault::Memory { place, index, address })?;
                    let words = self.inputs[input].drain(..words as usize);
                    bytes
                        .chunks_exact_mut(4)
                        .zip(words)
                        .for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
                }
                Place::Tile(owner, range) => {
                    let words = self.inputs[input].drain(..words as usize);
                    self.tiles[owner].memory[range].iter_mut().zip(words).for_each(|(to, word)| *to = word);
                }
            }
        }
        Ok(count as usize)
    }

    /// Moves words from memory to a stream; how many.
    fn send(
        &mut self,
        at: ChannelPlace,
        index: usize,
        transfer: &mut Transfer,
        budget: usize,
        host: &mut HostMemory,
    ) -> Result<usize, Fault> {
        let ends = self.route(at.tile, at.channel)?;
        // A word passes when every end of the circuit has room for it.
        let room = ends.iter().map(|&end| FIFO_WORDS - self.inputs[end].len()).min().unwrap_or(0);
        let count = transfer.left().min(budget.min(room) as u64);
        let end = transfer.done + count;
        while transfer.done < end {
            let (address, words) = transfer.next_run(end);
            match self.place_of(at.tile, index, address, words)? {
                Place::Host => {
                    let place = self.tiles[at.tile].place;
                    let bytes =
                        host.bytes(address, 4 * words).ok_or(Fault::Memory { place, index, address })?;
                    let words = words_of(bytes);
                    ends.iter().for_each(|&end| self.inputs[end].extend(&words));
                }
                Place::Tile(owner, range) => {
                    let words = &self.tiles[owner].memory[range];
                    ends.iter().for_each(|&end| self.inputs[end].extend(words));
                }
            }
        }
        Ok(count as usize)
    }

    /// Where `words` words at a byte address are.
    fn place_of(&self, tile: usize, index: usize, address: u64, words: u64) -> Result<Place, Fault> {
        let place = self.tiles[tile].place;
        let (owner, local) = match place.kind() {
            TileKind::Shim => return Ok(Place::Host),
            TileKind::Memory => {
                let size = u64::from(MEMORY_TILE_MEMORY);
                (self.neighbour(tile, address / size), address % size)
            }
            TileKind::Core => (Some(tile), address),
        };
        let (first, end) = (local / 4, local / 4 + words);
        match owner {
            Some(owner) if end <= self.tiles[owner].memory.len() as u64 => {
                Ok(Place::Tile(owner, first as usize..end as usize))
            }
            _ => Err(Fault::Memory { place, index, address }),
        }
    }

    fn end_task(&mut self, at: ChannelPlace, task: Task) -> Result<(), Fault> {
        if task.token {
            let tile = &self.tiles[at.tile];
            if !tile.switch.routes_token(tile.channels(at.direction)[at.channel].controller_id()) {
                let (place, ChannelPlace { direction, channel, .. }) = (tile.place, at);
                return Err(Fault::Token { place, direction, channel });
            }
            *self.tokens.entry((tile.place, at.direction, at.channel)).or_default() += 1;
        }
        Ok(())
    }
}
