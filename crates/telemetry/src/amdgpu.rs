//! AMD GPUs as the amdgpu kernel driver describes them in sysfs.
//!
//! A GPU has two pools. VRAM is dedicated memory, or on an APU the part of RAM that the firmware reserves at
//! boot. GTT is the system memory that the kernel lets the GPU map, page by page, as buffers are created.
//! RADV adds the two and splits the sum into heaps by its own rule, so only these counters show which pool is
//! full.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::runtime_power::RuntimeStatus;
use crate::{VENDOR_AMD, read};

/// One AMD GPU; sizes in bytes. A value is `None` if the driver does not export it or cannot read it now,
/// for example while a discrete GPU is powered down. A GPU that sleeps is not woken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AmdGpu {
    /// Name in `/sys/class/drm`, for instance `card0`.
    pub card: String,
    /// PCI address, for instance `0000:c5:00.0`: the key to match it with a Vulkan device
    /// (`VK_EXT_pci_bus_info`).
    pub pci: Option<String>,
    /// PCI device id, for instance `0x15bf` for the Radeon 780M.
    pub device_id: Option<u16>,
    /// Whether the GPU shares memory with the CPU, by the format of its `gpu_metrics` table: revision 1 is
    /// the table of discrete GPUs, 2 and 3 those of APUs. `None` before Linux 5.10 and for other revisions.
    /// The MI300A counts as discrete: it has that table, and no carve-out to work around. Sizes are not a
    /// criterion, since firmware carves out anything from 512 MB to three quarters of RAM; nor is the PCI
    /// link, since APUs report one.
    pub integrated: Option<bool>,
    /// VRAM, or the carve-out of an APU.
    pub vram_total: Option<u64>,
    /// VRAM in use by all processes.
    pub vram_used: Option<u64>,
    /// The part of VRAM that the CPU can map; less than [`Self::vram_total`] without resizable BAR.
    pub visible_vram_total: Option<u64>,
    /// System memory that the GPU may map.
    pub gtt_total: Option<u64>,
    /// System memory that the GPU maps now, for all processes.
    pub gtt_used: Option<u64>,
    /// Share of time that the shader engines were busy, 0 to 100.
    pub busy_percent: Option<u8>,
    /// Power draw: of the board for a discrete GPU, of the whole package including the CPU for an APU.
    pub power_watts: Option<f64>,
}

pub(crate) fn amd_gpus(root: &Path) -> Vec<AmdGpu> {
    device_directories(root).into_iter().map(|(card, device)| amd_gpu(card, &device)).collect()
}

/// Name and device directory of every AMD GPU, ordered by card number.
pub(crate) fn device_directories(root: &Path) -> Vec<(String, PathBuf)> {
    read::numbered(root.join("sys/class/drm"), "card")
        .into_iter()
        .map(|(number, card)| (format!("card{number}"), card.join("device")))
        .filter(|(_, device)| read::pci_id(device.join("vendor")) == Some(VENDOR_AMD))
        .collect()
}

fn amd_gpu(card: String, device: &Path) -> AmdGpu {
    let bytes = |name: &str| read::number(device.join(name));
    // Reading load, power or the metrics table would wake it.
    let awake = RuntimeStatus::open(device).asleep() != Some(true);
    AmdGpu {
        card,
        pci: read::pci_address(device),
        device_id: read::pci_id(device.join("device")),
        integrated: awake.then(|| integrated(&device.join("gpu_metrics"))).flatten(),
        vram_total: bytes("mem_info_vram_total"),
        vram_used: bytes("mem_info_vram_used"),
        visible_vram_total: bytes("mem_info_vis_vram_total"),
        gtt_total: bytes("mem_info_gtt_total"),
        gtt_used: bytes("mem_info_gtt_used"),
        busy_percent: awake.then(|| percent(&device.join("gpu_busy_percent"))).flatten(),
        power_watts: awake.then(|| power_watts(device)).flatten(),
    }
}

/// `gpu_metrics` begins with `struct metrics_table_header`: u16 size, u8 format revision, u8 content
/// revision.
fn integrated(gpu_metrics: &Path) -> Option<bool> {
    let mut header = [0u8; 4];
    File::open(gpu_metrics).ok()?.read_exact(&mut header).ok()?;
    match header[2] {
        1 => Some(false),
        2 | 3 => Some(true),
        _ => None,
    }
}

fn percent(path: &Path) -> Option<u8> {
    u8::try_from(read::number(path)?).ok().filter(|percent| *percent <= 100)
}

/// Which of the two files exists depends on the chip and the kernel; both are in microwatts.
fn power_watts(device: &Path) -> Option<f64> {
    let sensors = read::numbered(device.join("hwmon"), "hwmon");
    let microwatts = sensors.iter().find_map(|(_, sensor)| {
        read::number(sensor.join("power1_average")).or_else(|| read::number(sensor.join("power1_input")))
    })?;
    Some(microwatts as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{GIB, RADEON_780M, RADEON_7900, Tree};

    #[test]
    fn all_values_of_a_780m_are_read() {
        let tree = Tree::new();
        tree.add_780m();
        let expected = AmdGpu {
            card: "card1".into(),
            pci: Some("0000:c5:00.0".into()),
            device_id: Some(0x15bf),
            integrated: Some(true),
            vram_total: Some(16 * GIB),
            vram_used: Some(GIB / 2),
            visible_vram_total: Some(16 * GIB),
            gtt_total: Some(38 * GIB),
            gtt_used: Some(GIB / 4),
            busy_percent: Some(7),
            power_watts: Some(12.5),
        };
        assert_eq!(tree.system().amd_gpus(), [expected]);
    }

    #[test]
    fn a_sleeping_gpu_is_not_woken() {
        let tree = Tree::new();
        tree.add_7900().write(&format!("{RADEON_7900}/power/runtime_status"), "suspended\n");
        let gpu = &tree.system().amd_gpus()[0];
        assert_eq!((gpu.integrated, gpu.busy_percent, gpu.power_watts), (None, None, None));
        assert_eq!(gpu.vram_total, Some(24 * GIB));
    }

    #[test]
    fn several_gpus_are_ordered_by_card_number() {
        let tree = Tree::new();
        tree.add_780m().add_7900();
        let gpus = tree.system().amd_gpus();
        let seen: Vec<_> = gpus.iter().map(|gpu| (gpu.card.as_str(), gpu.integrated)).collect();
        assert_eq!(seen, [("card0", Some(false)), ("card1", Some(true))]);
        assert_eq!(gpus[0].visible_vram_total, Some(GIB / 4));
        assert_eq!(gpus[0].power_watts, Some(31.0));
    }

    #[test]
    fn connectors_and_other_vendors_are_omitted() {
        let tree = Tree::new();
        tree.add_780m().link("sys/class/drm/card1-DP-1", "card1");
        tree.write("sys/class/drm/card2/device/vendor", "0x10de\n");
        let cards: Vec<_> = tree.system().amd_gpus().into_iter().map(|gpu| gpu.card).collect();
        assert_eq!(cards, ["card1"]);
    }

    #[test]
    fn average_power_takes_precedence_over_momentary_power() {
        let tree = Tree::new();
        tree.add_7900();
        tree.write(&format!("{RADEON_7900}/hwmon/hwmon3/power1_average"), "30000000\n");
        assert_eq!(tree.system().amd_gpus()[0].power_watts, Some(30.0));
    }

    #[test]
    fn invalid_values_are_none_but_the_gpu_is_listed() {
        let tree = Tree::new();
        tree.add_780m();
        let garbage =
            ["mem_info_vram_total", "mem_info_gtt_total", "gpu_busy_percent", "device", "gpu_metrics"];
        for name in garbage {
            tree.write(&format!("{RADEON_780M}/{name}"), b"\xff\0\xff");
        }
        tree.write(&format!("{RADEON_780M}/mem_info_gtt_used"), "-1\n");
        let gpu = &tree.system().amd_gpus()[0];
        assert_eq!((gpu.vram_total, gpu.gtt_total, gpu.gtt_used), (None, None, None));
        assert_eq!((gpu.busy_percent, gpu.device_id, gpu.integrated), (None, None, None));
        assert_eq!(gpu.vram_used, Some(GIB / 2));
        tree.write(&format!("{RADEON_780M}/gpu_busy_percent"), "101\n");
        assert_eq!(tree.system().amd_gpus()[0].busy_percent, None);
    }

    #[test]
    fn a_directory_in_place_of_a_value_is_none() {
        let tree = Tree::new();
        tree.write("sys/class/drm/card0/device/vendor", "0x1002\n");
        tree.write("sys/class/drm/card0/device/mem_info_vram_total/odd", "");
        let gpus = tree.system().amd_gpus();
        assert_eq!((gpus.len(), gpus[0].vram_total, gpus[0].pci.as_deref()), (1, None, None));
    }
}
