//! Metrics of the machine for `/metrics`: GPU memory, utilisation, power, memory bandwidth, NPUs, process memory.

use engine::Status;
use model::PrefixDiskStats;
use server::{Gauge, stats::BandwidthStats};
use telemetry::{GpuSample, NpuSample, System};

use super::hardware::Hardware;

/// Reads one value of a GPU.
type Read = fn(&GpuSample) -> Option<f64>;

/// Name, HELP text and reader of each gauge of a GPU. Memory, load and power include all processes.
const GPUS: [(&str, &str, Read); 8] = [
    ("vram_total_bytes", "Total GPU memory; on an APU, the carve-out", |gpu| bytes(gpu.vram_total_bytes)),
    ("vram_used_bytes", "GPU memory in use by all processes", |gpu| bytes(gpu.vram_used_bytes)),
    ("gtt_total_bytes", "System memory that the GPU may map", |gpu| bytes(gpu.gtt_total_bytes)),
    ("gtt_used_bytes", "System memory mapped by all processes on the GPU", |gpu| bytes(gpu.gtt_used_bytes)),
    ("gpu_busy_ratio", "GPU utilisation, 0 to 1", |gpu| gpu.busy),
    ("gpu_power_watts", "Power draw of the board, or of the package on an APU", |gpu| gpu.power_watts),
    ("gpu_temperature_celsius", "Temperature of the die", |gpu| gpu.temperature_celsius),
    ("gpu_energy_joules_total", "Energy of the GPU since the model was loaded, idle time included", |gpu| {
        gpu.energy_joules
    }),
];

/// Reads one value of an NPU.
type ReadNpu = fn(&NpuSample) -> Option<f64>;

/// Name, HELP text and reader of each gauge of an NPU.
const NPUS: [(&str, &str, ReadNpu); 3] = [
    ("npu_busy_ratio", "NPU utilisation, 0 to 1", |npu| npu.busy),
    ("npu_power_watts", "Power draw of the NPU", |npu| npu.power_watts),
    ("npu_usable", "1 if nothing keeps programs from using the NPU, 0 otherwise", |npu| {
        Some(if npu.obstacle.is_none() { 1.0 } else { 0.0 })
    }),
];

/// Gauges of the NPUs.
fn npu_gauges(npus: &[NpuSample]) -> impl Iterator<Item = Gauge> {
    NPUS.iter().flat_map(move |(name, help, read)| {
        npus.iter().filter_map(move |npu| {
            Some(Gauge { name, help, label: Some(("npu", npu.name.clone())), value: read(npu)? })
        })
    })
}

/// Gauges of the operations that may run on the NPU.
fn npu_operation_gauges(report: &npu::report::Report) -> impl Iterator<Item = Gauge> + use<> {
    let help = "1 if the NPU computes matrix products of the operation, 0 otherwise; /health says why";
    let active = report.uses_by_name().into_iter().map(move |(name, uses_npu)| Gauge {
        name: "npu_operation_active",
        help,
        label: Some(("operation", name)),
        value: if uses_npu { 1.0 } else { 0.0 },
    });
    let (products, fallbacks) = report.totals();
    let total = |name, help, value: u64| Gauge { name, help, label: None, value: value as f64 };
    active.chain([
        total(
            "npu_products_total",
            "Matrix products that the NPU computed, also for results that the GPU then recomputed",
            products,
        ),
        total("npu_fallbacks_total", "Fallbacks from the NPU to the GPU", fallbacks),
        total(
            "npu_weight_bytes",
            "System memory of the copies of weights for the NPU",
            report.weight_bytes(),
        ),
    ])
}

fn bytes(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}

/// The peak bandwidth and, after the first decode step, its recent utilisation.
fn bandwidth_gauges(bandwidth: BandwidthStats) -> impl Iterator<Item = Gauge> {
    let gauge = |name, help, value| Gauge { name, help, label: None, value };
    let peak = bandwidth.peak_bytes_per_second.map(|peak| {
        let help = "Peak read bandwidth of GPU memory, measured at startup";
        gauge("memory_bandwidth_bytes_per_second", help, peak)
    });
    let used = bandwidth.utilization.map(|ratio| {
        let help = "Fraction of the peak bandwidth that recent decode steps reached, 0 to 1";
        gauge("memory_bandwidth_utilization_ratio", help, ratio)
    });
    peak.into_iter().chain(used)
}

/// Reads one value of the prefix cache on disk.
type ReadPrefixDisk = fn(&PrefixDiskStats) -> u64;

/// Name, HELP text and reader of each metric of the prefix cache on disk.
const PREFIX_DISK: [(&str, &str, ReadPrefixDisk); 8] = [
    (
        "prefix_disk_restored_tokens_total",
        "Prompt tokens read from the prefix cache on disk instead of being prefilled",
        |stats| stats.restored_tokens,
    ),
    ("prefix_disk_read_bytes_total", "Bytes read from the prefix cache on disk", |stats| stats.read_bytes),
    ("prefix_disk_written_bytes_total", "Bytes written to the prefix cache on disk", |stats| {
        stats.written_bytes
    }),
    (
        "prefix_disk_errors_total",
        "Pages of the prefix cache on disk that could not be read or written, damaged ones included",
        |stats| stats.errors,
    ),
    ("prefix_disk_evictions_total", "Pages deleted from the prefix cache on disk for its limit", |stats| {
        stats.evictions
    }),
    ("prefix_disk_pages", "Pages in the prefix cache on disk", |stats| stats.pages),
    ("prefix_disk_bytes", "Size of the prefix cache on disk", |stats| stats.bytes),
    ("prefix_disk_max_bytes", "Maximum size of the prefix cache on disk", |stats| stats.max_bytes),
];

fn prefix_disk_gauges(stats: PrefixDiskStats) -> impl Iterator<Item = Gauge> {
    PREFIX_DISK.iter().map(move |(name, help, read)| Gauge {
        name,
        help,
        label: None,
        value: read(&stats) as f64,
    })
}

/// Reads one counter of KV events.
type ReadKvEvents = fn(&kvevents::Stats) -> u64;

/// Name, HELP text and reader of each metric of KV events.
const KV_EVENTS: [(&str, &str, ReadKvEvents); 5] = [
    (
        "kv_events_batches_total",
        "Batches of KV events published; the sequence number of the next one",
        |stats| stats.batches,
    ),
    ("kv_events_pending", "1 if changes of the prefix cache are not published yet", |stats| {
        u64::from(stats.pending)
    }),
    ("kv_events_subscribers", "Connected subscribers of KV events", |stats| stats.subscribers),
    (
        "kv_events_dropped_subscribers_total",
        "Subscribers of KV events disconnected because they did not keep up",
        |stats| stats.dropped_subscribers,
    ),
    (
        "kv_events_overflows_total",
        "Times that the prefix cache changed faster than KV events could be published, so that all blocks were published anew",
        |stats| stats.overflows,
    ),
];

fn kv_event_gauges(stats: kvevents::Stats) -> impl Iterator<Item = Gauge> {
    KV_EVENTS.iter().map(move |(name, help, read)| Gauge {
        name,
        help,
        label: None,
        value: read(&stats) as f64,
    })
}

/// All gauges that are available now.
pub fn read(status: &Status, hardware: &Hardware) -> Vec<Gauge> {
    let snapshot = hardware.snapshot();
    let gpus = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.gpus);
    let gpu_gauges = GPUS.iter().flat_map(|(name, help, read)| {
        gpus.iter().filter_map(|gpu| {
            let label = gpu.pci_address.clone().unwrap_or_else(|| gpu.name.clone());
            Some(Gauge { name, help, label: Some(("gpu", label)), value: read(gpu)? })
        })
    });
    let memory = System::new().process_memory().map(|memory| Gauge {
        name: "process_resident_memory_bytes",
        help: "Resident memory of the server process",
        label: None,
        value: memory.rss as f64,
    });
    let bandwidth = hardware.bandwidth(status).into_iter().flat_map(bandwidth_gauges);
    let npus = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.npus);
    let prefix_disk = hardware.prefix_disk().into_iter().flat_map(prefix_disk_gauges);
    let kv_events = hardware.kv_events().into_iter().flat_map(kv_event_gauges);
    memory
        .into_iter()
        .chain(bandwidth)
        .chain(prefix_disk)
        .chain(kv_events)
        .chain(gpu_gauges)
        .chain(npu_gauges(npus))
        .chain(npu_operation_gauges(hardware.npu()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_gauges_for_what_the_npu_computes() {
        let report = npu::report::Report::default();
        let decision = npu::matmul::Decision { uses_npu: true, reason: "forced".to_owned() };
        let operation = report.register("embeddings of mini", &decision);
        operation.count();
        operation.set_weight_bytes(3);
        let seen = || -> Vec<_> {
            npu_operation_gauges(&report).map(|gauge| (gauge.name, gauge.label, gauge.value)).collect()
        };
        let active =
            |value| ("npu_operation_active", Some(("operation", "embeddings of mini".to_owned())), value);
        let totals = |fallbacks, bytes| {
            [
                ("npu_products_total", None, 1.0),
                ("npu_fallbacks_total", None, fallbacks),
                ("npu_weight_bytes", None, bytes),
            ]
        };
        assert_eq!(seen(), [vec![active(1.0)], totals(0.0, 3.0).to_vec()].concat());
        operation.fall_back(&npu::matmul::Decision { uses_npu: false, reason: "it hung".to_owned() });
        assert_eq!(seen(), [vec![active(0.0)], totals(1.0, 0.0).to_vec()].concat());
        // A second load of the same model is no second series.
        let second = report.register("embeddings of mini", &decision);
        assert_eq!(seen(), [vec![active(1.0)], totals(1.0, 0.0).to_vec()].concat());
        drop(second);
        assert_eq!(seen(), [vec![active(0.0)], totals(1.0, 0.0).to_vec()].concat());
        drop(operation);
        assert_eq!(seen(), totals(1.0, 0.0));
    }

    #[test]
    fn an_npu_has_gauges_for_what_is_known_about_it() {
        let npu = |name: &str, busy, obstacle: Option<&str>| NpuSample {
            name: name.to_string(),
            busy,
            power_watts: None,
            firmware: None,
            obstacle: obstacle.map(str::to_string),
        };
        let npus = [npu("NPU Phoenix", Some(0.5), None), npu("XDNA1", None, Some("no driver"))];
        let seen: Vec<_> = npu_gauges(&npus)
            .map(|gauge| (gauge.name, gauge.label.map_or(String::new(), |(_, npu)| npu), gauge.value))
            .collect();
        let expected = [
            ("npu_busy_ratio", "NPU Phoenix".to_string(), 0.5),
            ("npu_usable", "NPU Phoenix".to_string(), 1.0),
            ("npu_usable", "XDNA1".to_string(), 0.0),
        ];
        assert_eq!(seen, expected);
    }
}
