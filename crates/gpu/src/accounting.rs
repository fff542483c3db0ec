//! How much device memory is allocated, by lifetime and by heap.

use std::sync::atomic::{AtomicU64, Ordering};

use ash::vk;

/// How long an arena's memory is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Lifetime {
    /// As long as the model.
    Weights,
    /// As long as the engine's KV cache.
    Kv,
    /// As long as the programs that use it.
    Scratch,
    /// As long as a staging ring.
    Staging,
}

impl Lifetime {
    const COUNT: usize = 4;
}

/// Allocated bytes of one device.
#[derive(Debug, Default)]
pub(crate) struct Accounting {
    by_lifetime: [AtomicU64; Lifetime::COUNT],
    by_heap: [AtomicU64; vk::MAX_MEMORY_HEAPS],
}

impl Accounting {
    pub fn add(&self, lifetime: Lifetime, heap: usize, bytes: u64) {
        self.by_lifetime[lifetime as usize].fetch_add(bytes, Ordering::Relaxed);
        self.by_heap[heap].fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn subtract(&self, lifetime: Lifetime, heap: usize, bytes: u64) {
        self.by_lifetime[lifetime as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.by_heap[heap].fetch_sub(bytes, Ordering::Relaxed);
    }

    pub fn by_lifetime(&self, lifetime: Lifetime) -> u64 {
        self.by_lifetime[lifetime as usize].load(Ordering::Relaxed)
    }

    pub fn by_heap(&self, heap: usize) -> u64 {
        self.by_heap[heap].load(Ordering::Relaxed)
    }
}
