use super::*;
use crate::Throttle;
use crate::fixture::{GIB, RADEON_7900, Tree};
use crate::nvml::tests::{ADDRESS, h200};

fn collector(tree: &Tree, options: &SamplerOptions, meters: &Meters) -> Collector {
    Collector::with_nvml(&tree.system(), options, meters, Box::new(|| Nvml::new(h200())))
}

#[test]
fn an_empty_machine_is_all_unknown() {
    let snapshot =
        Collector::open(&Tree::new().system(), &SamplerOptions::default(), &Meters::default()).sample();
    let expected = Snapshot { time: snapshot.time, ..Snapshot::default() };
    assert_eq!(snapshot, expected);
    assert!(snapshot.time > 1e9);
}

#[test]
fn gpus_of_both_vendors_are_sampled_with_their_energy() {
    let tree = Tree::new();
    tree.add_8060s().add_7900().add_nvidia(ADDRESS);
    let meters = Meters::default();
    let mut collector = collector(&tree, &SamplerOptions::default(), &meters);
    assert!(collector.has_gpus());
    let snapshot = collector.sample();
    let addresses: Vec<_> = snapshot.gpus.iter().map(|gpu| gpu.pci_address.as_deref()).collect();
    assert_eq!(addresses, [Some("0000:03:00.0"), Some("0000:c3:00.0"), Some(ADDRESS)]);
    assert!(snapshot.gpus.iter().all(|gpu| gpu.energy_joules == Some(0.0)));
    assert_eq!((snapshot.npus[0].name.as_str(), snapshot.npus[0].busy), ("NPU Strix Halo", Some(0.25)));
    assert_eq!(snapshot.memory.total_bytes, Some(131_072_000 * 1024));
    // The fake counter advances by a millijoule at every reading.
    collector.add_energy();
    let snapshot = collector.sample();
    assert!(snapshot.gpus.iter().all(|gpu| gpu.energy_joules > Some(0.0)), "{:?}", snapshot.gpus);
    assert_eq!(EnergyMeters(&meters).source(ADDRESS), Some("nvml counter"));
    assert_eq!(EnergyMeters(&meters).source("0000:C3:00.0"), Some("amdgpu power"));
    assert_eq!(EnergyMeters(&meters).source("0000:ff:00.0"), None);
}

struct EnergyMeters<'a>(&'a Meters);

impl EnergyMeters<'_> {
    fn source(&self, pci: &str) -> Option<&'static str> {
        crate::EnergyMeter::new(self.0.sum(pci)).source()
    }
}

#[test]
fn only_the_gpus_asked_for_are_sampled_under_the_names_given() {
    let tree = Tree::new();
    tree.add_8060s().add_7900().add_nvidia(ADDRESS);
    let options = SamplerOptions {
        gpus: Some(vec!["0000:C3:00.0".into()]),
        names: HashMap::from([("0000:C3:00.0".into(), "Radeon 8060S".into())]),
        ..SamplerOptions::default()
    };
    let nvml = Box::new(|| unreachable!("the NVIDIA GPU was not asked for"));
    let snapshot = Collector::with_nvml(&tree.system(), &options, &Meters::default(), nvml).sample();
    let names: Vec<_> = snapshot.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    assert_eq!(names, ["Radeon 8060S"]);
}

#[test]
fn a_sleeping_gpu_uses_no_energy_that_is_known() {
    let tree = Tree::new();
    tree.add_7900().write(&format!("{RADEON_7900}/power/runtime_status"), "suspended\n");
    let snapshot = collector(&tree, &SamplerOptions::default(), &Meters::default()).sample();
    assert_eq!((snapshot.gpus[0].suspended, snapshot.gpus[0].energy_joules), (Some(true), None));
}

#[test]
fn memory_of_an_apu_is_reported_as_the_kernel_sized_it() {
    for (carve_out, gtt) in [(GIB / 2, 31 * GIB + GIB / 2), (16 * GIB, 24 * GIB)] {
        let tree = Tree::new();
        tree.add_apu(64 * GIB, carve_out, gtt);
        let snapshot = collector(&tree, &SamplerOptions::default(), &Meters::default()).sample();
        let gpu = &snapshot.gpus[0];
        assert_eq!((gpu.vram_total_bytes, gpu.gtt_total_bytes), (Some(carve_out), Some(gtt)));
        assert_eq!(snapshot.memory.total_bytes, Some(64 * GIB - carve_out));
    }
}

#[test]
fn json_has_the_names_of_the_contract() {
    let tree = Tree::new();
    tree.add_8060s();
    let mut snapshot = collector(&tree, &SamplerOptions::default(), &Meters::default()).sample();
    snapshot.gpus[0].throttle = Some(vec![Throttle::Power, Throttle::Thermal]);
    let json = serde_json::to_value(&snapshot).unwrap();
    let keys = |pointer: &str| -> Vec<String> {
        json.pointer(pointer).unwrap().as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(keys(""), ["time", "gpus", "cpu", "npus", "memory", "process", "pressure"]);
    let gpu = [
        "name",
        "pci_address",
        "vendor",
        "busy",
        "memory_busy",
        "vram_used_bytes",
        "vram_total_bytes",
        "gtt_used_bytes",
        "gtt_total_bytes",
        "core_clock_hz",
        "memory_clock_hz",
        "temperature_celsius",
        "power_watts",
        "energy_joules",
        "throttle",
        "suspended",
    ];
    assert_eq!(keys("/gpus/0"), gpu);
    assert_eq!(keys("/cpu"), ["busy", "power_watts", "energy_joules", "temperature_celsius"]);
    assert_eq!(keys("/npus/0"), ["name", "busy", "power_watts", "firmware", "obstacle"]);
    assert_eq!(keys("/memory"), ["total_bytes", "available_bytes"]);
    assert_eq!(keys("/process"), ["resident_bytes", "cpu_seconds", "threads", "open_files"]);
    assert_eq!(keys("/pressure"), ["cpu", "memory", "io"]);
    assert_eq!(json["gpus"][0]["vendor"], "amd");
    assert_eq!(json["gpus"][0]["throttle"], serde_json::json!(["power", "thermal"]));
    assert!(json["gpus"][0]["memory_busy"].is_null() && json["cpu"]["power_watts"].is_null());
    assert_eq!(serde_json::from_value::<Snapshot>(json).unwrap(), snapshot);
}

#[test]
fn this_machine_is_sampled() {
    let system = System::new();
    let mut collector = Collector::open(&system, &SamplerOptions::default(), &Meters::default());
    let snapshot = collector.sample();
    assert!(snapshot.memory.total_bytes > Some(0) && snapshot.process.resident_bytes > Some(0));
    println!("{}", serde_json::to_string_pretty(&snapshot).unwrap());
}
