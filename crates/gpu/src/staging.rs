//! A fixed ring of staging buffers, for memory that the CPU cannot map.
//!
//! Each slot is filled by one thread while the GPU copies from the others. The ring bounds the memory that an upload of
//! any size needs. Slots come back in the order in which they were sent.

use std::{sync::Arc, time::Duration};

use ash::vk;

use crate::{
    device::{Device, DeviceInner, Ticket},
    error::{Error, Result},
    heap::Memory,
    memory::{Arena, Buffer, Lifetime, View},
    program::Commands,
};

/// A fixed number of staging buffers of one size.
pub struct StagingRing {
    device: Device,
    free: Vec<StagingSlot>,
    // Front first: the oldest submission.
    sent: std::collections::VecDeque<(StagingSlot, Ticket)>,
    timeout: Duration,
}

/// One staging buffer, free to be filled.
pub struct StagingSlot {
    buffer: Buffer,
    commands: Commands,
    pending: Option<(Arc<DeviceInner>, Ticket)>,
}

impl StagingRing {
    /// Allocates `slots` buffers of `bytes` bytes. Waiting for the GPU fails after `timeout`.
    pub fn new(device: &Device, slots: usize, bytes: u64, timeout: Duration) -> Result<Self> {
        let mut arena = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(bytes);
        let free = (0..slots)
            .map(|_| {
                let buffer = arena.buffer("staging ring", bytes)?;
                Ok(StagingSlot { buffer, commands: Commands::new(&device.inner)?, pending: None })
            })
            .collect::<Result<_>>()?;
        Ok(Self { device: device.clone(), free, sent: Default::default(), timeout })
    }

    /// A slot to fill: a free one, or the oldest one sent, once the GPU is done with it.
    pub fn acquire(&mut self) -> Result<StagingSlot> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let Some(&(_, ticket)) = self.sent.front() else {
            let reason = "every slot is being filled: send or release one first";
            return Err(Error::InvalidUse { what: "staging ring".into(), reason: reason.into() });
        };
        self.device.wait(ticket, self.timeout)?;
        let (mut slot, _) = self.sent.pop_front().expect("the front was just looked at");
        slot.pending = None;
        Ok(slot)
    }

    /// Gives a slot back unused.
    pub fn release(&mut self, slot: StagingSlot) {
        self.free.push(slot);
    }

    /// Copies parts of the slot, as `(offset, destination)`, and returns the slot to the ring when that is done.
    pub fn send(&mut self, mut slot: StagingSlot, parts: &[(u64, View)]) -> Result<Ticket> {
        let ticket = slot.submit(&self.device.inner, parts)?;
        slot.pending = Some((self.device.inner.clone(), ticket));
        self.sent.push_back((slot, ticket));
        Ok(ticket)
    }

    /// Waits until everything sent has arrived.
    pub fn finish(&mut self) -> Result<()> {
        while let Some(&(_, ticket)) = self.sent.front() {
            self.device.wait(ticket, self.timeout)?;
            let (mut slot, _) = self.sent.pop_front().expect("the front was just looked at");
            slot.pending = None;
            self.free.push(slot);
        }
        Ok(())
    }
}

impl StagingSlot {
    /// The bytes to fill.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.buffer.bytes_mut()
    }

    fn submit(&mut self, device: &Arc<DeviceInner>, parts: &[(u64, View)]) -> Result<Ticket> {
        self.commands.restart()?;
        for (offset, to) in parts {
            to.must_be_of(device)?;
            let from = self.buffer.slice(*offset..offset.saturating_add(to.len()))?;
            self.commands.keep_block(&to.block);
            let region = [vk::BufferCopy {
                src_offset: from.range().start,
                dst_offset: to.range().start,
                size: to.len(),
            }];
            // SAFETY: both ranges lie within their buffers; the slot keeps them alive until the copy is done.
            unsafe {
                device.raw.cmd_copy_buffer(self.commands.raw, from.block.buffer, to.block.buffer, &region);
            }
        }
        // SAFETY: the command buffer is in the recording state.
        unsafe { device.raw.end_command_buffer(self.commands.raw) }
            .map_err(|result| device.fail("vkEndCommandBuffer", result))?;
        // Programs begin with a barrier that makes these copies visible; host writes are visible to a submission.
        device.submit_commands(&[vk::CommandBufferSubmitInfo::default().command_buffer(self.commands.raw)])
    }
}

impl Drop for StagingSlot {
    fn drop(&mut self) {
        if let Some((device, ticket)) = self.pending.take() {
            // A GPU that never answers is given a minute; after that the process is beyond saving anyway.
            device.is_past(ticket);
        }
    }
}
