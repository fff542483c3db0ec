//! Facts about the machine's hardware and kernel, without any GPU API.
//!
//! Vulkan reports the features of a driver, but not why a driver is absent, how much system memory the kernel
//! lets the GPU map, or when the kernel aborts a submission. The kernel does, in small text files under
//! `/proc`, `/sys` and `/dev`. This crate reads those files and nothing else: no `unsafe`, no library, no
//! daemon.
//!
//! | module | reads | answers |
//! |---|---|---|
//! | [`memory`] | `/proc/meminfo`, `/proc/self/status` | total RAM, and how much of it this process uses |
//! | [`amdgpu`] | `/sys/class/drm/card*/device` | VRAM, GTT, load and power of each AMD GPU |
//! | [`gtt`] | `/sys/module/ttm`, `/proc/cmdline` | the kernel parameters that let the GPU map more RAM |
//! | [`lockup`] | `/sys/module/amdgpu/parameters` | how long a submission may run before the kernel resets the GPU |
//! | [`nodes`] | `/dev/dri`, `/etc/group` | whether this process may open the GPU, and which group grants access |
//! | [`displays`] | `/sys/bus/pci`, `/proc/driver/nvidia` | which GPUs are installed, with or without a Vulkan driver |
//! | [`npu`] | `/sys/class/accel` | whether there is an NPU, and whether this process may open it |
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
//! ```

pub mod amdgpu;
pub mod displays;
pub mod gtt;
pub mod lockup;
pub mod memory;
pub mod nodes;
pub mod npu;

#[cfg(any(test, feature = "testing"))]
pub mod fixture;
mod read;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use amdgpu::AmdGpu;
pub use displays::{NvidiaDriver, PciDisplay};
pub use gtt::{GttAdvice, GttControls, TtmModule, gtt_advice};
pub use lockup::{LockupTimeout, RingTimeout};
pub use memory::{Memory, ProcessMemory};
pub use nodes::{Access, DeviceNode, RenderNode};
pub use npu::Npu;

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
