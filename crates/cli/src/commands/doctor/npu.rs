//! NPUs: what they are, what keeps programs from using them, and what they are good for.

use telemetry::{NpuGeneration, System, VENDOR_AMD_CPU};

use super::{Finding, Level};
use crate::npu::NpuFacts;

/// Findings about NPUs. Indrik needs none, so they are only notes.
pub fn findings(system: &System, facts: Option<&NpuFacts>) -> Vec<Finding> {
    let note = |text: String| Finding::new(Level::Note, "NPU", text);
    let mut findings = Vec::new();
    if let Some(facts) = facts {
        let obstacles = facts.xdna.obstacles();
        let mut text = String::new();
        if facts.xdna.npu.is_some() {
            text = format!("{}: ", facts.text());
        } else if let Some(generation) = facts.xdna.generation {
            text = format!("{}: ", generation.name());
        }
        text += facts.verdict();
        findings.extend(obstacles.iter().map(|obstacle| {
            let finding = note(obstacle.to_string());
            match obstacle.fix() {
                Some(fix) => finding.fix(fix),
                None => finding,
            }
        }));
        let finding = note(text);
        let can_be_tested = obstacles.is_empty() && facts.xdna.generation == Some(NpuGeneration::Xdna1);
        findings.push(if can_be_tested {
            finding
                .fix("to test it: indrik npu pull && indrik npu selftest; we have not run it on hardware yet")
        } else {
            finding
        });
    }
    for npu in system.npus().into_iter().filter(|npu| npu.vendor != Some(VENDOR_AMD_CPU)) {
        let driver = npu.driver.as_deref().unwrap_or("unknown");
        findings.push(note(format!("{}, driver {driver}: Indrik does not use it", npu.name)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use npu::{
        array::CoreLibrary,
        runtime::{
            DriverFacts,
            fake::{FakeDriver, HeapRule},
        },
    };
    use telemetry::fixture::npus::NpuMachine;

    use super::*;

    /// Findings as `doctor` prints them.
    fn doctor_text(machine: NpuMachine) -> String {
        let tree = machine.tree();
        let system = tree.system();
        // The fixtures' nodes are plain files, which answer nothing.
        let facts = NpuFacts::of(&system).map(|facts| {
            assert_eq!(facts.driver, None);
            let driver = facts.xdna.npu.is_some().then(|| {
                DriverFacts::query(&FakeDriver::new(HeapRule::Fixed, CoreLibrary::new()).open()).unwrap()
            });
            NpuFacts { driver, ..facts }
        });
        let findings = findings(&system, facts.as_ref());
        assert!(findings.iter().all(|finding| finding.level == Level::Note));
        super::super::text(&findings)
    }

    #[test]
    fn ten_machines_get_their_trap_its_fix_and_an_honest_sentence() {
        let expected: [(NpuMachine, &[&str]); 10] = [
            (
                NpuMachine::Good,
                &[
                    "XDNA1 (NPU Phoenix)",
                    "driver amdxdna, firmware 1.5.2.380, interface 0.7, 5 columns of 4 cores, MP-NPU Clock 600 MHz, \
                     H Clock 1024 MHz, power mode default",
                    "would not make replies faster",
                    "indrik npu selftest",
                ],
            ),
            (NpuMachine::IommuOff, &["amd_iommu=off is on", "→ remove amd_iommu=off", "XDNA1: it would not"]),
            (NpuMachine::MemoryLock, &["at most 8192 KiB", "memlock 131072", "LimitMEMLOCK=128M"]),
            (NpuMachine::NoNode, &["accel0 does not exist", "→ pass the node into this container"]),
            (
                NpuMachine::NewFirmware,
                &["newer protocol than the driver's", "Incompatible firmware protocol"],
            ),
            (
                NpuMachine::OldKernel,
                &["Linux 6.12.48+deb13-amd64 has no driver", "→ use Linux 6.14 or later"],
            ),
            (NpuMachine::Disabled, &["8945HS w/ Radeon 780M Graphics has an NPU, but", "→ enable it in the"]),
            (
                NpuMachine::Without,
                &["8500G w/ Radeon 740M Graphics is made without an NPU", "nothing is lost"],
            ),
            (
                NpuMachine::StrixHalo,
                &["XDNA2 (NPU Strix Halo)", "does not drive this generation", "FastFlowLM"],
            ),
            (NpuMachine::Other, &[]),
        ];
        for (machine, parts) in expected {
            let text = doctor_text(machine);
            for part in parts {
                assert!(text.contains(part), "{machine:?} lacks {part:?}:\n{text}");
            }
            // Only what is in order can be tested.
            assert_eq!(text.contains("npu selftest"), machine == NpuMachine::Good, "{machine:?}:\n{text}");
            assert_eq!(text.is_empty(), parts.is_empty(), "{machine:?}:\n{text}");
        }
    }

    #[test]
    fn npus_of_other_makers_are_named() {
        let tree = NpuMachine::Other.tree();
        tree.write("sys/class/accel/accel0/device/vendor", "0x8086\n");
        let findings = findings(&tree.system(), None);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].text, "accel0, driver unknown: Indrik does not use it");
    }
}
