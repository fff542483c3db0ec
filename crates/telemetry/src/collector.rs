//! Reads everything that a [`Snapshot`] holds.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::amd_sensors::AmdSensors;
use crate::cpu::{Load, Thermometer};
use crate::energy::{Accumulator, Sum};
use crate::npu::NpuSensors;
use crate::nvidia::{NvidiaGpus, Opener};
use crate::nvml::Nvml;
use crate::pressure::Pressure;
use crate::probe::Probe;
use crate::process::Process;
use crate::rapl::Rapl;
use crate::sampler::SamplerOptions;
use crate::snapshot::{CpuSample, GpuSample, MemorySample, Snapshot};
use crate::{System, amdgpu, read};

/// Longer than `/proc/meminfo`.
const MEMINFO: usize = 4096;

/// The sums that energy meters read, by PCI address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meters(Arc<Mutex<HashMap<String, Arc<Sum>>>>);

impl Meters {
    /// The sum of the GPU at an address, which need not exist.
    pub(crate) fn sum(&self, pci: &str) -> Arc<Sum> {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sums.entry(pci.to_ascii_lowercase()).or_default())
    }
}

/// The open files and the previous counters of a machine.
pub(crate) struct Collector {
    amd: Vec<(AmdSensors, Accumulator)>,
    nvidia: NvidiaGpus,
    nvidia_energy: Vec<Accumulator>,
    names: HashMap<String, String>,
    load: Load,
    thermometer: Thermometer,
    rapl: Rapl,
    npus: NpuSensors,
    meminfo: Probe,
    process: Process,
    pressure: Pressure,
}

impl Collector {
    /// The machine's files. NVML describes the real machine, so it is not asked about another root.
    pub(crate) fn open(system: &System, options: &SamplerOptions, meters: &Meters) -> Self {
        let is_real = system.root() == Path::new("/");
        Self::with_nvml(system, options, meters, Box::new(move || is_real.then(Nvml::open).flatten()))
    }

    pub(crate) fn with_nvml(
        system: &System,
        options: &SamplerOptions,
        meters: &Meters,
        nvml: Opener,
    ) -> Self {
        let root = system.root();
        let is_wanted = |pci: &str| {
            options.gpus.as_ref().is_none_or(|gpus| gpus.iter().any(|gpu| gpu.eq_ignore_ascii_case(pci)))
        };
        let accumulator =
            |pci: Option<&str>| Accumulator::new(pci.map_or_else(Arc::default, |pci| meters.sum(pci)));
        let amd = amdgpu::device_directories(root)
            .iter()
            .map(|(_, device)| AmdSensors::open(device))
            .filter(|sensors| sensors.pci().is_none_or(is_wanted))
            .map(|sensors| {
                let energy = accumulator(sensors.pci());
                (sensors, energy)
            })
            .collect();
        let nvidia = NvidiaGpus::open(root, nvml, is_wanted);
        Self {
            amd,
            nvidia_energy: nvidia.addresses().map(accumulator).collect(),
            nvidia,
            names: options.names.iter().map(|(pci, name)| (pci.to_ascii_lowercase(), name.clone())).collect(),
            load: Load::open(root),
            thermometer: Thermometer::open(root),
            rapl: Rapl::open(root),
            npus: NpuSensors::open(root),
            meminfo: Probe::open(root.join("proc/meminfo")),
            process: Process::open(root),
            pressure: Pressure::open(root),
        }
    }

    /// Whether there is a GPU whose energy can be sampled.
    pub(crate) fn has_gpus(&self) -> bool {
        !self.amd.is_empty() || !self.nvidia_energy.is_empty()
    }

    /// Adds the energy of every GPU since the previous call to its sum.
    pub(crate) fn add_energy(&mut self) {
        for (sensors, energy) in &mut self.amd {
            let reading = sensors.energy();
            energy.add(Instant::now(), reading);
        }
        let readings = self.nvidia.energy();
        let now = Instant::now();
        for (energy, reading) in self.nvidia_energy.iter_mut().zip(readings) {
            energy.add(now, reading);
        }
    }

    /// Reads everything.
    pub(crate) fn sample(&mut self) -> Snapshot {
        self.add_energy();
        let mut gpus = Vec::new();
        let mut npu_metrics = None;
        for (sensors, energy) in &mut self.amd {
            let (sample, metrics) = sensors.sample();
            npu_metrics = npu_metrics.or(metrics.filter(|metrics| metrics.version.0 == 3));
            gpus.push(GpuSample { energy_joules: energy.joules(), ..sample });
        }
        for (sample, energy) in self.nvidia.sample().into_iter().zip(&self.nvidia_energy) {
            gpus.push(GpuSample { energy_joules: energy.joules(), ..sample });
        }
        for gpu in &mut gpus {
            if let Some(name) = gpu.pci_address.as_ref().and_then(|pci| self.names.get(pci)) {
                gpu.name.clone_from(name);
            }
        }
        Snapshot {
            time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            gpus,
            cpu: self.cpu(),
            npus: self.npus.sample(Instant::now(), npu_metrics.as_ref()),
            memory: self.memory(),
            process: self.process.sample(),
            pressure: self.pressure.sample(),
        }
    }

    fn cpu(&mut self) -> CpuSample {
        let (power_watts, energy_joules) = self.rapl.sample(Instant::now());
        CpuSample {
            busy: self.load.sample(),
            power_watts,
            energy_joules,
            temperature_celsius: self.thermometer.celsius(),
        }
    }

    fn memory(&self) -> MemorySample {
        let mut buffer = [0; MEMINFO];
        let text = self.meminfo.text(&mut buffer).unwrap_or_default();
        MemorySample {
            total_bytes: read::kib_line(text, "MemTotal"),
            available_bytes: read::kib_line(text, "MemAvailable"),
        }
    }
}

#[cfg(test)]
#[path = "collector_tests.rs"]
mod tests;
