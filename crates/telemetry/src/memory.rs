//! System memory and this process's share of it.
//!
//! On an integrated GPU these numbers bound the model as much as the Vulkan heaps do: GTT is system memory,
//! and a heap budget does not include other processes.

use std::path::Path;

use serde::Serialize;

use crate::read;

/// System memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// RAM that the kernel manages: installed RAM minus the GPU's carve-out and the firmware's reservations.
    pub total: u64,
    /// RAM available without swapping, including page cache.
    pub available: Option<u64>,
    /// Swap space; zero if there is none.
    pub swap_total: Option<u64>,
    /// RAM reserved as huge pages, which only programs that ask for them can use.
    pub huge_pages: Option<u64>,
}

/// Memory of this process in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// RAM resident now. Mapped GPU buffers do not count, neither in VRAM nor in GTT: the kernel maps them as
    /// bare page frames.
    pub rss: u64,
    /// Peak resident RAM, which shows whether a load passed through RAM.
    pub rss_peak: Option<u64>,
}

pub(crate) fn memory(root: &Path) -> Option<Memory> {
    let text = read::text(root.join("proc/meminfo"))?;
    Some(Memory {
        total: read::kib_line(&text, "MemTotal")?,
        available: read::kib_line(&text, "MemAvailable"),
        swap_total: read::kib_line(&text, "SwapTotal"),
        huge_pages: read::kib_line(&text, "Hugetlb"),
    })
}

pub(crate) fn process_memory(root: &Path) -> Option<ProcessMemory> {
    let text = read::text(root.join("proc/self/status"))?;
    Some(ProcessMemory { rss: read::kib_line(&text, "VmRSS")?, rss_peak: read::kib_line(&text, "VmHWM") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    const MEMINFO: &str = "MemTotal:       79691776 kB\nMemFree:        60000000 kB\nMemAvailable:   70000000 kB\n\
                           Buffers:          100000 kB\nSwapCached:            0 kB\nSwapTotal:       8388604 kB\n\
                           Hugetlb:            2048 kB\n";

    #[test]
    fn meminfo_is_read_in_bytes() {
        let tree = Tree::new();
        tree.write("proc/meminfo", MEMINFO);
        let expected = Memory {
            total: 79_691_776 * 1024,
            available: Some(70_000_000 * 1024),
            swap_total: Some(8_388_604 * 1024),
            huge_pages: Some(2 << 20),
        };
        assert_eq!(tree.system().memory(), Some(expected));
    }

    #[test]
    fn a_missing_line_affects_only_its_value() {
        let tree = Tree::new();
        tree.write("proc/meminfo", "MemTotal: 1024 kB\nMemAvailable: many kB\n");
        let expected = Memory { total: 1 << 20, available: None, swap_total: None, huge_pages: None };
        assert_eq!(tree.system().memory(), Some(expected));
    }

    #[test]
    fn invalid_files_are_none() {
        let tree = Tree::new();
        for garbage in [&b""[..], b"\xff\xfe\x00MemTotal", b"MemTotal:\n", b"MemTotal: -5 kB"] {
            tree.write("proc/meminfo", garbage).write("proc/self/status", garbage);
            assert_eq!(tree.system().memory(), None, "{garbage:?}");
            assert_eq!(tree.system().process_memory(), None, "{garbage:?}");
        }
    }

    #[test]
    fn the_peak_is_reported_if_the_kernel_tracks_it() {
        let tree = Tree::new();
        tree.write("proc/self/status", "Name:\tindrik\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n");
        let expected = ProcessMemory { rss: 1 << 20, rss_peak: Some(2 << 20) };
        assert_eq!(tree.system().process_memory(), Some(expected));
        tree.write("proc/self/status", "VmRSS:\t1024 kB\n");
        assert_eq!(tree.system().process_memory(), Some(ProcessMemory { rss: 1 << 20, rss_peak: None }));
    }
}
