//! NPUs: whether there is one, and whether this process may open it.
//!
//! The kernel lists them in the `accel` class, separate from GPUs. AMD's XDNA appears there from Linux 6.14
//! on, with the `amdxdna` driver; older kernels list none.
//!
//! `amdxdna` exports a name and the firmware's version, but neither load nor power. On Strix Point and later,
//! the GPU's `gpu_metrics` table has both. Intel's `intel_vpu` counts busy time.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::gpu_metrics::GpuMetrics;
use crate::probe::Probe;
use crate::snapshot::NpuSample;
use crate::{DeviceNode, VENDOR_AMD_CPU, read, xdna};

/// One accelerator of the `accel` class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Npu {
    /// Name, for instance `accel0`.
    pub name: String,
    /// PCI address.
    pub pci: Option<String>,
    /// PCI vendor id; [`VENDOR_AMD_CPU`] for XDNA.
    pub vendor: Option<u16>,
    /// PCI device id, for instance `0x1502` for the NPU of Phoenix and Hawk Point.
    pub device: Option<u16>,
    /// Name of its kernel driver.
    pub driver: Option<String>,
    /// Name that `amdxdna` gives it, for instance `NPU Strix Halo`.
    pub model: Option<String>,
    /// Version of its firmware, for instance `1.5.2.380`.
    pub firmware: Option<String>,
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
                model: model(&device),
                firmware: firmware(&device),
                node: DeviceNode::at(root, root.join("dev/accel").join(&name)),
                name,
            }
        })
        .collect()
}

fn firmware(device: &Path) -> Option<String> {
    read::text(device.join("fw_version")).filter(|version| !version.is_empty())
}

fn model(device: &Path) -> Option<String> {
    read::text(device.join("vbnv")).filter(|name| !name.is_empty())
}

/// The open files of every NPU. Device nodes are opened once, at the start, and not kept open: that could keep an NPU
/// awake.
#[derive(Debug)]
pub(crate) struct NpuSensors(Vec<NpuSensor>);

#[derive(Debug)]
struct NpuSensor {
    name: String,
    vendor: Option<u16>,
    firmware: Option<String>,
    obstacle: Option<String>,
    busy_microseconds: Probe,
    last: Option<(Instant, u64)>,
}

impl NpuSensors {
    pub(crate) fn open(root: &Path) -> Self {
        let xdna = xdna::xdna(root);
        let obstacle = xdna.as_ref().and_then(|xdna| Some(xdna.obstacles().first()?.to_string()));
        let sensor = |(number, accel): (u32, std::path::PathBuf)| {
            let device = accel.join("device");
            let vendor = read::pci_id(device.join("vendor"));
            NpuSensor {
                name: model(&device).unwrap_or_else(|| format!("accel{number}")),
                vendor,
                firmware: firmware(&device),
                obstacle: obstacle.clone().filter(|_| vendor == Some(VENDOR_AMD_CPU)),
                busy_microseconds: Probe::open(device.join("npu_busy_time_us")),
                last: None,
            }
        };
        let mut sensors: Vec<_> =
            read::numbered(root.join("sys/class/accel"), "accel").into_iter().map(sensor).collect();
        // One that is there, or should be, without a driver that runs it.
        if let Some(xdna) = xdna.filter(|xdna| xdna.npu.is_none())
            && let Some(generation) = xdna.generation
        {
            sensors.push(NpuSensor {
                name: generation.name().to_owned(),
                vendor: Some(VENDOR_AMD_CPU),
                firmware: None,
                obstacle,
                busy_microseconds: Probe::open(root.join("sys/class/accel/none")),
                last: None,
            });
        }
        Self(sensors)
    }

    /// Samples of all NPUs. `metrics` is the table of the APU's GPU, which describes the NPU of the same package.
    pub(crate) fn sample(&mut self, now: Instant, metrics: Option<&GpuMetrics>) -> Vec<NpuSample> {
        let is_amd = |npu: &NpuSensor| npu.vendor == Some(VENDOR_AMD_CPU);
        // With two, it would be unknown whose values these are.
        let metrics = metrics.filter(|_| self.0.iter().filter(|npu| is_amd(npu)).count() == 1);
        let sample = |npu: &mut NpuSensor| {
            let metrics = metrics.filter(|_| is_amd(npu));
            NpuSample {
                name: npu.name.clone(),
                busy: npu.busy(now).or_else(|| metrics?.npu_busy),
                power_watts: metrics.and_then(|metrics| metrics.npu_watts),
                firmware: npu.firmware.clone(),
                obstacle: npu.obstacle.clone(),
            }
        };
        self.0.iter_mut().map(sample).collect()
    }
}

impl NpuSensor {
    /// Share of the time since the previous call, from the driver's counter.
    fn busy(&mut self, now: Instant) -> Option<f64> {
        let busy = self.busy_microseconds.number().map(|busy| (now, busy));
        let (then, last) = std::mem::replace(&mut self.last, busy)?;
        let elapsed = now.saturating_duration_since(then).as_micros() as f64;
        let busy = busy?.1.checked_sub(last)? as f64;
        (elapsed > 0.0).then(|| (busy / elapsed).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Access;
    use crate::fixture::Tree;
    use crate::fixture::tables::{Halo, radeon_8060s};

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
    fn the_driver_names_the_npu_and_its_firmware() {
        let tree = hawk_point();
        assert_eq!((&tree.system().npus()[0].model, &tree.system().npus()[0].firmware), (&None, &None));
        tree.write("sys/devices/pci0000:00/0000:c6:00.1/vbnv", "NPU Phoenix\n");
        tree.write("sys/devices/pci0000:00/0000:c6:00.1/fw_version", "1.5.2.380\n");
        let npu = tree.system().npus().remove(0);
        assert_eq!((npu.model.as_deref(), npu.firmware.as_deref()), (Some("NPU Phoenix"), Some("1.5.2.380")));
    }

    #[test]
    fn load_and_power_come_from_the_gpu_of_the_same_package() {
        let (tree, now) = (hawk_point(), Instant::now());
        tree.write("dev/accel/accel0", "");
        let unknown = NpuSample {
            name: "accel0".into(),
            busy: None,
            power_watts: None,
            firmware: None,
            obstacle: None,
        };
        assert!(
            matches!(NpuSensors::open(&tree.path("")).sample(now, None)[..], [ref npu] if *npu == unknown)
        );
        let metrics = GpuMetrics::parse(&radeon_8060s(&Halo::default()));
        let sample = NpuSensors::open(&tree.path("")).sample(now, metrics.as_ref());
        assert_eq!(sample, [NpuSample { busy: Some(0.25), power_watts: Some(2.15), ..unknown.clone() }]);
        tree.write("sys/class/accel/accel1/device/vendor", "0x1022\n");
        let two = NpuSensors::open(&tree.path("")).sample(now, metrics.as_ref());
        assert_eq!(two, [unknown.clone(), NpuSample { name: "accel1".into(), ..unknown }]);
    }

    #[test]
    fn an_npu_that_cannot_be_used_is_listed_with_the_reason() {
        use crate::fixture::npus::NpuMachine;
        let sample =
            |machine: NpuMachine| NpuSensors::open(&machine.tree().path("")).sample(Instant::now(), None);
        let good = &sample(NpuMachine::Good)[0];
        assert_eq!((good.obstacle.as_deref(), good.firmware.as_deref()), (None, Some("1.5.2.380")));
        let off = sample(NpuMachine::IommuOff);
        assert_eq!((off.len(), off[0].name.as_str()), (1, "XDNA1"));
        assert!(off[0].obstacle.as_deref().is_some_and(|text| text.contains("amd_iommu=off")), "{off:?}");
        assert_eq!(sample(NpuMachine::Without), []);
        assert_eq!(sample(NpuMachine::Other), []);
    }

    #[test]
    fn load_comes_from_a_counter_of_busy_time() {
        let (tree, now) = (Tree::new(), Instant::now());
        tree.write("sys/class/accel/accel0/device/vendor", "0x8086\n");
        tree.write("sys/class/accel/accel0/device/npu_busy_time_us", "1000000\n");
        let mut npus = NpuSensors::open(&tree.path(""));
        assert_eq!(npus.sample(now, None)[0].busy, None);
        tree.write("sys/class/accel/accel0/device/npu_busy_time_us", "1500000\n");
        assert_eq!(npus.sample(now + Duration::from_secs(2), None)[0].busy, Some(0.25));
        tree.write("sys/class/accel/accel0/device/npu_busy_time_us", "0\n");
        assert_eq!(npus.sample(now + Duration::from_secs(3), None)[0].busy, None, "the driver was reloaded");
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
