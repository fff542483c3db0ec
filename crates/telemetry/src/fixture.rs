//! Fake machines for tests: directory trees with the kernel's layout, including links.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::System;

/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;

/// Device directory of the fake Radeon 780M: 16 GiB of carve-out and, of the remaining 76 GiB, half as GTT.
pub const RADEON_780M: &str = "sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0";
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
        // Header of gpu_metrics_v2_3, then the start of its body.
        self.write(&format!("{RADEON_780M}/gpu_metrics"), [0x98, 0x00, 2, 3, 0xd4, 0x0f]);
        for (name, bytes) in [
            ("mem_info_vram_total", 16 * GIB),
            ("mem_info_vram_used", GIB / 2),
            ("mem_info_vis_vram_total", 16 * GIB),
            ("mem_info_gtt_total", 38 * GIB),
            ("mem_info_gtt_used", GIB / 4),
            ("gpu_busy_percent", 7),
            ("hwmon/hwmon4/power1_average", 12_500_000),
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

    /// A Radeon RX 7900 XTX.
    pub fn add_7900(&self) -> &Self {
        self.add_gpu(RADEON_7900, "0x744c", ("card0", "renderD129"));
        // Header of gpu_metrics_v1_3.
        self.write(&format!("{RADEON_7900}/gpu_metrics"), [0x78, 0x00, 1, 3, 0x2a, 0x00]);
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
