use gpu::AdapterInfo;
use telemetry::fixture::{GIB, RADEON_780M, Tree};

use super::*;
use crate::fixture::radeon_780m;

fn finding<'a>(findings: &'a [Finding], about: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.about == about).unwrap_or_else(|| panic!("{about}: {findings:?}"))
}

/// A machine with the kernel's default of GTT: half of the RAM that the carve-out leaves.
fn half_gtt(tree: &Tree, installed: u64, carve_out: u64) -> AdapterInfo {
    let gtt = (installed - carve_out) / 2;
    tree.add_apu(installed, carve_out, gtt);
    tree.write("proc/sys/kernel/osrelease", "6.17.0-5-generic\n");
    radeon_780m(carve_out, gtt)
}

#[test]
fn gtt_at_half_of_the_ram_is_the_limit_and_gets_the_exact_parameters() {
    let tree = Tree::new();
    let info = half_gtt(&tree, 64 * GIB, GIB / 2);
    let findings = adapter(&tree.system(), &info);
    let usable = &finding(&findings, "usable memory").text;
    assert!(usable.starts_with("at most 31.9 GiB for models now, by free VRAM and GTT"), "{usable}");
    let pools = finding(&findings, "amdgpu memory");
    assert_eq!(pools.level, Level::Warning);
    let fix = pools.fix.as_deref().unwrap();
    assert!(fix.starts_with("boot with ttm.pages_limit=14417920 ttm.page_pool_size=14417920\n"), "{fix}");
}

#[test]
fn older_kernels_get_the_older_parameter_too() {
    let tree = Tree::new();
    let info = half_gtt(&tree, 64 * GIB, GIB / 2);
    tree.write("proc/sys/kernel/osrelease", "6.1.0-28-amd64\n");
    let fix = finding(&adapter(&tree.system(), &info), "amdgpu memory").fix.clone().unwrap();
    assert!(fix.contains("ttm.pages_limit=14417920") && fix.contains("amdgpu.gttsize=56320"), "{fix}");
}

#[test]
fn other_programs_are_the_limit_when_they_use_most_of_the_ram() {
    let tree = Tree::new();
    let info = half_gtt(&tree, 32 * GIB, GIB / 2);
    tree.write("proc/meminfo", "MemTotal: 33030144 kB\nMemAvailable: 4194304 kB\n");
    let findings = adapter(&tree.system(), &info);
    let usable = &finding(&findings, "usable memory").text;
    assert!(
        usable.starts_with("at most 4.44 GiB for models now, by available RAM and free VRAM"),
        "{usable}"
    );
}

#[test]
fn what_the_kernel_does_not_tell_is_unknown() {
    let tree = Tree::new();
    let info = half_gtt(&tree, 32 * GIB, GIB / 2);
    for name in ["mem_info_vram_used", "mem_info_gtt_total"] {
        tree.write(&format!("{RADEON_780M}/{name}"), "garbage\n");
    }
    let findings = adapter(&tree.system(), &info);
    let usable = &finding(&findings, "usable memory").text;
    assert!(
        usable.contains("by Vulkan's budget (") && usable.contains("free VRAM and GTT unknown"),
        "{usable}"
    );
    let pools = &finding(&findings, "amdgpu memory").text;
    assert!(pools.ends_with("GTT unknown"), "{pools}");

    let empty = Tree::new();
    let findings = adapter(&empty.system(), &info);
    let usable = &finding(&findings, "usable memory").text;
    assert!(usable.ends_with("available RAM unknown)"), "{usable}");
}

#[test]
fn memory_that_others_hold_is_named() {
    let tree = Tree::new();
    tree.write("proc/meminfo", "MemTotal: 33030144 kB\nHugetlb: 8388608 kB\n");
    tree.write("proc/cmdline", "quiet amdgpu.vramlimit=1024 mem=16G\n");
    tree.write("sys/class/kfd/kfd/proc/4711/vram_1002", format!("{}\n", 9 * GIB));
    tree.write("sys/class/kfd/kfd/proc/12/vram_1002", "4096\n").write("proc/4711/comm", "python3\n");
    let findings = super::system(&tree.system());
    assert!(finding(&findings, "huge pages").text.starts_with("8.00 GiB of RAM are reserved"));
    let parameters: Vec<_> =
        findings.iter().filter(|finding| finding.about == "kernel parameter").map(|it| &it.text).collect();
    assert!(parameters[0].starts_with("mem=16G") && parameters[1].starts_with("amdgpu.vramlimit=1024"));
    assert_eq!(
        finding(&findings, "other programs").text,
        "process 4711 (python3) holds 9.00 GiB of GPU memory through ROCm"
    );
}

#[test]
fn a_discrete_gpu_without_resizable_bar_is_told() {
    let tree = Tree::new();
    let address = "0000:03:00.0";
    let apu = radeon_780m(24 * GIB, 0);
    let info = AdapterInfo {
        kind: AdapterKind::Discrete,
        unified_memory: false,
        pci_address: Some(address.into()),
        ..apu
    };
    let about = "resizable BAR";
    let region = |bytes: u64| format!("0xd000000000 {:#x} 0x14220c\n", 0xd0_0000_0000_u64 + bytes - 1);
    assert!(!adapter(&tree.system(), &info).iter().any(|finding| finding.about == about), "unknown");
    let file = format!("sys/bus/pci/devices/{address}/resource");
    tree.write(&file, region(256 << 20));
    let findings = adapter(&tree.system(), &info);
    assert!(finding(&findings, about).text.starts_with("off: the CPU can map 256.0 MiB of 16.0 GiB"));
    tree.write(&file, region(32 * GIB));
    assert!(!adapter(&tree.system(), &info).iter().any(|finding| finding.about == about));
}
