//! NPUs: whether there is one, and whether this process may open it.
//!
//! The kernel lists them in the `accel` class, separate from GPUs. AMD's XDNA appears there from Linux 6.14
//! on, with the `amdxdna` driver; older kernels list none.

use std::path::Path;

use serde::Serialize;

use crate::{DeviceNode, read};

/// One accelerator of the `accel` class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Npu {
    /// Name, for instance `accel0`.
    pub name: String,
    /// PCI address.
    pub pci: Option<String>,
    /// PCI vendor id; [`VENDOR_AMD_CPU`](crate::VENDOR_AMD_CPU) for XDNA.
    pub vendor: Option<u16>,
    /// PCI device id, for instance `0x1502` for the NPU of Phoenix and Hawk Point.
    pub device: Option<u16>,
    /// Name of its kernel driver.
    pub driver: Option<String>,
    /// The node in `/dev/accel`.
    pub node: DeviceNode,
}

pub(crate) fn npus(root: &Path) -> Vec<Npu> {
    read::numbered(root.join("sys/class/accel"), "accel")
        .into_iter()
        .map(|(number, accel)| {
            let (name, device) = (format!("accel{number}"), accel.join("device"));
            Npu {
                pci: read::pci_address(&device),
                vendor: read::pci_id(device.join("vendor")),
                device: read::pci_id(device.join("device")),
                driver: read::link_name(device.join("driver")),
                node: DeviceNode::at(root, root.join("dev/accel").join(&name)),
                name,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::fixture::Tree;
    use crate::{Access, VENDOR_AMD_CPU};

    fn hawk_point() -> Tree {
        let tree = Tree::new();
        let device = "sys/devices/pci0000:00/0000:c6:00.1";
        tree.write(&format!("{device}/vendor"), "0x1022\n").write(&format!("{device}/device"), "0x1502\n");
        tree.write("sys/bus/pci/drivers/amdxdna/bind", "");
        tree.link(&format!("{device}/driver"), "../../../bus/pci/drivers/amdxdna");
        tree.link(&format!("{device}/accel/accel0/device"), "../../../0000:c6:00.1");
        tree.link("sys/class/accel/accel0", "../../devices/pci0000:00/0000:c6:00.1/accel/accel0");
        tree
    }

    #[test]
    fn an_xdna_npu_is_found() {
        let tree = hawk_point();
        tree.write("dev/accel/accel0", "");
        let npus = tree.system().npus();
        assert_eq!(npus.len(), 1);
        let npu = &npus[0];
        assert_eq!((npu.vendor, npu.device), (Some(VENDOR_AMD_CPU), Some(0x1502)));
        assert_eq!((npu.pci.as_deref(), npu.driver.as_deref()), (Some("0000:c6:00.1"), Some("amdxdna")));
        assert_eq!(
            (npu.node.path.clone(), &npu.node.access),
            (tree.path("dev/accel/accel0"), &Access::ReadWrite)
        );
    }

    #[test]
    fn an_npu_without_a_node_or_with_an_odd_one_is_still_present() {
        let tree = hawk_point();
        assert_eq!(tree.system().npus()[0].node.access, Access::Missing);
        tree.write("dev/accel/accel0/odd", "");
        assert!(matches!(tree.system().npus()[0].node.access, Access::Failed(_)));
    }

    #[test]
    fn an_entry_without_ids_is_present_and_unknown() {
        let tree = Tree::new();
        tree.write("sys/class/accel/accel7/device/vendor", "garbage");
        tree.write("sys/class/accel/accelerate", "");
        let npus = tree.system().npus();
        assert_eq!(npus.len(), 1);
        assert_eq!((npus[0].name.as_str(), npus[0].vendor, npus[0].pci.as_deref()), ("accel7", None, None));
    }
}
