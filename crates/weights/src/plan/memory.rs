//! The memory of a device as the driver and the system report it.

use serde::Serialize;

/// Every extent starts at a multiple of this many bytes, as the buffers of a GPU arena do.
pub const ALIGNMENT: u64 = 256;

/// A memory heap as the driver reports it. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapInfo {
    /// Total size.
    pub size: u64,
    /// Bytes that this process may use in total, if the driver reports it.
    pub budget: Option<u64>,
    /// Bytes that this process uses already.
    pub used: u64,
    /// Local to the GPU.
    pub device_local: bool,
    /// The CPU can map it.
    pub host_visible: bool,
}

impl HeapInfo {
    /// Bytes that can still be allocated.
    pub fn free(&self) -> u64 {
        self.budget.unwrap_or(self.size).min(self.size).saturating_sub(self.used)
    }
}

/// Memory left free in each heap for the driver itself, pipelines, staging and other programs: `size /
/// divisor`, clamped to `min..=max` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    /// The margin is the heap's size divided by this.
    pub divisor: u64,
    /// Lower bound in bytes.
    pub min: u64,
    /// Upper bound in bytes.
    pub max: u64,
}

impl Default for Margin {
    /// 1/32, at least 256 MiB (so that the 256 MiB host-visible window of a discrete GPU stays unused), at
    /// most 1 GiB.
    fn default() -> Self {
        Self { divisor: 32, min: 256 << 20, max: 1 << 30 }
    }
}

impl Margin {
    /// Bytes of a heap that a plan may use.
    pub fn usable(&self, heap: &HeapInfo) -> u64 {
        heap.free().saturating_sub((heap.size / self.divisor).clamp(self.min, self.max))
    }
}

/// How much system memory an AMD integrated GPU can use; a kernel parameter raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gtt {
    /// Bytes of system memory that the GPU can use now (sysfs `mem_info_gtt_total`).
    pub size: u64,
    /// Total system memory in bytes (`MemTotal`; a carve-out is not part of it).
    pub system: u64,
}

/// The memory of one device.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Heaps in the driver's order.
    pub heaps: Vec<HeapInfo>,
    /// All heaps are the same physical memory.
    pub unified: bool,
    /// The driver's limit for one allocation, in bytes.
    pub max_allocation: u64,
    /// Bytes of system memory that are actually free, if known (`MemAvailable`; on unified memory plus the
    /// free part of the carve-out): the driver's heap sizes do not account for other programs. Caps all heaps
    /// on unified memory, and the host heaps otherwise.
    pub available: Option<u64>,
    /// Memory left free in each heap.
    pub margin: Margin,
    /// Set on AMD integrated GPUs only: enables the advice to raise the limit.
    pub gtt: Option<Gtt>,
}

impl Memory {
    /// Bytes that models may use in total: on a discrete GPU, without the memory of the host, which is slow.
    pub fn usable(&self) -> u64 {
        let heaps = self.heaps.iter().filter(|heap| heap.device_local || self.unified);
        let usable = heaps.map(|heap| self.margin.usable(heap)).fold(0, u64::saturating_add);
        if self.unified { usable.min(self.available.unwrap_or(u64::MAX)) } else { usable }
    }

    /// The largest multiple of [`ALIGNMENT`] within the driver's allocation limit.
    pub(super) fn max_block(&self) -> u64 {
        self.max_allocation / ALIGNMENT * ALIGNMENT
    }
}
