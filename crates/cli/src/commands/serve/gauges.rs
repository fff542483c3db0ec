//! What the machine says of itself, for `/metrics`.

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

/// All that can be read now.
pub fn read() -> Vec<Gauge> {
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
    memory.into_iter().chain(of_cards).collect()
}
