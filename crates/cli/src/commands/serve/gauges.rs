//! Metrics of the machine for `/metrics`: GPU memory, utilisation, power, memory bandwidth, process memory.

use std::sync::{Arc, OnceLock};

use engine::{MemoryTraffic, Status};
use gpu::Device;
use server::Gauge;
use telemetry::{AmdGpu, System};

/// Reads one value of a card.
type Read = fn(&AmdGpu) -> Option<f64>;

/// Name, HELP text and reader of each per-card gauge. The values are amdgpu's sysfs files and include all processes.
const CARDS: [(&str, &str, Read); 6] = [
    ("vram_total_bytes", "Total GPU memory; on an APU, the carve-out", |card| bytes(card.vram_total)),
    ("vram_used_bytes", "GPU memory in use by all processes", |card| bytes(card.vram_used)),
    ("gtt_total_bytes", "System memory that the GPU may map", |card| bytes(card.gtt_total)),
    ("gtt_used_bytes", "System memory mapped by all processes on the GPU", |card| bytes(card.gtt_used)),
    ("gpu_busy_ratio", "GPU utilisation, 0 to 1", |card| {
        card.busy_percent.map(|percent| f64::from(percent) / 100.0)
    }),
    ("gpu_power_watts", "Power draw of the board, or of the package on an APU", |card| card.power_watts),
];

fn bytes(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}

/// Measured memory bandwidth of the device. Clones share the measurement.
#[derive(Clone, Default)]
pub struct Roofline(Arc<OnceLock<f64>>);

impl Roofline {
    /// Maximum bytes read per pass: larger than any cache, a few milliseconds even on slow memory.
    const BYTES: u64 = 512 << 20;

    /// Measures the bandwidth once. It stays unknown if there is not enough free memory for the measurement.
    pub fn measure(&self, device: &Device) {
        match kernels::bench::probe::read_bandwidth_of(device, Self::BYTES) {
            Ok(bandwidth) => {
                self.0.get_or_init(|| bandwidth);
            }
            Err(error) => tracing::warn!("memory bandwidth could not be measured: {error}"),
        }
    }

    /// The bandwidth and, after the first decode step, its recent utilisation.
    fn gauges(&self, traffic: &MemoryTraffic) -> Vec<Gauge> {
        let Some(bandwidth) = self.0.get() else { return vec![] };
        let gauge = |name, help, value| Gauge { name, help, label: None, value };
        let measured = "Peak read bandwidth of GPU memory, measured at startup";
        let used = "Fraction of the peak bandwidth that recent decode steps reached, 0 to 1";
        let ratio = traffic.bytes_per_second().map(|speed| speed / bandwidth);
        let ratio = ratio.map(|ratio| gauge("memory_bandwidth_utilization_ratio", used, ratio));
        [gauge("memory_bandwidth_bytes_per_second", measured, *bandwidth)].into_iter().chain(ratio).collect()
    }
}

/// All gauges that are available now.
pub fn read(status: &Status, roofline: &Roofline) -> Vec<Gauge> {
    let system = System::new();
    let cards = system.amd_gpus();
    let card_gauges = CARDS.iter().flat_map(|(name, help, read)| {
        cards.iter().filter_map(|card| {
            Some(Gauge { name, help, label: Some(("card", card.card.clone())), value: read(card)? })
        })
    });
    let memory = system.process_memory().map(|memory| Gauge {
        name: "process_resident_memory_bytes",
        help: "Resident memory of the server process",
        label: None,
        value: memory.rss as f64,
    });
    memory.into_iter().chain(roofline.gauges(&status.memory_traffic)).chain(card_gauges).collect()
}
