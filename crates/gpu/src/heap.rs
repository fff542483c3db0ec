//! Memory heaps and memory types, and which type to use for which purpose.

use std::fmt;

use ash::vk;
use serde::Serialize;

use crate::{faults::Fault, instance::Instance};

/// One memory heap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Heap {
    /// Index in the driver's list.
    pub index: usize,
    /// Size in bytes.
    pub size: u64,
    /// Bytes this process can use before allocations fail or slow down, if the driver reports it.
    pub budget: Option<u64>,
    /// Bytes this process uses now, if the driver reports it.
    pub used: Option<u64>,
    /// Whether the memory is local to the GPU.
    pub device_local: bool,
    /// Whether the CPU can map it through at least one memory type.
    pub host_visible: bool,
}

impl Heap {
    /// Estimate of the bytes that can still be allocated.
    pub fn free(&self) -> u64 {
        self.budget.unwrap_or(self.size).min(self.size).saturating_sub(self.used.unwrap_or(0))
    }
}

/// One memory type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MemoryType {
    /// Index of its heap.
    pub heap: usize,
    /// Vulkan property flags.
    pub flags: vk::MemoryPropertyFlags,
}

impl fmt::Debug for MemoryType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { heap, flags } = self;
        write!(f, "MemoryType {{ heap: {heap}, flags: {:#x} }}", flags.as_raw())
    }
}

/// The purpose of memory, which determines the memory type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Read and written by the GPU. With unified memory the CPU can map it too, so that files are read
    /// directly into it.
    Device,
    /// Small state that the CPU writes and the GPU reads in every step.
    Shared,
    /// Read and written by the GPU, in system memory: for data that does not fit device memory.
    Host,
    /// Written by the CPU, copied from by the GPU.
    Upload,
    /// Written by the GPU, read by the CPU.
    Readback,
}

/// Selects the memory type for a purpose from those in `allowed` (one bit per type). Required flags come
/// first, then preferred and avoided ones; ties go to the driver's order. `None` if no type has the required
/// flags.
pub fn memory_type(types: &[MemoryType], allowed: u32, unified: bool, purpose: Memory) -> Option<usize> {
    use vk::MemoryPropertyFlags as Flags;
    let mapped = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let (required, preferred, avoided) = match purpose {
        Memory::Device if unified => (Flags::DEVICE_LOCAL, mapped, Flags::HOST_CACHED),
        // The mappable part of a discrete GPU's memory may be a small window: leave it to Shared.
        Memory::Device => (Flags::DEVICE_LOCAL, Flags::empty(), Flags::HOST_VISIBLE),
        Memory::Shared => (mapped, Flags::DEVICE_LOCAL, Flags::HOST_CACHED),
        Memory::Host => (mapped, Flags::empty(), Flags::DEVICE_LOCAL | Flags::HOST_CACHED),
        Memory::Upload if unified => (mapped, Flags::empty(), Flags::HOST_CACHED),
        Memory::Upload => (mapped, Flags::empty(), Flags::DEVICE_LOCAL | Flags::HOST_CACHED),
        Memory::Readback => (mapped, Flags::HOST_CACHED, Flags::DEVICE_LOCAL),
    };
    // Types with these flags need extensions or are slow for every purpose here.
    let excluded =
        Flags::PROTECTED | Flags::LAZILY_ALLOCATED | Flags::DEVICE_COHERENT_AMD | Flags::DEVICE_UNCACHED_AMD;
    let bits = |flags: Flags| flags.as_raw().count_ones();
    (0..types.len())
        .filter(|index| allowed >> index & 1 == 1)
        .filter(|index| types[*index].flags.contains(required) && !types[*index].flags.intersects(excluded))
        // min_by_key keeps the first of several minima; missing preferred flags weigh more than avoided ones.
        .min_by_key(|index| {
            let flags = types[*index].flags;
            (bits(preferred & !flags), bits(avoided & flags))
        })
}

pub(crate) fn query(
    instance: &Instance,
    raw: vk::PhysicalDevice,
    with_budget: bool,
) -> (Vec<Heap>, Vec<MemoryType>) {
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if with_budget {
        properties = properties.push_next(&mut budget);
    }
    // SAFETY: `raw` was enumerated from this instance, and lists VK_EXT_memory_budget if that structure is
    // chained; both structures outlive the call.
    unsafe { instance.inner.raw.get_physical_device_memory_properties2(raw, &mut properties) };
    let memory = properties.memory_properties;
    let limit = instance.inner.faults.iter().find_map(|fault| match fault {
        Fault::Heap(limit) => Some(*limit),
        _ => None,
    });
    let types: Vec<MemoryType> = memory
        .memory_types_as_slice()
        .iter()
        .map(|kind| MemoryType { heap: kind.heap_index as usize, flags: kind.property_flags })
        .collect();
    let heaps = memory
        .memory_heaps_as_slice()
        .iter()
        .enumerate()
        .map(|(index, heap)| Heap {
            index,
            size: heap.size.min(limit.unwrap_or(u64::MAX)),
            budget: with_budget.then(|| budget.heap_budget[index].min(limit.unwrap_or(u64::MAX))),
            used: with_budget.then(|| budget.heap_usage[index]),
            device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
            host_visible: types
                .iter()
                .any(|kind| kind.heap == index && kind.flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)),
        })
        .collect();
    (heaps, types)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vk::MemoryPropertyFlags as Flags;

    const LOCAL: Flags = Flags::DEVICE_LOCAL;
    const MAPPED: Flags = Flags::from_raw(Flags::HOST_VISIBLE.as_raw() | Flags::HOST_COHERENT.as_raw());
    const CACHED: Flags = Flags::HOST_CACHED;

    fn types(list: &[(usize, Flags)]) -> Vec<MemoryType> {
        list.iter().map(|(heap, flags)| MemoryType { heap: *heap, flags: *flags }).collect()
    }

    fn all(types: &[MemoryType], unified: bool) -> [usize; 4] {
        [Memory::Device, Memory::Shared, Memory::Upload, Memory::Readback]
            .map(|purpose| memory_type(types, u32::MAX, unified, purpose).unwrap())
    }

    #[test]
    fn radv_on_an_apu_uses_mapped_device_memory() {
        let apu = types(&[
            (1, LOCAL),
            (1, LOCAL),
            (0, MAPPED),
            (1, LOCAL | MAPPED),
            (1, LOCAL | MAPPED),
            (0, MAPPED | CACHED),
            (0, MAPPED | CACHED),
        ]);
        assert_eq!(all(&apu, true), [3, 3, 2, 5]);
    }

    #[test]
    fn nvidia_uses_the_mapped_window_for_shared_memory_only() {
        let card =
            types(&[(1, Flags::empty()), (0, LOCAL), (1, MAPPED), (1, MAPPED | CACHED), (0, LOCAL | MAPPED)]);
        assert_eq!(all(&card, false), [1, 4, 2, 3]);
        assert_eq!(memory_type(&card, u32::MAX, false, Memory::Host), Some(2));
    }

    #[test]
    fn mesa_cpu_has_one_type_for_all() {
        let cpu = types(&[(0, LOCAL | MAPPED | CACHED)]);
        assert_eq!(all(&cpu, true), [0, 0, 0, 0]);
    }

    #[test]
    fn no_suitable_type_is_none() {
        assert_eq!(memory_type(&types(&[(0, LOCAL)]), u32::MAX, false, Memory::Upload), None);
    }

    #[test]
    fn types_that_buffers_may_not_use_are_skipped() {
        let twice = types(&[(0, LOCAL), (0, LOCAL)]);
        assert_eq!(memory_type(&twice, 0b10, false, Memory::Device), Some(1));
        assert_eq!(memory_type(&twice, 0, false, Memory::Device), None);
    }
}
