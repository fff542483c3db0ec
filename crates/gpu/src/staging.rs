//! A fixed ring of staging buffers, to upload any amount of data into memory that the CPU cannot map, or
//! through a kernel.
//!
//! Any number of threads may fill slots while the GPU drains others. [`StagingRing::acquire`] returns a free
//! slot, or waits for the oldest submitted one, or for a slot that another thread is filling. The ring bounds
//! the memory that an upload of any size needs.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    accounting::Lifetime,
    arena::Arena,
    buffer::Buffer,
    device::Device,
    device_inner::Ticket,
    error::{Error, Result},
    heap::Memory,
    program::Program,
    recorder::Recorder,
    view::View,
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
    /// Oldest submission first.
    sent: VecDeque<Sent>,
}

struct Sent {
    slot: StagingSlot,
    /// Dropped after it has completed, so that dropping it does not wait.
    program: Program,
    ticket: Ticket,
}

/// A staging buffer to fill.
pub struct StagingSlot {
    buffer: Buffer,
}

impl StagingRing {
    /// Allocates `slots` buffers of `bytes` bytes each. Waiting for a slot fails after `timeout`.
    pub fn new(device: &Device, slots: usize, bytes: u64, timeout: Duration) -> Result<Self> {
        let mut arena = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(bytes);
        let free = (0..slots)
            .map(|_| Ok(StagingSlot { buffer: arena.buffer("staging ring", bytes)? }))
            .collect::<Result<_>>()?;
        let slots = Mutex::new(Slots { free, sent: VecDeque::new() });
        Ok(Self { device: device.clone(), slots, changed: Condvar::new(), timeout })
    }

    /// Takes a slot to fill, waiting for one if necessary.
    pub fn acquire(&self) -> Result<StagingSlot> {
        let mut slots = self.lock();
        loop {
            if let Some(slot) = slots.free.pop() {
                return Ok(slot);
            }
            if let Some(sent) = slots.sent.pop_front() {
                // Unlocked while waiting, so that other threads can send and acquire.
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

    /// Returns a slot unused.
    pub fn release(&self, slot: StagingSlot) {
        self.lock().free.push(slot);
        self.changed.notify_one();
    }

    /// Submits the commands that `record` adds: a copy, or a kernel that reads the slot's view. The slot
    /// returns to the ring when the submission completes, or at once on an error.
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

    /// Waits until all submissions have completed.
    pub fn finish(&self) -> Result<()> {
        loop {
            let Some(sent) = self.lock().sent.pop_front() else { return Ok(()) };
            let slot = self.reclaim(sent)?;
            self.release(slot);
        }
    }

    /// Waits for a submitted slot. On an error the slot's memory is freed with its program, which waits for
    /// the GPU.
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
    /// The bytes of the slot.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.buffer.bytes_mut()
    }
}
