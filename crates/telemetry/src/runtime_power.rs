//! Whether the kernel has powered a PCI device down.
//!
//! A discrete GPU without work sleeps after a few seconds, if its driver and the laptop allow it. Most of
//! amdgpu's files and every NVML call wake it up for seconds, so this state is read first. Reading it wakes
//! nothing: it belongs to the PCI core, not to the driver.

use std::path::Path;

use crate::probe::Probe;

/// Longer than any of the states.
const STATE: usize = 32;

/// The `power/runtime_status` file of a device.
#[derive(Debug)]
pub(crate) struct RuntimeStatus(Probe);

impl RuntimeStatus {
    pub(crate) fn open(device: &Path) -> Self {
        Self(Probe::open(device.join("power/runtime_status")))
    }

    /// Whether the device sleeps or is about to; `None` if the kernel does not say.
    pub(crate) fn asleep(&self) -> Option<bool> {
        match self.0.text(&mut [0; STATE])? {
            "suspended" | "suspending" => Some(true),
            "active" | "resuming" | "unsupported" => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Tree;

    #[test]
    fn every_state_of_the_kernel_is_known() {
        let tree = Tree::new();
        for (state, asleep) in [
            ("suspended\n", Some(true)),
            ("suspending\n", Some(true)),
            ("active\n", Some(false)),
            ("resuming\n", Some(false)),
            ("unsupported\n", Some(false)),
            ("error\n", None),
            ("", None),
        ] {
            tree.write("device/power/runtime_status", state);
            assert_eq!(RuntimeStatus::open(&tree.path("device")).asleep(), asleep, "{state}");
        }
        assert_eq!(RuntimeStatus::open(&tree.path("elsewhere")).asleep(), None);
    }
}
