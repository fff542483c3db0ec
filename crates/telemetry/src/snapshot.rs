//! The state of the machine at one moment, as `GET /stats` reports it under `machine`.
//!
//! `None`, in JSON `null`, is a value that this machine does not report. It is never 0 and never estimated.

use serde::{Deserialize, Serialize};

use crate::Throttle;

/// Everything that the sampler reads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Seconds since 1970.
    pub time: f64,
    /// AMD GPUs by card number, then NVIDIA GPUs by PCI address.
    pub gpus: Vec<GpuSample>,
    /// All processors together.
    pub cpu: CpuSample,
    /// Accelerators of the kernel's `accel` class, and an NPU of AMD's that its driver does not run.
    pub npus: Vec<NpuSample>,
    /// System memory.
    pub memory: MemorySample,
    /// This process.
    pub process: ProcessSample,
    /// Time lost by waiting for a resource.
    pub pressure: PressureSample,
}

/// Who made a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    /// AMD.
    Amd,
    /// NVIDIA.
    Nvidia,
}

/// One GPU. Sizes are in bytes, over all processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Name, or vendor and device id if the kernel has no name for it.
    pub name: String,
    /// PCI address, for instance `0000:c1:00.0`.
    pub pci_address: Option<String>,
    /// Who made it.
    pub vendor: Vendor,
    /// Share of time that it was busy, 0 to 1.
    pub busy: Option<f64>,
    /// Share of time that its memory was busy, 0 to 1.
    pub memory_busy: Option<f64>,
    /// Dedicated memory in use.
    pub vram_used_bytes: Option<u64>,
    /// Dedicated memory; on an APU, the carve-out.
    pub vram_total_bytes: Option<u64>,
    /// System memory that it maps.
    pub gtt_used_bytes: Option<u64>,
    /// System memory that it may map.
    pub gtt_total_bytes: Option<u64>,
    /// Clock of the shader engines.
    pub core_clock_hz: Option<u64>,
    /// Clock of the memory.
    pub memory_clock_hz: Option<u64>,
    /// Temperature of the die.
    pub temperature_celsius: Option<f64>,
    /// Power draw of the board; on an APU, of the package with the CPU.
    pub power_watts: Option<f64>,
    /// Energy since the sampler started.
    pub energy_joules: Option<f64>,
    /// Limits that lower its clocks now.
    pub throttle: Option<Vec<Throttle>>,
    /// Whether the kernel has suspended it. Everything else is unknown then: reading would wake it.
    pub suspended: Option<bool>,
}

impl GpuSample {
    pub(crate) fn unknown(name: String, pci_address: Option<String>, vendor: Vendor) -> Self {
        Self {
            name,
            pci_address,
            vendor,
            busy: None,
            memory_busy: None,
            vram_used_bytes: None,
            vram_total_bytes: None,
            gtt_used_bytes: None,
            gtt_total_bytes: None,
            core_clock_hz: None,
            memory_clock_hz: None,
            temperature_celsius: None,
            power_watts: None,
            energy_joules: None,
            throttle: None,
            suspended: None,
        }
    }
}

/// All processors together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSample {
    /// Share of time that they were busy since the previous sample, 0 to 1.
    pub busy: Option<f64>,
    /// Power draw of the packages since the previous sample.
    pub power_watts: Option<f64>,
    /// Energy of the packages since the sampler started.
    pub energy_joules: Option<f64>,
    /// Temperature of the hottest package.
    pub temperature_celsius: Option<f64>,
}

/// One NPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NpuSample {
    /// Name, for instance `NPU Strix Halo`, or its device, for instance `accel0`.
    pub name: String,
    /// Share of time that it was busy, 0 to 1.
    pub busy: Option<f64>,
    /// Power draw.
    pub power_watts: Option<f64>,
    /// Version of its firmware.
    #[serde(default)]
    pub firmware: Option<String>,
    /// What keeps programs from using it, if something does: the first obstacle, as found when sampling began.
    #[serde(default)]
    pub obstacle: Option<String>,
}

/// System memory in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySample {
    /// RAM that the kernel manages.
    pub total_bytes: Option<u64>,
    /// RAM available without swapping.
    pub available_bytes: Option<u64>,
}

/// This process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    /// Processor time of all threads since it started.
    pub cpu_seconds: Option<f64>,
    /// Number of threads.
    pub threads: Option<u64>,
    /// Number of open file descriptors.
    pub open_files: Option<u64>,
}

/// Share of the last 10 seconds in which some task waited for a resource, 0 to 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PressureSample {
    /// For a processor.
    pub cpu: Option<f64>,
    /// For memory to be freed or read back.
    pub memory: Option<f64>,
    /// For storage.
    pub io: Option<f64>,
}
