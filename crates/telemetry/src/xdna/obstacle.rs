//! What keeps programs from using the NPU, and what to do about it.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

/// An obstacle between a program and the NPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NpuObstacle {
    /// The processor is made without an NPU.
    NotInProcessor {
        /// Its name.
        processor: String,
    },
    /// The processor has an NPU, but the PCI bus does not show it.
    NotOnTheBus {
        /// Its name.
        processor: String,
    },
    /// The driver needs the IOMMU, which is off.
    IommuOff {
        /// The kernel parameter that switches it off; `None` if the firmware setup does.
        parameter: Option<String>,
    },
    /// The kernel has no driver yet.
    KernelTooOld {
        /// Its release.
        release: String,
    },
    /// The driver's module is not loaded.
    NoModule,
    /// There is no firmware for the NPU.
    NoFirmware,
    /// The driver is loaded, but does not run the NPU.
    DriverRefused {
        /// The firmware files that there are.
        firmware: Vec<String>,
        /// Release of the kernel.
        release: String,
    },
    /// The NPU runs, but its node does not exist.
    NoNode {
        /// The node.
        node: PathBuf,
    },
    /// This user may not open the node.
    NoPermission {
        /// The node.
        node: PathBuf,
        /// The command that grants access from the next login, if joining a group helps.
        command: Option<String>,
    },
    /// The node cannot be opened.
    NodeFails {
        /// The node.
        node: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The limit of locked memory is below the driver's heap.
    MemoryLock {
        /// The limit in bytes.
        limit: u64,
    },
    /// A kernel in which contexts of the NPU can flood the log with page faults.
    PageFaults {
        /// Its release.
        release: String,
    },
}

impl fmt::Display for NpuObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInProcessor { processor } => write!(f, "{processor} is made without an NPU"),
            Self::NotOnTheBus { processor } => write!(f, "{processor} has an NPU, but the PCI bus does not show it"),
            Self::IommuOff { parameter: Some(parameter) } => {
                write!(f, "{parameter} is on the kernel's command line, and the driver needs the IOMMU")
            }
            Self::IommuOff { parameter: None } => {
                f.write_str("the kernel has found no IOMMU, which the driver needs")
            }
            Self::KernelTooOld { release } => write!(f, "Linux {release} has no driver for the NPU"),
            Self::NoModule => f.write_str("the driver amdxdna is not loaded"),
            Self::NoFirmware => f.write_str("the driver amdxdna is loaded, but there is no firmware for the NPU"),
            Self::DriverRefused { .. } => f.write_str(
                "the driver amdxdna is loaded, but does not run the NPU; the usual reason is firmware with a newer \
                 protocol than the driver's",
            ),
            Self::NoNode { node } => write!(f, "{} does not exist", node.display()),
            Self::NoPermission { node, .. } => write!(f, "{} may not be opened by this user", node.display()),
            Self::NodeFails { node, reason } => write!(f, "{} cannot be opened: {reason}", node.display()),
            Self::MemoryLock { limit } => write!(
                f,
                "at most {} KiB of memory may be locked, and the driver's heap takes 65536 KiB",
                limit / 1024
            ),
            Self::PageFaults { release } => {
                write!(f, "Linux {release}: development kernels of 7.2 can flood the log with the NPU's page faults")
            }
        }
    }
}

impl NpuObstacle {
    /// What to do; `None` if nothing can be done.
    pub fn fix(&self) -> Option<String> {
        let fix = match self {
            Self::NotInProcessor { .. } => return None,
            Self::NotOnTheBus { .. } => {
                "enable it in the firmware setup, where it is called NPU, IPU or Ryzen AI; virtual machines and \
                 containers may hide it"
            }
            Self::IommuOff { parameter: Some(parameter) } => {
                return Some(format!("remove {parameter} from the kernel's command line, and boot again"));
            }
            Self::IommuOff { parameter: None } => "enable the IOMMU (AMD-Vi) in the firmware setup",
            Self::KernelTooOld { .. } => "use Linux 6.14 or later, or install AMD's own build of the driver",
            Self::NoModule => {
                "sudo modprobe amdxdna; if there is no such module, install the distribution's extra kernel modules, or \
                 a kernel with CONFIG_DRM_ACCEL_AMDXDNA"
            }
            Self::NoFirmware => "install the distribution's linux-firmware, which has the folder amdnpu",
            Self::DriverRefused { firmware, release } => {
                let files = match firmware.is_empty() {
                    true => String::new(),
                    false => format!(" (this machine has {})", firmware.join(", ")),
                };
                return Some(format!(
                    "sudo dmesg | grep amdxdna: if it says \"Incompatible firmware protocol\", use a kernel newer than \
                     {release} or an older linux-firmware{files}"
                ));
            }
            Self::NoNode { .. } => "pass the node into this container: --device /dev/accel",
            Self::NoPermission { command: Some(command), .. } => {
                return Some(format!("{command}, then log in again"));
            }
            Self::NoPermission { command: None, .. } => {
                "ask the node's owner for access: on most systems, members of the group render have it"
            }
            Self::NodeFails { .. } => "sudo dmesg | grep amdxdna",
            Self::MemoryLock { .. } => {
                "echo \"* - memlock 131072\" | sudo tee /etc/security/limits.d/99-npu.conf, then log in again; a systemd \
                 service takes LimitMEMLOCK=128M"
            }
            Self::PageFaults { .. } => "use a released kernel",
        };
        Some(fix.to_owned())
    }
}
