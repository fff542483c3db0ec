//! Facts about the machine's hardware and kernel, without any GPU API.
//!
//! Vulkan reports the features of a driver, but not why a driver is absent, how much system memory the kernel
//! lets the GPU map, or when the kernel aborts a submission. The kernel does, in small files under `/proc`,
//! `/sys` and `/dev`. This crate reads those files. Only NVIDIA's driver keeps its sensors out of them, so its
//! library is opened where it is installed; that is the crate's only `unsafe`.
//!
//! Facts that stay or are asked for once:
//!
//! | module | reads | answers |
//! |---|---|---|
//! | [`memory`] | `/proc/meminfo`, `/proc/self/status` | total RAM, and how much of it this process uses |
//! | [`amdgpu`] | `/sys/class/drm/card*/device` | VRAM, GTT, load and power of each AMD GPU |
//! | [`gtt`] | `/sys/module/ttm`, `/proc/cmdline` | the kernel parameters that let the GPU map more RAM |
//! | [`lockup`] | `/sys/module/amdgpu/parameters` | how long a submission may run before the kernel resets the GPU |
//! | [`nodes`] | `/dev/dri`, `/etc/group` | whether this process may open the GPU, and which group grants access |
//! | [`displays`] | `/sys/bus/pci`, `/proc/driver/nvidia` | which GPUs are installed, with or without a Vulkan driver |
//! | [`kernel`] | `/proc/cmdline`, `/etc/os-release` | the kernel, and its parameters about memory and GPUs |
//! | [`power_settings`] | `/sys/firmware/acpi`, `/sys/class/power_supply` | settings that hold clocks down |
//! | [`rocm`] | `/sys/class/kfd` | which processes hold GPU memory through ROCm |
//! | [`npu`] | `/sys/class/accel` | which NPUs have a driver, and whether this process may open them |
//! | [`xdna`] | the PCI bus, `/proc`, `/lib/firmware` | whether AMD's NPU can be used, and if not, what to do |
//!
//! Values that change, sampled by a thread:
//!
//! | module | reads | answers |
//! |---|---|---|
//! | [`sampler`] | the modules below | the latest [`Snapshot`], without waiting for a read |
//! | [`energy`] | NVML, amdgpu | joules of a GPU, for instance around a step of the engine |
//! | [`snapshot`] | | everything that is sampled, as it is in JSON |
//! | [`gpu_metrics`] | `gpu_metrics` of amdgpu | power, load, temperature, clocks and throttling of AMD GPUs and NPUs |
//! | `amd_sensors` | amdgpu's sysfs, hwmon | one AMD GPU |
//! | `nvml`, `nvidia` | `libnvidia-ml.so.1` | NVIDIA GPUs |
//! | `cpu`, `rapl` | `/proc/stat`, hwmon, powercap | load, temperature and energy of processors |
//! | `process`, `pressure` | `/proc/self`, `/proc/pressure` | this process; time lost by waiting |
//! | `runtime_power` | `power/runtime_status` | whether a GPU sleeps; such a GPU is not read, since that would wake it |
//!
//! Everything starts from a [`System`], which is a root directory: `/` in production, a temporary tree in
//! tests. No reader fails. A file that is missing, unreadable or invalid becomes `None`, or its device is
//! omitted, because every kernel and board lacks some of these files, and diagnostics must work on broken
//! machines.
//!
//! ```
//! let system = telemetry::System::new();
//! for gpu in system.amd_gpus() {
//!     if let Some(advice) = system.gtt_advice(&gpu) {
//!         println!("{}", advice.instructions);
//!     }
//! }
//!
//! let sampler = telemetry::Sampler::start(&system, telemetry::SamplerOptions::default())?;
//! let meter = sampler.energy_meter("0000:c1:00.0");
//! let before = meter.joules();
//! // … work …
//! let joules = meter.joules().zip(before).map(|(now, before)| now - before);
//! println!("{:?} J; the machine: {:?}", joules, sampler.latest());
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod amdgpu;
pub mod displays;
pub mod energy;
pub mod gpu_metrics;
pub mod gtt;
pub mod kernel;
pub mod lockup;
pub mod memory;
pub mod nodes;
pub mod npu;
pub mod power_settings;
pub mod rocm;
pub mod sampler;
pub mod snapshot;
pub mod xdna;

#[cfg(any(test, feature = "testing"))]
pub mod fixture;

mod amd_sensors;
mod collector;
mod cpu;
mod nvidia;
mod nvml;
mod pressure;
mod probe;
mod process;
mod rapl;
mod read;
mod runtime_power;
mod throttle;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use amdgpu::AmdGpu;
pub use displays::{NvidiaDriver, PciDisplay};
pub use energy::{EnergyMark, EnergyMeter, PendingMark};
pub use gpu_metrics::GpuMetrics;
pub use gtt::{GttAdvice, GttControls, TtmModule, gtt_advice};
pub use kernel::Kernel;
pub use lockup::{LockupTimeout, RingTimeout};
pub use memory::{Memory, ProcessMemory};
pub use nodes::{Access, DeviceNode, RenderNode};
pub use npu::Npu;
pub use power_settings::PowerSettings;
pub use rocm::RocmProcess;
pub use sampler::{Sampler, SamplerOptions};
pub use snapshot::{
    CpuSample, GpuSample, MemorySample, NpuSample, PressureSample, ProcessSample, Snapshot, Vendor,
};
pub use throttle::Throttle;
pub use xdna::{NpuGeneration, NpuModule, NpuObstacle, Xdna};

/// PCI vendor id of AMD (and of ATI before it).
pub const VENDOR_AMD: u16 = 0x1002;
/// PCI vendor id of AMD's processors, which their NPUs carry instead of [`VENDOR_AMD`].
pub const VENDOR_AMD_CPU: u16 = 0x1022;
/// PCI vendor id of NVIDIA.
pub const VENDOR_NVIDIA: u16 = 0x10de;
/// PCI vendor id of Intel.
pub const VENDOR_INTEL: u16 = 0x8086;

/// A machine, read through its file system from a root directory.
///
/// Stateless: every call reads the files again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct System {
    root: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self::new()
    }
}

impl System {
    /// The machine this process runs on.
    pub fn new() -> Self {
        Self::at("/")
    }

    /// The machine whose `/proc`, `/sys`, `/dev` and `/etc` are under `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// System memory; `None` if `/proc/meminfo` has no total.
    pub fn memory(&self) -> Option<Memory> {
        memory::memory(&self.root)
    }

    /// Memory of this process; `None` if `/proc/self/status` does not report it.
    pub fn process_memory(&self) -> Option<ProcessMemory> {
        memory::process_memory(&self.root)
    }

    /// Every AMD GPU with a kernel driver, ordered by card number.
    pub fn amd_gpus(&self) -> Vec<AmdGpu> {
        amdgpu::amd_gpus(&self.root)
    }

    /// The kernel settings that determine the size of the GTT pool.
    pub fn gtt_controls(&self) -> GttControls {
        gtt::gtt_controls(&self.root)
    }

    /// How to let `gpu` map more system memory; `None` if there is little to gain or too little is known.
    pub fn gtt_advice(&self, gpu: &AmdGpu) -> Option<GttAdvice> {
        gtt_advice(gpu, self.memory()?.total, &self.gtt_controls())
    }

    /// The configured amdgpu watchdog; `None` if the module is not loaded.
    pub fn lockup_timeout(&self) -> Option<LockupTimeout> {
        lockup::lockup_timeout(&self.root)
    }

    /// Every render node in sysfs or `/dev/dri`, ordered by number.
    pub fn render_nodes(&self) -> Vec<RenderNode> {
        nodes::render_nodes(&self.root)
    }

    /// Every display controller on the PCI bus, with or without a driver, ordered by address.
    pub fn pci_displays(&self) -> Vec<PciDisplay> {
        displays::pci_displays(&self.root)
    }

    /// NVIDIA's kernel driver; `None` if neither the module nor its device node exists.
    pub fn nvidia_driver(&self) -> Option<NvidiaDriver> {
        displays::nvidia_driver(&self.root)
    }

    /// Bytes of the largest region of the PCI device at `address` that the CPU can map; `None` if it is unknown.
    pub fn largest_bar(&self, address: &str) -> Option<u64> {
        displays::largest_bar(&self.root, address)
    }

    /// The running kernel and its distribution.
    pub fn kernel(&self) -> Kernel {
        kernel::kernel(&self.root)
    }

    /// Settings that hold clocks down.
    pub fn power_settings(&self) -> PowerSettings {
        power_settings::power_settings(&self.root)
    }

    /// Every process that uses ROCm, ordered by id.
    pub fn rocm_processes(&self) -> Vec<RocmProcess> {
        rocm::rocm_processes(&self.root)
    }

    /// AMD's NPU, and what keeps programs from using it; `None` if there is no sign of one.
    pub fn xdna(&self) -> Option<Xdna> {
        xdna::xdna(&self.root)
    }

    /// Every accelerator of the kernel's `accel` class, ordered by number.
    pub fn npus(&self) -> Vec<Npu> {
        npu::npus(&self.root)
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn an_empty_root_reports_nothing_and_does_not_panic() {
        let tree = Tree::new();
        let system = tree.system();
        assert_eq!(system.memory(), None);
        assert_eq!(system.process_memory(), None);
        assert_eq!(system.amd_gpus(), []);
        assert_eq!(system.lockup_timeout(), None);
        assert_eq!(system.render_nodes(), []);
        assert_eq!(system.pci_displays(), []);
        assert_eq!(system.nvidia_driver(), None);
        assert_eq!(system.npus(), []);
        assert_eq!(system.xdna(), None);
        assert_eq!(system.rocm_processes(), []);
        assert_eq!(system.power_settings(), PowerSettings::default());
    }

    #[test]
    fn a_root_that_is_not_a_directory_reports_nothing() {
        let tree = Tree::new();
        tree.write("file", "not a directory");
        let system = System::at(tree.path("file"));
        assert_eq!(system.memory(), None);
        assert_eq!(system.amd_gpus(), []);
        assert_eq!(system.npus(), []);
    }

    #[test]
    fn this_machine_has_memory_and_this_process_holds_some_of_it() {
        let system = System::new();
        let total = system.memory().expect("/proc/meminfo of a Linux machine").total;
        let held = system.process_memory().expect("/proc/self/status of a Linux machine").rss;
        assert!(held > 0 && held < total, "{held} of {total}");
    }
}
