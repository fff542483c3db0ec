use super::*;
use crate::fixture::npus::{NPU, NpuMachine};

fn facts(machine: NpuMachine) -> Xdna {
    machine.tree().system().xdna().unwrap_or_else(|| panic!("{machine:?}: something is known about it"))
}

/// The obstacles of a machine: what is wrong, and what to do.
fn obstacles(machine: NpuMachine) -> Vec<(String, Option<String>)> {
    facts(machine).obstacles().iter().map(|obstacle| (obstacle.to_string(), obstacle.fix())).collect()
}

/// The only obstacle of a machine.
fn only(machine: NpuMachine) -> (String, String) {
    let mut found = obstacles(machine);
    assert_eq!(found.len(), 1, "{machine:?}: {found:?}");
    let (text, fix) = found.remove(0);
    (text, fix.unwrap_or_default())
}

#[test]
fn a_machine_in_order_has_no_obstacle() {
    let good = facts(NpuMachine::Good);
    assert_eq!((good.generation, good.pci.as_deref()), (Some(NpuGeneration::Xdna1), Some(NPU)));
    assert_eq!(good.module, Some(NpuModule { version: None, out_of_tree: false }));
    assert_eq!(good.firmware_files, Some(vec!["npu.sbin.zst".to_owned(), "npu_7.sbin.zst".to_owned()]));
    assert_eq!(good.npu.as_ref().and_then(|npu| npu.firmware.as_deref()), Some("1.5.2.380"));
    assert_eq!(good.obstacles(), []);
    let halo = facts(NpuMachine::StrixHalo);
    assert_eq!((halo.generation, halo.obstacles()), (Some(NpuGeneration::Xdna2), vec![]));
    assert_eq!(NpuMachine::Other.tree().system().xdna(), None);
}

#[test]
fn each_trap_is_named_with_its_fix() {
    for (machine, what, fix) in [
        (NpuMachine::IommuOff, "amd_iommu=off is on", "remove amd_iommu=off"),
        (NpuMachine::MemoryLock, "at most 8192 KiB", "memlock 131072"),
        (NpuMachine::NoNode, "accel0 does not exist", "--device /dev/accel"),
        (NpuMachine::NewFirmware, "newer protocol", "newer than 6.17.0-5-generic or an older linux-firmware"),
        (NpuMachine::OldKernel, "Linux 6.12.48+deb13-amd64 has no driver", "Linux 6.14"),
        (NpuMachine::Disabled, "the PCI bus does not show it", "firmware setup"),
        (NpuMachine::Without, "8500G w/ Radeon 740M Graphics is made without an NPU", ""),
    ] {
        let (text, advice) = only(machine);
        assert!(text.contains(what) && advice.contains(fix), "{machine:?}: {text}; {advice}");
    }
}

#[test]
fn a_user_without_the_group_is_told_to_join_it() {
    // Root may open every file, so the fixture cannot deny it.
    let mut xdna = facts(NpuMachine::Good);
    if let Some(npu) = &mut xdna.npu {
        npu.node.access = Access::Denied;
        (npu.node.gid, npu.node.group, npu.node.group_may_use) = (Some(105), Some("render".into()), true);
    }
    let obstacles = xdna.obstacles();
    assert!(matches!(obstacles[..], [NpuObstacle::NoPermission { .. }]), "{obstacles:?}");
    let fix = obstacles[0].fix().unwrap_or_default();
    assert!(fix.starts_with("sudo usermod -aG render $USER"), "{fix}");
}

#[test]
fn variants_of_the_traps() {
    // A parameter is not the only way to switch the IOMMU off.
    let tree = NpuMachine::NewFirmware.tree();
    std::fs::remove_dir_all(tree.path("sys/class/iommu/ivhd0")).unwrap();
    let found = tree.system().xdna().unwrap().obstacles();
    assert_eq!(found, [NpuObstacle::IommuOff { parameter: None }]);
    // A running driver shows that the IOMMU works, whatever the command line says.
    let tree = NpuMachine::Good.tree();
    tree.write("proc/cmdline", "iommu=off\n");
    assert_eq!(tree.system().xdna().unwrap().obstacles(), []);

    let tree = NpuMachine::NewFirmware.tree();
    std::fs::remove_dir_all(tree.path("lib/firmware/amdnpu")).unwrap();
    assert_eq!(tree.system().xdna().unwrap().obstacles(), [NpuObstacle::NoFirmware]);
    std::fs::remove_dir_all(tree.path("lib/firmware")).unwrap();
    let found = tree.system().xdna().unwrap().obstacles();
    assert!(
        matches!(&found[..], [NpuObstacle::DriverRefused { firmware, .. }] if firmware.is_empty()),
        "{found:?}"
    );
    std::fs::remove_dir_all(tree.path("sys/module/amdxdna")).unwrap();
    assert_eq!(tree.system().xdna().unwrap().obstacles(), [NpuObstacle::NoModule]);

    // Older kernels run the driver from AMD's own build.
    let tree = NpuMachine::Good.tree();
    tree.write("proc/sys/kernel/osrelease", "6.11.0\n").write("sys/module/amdxdna/taint", "OE\n");
    tree.write("sys/module/amdxdna/version", "2.23.0_20260407\n");
    let xdna = tree.system().xdna().unwrap();
    assert_eq!(xdna.obstacles(), []);
    assert_eq!(xdna.module, Some(NpuModule { version: Some("2.23.0_20260407".into()), out_of_tree: true }));

    for (release, storms) in
        [("7.2.0-next-20260801", true), ("7.2.0-rc1", true), ("7.2.1", false), ("7.1.0-rc1", false)]
    {
        let tree = NpuMachine::Good.tree();
        tree.write("proc/sys/kernel/osrelease", release);
        assert_eq!(!tree.system().xdna().unwrap().obstacles().is_empty(), storms, "{release}");
    }
}

#[test]
fn the_limit_of_locked_memory_does_not_apply_to_privileged_processes() {
    let tree = NpuMachine::MemoryLock.tree();
    tree.write("proc/self/status", "CapEff:\t0000000000004000\n");
    assert_eq!(tree.system().xdna().unwrap().obstacles(), []);
    tree.write("proc/self/status", "CapEff:\t0000000000003fff\n");
    assert_eq!(tree.system().xdna().unwrap().obstacles(), [NpuObstacle::MemoryLock { limit: 8 << 20 }]);
}
