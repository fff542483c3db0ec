//! One allocation of device memory, bound to one buffer that covers all of it.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ash::vk;

use crate::{
    accounting::Lifetime,
    caps::Caps,
    device_inner::{DeviceInner, Ticket},
    error::{Error, OUT_OF_MEMORY_FIX, Result},
    heap::{Memory, memory_type},
};

/// Memory, the Vulkan buffer over all of it, its device address, and its mapping.
pub(crate) struct Block {
    pub device: Arc<DeviceInner>,
    memory: vk::DeviceMemory,
    pub buffer: vk::Buffer,
    pub address: u64,
    /// The mapping, which lasts as long as the block; `None` if the CPU cannot map the memory.
    pub mapped: Option<NonNull<u8>>,
    pub size: u64,
    lifetime: Lifetime,
    heap: usize,
    /// Ticket of the last submission that refers to the block.
    last_use: AtomicU64,
}

// SAFETY: `mapped` points to memory that stays mapped as long as the block lives, on any thread. It is
// accessed only through `Buffer`, whose ranges never overlap within a block and which borrows mutably for
// writing.
unsafe impl Send for Block {}
// SAFETY: as above; the Vulkan handles are only read until Drop, which runs once, in the last owner.
unsafe impl Sync for Block {}

impl Block {
    /// Allocates `size` bytes. `what` names the buffer that needs them in errors.
    pub fn allocate(
        device: &Arc<DeviceInner>,
        what: &str,
        size: u64,
        lifetime: Lifetime,
        memory: Memory,
    ) -> Result<Self> {
        device.check_lost("vkAllocateMemory")?;
        let info = &device.adapter.info;
        let kind = memory_type(&info.memory_types, device.buffer_memory_types, info.unified_memory, memory)
            .ok_or_else(|| Error::Unsupported {
            device: info.name.clone(),
            missing: format!("it has no memory type for {memory:?}"),
            fix: "update its driver or choose another device (indrik devices)".into(),
        })?;
        let heap = &device.heaps()[info.memory_types[kind].heap];
        // The driver's usage figure may lag or be missing. Our own allocations are certain.
        let own = device.accounting.by_heap(heap.index);
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
        device.counters.allocations.fetch_add(1, Ordering::Relaxed);
        if device.faults.fails_allocation() {
            return Err(exhausted(None));
        }

        let flags = info.memory_types[kind].flags;
        let mappable = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let raw = RawBlock::new(device, size, kind as u32, flags.contains(mappable));
        let RawBlock { memory, buffer, address, mapped } = raw.map_err(|result| match result {
            (_, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY) => exhausted(None),
            (call, result) => device.fail(call, result),
        })?;
        device.accounting.add(lifetime, heap.index, size);
        Ok(Self {
            device: device.clone(),
            memory,
            buffer,
            address,
            mapped,
            size,
            lifetime,
            heap: heap.index,
            last_use: AtomicU64::new(0),
        })
    }

    pub fn note_use(&self, ticket: Ticket) {
        self.last_use.fetch_max(ticket.0, Ordering::AcqRel);
    }

    /// Fails while a submission that refers to the block is in flight: the host must not access its memory.
    pub fn check_idle(&self) -> Result<()> {
        let last = Ticket(self.last_use.load(Ordering::Acquire));
        if last.0 == 0 || self.device.is_done(last)? {
            return Ok(());
        }
        Err(Error::InvalidUse {
            what: "buffer".into(),
            reason: "a submission that uses its memory is still running: wait for it first".into(),
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: programs hold an Arc to every block they refer to until the GPU is done with them, so the
        // last owner frees memory that nothing uses. Freeing the memory also unmaps it.
        unsafe {
            self.device.raw.destroy_buffer(self.buffer, None);
            self.device.raw.free_memory(self.memory, None);
        }
        self.device.accounting.subtract(self.lifetime, self.heap, self.size);
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

/// The memory types that blocks may use, one bit per type. Vulkan guarantees the same types for every size.
pub(crate) fn memory_types(device: &ash::Device, caps: &Caps) -> u32 {
    let create = buffer_info(1 << 16, caps);
    let info = vk::DeviceBufferMemoryRequirements::default().create_info(&create);
    let mut requirements = vk::MemoryRequirements2::default();
    // SAFETY: the call is part of maintenance4, which every device is opened with; the structures outlive the
    // call.
    unsafe { device.get_device_buffer_memory_requirements(&info, &mut requirements) };
    requirements.memory_requirements.memory_type_bits
}

struct RawBlock {
    memory: vk::DeviceMemory,
    buffer: vk::Buffer,
    address: u64,
    mapped: Option<NonNull<u8>>,
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
        // SAFETY: the arena keeps `size` within the device's limits, and `kind` is one of the types that
        // buffers may use. Only host-visible memory is mapped, once. Every object created here is destroyed
        // on each error path below, and by Block's Drop otherwise.
        unsafe {
            let buffer = raw.create_buffer(&create, None).map_err(|result| ("vkCreateBuffer", result))?;
            let requirements = raw.get_buffer_memory_requirements(buffer);
            let allocate = vk::MemoryAllocateInfo::default()
                .allocation_size(requirements.size)
                .memory_type_index(kind)
                .push_next(&mut flags);
            let memory = match raw.allocate_memory(&allocate, None) {
                Ok(memory) => memory,
                Err(result) => {
                    raw.destroy_buffer(buffer, None);
                    return Err(("vkAllocateMemory", result));
                }
            };
            let bind_and_map = || {
                raw.bind_buffer_memory(buffer, memory, 0).map_err(|result| ("vkBindBufferMemory", result))?;
                let address =
                    raw.get_buffer_device_address(&vk::BufferDeviceAddressInfo::default().buffer(buffer));
                let mapped = if map {
                    let pointer = raw
                        .map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())
                        .map_err(|result| ("vkMapMemory", result))?;
                    NonNull::new(pointer.cast())
                } else {
                    None
                };
                Ok((address, mapped))
            };
            match bind_and_map() {
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
