//! AMD's NPU: whether this machine has one, what it is, and what keeps programs from using it.
//!
//! [`System::xdna`](crate::System::xdna) gathers facts from files; the NPU is not opened, which would wake it.
//! [`Xdna::obstacles`] is a pure function of these facts. It goes from the processor to the node: later steps are only
//! examined where the earlier ones are in order.

mod obstacle;

use std::path::Path;

use serde::Serialize;

pub use obstacle::NpuObstacle;

use crate::{Access, Npu, VENDOR_AMD_CPU, npu, read};

/// Locked memory that the driver's device heap takes.
pub const NPU_HEAP_BYTES: u64 = 64 << 20;
/// First kernel with the driver.
const FIRST_KERNEL: (u32, u32) = (6, 14);
/// Bit of the capability that lifts the limit of locked memory.
const CAP_IPC_LOCK: u32 = 14;

/// Processors of the generations with XDNA that are made without it.
const WITHOUT: [&str; 7] = ["8300G", "8300GE", "8500G", "8500GE", "8440U", "8540U", "8745HS"];
/// Processors with XDNA1.
const WITH_XDNA1: [&str; 17] = [
    "7640U", "7640HS", "7840U", "7840HS", "7940HS", "8600G", "8600GE", "8640U", "8640HS", "8645HS", "8700G",
    "8700GE", "8840U", "8840HS", "8845HS", "8945H", "8945HS",
];

/// Generation of the NPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NpuGeneration {
    /// Phoenix and Hawk Point: Ryzen 7040, 8040 and 8000G.
    Xdna1,
    /// Strix Point, Strix Halo and Krackan: Ryzen AI 300 and AI Max.
    Xdna2,
}

impl NpuGeneration {
    /// By PCI device id.
    pub fn of_device(id: u16) -> Option<Self> {
        match id {
            0x1502 => Some(Self::Xdna1),
            0x17f0 => Some(Self::Xdna2),
            _ => None,
        }
    }

    /// By the processor's name.
    fn of_processor(name: &str) -> Option<Self> {
        let has_word = |models: &[&str]| name.split_whitespace().any(|word| models.contains(&word));
        if name.to_ascii_uppercase().contains("RYZEN AI ") {
            Some(Self::Xdna2)
        } else {
            has_word(&WITH_XDNA1).then_some(Self::Xdna1)
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xdna1 => "XDNA1",
            Self::Xdna2 => "XDNA2",
        }
    }

    /// What it is good for.
    pub fn verdict(self) -> &'static str {
        match self {
            Self::Xdna1 => {
                "it would not make replies faster: the GPU reads weights several times as fast. With --npu it \
                 computes matrix products of image encoders and embedding models (not yet run on hardware by us)"
            }
            Self::Xdna2 => {
                "Indrik does not drive this generation; FastFlowLM runs small models on it, at less power but more \
                 slowly than the GPU"
            }
        }
    }
}

/// The kernel module `amdxdna`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NpuModule {
    /// Its version, where it states one: AMD's own builds do, the kernel's does not.
    pub version: Option<String>,
    /// Whether it was built outside of the kernel.
    pub out_of_tree: bool,
}

/// Facts about AMD's NPU in this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Xdna {
    /// Name of the processor.
    pub processor: Option<String>,
    /// Generation on the PCI bus; without a device, the one that the processor should have.
    pub generation: Option<NpuGeneration>,
    /// Whether the processor is known to be made without an NPU.
    pub processor_lacks_it: bool,
    /// Address on the PCI bus.
    pub pci: Option<String>,
    /// The entry of the kernel's `accel` class, which exists once the driver has started the NPU.
    pub npu: Option<Npu>,
    /// The driver's module, if it is loaded.
    pub module: Option<NpuModule>,
    /// Firmware files for this device; `None` if this machine's firmware cannot be seen, as in a container.
    pub firmware_files: Option<Vec<String>>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// The kernel parameter that switches the IOMMU off.
    pub iommu_off: Option<String>,
    /// Number of IOMMUs; `None` if it is unknown.
    pub iommus: Option<usize>,
    /// Limit of locked memory in bytes; `None` if there is none, or it does not apply.
    pub memlock_limit: Option<u64>,
}

impl Xdna {
    /// What keeps programs from using the NPU, in the order in which it should be fixed. Empty if nothing does.
    pub fn obstacles(&self) -> Vec<NpuObstacle> {
        let mut found = Vec::new();
        if self.processor_lacks_it && self.pci.is_none() {
            found.push(NpuObstacle::NotInProcessor { processor: self.processor.clone().unwrap_or_default() });
            return found;
        }
        let is_running = self.npu.is_some();
        if !is_running {
            match (&self.iommu_off, self.iommus) {
                (Some(parameter), _) => {
                    found.push(NpuObstacle::IommuOff { parameter: Some(parameter.clone()) });
                }
                (None, Some(0)) => found.push(NpuObstacle::IommuOff { parameter: None }),
                _ => {}
            }
        }
        if self.pci.is_none() {
            found.push(NpuObstacle::NotOnTheBus { processor: self.processor.clone().unwrap_or_default() });
            return found;
        }
        if !is_running {
            found.extend(self.driver_obstacle(found.is_empty()));
        }
        if let Some(npu) = &self.npu {
            match &npu.node.access {
                Access::ReadWrite => {}
                Access::Denied => found.push(NpuObstacle::NoPermission {
                    node: npu.node.path.clone(),
                    command: npu.node.join_group_command(),
                }),
                Access::Missing => found.push(NpuObstacle::NoNode { node: npu.node.path.clone() }),
                Access::Failed(reason) => {
                    found.push(NpuObstacle::NodeFails { node: npu.node.path.clone(), reason: reason.clone() })
                }
            }
        }
        if let Some(limit) = self.memlock_limit.filter(|limit| *limit < NPU_HEAP_BYTES) {
            found.push(NpuObstacle::MemoryLock { limit });
        }
        if let Some(release) = self.kernel.as_deref().filter(|release| has_page_fault_storm(release)) {
            found.push(NpuObstacle::PageFaults { release: release.to_owned() });
        }
        found
    }

    /// Why the driver does not run the NPU. `firmware_counts`: nothing else explains it.
    fn driver_obstacle(&self, firmware_counts: bool) -> Option<NpuObstacle> {
        let release = self.kernel.clone().unwrap_or_default();
        if self.module.is_none() {
            let too_old = version(&release).is_some_and(|version| version < FIRST_KERNEL);
            return Some(if too_old { NpuObstacle::KernelTooOld { release } } else { NpuObstacle::NoModule });
        }
        let firmware = || match &self.firmware_files {
            Some(files) if files.is_empty() => NpuObstacle::NoFirmware,
            files => NpuObstacle::DriverRefused { firmware: files.clone().unwrap_or_default(), release },
        };
        firmware_counts.then(firmware)
    }
}

/// Major and minor version of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Development kernels before 7.2, in which a context of the NPU can flood the log with page faults.
fn has_page_fault_storm(release: &str) -> bool {
    version(release) == Some((7, 2)) && (release.contains("-next") || release.contains("-rc"))
}

/// AMD's NPU, or the processor's part in its absence; `None` if there is neither an NPU nor a processor that is known
/// to have one or to lack it.
pub(crate) fn xdna(root: &Path) -> Option<Xdna> {
    let processor = processor(root);
    let npu = npu::npus(root).into_iter().find(|npu| npu.vendor == Some(VENDOR_AMD_CPU));
    let on_bus = pci_device(root);
    let id = on_bus.as_ref().map(|(_, id)| *id).or_else(|| npu.as_ref()?.device);
    let pci = on_bus.map(|(address, _)| address).or_else(|| npu.as_ref()?.pci.clone());
    let words = || processor.as_deref().unwrap_or_default().split_whitespace();
    let processor_lacks_it = words().any(|word| WITHOUT.contains(&word));
    let generation =
        id.and_then(NpuGeneration::of_device).or_else(|| NpuGeneration::of_processor(processor.as_deref()?));
    if generation.is_none() && npu.is_none() && !processor_lacks_it {
        return None;
    }
    let kernel = crate::kernel::kernel(root);
    let iommu_off = kernel.parameters_named(&["amd_iommu", "iommu"]).find(|text| text.ends_with("=off"));
    let iommus = root.join("sys/class/iommu");
    Some(Xdna {
        generation,
        processor_lacks_it,
        pci,
        module: module(root),
        firmware_files: id.and_then(|id| firmware_files(root, id)),
        iommu_off: iommu_off.map(str::to_owned),
        iommus: iommus.is_dir().then(|| read::entries(&iommus).len()),
        memlock_limit: memlock_limit(root),
        kernel: kernel.release,
        npu,
        processor,
    })
}

fn processor(root: &Path) -> Option<String> {
    let text = read::text(root.join("proc/cpuinfo"))?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Address and id of AMD's NPU on the PCI bus.
fn pci_device(root: &Path) -> Option<(String, u16)> {
    read::entries(root.join("sys/bus/pci/devices")).into_iter().find_map(|device| {
        let id = read::pci_id(device.join("device"))?;
        let is_npu = read::pci_id(device.join("vendor")) == Some(VENDOR_AMD_CPU)
            && NpuGeneration::of_device(id).is_some();
        is_npu.then_some((device.file_name()?.to_str()?.to_owned(), id))
    })
}

fn module(root: &Path) -> Option<NpuModule> {
    let folder = root.join("sys/module/amdxdna");
    folder.is_dir().then(|| NpuModule {
        version: read::text(folder.join("version")).filter(|version| !version.is_empty()),
        out_of_tree: read::text(folder.join("taint")).is_some_and(|taint| taint.contains('O')),
    })
}

/// Firmware files of the device, of any of its revisions.
fn firmware_files(root: &Path, id: u16) -> Option<Vec<String>> {
    let folder = root.join("lib/firmware");
    if !folder.is_dir() {
        return None;
    }
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let prefix = format!("{id:04x}_");
    let of_device = read::entries(folder.join("amdnpu"))
        .into_iter()
        .filter(|path| name(path).is_some_and(|name| name.starts_with(&prefix)));
    Some(of_device.flat_map(read::entries).filter_map(|path| name(&path)).collect())
}

/// The limit of locked memory of this process, unless it is lifted.
fn memlock_limit(root: &Path) -> Option<u64> {
    let status = read::text(root.join("proc/self/status")).unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    if capabilities >> CAP_IPC_LOCK & 1 == 1 {
        return None;
    }
    let limits = read::text(root.join("proc/self/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests;
