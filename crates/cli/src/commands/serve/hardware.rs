//! The device and the machine that serve a model, for `/metrics` and `/stats`.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, atomic::AtomicBool};

use engine::{PowerMeter, Status};
use indrik::{HeapProbe, Model};
use kvevents::Monitor;
use model::{PrefixDisk, PrefixDiskStats};
use npu::report::{OperationState, Report as NpuReport};
use server::stats::{BandwidthStats, DeviceStats, EnergyStats};
use telemetry::{EnergyMeter, Sampler, Snapshot};
use weights::plan::HeapUsage;

use super::gauges;
use crate::{energy, heaps::heap_stats};

/// The device, once a model is loaded, and the machine. Clones share them.
#[derive(Clone, Default)]
pub struct Hardware {
    loaded: Arc<RwLock<Option<Arc<Loaded>>>>,
    prefix_disk: Option<PrefixDisk>,
    npu: NpuReport,
    kv_events: Arc<OnceLock<Monitor>>,
}

/// What measures the GPU and the machine.
struct Meters {
    /// `None` if its thread could not be started.
    sampler: Option<Sampler>,
    energy: Option<EnergyMeter>,
}

struct Loaded {
    machine: Arc<Meters>,
    device: DeviceStats,
    heap_probe: HeapProbe,
    planned_heaps: Vec<HeapUsage>,
    /// Measured read bandwidth of GPU memory; unknown until it is measured, and if there is not enough free memory for
    /// that.
    bandwidth: OnceLock<f64>,
}

/// Maximum bytes read per pass of the bandwidth measurement: larger than any cache, a few milliseconds even on slow
/// memory.
const PROBE_BYTES: u64 = 512 << 20;

impl Hardware {
    pub fn new(prefix_disk: Option<PrefixDisk>, npu: NpuReport) -> Hardware {
        Hardware { prefix_disk, npu, ..Hardware::default() }
    }

    /// The operations that may run on the NPU.
    pub fn npu(&self) -> &NpuReport {
        &self.npu
    }

    /// The prefix cache on disk, if there is one.
    pub fn prefix_disk(&self) -> Option<PrefixDiskStats> {
        self.prefix_disk.as_ref().map(PrefixDisk::stats)
    }

    /// Takes over the counters of KV events.
    pub fn set_kv_events(&self, monitor: Monitor) {
        let _ = self.kv_events.set(monitor);
    }

    /// Counters of KV events, if they are published.
    pub fn kv_events(&self) -> Option<kvevents::Stats> {
        self.kv_events.get().map(Monitor::stats)
    }

    /// Takes over a loaded model's device.
    pub fn set_loaded(&self, model: &Model) {
        let report = model.load_report();
        let device = DeviceStats {
            name: report.device.name.clone(),
            driver: report.device.driver.clone(),
            tier: report.tier.map(|tier| format!("{tier:?}")),
        };
        let (heap_probe, planned_heaps) = (model.heap_probe(), report.heaps.clone());
        // Meters count from the first model on, and the bandwidth stays what it is.
        let (machine, bandwidth) = match self.loaded() {
            Some(loaded) => (loaded.machine.clone(), loaded.bandwidth.clone()),
            None => {
                let (sampler, energy) = energy::sample(&report.device);
                (Arc::new(Meters { sampler, energy }), OnceLock::new())
            }
        };
        let loaded = Loaded { machine, device, heap_probe, planned_heaps, bandwidth };
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(loaded));
    }

    /// The device of the model that was loaded last.
    fn loaded(&self) -> Option<Arc<Loaded>> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Measures the device's bandwidth when the engine is idle.
    pub fn measure_bandwidth(&self, model: &Model, cancel: &AtomicBool) -> indrik::Result<()> {
        let Some(loaded) = self.loaded() else { return Ok(()) };
        if loaded.bandwidth.get().is_some() {
            return Ok(());
        }
        let measured = model.when_idle(cancel, |runner| {
            Ok(kernels::bench::probe::read_bandwidth_of(&runner.model().device, PROBE_BYTES)
                .inspect_err(|error| tracing::warn!("memory bandwidth could not be measured: {error}")))
        })?;
        if let Some(Ok(bandwidth)) = measured {
            loaded.bandwidth.get_or_init(|| bandwidth);
        }
        Ok(())
    }

    /// Reads the power of the GPU, for the engine; `None` if it does not report it.
    pub fn power_meter(&self) -> Option<PowerMeter> {
        let meter = self.loaded()?.machine.energy.clone()?;
        Some(Box::new(move || meter.watts()))
    }

    /// The machine's last sample.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        Some(self.loaded()?.machine.sampler.as_ref()?.latest())
    }

    /// Energy of the GPU; `None` if it cannot be measured.
    pub fn energy(&self, status: &Status) -> Option<EnergyStats> {
        let loaded = self.loaded()?;
        let meter = loaded.machine.energy.as_ref()?;
        Some(EnergyStats {
            source: meter.source()?.to_owned(),
            joules: meter.joules()?,
            joules_per_token: status.energy.joules_per_token(),
        })
    }

    /// Bandwidth of decode steps; `None` before the model is loaded.
    pub fn bandwidth(&self, status: &Status) -> Option<BandwidthStats> {
        let peak = self.loaded()?.bandwidth.get().copied();
        let used = status.memory_traffic.bytes_per_second();
        Some(BandwidthStats {
            peak_bytes_per_second: peak,
            utilization: peak.zip(used).map(|(peak, used)| used / peak),
            bytes_per_token: status.memory_traffic.bytes_per_token(),
        })
    }
}

impl server::Machine for Hardware {
    fn gauges(&self, status: &Status) -> Vec<server::Gauge> {
        gauges::read(status, self)
    }

    fn hardware(&self, status: &Status) -> server::stats::HardwareStats {
        let loaded = self.loaded();
        server::stats::HardwareStats {
            device: loaded.as_ref().map(|loaded| loaded.device.clone()),
            bandwidth: self.bandwidth(status),
            energy: self.energy(status),
            machine: self.snapshot().map(|snapshot| (*snapshot).clone()),
            memory: loaded
                .map_or(vec![], |loaded| heap_stats(&loaded.heap_probe.heaps(), &loaded.planned_heaps)),
        }
    }

    fn npu_operations(&self) -> Vec<server::NpuOperation> {
        let operations = self.npu.operations().into_iter();
        let operation = |state: OperationState| server::NpuOperation {
            name: state.name,
            uses_npu: state.decision.uses_npu,
            reason: state.decision.reason,
            products: state.products,
            fallbacks: state.fallbacks,
            weight_bytes: state.weight_bytes,
        };
        operations.map(operation).collect()
    }
}
