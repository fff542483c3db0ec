use super::*;
use crate::fixture::tables::{Halo, radeon_780m, radeon_8060s};
use crate::fixture::{GIB, RADEON_780M, RADEON_7900, RADEON_8060S, Tree};
use Throttle::{Power, Thermal};

fn sensors(tree: &Tree, device: &str) -> AmdSensors {
    AmdSensors::open(&tree.path(device))
}

#[test]
fn all_values_of_a_780m_are_sampled() {
    let tree = Tree::new();
    tree.add_780m().write(&format!("{RADEON_780M}/gpu_metrics"), radeon_780m(731, 12_400, 1));
    let expected = GpuSample {
        name: "AMD GPU 15bf".into(),
        pci_address: Some("0000:c5:00.0".into()),
        vendor: Vendor::Amd,
        busy: Some(0.07),
        memory_busy: None,
        vram_used_bytes: Some(GIB / 2),
        vram_total_bytes: Some(16 * GIB),
        gtt_used_bytes: Some(GIB / 4),
        gtt_total_bytes: Some(38 * GIB),
        core_clock_hz: Some(2_700_000_000),
        memory_clock_hz: Some(2_800_000_000),
        temperature_celsius: Some(71.0),
        power_watts: Some(12.5),
        energy_joules: None,
        throttle: Some(vec![Power]),
        suspended: Some(false),
    };
    let mut sensors = AmdSensors::open(&tree.path("sys/class/drm/card1/device"));
    assert_eq!(sensors.sample().0, expected);
    assert_eq!(
        sensors.energy(),
        Some(EnergyReading::Power { source: EnergySource::AmdgpuPower, watts: 12.5 })
    );
}

#[test]
fn an_8060s_reports_precise_power_and_new_throttling() {
    let tree = Tree::new();
    tree.add_8060s();
    let table = format!("{RADEON_8060S}/gpu_metrics");
    let mut sensors = sensors(&tree, RADEON_8060S);
    let (sample, metrics) = sensors.sample();
    assert_eq!((sample.vram_total_bytes, sample.gtt_total_bytes), (Some(GIB / 2), Some(64_000 << 20)));
    assert_eq!((sample.busy, sample.power_watts), (Some(0.97), Some(118.25)));
    assert_eq!((sample.memory_clock_hz, sample.throttle), (Some(1_000_000_000), None));
    assert_eq!(metrics.unwrap().npu_busy, Some(0.25));
    assert_eq!(
        sensors.energy(),
        Some(EnergyReading::Power { source: EnergySource::AmdgpuPower, watts: 118.25 })
    );
    assert_eq!(sensors.sample().0.throttle, Some(vec![]), "no time passed at a limit");
    tree.write(&table, radeon_8060s(&Halo { power_limited: 1001, heat_limited: 5, ..Halo::default() }));
    assert_eq!(sensors.sample().0.throttle, Some(vec![Power, Thermal]));
    // A counter that starts again is no time at the limit.
    tree.write(&table, radeon_8060s(&Halo { power_limited: 1002, heat_limited: 0, ..Halo::default() }));
    assert_eq!(sensors.sample().0.throttle, Some(vec![Power]));
    tree.write(&table, b"short");
    let (sample, metrics) = sensors.sample();
    assert_eq!((sample.throttle, sample.power_watts, metrics), (None, Some(118.025), None));
}

#[test]
fn a_sleeping_gpu_is_not_read() {
    let tree = Tree::new();
    tree.add_7900().write(&format!("{RADEON_7900}/power/runtime_status"), "suspended\n");
    let mut sensors = sensors(&tree, "sys/class/drm/card0/device");
    let name = "AMD GPU 744c".to_owned();
    let unknown = GpuSample::unknown(name, Some("0000:03:00.0".into()), Vendor::Amd);
    assert_eq!(sensors.sample(), (GpuSample { suspended: Some(true), ..unknown }, None));
    assert_eq!(sensors.energy(), None);
    tree.write(&format!("{RADEON_7900}/power/runtime_status"), "active\n");
    let (sample, _) = sensors.sample();
    assert_eq!((sample.suspended, sample.power_watts), (Some(false), Some(31.0)));
}

#[test]
fn a_gpu_without_files_is_listed_and_unknown() {
    let tree = Tree::new();
    tree.write("device/vendor", "0x1002\n");
    let mut sensors = sensors(&tree, "device");
    let unknown = GpuSample::unknown("AMD GPU".into(), None, Vendor::Amd);
    assert_eq!((sensors.sample(), sensors.energy()), ((unknown, None), None));
}

#[test]
fn the_table_fills_in_for_missing_files_and_garbage() {
    let tree = Tree::new();
    tree.add_780m();
    for file in ["gpu_busy_percent", "hwmon/hwmon4/power1_average", "hwmon/hwmon4/temp1_input"] {
        tree.write(&format!("{RADEON_780M}/{file}"), b"\xff\0\xff");
    }
    let mut sensors = sensors(&tree, RADEON_780M);
    let (sample, _) = sensors.sample();
    assert_eq!((sample.busy, sample.power_watts), (Some(0.0731), Some(12.4)));
    assert_eq!(sample.temperature_celsius, Some(71.0));
}

#[test]
fn clocks_fall_back_to_the_list_of_levels() {
    let tree = Tree::new();
    tree.write("device/pp_dpm_sclk", "0: 800Mhz \n1: 1100Mhz *\n2: 2700Mhz \n");
    tree.write("device/pp_dpm_mclk", "0: 1000Mhz\n1: 2800Mhz\n");
    let (sample, _) = sensors(&tree, "device").sample();
    assert_eq!((sample.core_clock_hz, sample.memory_clock_hz), (Some(1_100_000_000), None));
    for garbage in ["*", "1: *", "1: fast *", "1: 99999999999999999999Mhz *", "1: 18446744073709551615Mhz *"]
    {
        assert_eq!(current_level(garbage), None, "{garbage}");
    }
}

#[test]
fn the_edge_is_preferred_over_the_junction() {
    let tree = Tree::new();
    tree.write("device/hwmon/hwmon2/temp1_label", "junction\n");
    tree.write("device/hwmon/hwmon2/temp1_input", "80000\n");
    assert_eq!(sensors(&tree, "device").sample().0.temperature_celsius, Some(80.0));
    tree.write("device/hwmon/hwmon2/temp2_label", "edge\n");
    tree.write("device/hwmon/hwmon2/temp2_input", "60000\n");
    assert_eq!(sensors(&tree, "device").sample().0.temperature_celsius, Some(60.0));
}

#[test]
fn a_board_with_a_name_is_called_by_it() {
    let tree = Tree::new();
    tree.write("device/product_name", "AMD Instinct MI300X\n");
    assert_eq!(sensors(&tree, "device").sample().0.name, "AMD Instinct MI300X");
}
