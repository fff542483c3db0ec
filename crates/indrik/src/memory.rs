//! Device memory as the placement planner sees it.

use gpu::{AdapterInfo, AdapterKind};
use telemetry::{AmdGpu, System};
use weights::plan::{Gtt, HeapInfo, Margin, Memory};

/// Available system memory that plans leave free for the staging ring, pipelines and other programs.
const SYSTEM_RESERVE: u64 = 512 << 20;

/// The memory of a device: its heaps, bounded by the system memory that is available.
pub fn device_memory(info: &AdapterInfo) -> Memory {
    memory_on(&System::new(), info)
}

/// System memory that copies of weights for the NPU may take; `None` if it is unknown.
pub(crate) fn npu_memory() -> Option<u64> {
    Some(System::new().memory()?.available?.saturating_sub(SYSTEM_RESERVE))
}

/// The kernel's view of an AMD APU's GPU; `None` for other devices.
pub fn amd_apu(system: &System, info: &AdapterInfo) -> Option<AmdGpu> {
    let is_apu = info.kind == AdapterKind::Integrated && info.vendor_id == u32::from(telemetry::VENDOR_AMD);
    let is_same = |gpu: &AmdGpu| info.pci_address.is_none() || gpu.pci == info.pci_address;
    system.amd_gpus().into_iter().find(|gpu| is_apu && is_same(gpu))
}

/// [`device_memory`] on another machine, such as a recorded one.
pub fn memory_on(system: &System, info: &AdapterInfo) -> Memory {
    let amd = amd_apu(system, info);
    let system_memory = system.memory();
    let gtt = amd
        .as_ref()
        .and_then(|card| Some(Gtt { size: card.gtt_total?, system: system_memory.as_ref()?.total }));
    let vram_free = amd
        .as_ref()
        .map_or(0, |card| card.vram_total.unwrap_or(0).saturating_sub(card.vram_used.unwrap_or(0)));
    let heap = |heap: &gpu::Heap| HeapInfo {
        size: heap.size,
        budget: heap.budget,
        used: heap.used.unwrap_or(0),
        device_local: heap.device_local,
        host_visible: heap.host_visible,
    };
    Memory {
        heaps: info.heaps.iter().map(heap).collect(),
        unified: info.unified_memory,
        max_allocation: info.caps.max_allocation,
        available: system_memory
            .and_then(|memory| memory.available)
            .map(|available| (available + vram_free).saturating_sub(SYSTEM_RESERVE)),
        margin: Margin::default(),
        gtt,
    }
}
