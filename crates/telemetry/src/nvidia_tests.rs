use super::*;
use crate::fixture::Tree;
use crate::nvml::tests::{ADDRESS, h200, old_gpu};

fn all(_: &str) -> bool {
    true
}

fn never() -> Opener {
    Box::new(|| unreachable!("NVML is not needed"))
}

#[test]
fn a_gpu_is_sampled_through_nvml() {
    let tree = Tree::new();
    tree.add_nvidia(ADDRESS);
    let mut gpus = NvidiaGpus::open(&tree.path(""), Box::new(|| Nvml::new(h200())), all);
    assert_eq!(gpus.addresses().collect::<Vec<_>>(), [Some(ADDRESS)]);
    let sample = gpus.sample().remove(0);
    assert_eq!((sample.name.as_str(), sample.vendor), ("NVIDIA H200", Vendor::Nvidia));
    assert_eq!((sample.pci_address.as_deref(), sample.suspended), (Some(ADDRESS), Some(false)));
    assert_eq!((sample.busy, sample.memory_busy, sample.power_watts), (Some(0.97), Some(0.61), Some(651.25)));
    assert_eq!((sample.vram_total_bytes, sample.gtt_total_bytes), (Some(150_754_820_096), None));
    assert!(matches!(
        gpus.energy()[..],
        [Some(EnergyReading::Counter { source: EnergySource::NvmlCounter, .. })]
    ));
}

#[test]
fn nvml_is_not_opened_while_every_gpu_sleeps() {
    let tree = Tree::new();
    tree.add_nvidia(ADDRESS)
        .write(&format!("sys/bus/pci/devices/{ADDRESS}/power/runtime_status"), "suspended\n");
    let mut gpus = NvidiaGpus::open(&tree.path(""), never(), all);
    let unknown = GpuSample::unknown("NVIDIA GPU".into(), Some(ADDRESS.into()), Vendor::Nvidia);
    assert_eq!(gpus.sample(), [GpuSample { suspended: Some(true), ..unknown }]);
    assert_eq!(gpus.energy(), [None]);
}

#[test]
fn a_gpu_that_falls_asleep_is_left_alone() {
    let tree = Tree::new();
    tree.add_nvidia(ADDRESS);
    let mut gpus = NvidiaGpus::open(&tree.path(""), Box::new(|| Nvml::new(h200())), all);
    assert_eq!(gpus.sample()[0].busy, Some(0.97));
    tree.write(&format!("sys/bus/pci/devices/{ADDRESS}/power/runtime_status"), "suspended\n");
    let sample = gpus.sample().remove(0);
    assert_eq!((sample.name.as_str(), sample.busy, sample.suspended), ("NVIDIA H200", None, Some(true)));
}

#[test]
fn a_machine_without_nvidia_does_not_open_nvml() {
    let tree = Tree::new();
    tree.add_780m();
    assert_eq!(NvidiaGpus::open(&tree.path(""), never(), all).sample(), []);
}

#[test]
fn a_container_without_a_pci_bus_lists_what_nvml_lists() {
    let tree = Tree::new();
    tree.write("dev/nvidia0", "");
    let mut gpus = NvidiaGpus::open(&tree.path(""), Box::new(|| Nvml::new(h200())), all);
    let sample = gpus.sample().remove(0);
    assert_eq!(
        (sample.pci_address.as_deref(), sample.suspended, sample.busy),
        (Some(ADDRESS), None, Some(0.97))
    );
    assert_eq!(NvidiaGpus::open(&tree.path(""), Box::new(|| Nvml::new(h200())), |_| false).sample(), []);
}

#[test]
fn a_missing_library_or_an_old_gpu_leaves_values_unknown() {
    let tree = Tree::new();
    tree.add_nvidia(ADDRESS);
    let unknown = GpuSample::unknown("NVIDIA GPU".into(), Some(ADDRESS.into()), Vendor::Nvidia);
    let unknown = GpuSample { suspended: Some(false), ..unknown };
    for opener in [Box::new(|| None) as Opener, Box::new(|| Nvml::new(old_gpu()))] {
        let mut gpus = NvidiaGpus::open(&tree.path(""), opener, all);
        for _ in 0..2 {
            assert_eq!((gpus.sample(), gpus.energy()), (vec![unknown.clone()], vec![None]));
        }
    }
}
