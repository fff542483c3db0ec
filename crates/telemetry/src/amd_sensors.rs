//! Samples of one AMD GPU.
//!
//! Where hwmon and the `gpu_metrics` table report the same quantity, hwmon is preferred, because the driver has
//! converted its units, except for power in format 3 of the table: there hwmon drops the part below a watt.

use std::path::{Path, PathBuf};

use crate::cpu::labelled_input;
use crate::energy::{EnergyReading, EnergySource};
use crate::gpu_metrics::{self, GpuMetrics};
use crate::probe::Probe;
use crate::read;
use crate::runtime_power::RuntimeStatus;
use crate::snapshot::{GpuSample, Vendor};
use crate::throttle::Throttle;

/// Longer than the list of clock levels.
const LEVELS: usize = 1024;

/// The open files of one GPU.
#[derive(Debug)]
pub(crate) struct AmdSensors {
    name: String,
    pci: Option<String>,
    status: RuntimeStatus,
    vram: Pool,
    gtt: Pool,
    busy: Probe,
    memory_busy: Probe,
    core_clock: Clock,
    memory_clock: Clock,
    temperature: Probe,
    power: Probe,
    metrics: Probe,
    /// Whether energy is better read from the table; `None` before the first reading.
    energy_from_table: Option<bool>,
    /// Time at each limit, at the previous sample.
    limited: Vec<(Throttle, u32)>,
}

#[derive(Debug)]
struct Pool {
    used: Probe,
    total: Probe,
}

/// A clock in hertz, or else a list of levels of which the current one has a star.
#[derive(Debug)]
struct Clock {
    hertz: Probe,
    levels: Probe,
}

impl AmdSensors {
    /// Opens the files of the GPU in a device directory like `/sys/class/drm/card0/device`. Reads none that
    /// would wake it.
    pub(crate) fn open(device: &Path) -> Self {
        let sensor =
            read::numbered(device.join("hwmon"), "hwmon").into_iter().next().map(|(_, sensor)| sensor);
        let sensor_file = |name: &str| sensor.as_ref().map(|sensor| sensor.join(name));
        let file = |name: &str| Probe::open(device.join(name));
        let pool = |name: &str| Pool {
            used: file(&format!("mem_info_{name}_used")),
            total: file(&format!("mem_info_{name}_total")),
        };
        let clock =
            |input: &str, levels: &str| Clock { hertz: probe(sensor_file(input)), levels: file(levels) };
        let average = probe(sensor_file("power1_average"));
        Self {
            name: name(device),
            pci: read::pci_address(device),
            status: RuntimeStatus::open(device),
            vram: pool("vram"),
            gtt: pool("gtt"),
            busy: file("gpu_busy_percent"),
            memory_busy: file("mem_busy_percent"),
            core_clock: clock("freq1_input", "pp_dpm_sclk"),
            memory_clock: clock("freq2_input", "pp_dpm_mclk"),
            temperature: probe(sensor.as_deref().and_then(die_temperature)),
            // Which of the two exists depends on the chip and the kernel.
            power: if average.exists() { average } else { probe(sensor_file("power1_input")) },
            metrics: file("gpu_metrics"),
            energy_from_table: None,
            limited: Vec::new(),
        }
    }

    pub(crate) fn pci(&self) -> Option<&str> {
        self.pci.as_deref()
    }

    /// Power or energy now; `None` if the GPU sleeps. One file is read, since every file makes the driver ask the
    /// GPU's microcontroller, and wait.
    pub(crate) fn energy(&mut self) -> Option<EnergyReading> {
        if self.status.asleep() == Some(true) {
            return None;
        }
        let metrics = if self.energy_from_table == Some(false) { None } else { self.metrics() };
        if let (None, Some(metrics)) = (self.energy_from_table, &metrics) {
            let better = metrics.energy_counter.is_some() || metrics.version.0 == 3 || !self.power.exists();
            self.energy_from_table = Some(better);
        }
        if let Some(value) = metrics.as_ref().and_then(|metrics| metrics.energy_counter) {
            let joules_per_unit = gpu_metrics::JOULES_PER_UNIT;
            return Some(EnergyReading::Counter {
                source: EnergySource::AmdgpuCounter,
                value,
                joules_per_unit,
                wraps_after: None,
            });
        }
        Some(EnergyReading::Power { source: EnergySource::AmdgpuPower, watts: self.watts(metrics.as_ref())? })
    }

    /// Everything, and the metrics table, which may also describe the NPU beside the GPU.
    pub(crate) fn sample(&mut self) -> (GpuSample, Option<GpuMetrics>) {
        let suspended = self.status.asleep();
        let unknown = GpuSample::unknown(self.name.clone(), self.pci.clone(), Vendor::Amd);
        if suspended == Some(true) {
            self.limited.clear();
            return (GpuSample { suspended, ..unknown }, None);
        }
        let metrics = self.metrics();
        let table = metrics.as_ref();
        let sample = GpuSample {
            busy: percent(&self.busy).or_else(|| table?.busy),
            memory_busy: percent(&self.memory_busy).or_else(|| table?.memory_busy),
            vram_used_bytes: self.vram.used.number(),
            vram_total_bytes: self.vram.total.number(),
            gtt_used_bytes: self.gtt.used.number(),
            gtt_total_bytes: self.gtt.total.number(),
            core_clock_hz: self.core_clock.sample(table.and_then(|table| table.core_clock_hz)),
            memory_clock_hz: self.memory_clock.sample(table.and_then(|table| table.memory_clock_hz)),
            temperature_celsius: self
                .temperature
                .thousandths()
                .or_else(|| table?.temperature_celsius.or(table?.hotspot_celsius)),
            power_watts: self.watts(table),
            throttle: table.and_then(|table| self.throttle(table)),
            suspended,
            ..unknown
        };
        (sample, metrics)
    }

    fn metrics(&self) -> Option<GpuMetrics> {
        GpuMetrics::parse(self.metrics.bytes(&mut [0; gpu_metrics::MAX_BYTES])?)
    }

    fn watts(&self, metrics: Option<&GpuMetrics>) -> Option<f64> {
        let table = metrics.and_then(|metrics| metrics.socket_watts);
        let sensor = || Some(self.power.number()? as f64 / 1e6);
        if metrics.is_some_and(|metrics| metrics.version.0 == 3) {
            table.or_else(sensor)
        } else {
            sensor().or(table)
        }
    }

    /// Limits by the table's own status, or those at which time has passed since the previous sample.
    fn throttle(&mut self, metrics: &GpuMetrics) -> Option<Vec<Throttle>> {
        if metrics.throttle.is_some() {
            return metrics.throttle.clone();
        }
        let last = std::mem::replace(&mut self.limited, metrics.throttle_residency.clone());
        if last.is_empty() || last.len() != self.limited.len() {
            return None;
        }
        let grown = self.limited.iter().zip(&last).filter(|((_, now), (_, last))| now > last);
        let mut reasons: Vec<Throttle> = grown.map(|((reason, _), _)| *reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        Some(reasons)
    }
}

impl Clock {
    fn sample(&self, from_table: Option<u64>) -> Option<u64> {
        let levels = || self.levels.text(&mut [0; LEVELS]).and_then(current_level);
        self.hertz.number().or(from_table).or_else(levels)
    }
}

/// The level with a star, in lines like `1: 1800Mhz *`.
fn current_level(levels: &str) -> Option<u64> {
    let line = levels.lines().find_map(|line| line.trim_end().strip_suffix('*'))?;
    let megahertz = line.split_once(':')?.1.trim().to_ascii_lowercase();
    megahertz.strip_suffix("mhz")?.trim().parse::<u64>().ok()?.checked_mul(1_000_000)
}

/// The first sensor at the edge of the die or, without one, at its hottest point.
fn die_temperature(sensor: &Path) -> Option<PathBuf> {
    ["edge", "junction"]
        .into_iter()
        .find_map(|wanted| labelled_input(sensor, "temp", |label| label == wanted))
        .or_else(|| Some(sensor.join("temp1_input")))
}

/// The board's name if its firmware has one, or else its device id.
fn name(device: &Path) -> String {
    let product = read::text(device.join("product_name")).filter(|name| !name.is_empty());
    product.unwrap_or_else(|| match read::pci_id(device.join("device")) {
        Some(id) => format!("AMD GPU {id:04x}"),
        None => "AMD GPU".to_owned(),
    })
}

fn probe(path: Option<PathBuf>) -> Probe {
    path.map_or_else(Probe::absent, Probe::open)
}

fn percent(probe: &Probe) -> Option<f64> {
    probe.number().filter(|percent| *percent <= 100).map(|percent| percent as f64 / 100.0)
}

#[cfg(test)]
#[path = "amd_sensors_tests.rs"]
mod tests;
