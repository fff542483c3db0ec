//! Devices that this machine does not have, for tests.

use gpu::{AdapterInfo, AdapterKind, Heap, known};

/// A Radeon 780M, whose heaps RADV makes of carve-out and GTT.
pub fn radeon_780m(carve_out: u64, gtt: u64) -> AdapterInfo {
    let total = carve_out + gtt;
    let heap = |index: usize, size: u64, device_local: bool| Heap {
        index,
        size,
        budget: Some(size),
        used: Some(0),
        device_local,
        host_visible: true,
    };
    AdapterInfo {
        index: 0,
        name: "AMD Radeon 780M (RADV PHOENIX)".into(),
        kind: AdapterKind::Integrated,
        vendor_id: telemetry::VENDOR_AMD.into(),
        device_id: 0x15bf,
        driver: "radv".into(),
        driver_version: 1,
        pci_address: None,
        pipeline_cache_uuid: [0; 16],
        unified_memory: true,
        compile_only: false,
        caps: known::radeon_780m(),
        heaps: vec![heap(0, total / 3, false), heap(1, total - total / 3, true)],
        memory_types: Vec::new(),
    }
}
