//! A fixed ring of staging buffers, through which any amount of data reaches memory that the CPU cannot map, or passes a
//! kernel on its way.
//!
//! Any number of threads may fill slots while the GPU empties others: [`StagingRing::acquire`] hands out a free slot, or
//! waits for the oldest one sent, or for a slot that another thread still fills. The ring bounds the memory that a load of
//! any size needs.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    device::{Device, Ticket},
    error::{Error, Result},
    heap::Memory,
    memory::{Arena, Buffer, Lifetime, View},
    program::Program,
    recorder::Recorder,
};

/// A fixed number of staging buffers of one size.
pub struct StagingRing {
    device: Device,
    slots: Mutex<Slots>,
    changed: Condvar,
    timeout: Duration,
}

#[derive(Default)]
struct Slots {
    free: Vec<StagingSlot>,
    // Front first: the oldest submission.
    sent: VecDeque<Sent>,
}

struct Sent {
    slot: StagingSlot,
    // Kept until it is done, then dropped without waiting.
    program: Program,
    ticket: Ticket,
}

/// One staging buffer, to be filled.
pub struct StagingSlot {
    buffer: Buffer,
}

impl StagingRing {
    /// Allocates `slots` buffers of `bytes` bytes. Waiting for a slot fails after `timeout`.
    pub fn new(device: &Device, slots: usize, bytes: u64, timeout: Duration) -> Result<Self> {
        let mut arena = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(bytes);
        let free = (0..slots)
            .map(|_| Ok(StagingSlot { buffer: arena.buffer("staging ring", bytes)? }))
            .collect::<Result<_>>()?;
        let slots = Mutex::new(Slots { free, sent: VecDeque::new() });
        Ok(Self { device: device.clone(), slots, changed: Condvar::new(), timeout })
    }

    /// A slot to fill.
    pub fn acquire(&self) -> Result<StagingSlot> {
        let mut slots = self.lock();
        loop {
            if let Some(slot) = slots.free.pop() {
                return Ok(slot);
            }
            if let Some(sent) = slots.sent.pop_front() {
                // Others may send and acquire meanwhile.
                drop(slots);
                return self.reclaim(sent);
            }
            let waited = self.changed.wait_timeout(slots, self.timeout);
            let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
            if result.timed_out() {
                return Err(Error::Timeout { what: "a free staging slot", waited: self.timeout });
            }
            slots = guard;
        }
    }

    /// Gives a slot back unused.
    pub fn release(&self, slot: StagingSlot) {
        self.lock().free.push(slot);
        self.changed.notify_one();
    }

    /// Submits what `record` records (a copy or a kernel that reads the slot's view); the slot returns to the ring when
    /// that is done, or at once on an error.
    pub fn send(
        &self,
        slot: StagingSlot,
        record: impl FnOnce(&mut Recorder, &View) -> Result<()>,
    ) -> Result<Ticket> {
        let submitted = self.device.recorder().and_then(|mut recorder| {
            record(&mut recorder, &slot.buffer.view())?;
            let program = recorder.seal()?;
            let ticket = program.submit()?;
            Ok((program, ticket))
        });
        match submitted {
            Ok((program, ticket)) => {
                self.lock().sent.push_back(Sent { slot, program, ticket });
                self.changed.notify_one();
                Ok(ticket)
            }
            Err(error) => {
                self.release(slot);
                Err(error)
            }
        }
    }

    /// Waits until everything sent has arrived.
    pub fn finish(&self) -> Result<()> {
        loop {
            let Some(sent) = self.lock().sent.pop_front() else { return Ok(()) };
            let slot = self.reclaim(sent)?;
            self.release(slot);
        }
    }

    /// Waits for a slot that was sent. On an error its memory is freed when its program is (which waits for the GPU).
    fn reclaim(&self, sent: Sent) -> Result<StagingSlot> {
        self.device.wait(sent.ticket, self.timeout)?;
        drop(sent.program);
        Ok(sent.slot)
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StagingSlot {
    /// The bytes to fill.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.buffer.bytes_mut()
    }
}
