//! GPUs on the PCI bus, with or without a driver.
//!
//! A GPU that is listed here but not by Vulkan has no kernel driver, a driver that reserves it (`vfio-pci`),
//! or no installed Vulkan driver.

use std::path::Path;

use serde::Serialize;

use crate::{VENDOR_AMD, VENDOR_INTEL, VENDOR_NVIDIA, read};

/// PCI base class of display controllers; the two bytes below it are subclass and interface.
const DISPLAY_CLASS: u32 = 0x03;

/// A display controller on the PCI bus. Compute cards without outputs are among them (class `0x0302`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PciDisplay {
    /// Address, for instance `0000:c5:00.0`.
    pub address: String,
    /// Class, subclass and interface, for instance `0x030000`.
    pub class: u32,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: Option<u16>,
    /// Name of the kernel driver that claimed it, for instance `amdgpu`; `None` if there is none.
    pub driver: Option<String>,
}

impl PciDisplay {
    /// Name of the vendor, for vendors with compute-capable GPUs.
    pub fn vendor_name(&self) -> Option<&'static str> {
        match self.vendor {
            VENDOR_AMD => Some("AMD"),
            VENDOR_NVIDIA => Some("NVIDIA"),
            VENDOR_INTEL => Some("Intel"),
            _ => None,
        }
    }
}

/// NVIDIA's kernel driver, which has its own nodes instead of needing those in `/dev/dri`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NvidiaDriver {
    /// Whether the module is loaded.
    pub loaded: bool,
    /// Its version, for instance `550.54.14`: the user-space driver must have the same version.
    pub version: Option<String>,
    /// Whether `/dev/nvidia0` exists. It is not opened, since that would power up an idle GPU.
    pub node: bool,
}

pub(crate) fn pci_displays(root: &Path) -> Vec<PciDisplay> {
    read::entries(root.join("sys/bus/pci/devices")).iter().filter_map(|device| pci_display(device)).collect()
}

fn pci_display(device: &Path) -> Option<PciDisplay> {
    let class = read::hex(device.join("class")).filter(|class| class >> 16 == DISPLAY_CLASS)?;
    Some(PciDisplay {
        address: device.file_name()?.to_str()?.to_owned(),
        class,
        vendor: read::pci_id(device.join("vendor"))?,
        device: read::pci_id(device.join("device")),
        driver: read::link_name(device.join("driver")),
    })
}

/// Bytes of the largest region of a device that the CPU can map, from lines of first address, last address and flags.
pub(crate) fn largest_bar(root: &Path, address: &str) -> Option<u64> {
    let regions = read::text(root.join("sys/bus/pci/devices").join(address).join("resource"))?;
    let size = |line: &str| {
        let mut words =
            line.split_whitespace().map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
        let (first, last) = (words.next()??, words.next()??);
        // Unused regions are 0 to 0.
        (last > first).then(|| last - first + 1)
    };
    regions.lines().filter_map(size).max()
}

pub(crate) fn nvidia_driver(root: &Path) -> Option<NvidiaDriver> {
    let module = root.join("proc/driver/nvidia/version");
    let (loaded, node) = (module.exists(), root.join("dev/nvidia0").exists());
    let version = read::text(module).as_deref().and_then(nvidia_version);
    (loaded || node).then_some(NvidiaDriver { loaded, version, node })
}

/// The version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 …`, whose words
/// before it differ between the open and the closed module.
fn nvidia_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    line.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn the_largest_region_is_found() {
        let tree = Tree::new();
        let address = "0000:03:00.0";
        assert_eq!(tree.system().largest_bar(address), None);
        let file = format!("sys/bus/pci/devices/{address}/resource");
        tree.write(
            &file,
            "0x000000d000000000 0x000000d00fffffff 0x000000000014220c\n\
             0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
             0x000000d010000000 0x000000d0101fffff 0x000000000014220c\n",
        );
        assert_eq!(tree.system().largest_bar(address), Some(256 << 20));
        tree.write(&file, "0xffff\nnonsense 0x1 0x2\n\n");
        assert_eq!(tree.system().largest_bar(address), None);
    }

    #[test]
    fn display_controllers_are_found_with_and_without_a_driver() {
        let tree = Tree::new();
        tree.add_780m();
        let pci = "sys/bus/pci/devices";
        tree.write(&format!("{pci}/0000:01:00.0/class"), "0x030200\n");
        tree.write(&format!("{pci}/0000:01:00.0/vendor"), "0x10de\n");
        tree.write(&format!("{pci}/0000:02:00.0/class"), "0x010802\n");
        tree.write(&format!("{pci}/0000:02:00.0/vendor"), "0x144d\n");
        let expected = [
            PciDisplay {
                address: "0000:01:00.0".into(),
                class: 0x03_02_00,
                vendor: VENDOR_NVIDIA,
                device: None,
                driver: None,
            },
            PciDisplay {
                address: "0000:c5:00.0".into(),
                class: 0x03_00_00,
                vendor: VENDOR_AMD,
                device: Some(0x15bf),
                driver: Some("amdgpu".into()),
            },
        ];
        let found = tree.system().pci_displays();
        assert_eq!(found, expected);
        assert_eq!([found[0].vendor_name(), found[1].vendor_name()], [Some("NVIDIA"), Some("AMD")]);
    }

    #[test]
    fn devices_with_invalid_ids_are_omitted() {
        let tree = Tree::new();
        let files = [("a", "0x030000", "1002"), ("b", "display", "0x1002"), ("c", "0x030000", "0x11002")];
        for (name, class, vendor) in files {
            tree.write(&format!("sys/bus/pci/devices/{name}/class"), class);
            tree.write(&format!("sys/bus/pci/devices/{name}/vendor"), vendor);
        }
        assert_eq!(tree.system().pci_displays(), []);
    }

    #[test]
    fn the_version_is_parsed_for_both_nvidia_modules() {
        let tree = Tree::new();
        for (line, version) in [
            (
                "NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 15:37:48 UTC 2023",
                Some("535.154.05"),
            ),
            ("NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build", Some("550.54.14")),
            ("NVIDIA UNIX x86_64 Kernel Module  Thu Dec 28 2023", None),
        ] {
            let text = format!("NVRM version: {line}\nGCC version:  gcc version 12.2.0 (Debian)\n");
            tree.write("proc/driver/nvidia/version", text);
            let driver = NvidiaDriver { loaded: true, version: version.map(str::to_owned), node: false };
            assert_eq!(tree.system().nvidia_driver(), Some(driver));
        }
    }

    #[test]
    fn a_node_without_the_module_is_reported() {
        let tree = Tree::new();
        tree.write("dev/nvidia0", "");
        let expected = NvidiaDriver { loaded: false, version: None, node: true };
        assert_eq!(tree.system().nvidia_driver(), Some(expected));
    }
}
