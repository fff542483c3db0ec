//! Arenas: bump allocators of device memory.
//!
//! An arena serves one lifetime: weights live as long as the model, the KV cache as long as the engine,
//! scratch as long as a set of programs. It allocates blocks from the driver, each within the driver's limit
//! for one allocation, and sub-allocates buffers from them linearly. A block is freed as a unit, once nothing
//! uses it. It is one Vulkan buffer with one device address, mapped throughout its lifetime where the memory
//! allows it.

use std::sync::Arc;

use crate::{
    accounting::Lifetime,
    block::Block,
    buffer::Buffer,
    device::Device,
    device_inner::DeviceInner,
    error::{Error, Result},
    heap::Memory,
    view::View,
};

/// Alignment of every buffer: a cache line of any GPU, and more than any shader type needs.
const ALIGNMENT: u64 = 256;

/// Default block size: few allocations, little waste.
const DEFAULT_BLOCK_SIZE: u64 = 64 << 20;

/// A buffer larger than 1/4 of a block gets a block of its own.
const OWN_BLOCK_DIVISOR: u64 = 4;

/// Allocates buffers of one lifetime and one kind of memory.
pub struct Arena {
    device: Arc<DeviceInner>,
    lifetime: Lifetime,
    memory: Memory,
    block_size: u64,
    /// The block that small buffers are sub-allocated from, and its used bytes.
    current: Option<(Arc<Block>, u64)>,
    allocated: u64,
}

impl Arena {
    /// An empty arena; memory is allocated with the first buffer.
    pub fn new(device: &Device, lifetime: Lifetime, memory: Memory) -> Self {
        let block_size = DEFAULT_BLOCK_SIZE.min(device.caps().max_allocation);
        Self { device: device.inner.clone(), lifetime, memory, block_size, current: None, allocated: 0 }
    }

    /// The same arena with another block size, for callers that know their total.
    pub fn with_block_size(mut self, bytes: u64) -> Self {
        self.block_size = bytes.next_multiple_of(ALIGNMENT).min(self.device.caps.max_allocation);
        self
    }

    /// An empty arena of the same device and lifetime in other memory.
    pub fn in_memory(&self, memory: Memory) -> Self {
        Self { device: self.device.clone(), memory, current: None, allocated: 0, ..*self }
    }

    /// Allocates a buffer of `bytes` bytes with undefined content. `what` names it in errors.
    pub fn buffer(&mut self, what: &str, bytes: u64) -> Result<Buffer> {
        let limit = self.device.caps.max_allocation;
        if bytes == 0 {
            return Err(Error::InvalidUse {
                what: what.to_string(),
                reason: "a buffer cannot have 0 bytes".into(),
            });
        }
        if bytes > limit {
            return Err(Error::AllocationTooLarge { what: what.to_string(), wanted: bytes, limit });
        }
        let size = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(bytes);
        // Large buffers get their own block: in shared blocks, the unused remainders would add up.
        if size > self.block_size / OWN_BLOCK_DIVISOR {
            let block = self.allocate(what, size.min(limit))?;
            return Ok(Buffer::new(View::new(block, 0..bytes)));
        }
        let (block, offset) = match &self.current {
            Some((block, used)) if used + bytes <= block.size => (block.clone(), *used),
            _ => (self.allocate(what, self.block_size)?, 0),
        };
        self.current = Some((block.clone(), offset + size));
        Ok(Buffer::new(View::new(block, offset..offset + bytes)))
    }

    /// Allocates a buffer and fills it with `data`. Only for memory that the CPU can map.
    pub fn buffer_from<T: bytemuck::NoUninit>(&mut self, what: &str, data: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let mut buffer = self.buffer(what, bytes.len() as u64)?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Bytes that this arena has allocated from the driver.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated
    }

    fn allocate(&mut self, what: &str, size: u64) -> Result<Arc<Block>> {
        let block = Block::allocate(&self.device, what, size, self.lifetime, self.memory)?;
        self.allocated += block.size;
        Ok(Arc::new(block))
    }
}
