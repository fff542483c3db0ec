//! What the machine says of itself, for `/metrics`.

use std::sync::{Arc, OnceLock};

use engine::{MemoryTraffic, Status};
use gpu::Device;
use server::Gauge;
use telemetry::{AmdGpu, System};

/// What one gauge reads of a card.
type Read = fn(&AmdGpu) -> Option<f64>;

/// Name, description, and what it is of a card: as amdgpu's sysfs has it, all processes together.
const CARDS: [(&str, &str, Read); 6] = [
    ("vram_bytes", "Memory of the GPU, or what an APU carves out for it", |card| bytes(card.vram_total)),
    ("vram_used_bytes", "Of that, in use by all processes", |card| bytes(card.vram_used)),
    ("gtt_bytes", "System memory that the GPU may map", |card| bytes(card.gtt_total)),
    ("gtt_used_bytes", "Of that, mapped by all processes", |card| bytes(card.gtt_used)),
    ("gpu_busy_percent", "Share of time that the GPU was busy", |card| card.busy_percent.map(f64::from)),
    ("gpu_watts", "Power drawn by the board, or by the whole package of an APU", |card| card.power_watts),
];

fn bytes(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}

/// How fast the device reads its memory, from when it was measured on. A clone knows the same.
#[derive(Clone, Default)]
pub struct Roofline(Arc<OnceLock<f64>>);

impl Roofline {
    /// Reads so much at most: more than any cache holds, and a few milliseconds for each time even where memory is slow.
    const BYTES: u64 = 512 << 20;

    /// Measures it, the first time. Where there is too little memory left for that, it stays unknown.
    pub fn measure(&self, device: &Device) {
        match kernels::bench::probe::read_bandwidth_of(device, Self::BYTES) {
            Ok(bandwidth) => {
                self.0.get_or_init(|| bandwidth);
            }
            Err(error) => tracing::warn!("the bandwidth of the memory is not known: {error}"),
        }
    }

    /// What it is, and how much of it steps of late have used, if there were any.
    fn gauges(&self, traffic: &MemoryTraffic) -> Vec<Gauge> {
        let Some(bandwidth) = self.0.get() else { return vec![] };
        let gauge = |name, help, value| Gauge { name, help, label: None, value };
        let measured = "Bytes a second that the GPU reads of its memory at best, measured at the start";
        let used =
            "What steps without a prompt had to read, of what the memory allows in their time, of late";
        let percent = traffic.bytes_per_second().map(|speed| speed / bandwidth * 100.0);
        let percent = percent.map(|percent| gauge("roofline_percent", used, percent));
        [gauge("memory_bytes_per_second", measured, *bandwidth)].into_iter().chain(percent).collect()
    }
}

/// All that can be read now.
pub fn read(status: &Status, roofline: &Roofline) -> Vec<Gauge> {
    let system = System::new();
    let cards = system.amd_gpus();
    let of_cards = CARDS.iter().flat_map(|(name, help, read)| {
        cards.iter().filter_map(|card| {
            Some(Gauge { name, help, label: Some(("card", card.card.clone())), value: read(card)? })
        })
    });
    let memory = system.process_memory().map(|memory| Gauge {
        name: "resident_bytes",
        help: "Memory of this process",
        label: None,
        value: memory.rss as f64,
    });
    memory.into_iter().chain(roofline.gauges(&status.memory_traffic)).chain(of_cards).collect()
}
