use super::*;
use crate::fixture::{RADEON_780M, Tree};

/// A 780M in a machine with 76 GiB of RAM besides its carve-out, and the pool at the kernel's default, half.
fn mini_pc() -> Tree {
    let tree = Tree::new();
    tree.add_780m();
    tree.write("proc/sys/kernel/osrelease", "6.17.0-5-generic\n");
    tree.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet splash\n");
    tree.write("sys/module/ttm/parameters/pages_limit", "9961472\n");
    tree
}

fn advice(tree: &Tree) -> Option<GttAdvice> {
    tree.system().gtt_advice(&tree.system().amd_gpus()[0])
}

#[test]
fn a_780m_gets_the_exact_parameters() {
    let advice = advice(&mini_pc()).unwrap();
    // 76 GiB less an eighth is 66.5 GiB; 66 GiB are 17301504 pages of 4 KiB.
    assert_eq!((advice.current, advice.target), (38 * GIB, 66 * GIB));
    assert_eq!(advice.parameters, "ttm.pages_limit=17301504 ttm.page_pool_size=17301504");
    assert_eq!(advice.obsolete, [""; 0]);
    let steps: Vec<&str> = advice.instructions.lines().collect();
    assert_eq!(steps.len(), 3, "{}", advice.instructions);
    assert!(steps[0].contains("GRUB_CMDLINE_LINUX_DEFAULT") && steps[0].ends_with(&advice.parameters));
    assert!(steps[1].contains("update-grub") && steps[1].contains("grub2-mkconfig"));
    assert!(steps[2].contains("card1/device/mem_info_gtt_total should then print 70866960384"));
}

#[test]
fn a_pool_near_the_target_is_left_alone() {
    let tree = mini_pc();
    for (gib, advised) in [(57, true), (58, false), (66, false), (76, false)] {
        tree.write(&format!("{RADEON_780M}/mem_info_gtt_total"), format!("{}\n", gib * GIB));
        assert_eq!(advice(&tree).is_some(), advised, "{gib} GiB");
    }
}

#[test]
fn small_machines_keep_four_gib_and_no_size_overflows() {
    let tree = mini_pc();
    let gpu = |gtt| AmdGpu { gtt_total: Some(gtt), ..tree.system().amd_gpus()[0].clone() };
    let controls = tree.system().gtt_controls();
    assert_eq!(gtt_advice(&gpu(7 * GIB), 15 * GIB, &controls).unwrap().target, 11 * GIB);
    assert_eq!(gtt_advice(&gpu(4 * GIB), 8 * GIB, &controls), None);
    assert_eq!(gtt_advice(&gpu(GIB), 3 * GIB, &controls), None);
    assert_eq!(gtt_advice(&gpu(0), 0, &controls), None);
    assert!(gtt_advice(&gpu(0), u64::MAX, &controls).is_some());
}

#[test]
fn discrete_cards_and_unknown_pools_get_no_advice() {
    let tree = mini_pc();
    tree.add_7900();
    let gpus = tree.system().amd_gpus();
    assert_eq!(gpus[0].integrated, Some(false));
    assert_eq!(tree.system().gtt_advice(&gpus[0]), None);
    let unknown = AmdGpu { gtt_total: None, ..gpus[1].clone() };
    assert_eq!(tree.system().gtt_advice(&unknown), None);
    let unclassified = AmdGpu { integrated: None, ..gpus[1].clone() };
    assert!(tree.system().gtt_advice(&unclassified).is_some());
}

#[test]
fn the_packaged_driver_has_its_own_module() {
    let tree = mini_pc();
    tree.write("sys/module/amdttm/parameters/pages_limit", "9961472\n");
    let advice = advice(&tree).unwrap();
    assert_eq!(advice.parameters, "amdttm.pages_limit=17301504 amdttm.page_pool_size=17301504");
}

#[test]
fn kernels_that_ignore_the_ttm_limit_get_gttsize_too() {
    let tree = mini_pc();
    for (release, expected) in [
        ("6.1.0-18-amd64", true),
        ("5.15.0", true),
        ("6.8.0-45-generic", false),
        ("6.12-rc1", false),
        ("odd", false),
    ] {
        tree.write("proc/sys/kernel/osrelease", release);
        let parameters = advice(&tree).unwrap().parameters;
        assert_eq!(parameters.contains(" amdgpu.gttsize=67584"), expected, "{release}: {parameters}");
        assert_eq!(parameters.contains("gttsize"), expected, "{release}: {parameters}");
    }
}

#[test]
fn conflicting_parameters_are_listed_for_removal() {
    let tree = mini_pc();
    tree.write("proc/cmdline", "quiet amdgpu.gttsize=32768 ttm.pages_limit=17301504 ttm.page_pool_size=1\n");
    let advice = advice(&tree).unwrap();
    assert_eq!(advice.obsolete, ["amdgpu.gttsize=32768", "ttm.page_pool_size=1"]);
    assert!(advice.instructions.contains("and remove: amdgpu.gttsize=32768 ttm.page_pool_size=1\n"));
    assert!(advice.instructions.contains("--remove-args=\"amdgpu.gttsize=32768 ttm.page_pool_size=1\""));
}

#[test]
fn a_pool_below_the_ttm_limit_implies_a_hidden_gttsize() {
    let tree = mini_pc();
    assert!(!advice(&tree).unwrap().instructions.contains("modprobe.d"));
    tree.write("sys/module/ttm/parameters/pages_limit", "17301504\n");
    assert!(advice(&tree).unwrap().instructions.contains("grep -r gttsize /etc/modprobe.d"));
    tree.write("proc/cmdline", "amdgpu.gttsize=38912");
    assert!(!advice(&tree).unwrap().instructions.contains("modprobe.d"));
    tree.write("proc/cmdline", "").write("proc/sys/kernel/osrelease", "6.1.0");
    assert!(!advice(&tree).unwrap().instructions.contains("modprobe.d"));
}
