//! Fault injection, so that recovery from failures is tested.
//!
//! Tests inject faults into a [`Device`](crate::Device). `INDRIK_FAULT` injects them into any Indrik process,
//! as a comma-separated list:
//!
//! | fault | effect |
//! |---|---|
//! | `device-lost@3` | the third submission fails with a device loss |
//! | `allocation@2` | the second allocation of device memory fails |
//! | `commands@2` | the second program fails to allocate its command buffer |
//! | `no-feature=bufferDeviceAddress` | the device reports the feature as missing |
//! | `heap=64MiB` | no memory heap is larger than this |

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// A fault to inject. Events are counted from the injection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A submission, and everything after it, fails with a device loss.
    DeviceLost {
        /// Number of the submission, starting at 1.
        submission: u64,
    },
    /// One allocation of device memory fails; later ones succeed.
    Allocation {
        /// Number of the allocation, starting at 1.
        allocation: u64,
    },
    /// One program fails to allocate its command buffer; later ones succeed.
    Commands {
        /// Number of the program, starting at 1.
        program: u64,
    },
    /// The named Vulkan feature is reported as missing.
    NoFeature(String),
    /// Maximum heap size in bytes.
    Heap(u64),
}

impl Fault {
    /// Parses the syntax of `INDRIK_FAULT`.
    pub fn parse_list(text: &str) -> Result<Vec<Fault>> {
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Fault::parse).collect()
    }

    fn parse(item: &str) -> Result<Fault> {
        let invalid = || Error::InvalidUse {
            what: format!("INDRIK_FAULT={item}"),
            reason: "expected device-lost@N, allocation@N, commands@N, no-feature=NAME or heap=BYTES".into(),
        };
        let number = |text: &str| text.parse::<u64>().ok().filter(|n| *n > 0).ok_or_else(invalid);
        if let Some(count) = item.strip_prefix("device-lost@") {
            Ok(Fault::DeviceLost { submission: number(count)? })
        } else if let Some(count) = item.strip_prefix("allocation@") {
            Ok(Fault::Allocation { allocation: number(count)? })
        } else if let Some(count) = item.strip_prefix("commands@") {
            Ok(Fault::Commands { program: number(count)? })
        } else if let Some(name) = item.strip_prefix("no-feature=") {
            Ok(Fault::NoFeature(name.to_string()))
        } else if let Some(size) = item.strip_prefix("heap=") {
            let (digits, unit) = match size {
                _ if size.ends_with("KiB") => (&size[..size.len() - 3], 1 << 10),
                _ if size.ends_with("MiB") => (&size[..size.len() - 3], 1 << 20),
                _ if size.ends_with("GiB") => (&size[..size.len() - 3], 1 << 30),
                _ => (size, 1),
            };
            Ok(Fault::Heap(number(digits)?.checked_mul(unit).ok_or_else(invalid)?))
        } else {
            Err(invalid())
        }
    }
}

/// The pending faults of one device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    // Each counts down to the event that fails; 0 if no fault is pending.
    submissions_left: AtomicU64,
    allocations_left: AtomicU64,
    programs_left: AtomicU64,
}

impl Faults {
    pub fn inject(&self, fault: Fault) {
        match fault {
            Fault::DeviceLost { submission } => self.submissions_left.store(submission, Ordering::SeqCst),
            Fault::Allocation { allocation } => self.allocations_left.store(allocation, Ordering::SeqCst),
            Fault::Commands { program } => self.programs_left.store(program, Ordering::SeqCst),
            // Applied when devices and heaps are listed.
            Fault::NoFeature(_) | Fault::Heap(_) => {}
        }
    }

    pub fn fails_submission(&self) -> bool {
        count_down(&self.submissions_left)
    }

    pub fn fails_allocation(&self) -> bool {
        count_down(&self.allocations_left)
    }

    pub fn fails_commands(&self) -> bool {
        count_down(&self.programs_left)
    }
}

fn count_down(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_syntax_is_parsed() {
        assert_eq!(
            Fault::parse_list("device-lost@3, allocation@2,commands@4,no-feature=int8,heap=64MiB").unwrap(),
            [
                Fault::DeviceLost { submission: 3 },
                Fault::Allocation { allocation: 2 },
                Fault::Commands { program: 4 },
                Fault::NoFeature("int8".into()),
                Fault::Heap(64 << 20)
            ]
        );
        for invalid in
            ["device-lost", "device-lost@0", "allocation@x", "heap=", "heap=99999999999999GiB", "nonsense"]
        {
            assert!(Fault::parse_list(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_fault_fires_once_at_its_count() {
        let faults = Faults::default();
        faults.inject(Fault::Allocation { allocation: 2 });
        assert_eq!([(); 4].map(|()| faults.fails_allocation()), [false, true, false, false]);
    }
}
