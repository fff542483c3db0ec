//! Device memory: arenas that hand out buffers, freed as a whole.
//!
//! An arena belongs to one lifetime: weights live as long as the model, the KV cache as long as the engine, scratch as
//! long as a set of programs. It takes blocks from the driver, each below the driver's limit for one allocation, and
//! cuts buffers from them front to back; nothing is given back before the whole block is unused. A block is one Vulkan
//! buffer with one device address, mapped for its whole life where the memory allows it.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ash::vk;

use crate::{
    caps::Caps,
    device::{Device, DeviceInner, Ticket},
    error::{Error, OUT_OF_MEMORY_FIX, Result},
    heap::{Memory, memory_type},
};

/// What an arena's memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Lifetime {
    /// As long as the model.
    Weights,
    /// As long as the engine's cache.
    Kv,
    /// As long as the programs that use it.
    Scratch,
    /// Staging rings.
    Staging,
}

impl Lifetime {
    pub(crate) const COUNT: usize = 4;
}

/// Every buffer starts at a multiple of this: a cache line of any GPU, and more than any shader type needs.
const ALIGNMENT: u64 = 256;

/// Block size when the caller gives none: few allocations, little left over.
const DEFAULT_BLOCK: u64 = 64 << 20;

/// A buffer larger than this part of a block is not cut from a shared one.
const OWN_BLOCK: u64 = 4;

/// Hands out buffers of one lifetime and one kind of memory.
pub struct Arena {
    device: Device,
    lifetime: Lifetime,
    memory: Memory,
    block_size: u64,
    current: Option<(Arc<Block>, u64)>,
    allocated: u64,
}

impl Arena {
    /// An empty arena; memory is taken when the first buffer is asked for.
    pub fn new(device: &Device, lifetime: Lifetime, memory: Memory) -> Self {
        let block_size = DEFAULT_BLOCK.min(device.caps().max_allocation);
        Self { device: device.clone(), lifetime, memory, block_size, current: None, allocated: 0 }
    }

    /// The same with blocks of another size, for a caller who knows how much will be asked for.
    pub fn with_block_size(mut self, bytes: u64) -> Self {
        self.block_size = bytes.next_multiple_of(ALIGNMENT).min(self.device.caps().max_allocation);
        self
    }

    /// Cuts a buffer of `bytes` bytes. Its content is undefined. `what` names it in errors.
    pub fn buffer(&mut self, what: &str, bytes: u64) -> Result<Buffer> {
        let limit = self.device.caps().max_allocation;
        if bytes == 0 {
            return Err(Error::InvalidUse { what: what.to_string(), reason: "a buffer of 0 bytes".into() });
        }
        if bytes > limit {
            return Err(Error::AllocationTooLarge { what: what.to_string(), wanted: bytes, limit });
        }
        let size = bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(bytes);
        // What takes a good part of a block gets one of its own: cut from shared ones, the rests would add up.
        if size > self.block_size / OWN_BLOCK {
            let block = Arc::new(Block::allocate(&self.device, what, size.min(limit), self)?);
            self.allocated += block.size;
            return Ok(Buffer { view: View { block, offset: 0, len: bytes } });
        }
        let (block, offset) = match &self.current {
            Some((block, used)) if used + bytes <= block.size => (block.clone(), *used),
            _ => {
                let block = Block::allocate(&self.device, what, self.block_size, self)?;
                self.allocated += block.size;
                (Arc::new(block), 0)
            }
        };
        self.current = Some((block.clone(), offset + size));
        Ok(Buffer { view: View { block, offset, len: bytes } })
    }

    /// Cuts a buffer and fills it with `data`; only for memory that the CPU can map.
    pub fn buffer_from<T: bytemuck::NoUninit>(&mut self, what: &str, data: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let mut buffer = self.buffer(what, bytes.len() as u64)?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Bytes taken from the driver by this arena.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated
    }
}

/// One allocation: memory, the buffer over all of it, its address and its mapping.
pub(crate) struct Block {
    device: Arc<DeviceInner>,
    memory: vk::DeviceMemory,
    pub buffer: vk::Buffer,
    address: u64,
    mapped: Option<std::ptr::NonNull<u8>>,
    size: u64,
    lifetime: Lifetime,
    heap: usize,
    /// The last submission of a program that names the block.
    last_use: AtomicU64,
}

// SAFETY: the mapping is plain memory; access to it goes through Buffer, whose ranges never overlap within a block.
unsafe impl Send for Block {}
// SAFETY: as above; Vulkan objects are only destroyed, in Drop, by the last owner.
unsafe impl Sync for Block {}

impl Block {
    fn allocate(device: &Device, what: &str, size: u64, arena: &Arena) -> Result<Self> {
        let inner = &device.inner;
        inner.check_lost("vkAllocateMemory")?;
        let info = device.info();
        let kind = memory_type(&info.memory_types, inner.buffer_types, info.unified_memory, arena.memory)
            .ok_or_else(|| Error::Unsupported {
                device: info.name.clone(),
                missing: format!("it has no memory type for {:?}", arena.memory),
                fix: "update its driver or choose another device (indrik devices)".into(),
            })?;
        let heap = &device.heaps()[info.memory_types[kind].heap];
        // What the driver reports as used may lag behind, or be missing: what we have taken ourselves is certainly gone.
        let own = inner.in_use_by_heap[heap.index].load(Ordering::Relaxed);
        let free = heap.free().min(heap.size.saturating_sub(own));
        let exhausted = |available| Error::OutOfDeviceMemory {
            what: what.to_string(),
            wanted: size,
            available,
            fix: OUT_OF_MEMORY_FIX,
        };
        if size > free {
            return Err(exhausted(Some(free)));
        }
        inner.counters.allocations.fetch_add(1, Ordering::Relaxed);
        if inner.faults.strikes_allocation() {
            return Err(exhausted(None));
        }

        let flags = info.memory_types[kind].flags;
        let mapped = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let raw = RawBlock::new(inner, size, kind as u32, flags.contains(mapped));
        let RawBlock { memory, buffer, address, mapped } = raw.map_err(|result| match result {
            (_, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY) => exhausted(None),
            (call, result) => inner.fail(call, result),
        })?;
        inner.in_use[arena.lifetime as usize].fetch_add(size, Ordering::Relaxed);
        inner.in_use_by_heap[heap.index].fetch_add(size, Ordering::Relaxed);
        let (lifetime, heap) = (arena.lifetime, heap.index);
        Ok(Self {
            device: inner.clone(),
            memory,
            buffer,
            address,
            mapped,
            size,
            lifetime,
            heap,
            last_use: AtomicU64::new(0),
        })
    }
}

impl Block {
    pub fn note_use(&self, ticket: Ticket) {
        self.last_use.fetch_max(ticket.0, Ordering::AcqRel);
    }

    /// The host may touch memory only when no submission that names it is under way.
    fn must_be_idle(&self) -> Result<()> {
        let last = Ticket(self.last_use.load(Ordering::Acquire));
        if last.0 == 0 || self.device.is_done(last)? {
            return Ok(());
        }
        Err(Error::InvalidUse {
            what: "buffer".into(),
            reason: "a submission that uses its block is under way: wait for it first".into(),
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: Programs hold an Arc to every block they name until the GPU is done with them, so the last owner frees
        // memory that nothing uses. Freeing unmaps.
        unsafe {
            self.device.raw.destroy_buffer(self.buffer, None);
            self.device.raw.free_memory(self.memory, None);
        }
        self.device.in_use[self.lifetime as usize].fetch_sub(self.size, Ordering::Relaxed);
        self.device.in_use_by_heap[self.heap].fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block {{ {:?}, {} bytes at {:#x} }}", self.lifetime, self.size, self.address)
    }
}

fn buffer_info(size: u64, caps: &Caps) -> vk::BufferCreateInfo<'static> {
    let mut usage = vk::BufferUsageFlags::STORAGE_BUFFER
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
        | vk::BufferUsageFlags::TRANSFER_SRC
        | vk::BufferUsageFlags::TRANSFER_DST
        | vk::BufferUsageFlags::INDIRECT_BUFFER;
    if caps.conditional_rendering {
        usage |= vk::BufferUsageFlags::CONDITIONAL_RENDERING_EXT;
    }
    vk::BufferCreateInfo::default().size(size).usage(usage)
}

/// The memory types that our buffers may have, one bit each: the same for every size.
pub(crate) fn buffer_types(device: &ash::Device, caps: &Caps) -> u32 {
    let create = buffer_info(1 << 16, caps);
    let info = vk::DeviceBufferMemoryRequirements::default().create_info(&create);
    let mut needs = vk::MemoryRequirements2::default();
    // SAFETY: maintenance4, which every device is opened with, has this call.
    unsafe { device.get_device_buffer_memory_requirements(&info, &mut needs) };
    needs.memory_requirements.memory_type_bits
}

struct RawBlock {
    memory: vk::DeviceMemory,
    buffer: vk::Buffer,
    address: u64,
    mapped: Option<std::ptr::NonNull<u8>>,
}

impl RawBlock {
    fn new(
        device: &DeviceInner,
        size: u64,
        kind: u32,
        map: bool,
    ) -> Result<Self, (&'static str, vk::Result)> {
        let raw = &device.raw;
        let create = buffer_info(size, &device.caps);
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        // SAFETY: size is within the device's limits (checked by the arena); each object made here is destroyed on
        // every failing path below, and by Block's Drop otherwise.
        unsafe {
            let buffer = raw.create_buffer(&create, None).map_err(|result| ("vkCreateBuffer", result))?;
            let needs = raw.get_buffer_memory_requirements(buffer);
            let allocate = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(kind)
                .push_next(&mut flags);
            let memory = match raw.allocate_memory(&allocate, None) {
                Ok(memory) => memory,
                Err(result) => {
                    raw.destroy_buffer(buffer, None);
                    return Err(("vkAllocateMemory", result));
                }
            };
            let finish = || {
                raw.bind_buffer_memory(buffer, memory, 0).map_err(|result| ("vkBindBufferMemory", result))?;
                let address =
                    raw.get_buffer_device_address(&vk::BufferDeviceAddressInfo::default().buffer(buffer));
                let mapped = if map {
                    let pointer = raw
                        .map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())
                        .map_err(|result| ("vkMapMemory", result))?;
                    std::ptr::NonNull::new(pointer.cast())
                } else {
                    None
                };
                Ok((address, mapped))
            };
            match finish() {
                Ok((address, mapped)) => Ok(Self { memory, buffer, address, mapped }),
                Err(error) => {
                    raw.destroy_buffer(buffer, None);
                    raw.free_memory(memory, None);
                    Err(error)
                }
            }
        }
    }
}

/// A range of device memory that nobody else was given. Shaders see it through a [`View`].
#[derive(Debug)]
pub struct Buffer {
    view: View,
}

impl Buffer {
    /// The whole buffer, as shaders and copies see it.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// A part of it.
    pub fn slice(&self, range: Range<u64>) -> Result<View> {
        self.view.slice(range)
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.view.len
    }

    /// Never: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    /// Whether the CPU can read and write it directly.
    pub fn is_mapped(&self) -> bool {
        self.view.block.mapped.is_some()
    }

    /// The mapped bytes, to be filled by any number of threads. An error while a submission that names the buffer's block
    /// is under way; while the bytes are borrowed, none must be submitted, or the GPU sees half-written data.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let pointer = self.pointer()?;
        // SAFETY: the block is mapped as long as it lives, this buffer's range lies within it and belongs to this
        // buffer alone, which is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, self.view.len as usize) })
    }

    /// Copies `data` to `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        self.view.slice(offset..offset.saturating_add(len))?;
        self.bytes_mut()?[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    /// Copies from `offset` into `data`.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.view.slice(offset..offset.saturating_add(data.len() as u64))?;
        let pointer = self.pointer()?;
        // SAFETY: the range was checked against this buffer's; `data` is the caller's own and cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(pointer.add(offset as usize), data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// The whole buffer as values of one type.
    pub fn read_vec<T: bytemuck::Pod>(&self) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.view.len as usize / size_of::<T>()];
        self.read(0, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    fn pointer(&self) -> Result<*mut u8> {
        self.view.block.must_be_idle()?;
        let mapped = self.view.block.mapped.ok_or_else(|| Error::InvalidUse {
            what: "buffer".into(),
            reason: "the CPU cannot map this memory: use a staging ring or another kind of memory".into(),
        })?;
        // SAFETY: the offset lies within the mapped block.
        Ok(unsafe { mapped.as_ptr().add(self.view.offset as usize) })
    }
}

/// A range of device memory as a shader sees it: an address and a length. Keeps the memory alive.
#[derive(Clone, Debug)]
pub struct View {
    pub(crate) block: Arc<Block>,
    offset: u64,
    len: u64,
}

impl View {
    /// The device address of its first byte.
    pub fn address(&self) -> u64 {
        self.block.address + self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it covers nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of it.
    pub fn slice(&self, range: Range<u64>) -> Result<View> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::InvalidUse {
                what: "buffer".into(),
                reason: format!("bytes {}..{} of {}", range.start, range.end, self.len),
            });
        }
        Ok(View {
            block: self.block.clone(),
            offset: self.offset + range.start,
            len: range.end - range.start,
        })
    }

    /// Where it lies within its block, for copies and hazards.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    pub(crate) fn must_be_of(&self, device: &DeviceInner) -> Result<()> {
        if std::ptr::eq(&*self.block.device, device) {
            Ok(())
        } else {
            Err(Error::InvalidUse { what: "buffer".into(), reason: "it belongs to another device".into() })
        }
    }
}

impl From<&Buffer> for View {
    fn from(buffer: &Buffer) -> View {
        buffer.view()
    }
}
