//! Fake machines for tests: directory trees with the kernel's layout, including links.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::System;

pub mod npus;
pub mod tables;

/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;

/// Device directory of the fake Radeon 780M: 16 GiB of carve-out and, of the remaining 76 GiB, half as GTT.
pub const RADEON_780M: &str = "sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0";
/// Device directory of the fake Radeon 8060S: 512 MiB of carve-out, and half of the remaining RAM as GTT.
pub const RADEON_8060S: &str = "sys/devices/pci0000:00/0000:00:08.1/0000:c3:00.0";
/// Device directory of the fake Radeon RX 7900 XTX, without resizable BAR.
pub const RADEON_7900: &str = "sys/devices/pci0000:00/0000:00:01.1/0000:03:00.0";

/// A temporary directory used in place of `/`.
pub struct Tree {
    dir: TempDir,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// An empty machine.
    pub fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    /// The machine.
    pub fn system(&self) -> System {
        System::at(self.dir.path())
    }

    /// Path of a file of the machine.
    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Writes a file and the directories above it.
    pub fn write(&self, path: &str, contents: impl AsRef<[u8]>) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
        self
    }

    /// Makes `path` a symbolic link to `target`, which is relative to the link, as in sysfs.
    pub fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    /// A mini-PC with 92 GiB of usable RAM, 16 of them carved out.
    pub fn add_780m(&self) -> &Self {
        self.write("proc/meminfo", "MemTotal:       79691776 kB\nMemAvailable:   70000000 kB\n");
        self.add_gpu(RADEON_780M, "0x15bf", ("card1", "renderD128"));
        self.write(&format!("{RADEON_780M}/power/runtime_status"), "active\n");
        self.write(&format!("{RADEON_780M}/gpu_metrics"), tables::radeon_780m(731, 12_400, 0));
        self.write(&format!("{RADEON_780M}/hwmon/hwmon4/temp1_label"), "edge\n");
        for (name, bytes) in [
            ("mem_info_vram_total", 16 * GIB),
            ("mem_info_vram_used", GIB / 2),
            ("mem_info_vis_vram_total", 16 * GIB),
            ("mem_info_gtt_total", 38 * GIB),
            ("mem_info_gtt_used", GIB / 4),
            ("gpu_busy_percent", 7),
            ("hwmon/hwmon4/power1_average", 12_500_000),
            ("hwmon/hwmon4/freq1_input", 2_700_000_000),
            ("hwmon/hwmon4/temp1_input", 71_000),
        ] {
            self.write(&format!("{RADEON_780M}/{name}"), format!("{bytes}\n"));
        }
        self
    }

    /// A machine with a Radeon 780M: total RAM and carve-out as installed, GTT as the kernel sized it, and 2 GiB
    /// used by other programs.
    pub fn add_apu(&self, installed: u64, carve_out: u64, gtt: u64) -> &Self {
        self.add_780m();
        let total = installed - carve_out;
        let kib = |bytes: u64| bytes / 1024;
        self.write(
            "proc/meminfo",
            format!("MemTotal: {} kB\nMemAvailable: {} kB\n", kib(total), kib(total - 2 * GIB)),
        );
        for (name, bytes) in [("vram_total", carve_out), ("vram_used", carve_out / 8), ("gtt_total", gtt)] {
            self.write(&format!("{RADEON_780M}/mem_info_{name}"), format!("{bytes}\n"));
        }
        self
    }

    /// A machine with 128 GiB of RAM, a Radeon 8060S and an NPU.
    pub fn add_8060s(&self) -> &Self {
        self.write("proc/meminfo", "MemTotal:       131072000 kB\nMemAvailable:   120000000 kB\n");
        self.add_gpu(RADEON_8060S, "0x1586", ("card1", "renderD128"));
        self.write(&format!("{RADEON_8060S}/power/runtime_status"), "active\n");
        self.write(&format!("{RADEON_8060S}/gpu_metrics"), tables::radeon_8060s(&tables::Halo::default()));
        self.write(&format!("{RADEON_8060S}/hwmon/hwmon5/temp1_label"), "edge\n");
        for (name, bytes) in [
            ("mem_info_vram_total", GIB / 2),
            ("mem_info_vram_used", GIB / 8),
            ("mem_info_vis_vram_total", GIB / 2),
            ("mem_info_gtt_total", 64_000 << 20),
            ("mem_info_gtt_used", 40 * GIB),
            ("gpu_busy_percent", 97),
            ("hwmon/hwmon5/power1_average", 118_025_000),
            ("hwmon/hwmon5/freq1_input", 2_900_000_000),
            ("hwmon/hwmon5/temp1_input", 64_000),
        ] {
            self.write(&format!("{RADEON_8060S}/{name}"), format!("{bytes}\n"));
        }
        let npu = "sys/devices/pci0000:00/0000:00:08.2/0000:c4:00.1";
        self.write(&format!("{npu}/vendor"), "0x1022\n").write(&format!("{npu}/device"), "0x17f0\n");
        self.write(&format!("{npu}/vbnv"), "NPU Strix Halo\n");
        self.link(&format!("{npu}/accel/accel0/device"), "../../../0000:c4:00.1");
        let from_root = npu.strip_prefix("sys/").unwrap();
        self.link("sys/class/accel/accel0", &format!("../../{from_root}/accel/accel0"))
    }

    /// An NVIDIA GPU on the PCI bus, with its driver loaded.
    pub fn add_nvidia(&self, address: &str) -> &Self {
        let device = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{device}/class"), "0x030200\n").write(&format!("{device}/vendor"), "0x10de\n");
        self.write(&format!("{device}/power/runtime_status"), "active\n");
        self.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14\n",
        )
    }

    /// A Radeon RX 7900 XTX.
    pub fn add_7900(&self) -> &Self {
        self.add_gpu(RADEON_7900, "0x744c", ("card0", "renderD129"));
        self.write(&format!("{RADEON_7900}/power/runtime_status"), "active\n");
        self.write(&format!("{RADEON_7900}/gpu_metrics"), tables::radeon_7900(12, 30, 0));
        for (name, bytes) in [
            ("mem_info_vram_total", 24 * GIB),
            ("mem_info_vis_vram_total", GIB / 4),
            ("mem_info_gtt_total", 16 * GIB),
            ("hwmon/hwmon3/power1_input", 31_000_000),
        ] {
            self.write(&format!("{RADEON_7900}/{name}"), format!("{bytes}\n"));
        }
        self
    }

    /// The PCI and DRM files of a GPU: ids, driver, card, render node, and the links between them.
    fn add_gpu(&self, device: &str, id: &str, (card, render): (&str, &str)) {
        let address = device.rsplit('/').next().unwrap();
        self.write(&format!("{device}/vendor"), "0x1002\n")
            .write(&format!("{device}/device"), format!("{id}\n"));
        self.write(&format!("{device}/class"), "0x030000\n");
        self.write("sys/bus/pci/drivers/amdgpu/bind", "");
        self.link(&format!("{device}/driver"), "../../../../bus/pci/drivers/amdgpu");
        let from_root = device.strip_prefix("sys/").unwrap();
        self.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../{from_root}"));
        for name in [card, render] {
            self.link(&format!("{device}/drm/{name}/device"), &format!("../../../{address}"));
            self.link(&format!("sys/class/drm/{name}"), &format!("../../{from_root}/drm/{name}"));
        }
    }
}
