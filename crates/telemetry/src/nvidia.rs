//! Samples of NVIDIA GPUs, through NVML.
//!
//! The kernel lists the GPUs and whether they sleep. NVML is opened when the first of them is awake, and asked
//! only for those that are.

use std::path::Path;

use crate::energy::{EnergyReading, EnergySource};
use crate::nvml::{Device, Nvml};
use crate::runtime_power::RuntimeStatus;
use crate::snapshot::{GpuSample, Vendor};
use crate::{VENDOR_NVIDIA, displays};

/// Opens NVML. Boxed, so that tests can pass a table of functions.
pub(crate) type Opener = Box<dyn FnOnce() -> Option<Nvml> + Send>;

/// All NVIDIA GPUs.
pub(crate) struct NvidiaGpus {
    gpus: Vec<NvidiaGpu>,
    library: Library,
}

/// NVML, which is opened at its first use.
struct Library {
    opener: Option<Opener>,
    nvml: Option<Nvml>,
}

pub(crate) struct NvidiaGpu {
    pci: Option<String>,
    name: Option<String>,
    status: Option<RuntimeStatus>,
    device: Option<Device>,
}

impl NvidiaGpus {
    /// The GPUs that `is_wanted` accepts by their PCI address.
    pub(crate) fn open(root: &Path, opener: Opener, is_wanted: impl Fn(&str) -> bool) -> Self {
        let listed = displays::pci_displays(root);
        let nvidia =
            listed.iter().filter(|display| display.vendor == VENDOR_NVIDIA).map(|display| &display.address);
        let gpu = |pci: &String| NvidiaGpu {
            status: Some(RuntimeStatus::open(&root.join("sys/bus/pci/devices").join(pci))),
            pci: Some(pci.clone()),
            name: None,
            device: None,
        };
        let gpus: Vec<NvidiaGpu> = nvidia.clone().filter(|pci| is_wanted(pci)).map(gpu).collect();
        let mut this = Self { gpus, library: Library { opener: Some(opener), nvml: None } };
        // A container may have the driver but no PCI bus in sysfs. Nothing tells who sleeps then.
        if nvidia.count() == 0 && displays::nvidia_driver(root).is_some() {
            this.list_by_index(is_wanted);
        }
        this
    }

    fn list_by_index(&mut self, is_wanted: impl Fn(&str) -> bool) {
        let Some(nvml) = self.library.open() else { return };
        let found = nvml.devices().into_iter().filter(|(_, pci)| pci.as_deref().is_none_or(&is_wanted));
        let gpu =
            |(device, pci)| NvidiaGpu { pci, name: nvml.name(device), status: None, device: Some(device) };
        self.gpus = found.map(gpu).collect();
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = Option<&str>> {
        self.gpus.iter().map(|gpu| gpu.pci.as_deref())
    }

    /// Energy or power of each GPU, in the order of [`Self::addresses`]; `None` if it sleeps.
    pub(crate) fn energy(&mut self) -> Vec<Option<EnergyReading>> {
        let Self { gpus, library } = self;
        gpus.iter_mut()
            .map(|gpu| gpu.awake(library).and_then(|(nvml, device)| energy(nvml, device)))
            .collect()
    }

    /// A sample of each GPU, in the order of [`Self::addresses`].
    pub(crate) fn sample(&mut self) -> Vec<GpuSample> {
        let Self { gpus, library } = self;
        gpus.iter_mut().map(|gpu| gpu.sample(library)).collect()
    }
}

impl Library {
    fn open(&mut self) -> Option<&Nvml> {
        if let Some(opener) = self.opener.take() {
            self.nvml = opener();
        }
        self.nvml.as_ref()
    }
}

impl NvidiaGpu {
    fn asleep(&self) -> Option<bool> {
        self.status.as_ref()?.asleep()
    }

    /// NVML and the device, unless it sleeps.
    fn awake<'a>(&mut self, library: &'a mut Library) -> Option<(&'a Nvml, Device)> {
        if self.asleep() == Some(true) {
            return None;
        }
        let nvml = library.open()?;
        if self.device.is_none() {
            self.device = nvml.device_at(self.pci.as_deref()?);
            self.name = self.device.and_then(|device| nvml.name(device));
        }
        Some((nvml, self.device?))
    }

    fn sample(&mut self, library: &mut Library) -> GpuSample {
        let awake = self.awake(library);
        let name = self.name.clone().unwrap_or_else(|| "NVIDIA GPU".to_owned());
        let unknown = GpuSample::unknown(name, self.pci.clone(), Vendor::Nvidia);
        let unknown = GpuSample { suspended: self.asleep(), ..unknown };
        let Some((nvml, device)) = awake else { return unknown };
        let (busy, memory_busy) = nvml.busy(device).unzip();
        let (vram_used_bytes, vram_total_bytes) = nvml.memory(device).unzip();
        let (core_clock_hz, memory_clock_hz) = nvml.clocks_hz(device);
        GpuSample {
            busy,
            memory_busy,
            vram_used_bytes,
            vram_total_bytes,
            core_clock_hz,
            memory_clock_hz,
            temperature_celsius: nvml.celsius(device),
            power_watts: nvml.watts(device),
            throttle: nvml.throttle(device),
            ..unknown
        }
    }
}

fn energy(nvml: &Nvml, device: Device) -> Option<EnergyReading> {
    if let Some(value) = nvml.millijoules(device) {
        return Some(EnergyReading::Counter {
            source: EnergySource::NvmlCounter,
            value,
            joules_per_unit: 1e-3,
            wraps_after: None,
        });
    }
    Some(EnergyReading::Power { source: EnergySource::NvmlPower, watts: nvml.watts(device)? })
}

#[cfg(test)]
#[path = "nvidia_tests.rs"]
mod tests;
