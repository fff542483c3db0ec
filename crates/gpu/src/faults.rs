//! Faults on purpose, so that what happens after a fault is tested and not hoped for.
//!
//! Tests set them on a [`Device`](crate::Device); `INDRIK_FAULT` sets them from outside on the real binary:
//! `device-lost@3` (the third submission finds the device lost), `allocation@2` (the second allocation of device memory
//! fails), `commands@2` (the second program from now finds no memory for its commands), `no-feature=bufferDeviceAddress` (the device claims to lack it), `heap=64MiB` (heaps are at most this large).
//! Several are separated by commas.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// A fault to inject. Counts start at 1 from the moment of injection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The n-th submission from now, and everything after it, finds the device lost.
    DeviceLost {
        /// Which submission.
        submission: u64,
    },
    /// The n-th allocation of device memory from now fails; later ones work again.
    Allocation {
        /// Which allocation.
        allocation: u64,
    },
    /// The n-th program from now finds no memory for its commands; later ones do.
    Commands {
        /// Which program.
        program: u64,
    },
    /// The named Vulkan feature is reported as missing.
    NoFeature(String),
    /// No heap is larger than this many bytes.
    Heap(u64),
}

impl Fault {
    /// Reads the syntax of `INDRIK_FAULT`.
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

/// Counts down to the faults that were injected into one device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    // 0: none pending; otherwise how many events from now it strikes.
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
            // Read where devices and heaps are listed.
            Fault::NoFeature(_) | Fault::Heap(_) => {}
        }
    }

    pub fn strikes_submission(&self) -> bool {
        strikes(&self.submissions_left)
    }

    pub fn strikes_allocation(&self) -> bool {
        strikes(&self.allocations_left)
    }

    pub fn strikes_commands(&self) -> bool {
        strikes(&self.programs_left)
    }
}

fn strikes(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_it_documents() {
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
        for wrong in
            ["device-lost", "device-lost@0", "allocation@x", "heap=", "heap=99999999999999GiB", "nonsense"]
        {
            assert!(Fault::parse_list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn strikes_once_at_the_right_moment() {
        let faults = Faults::default();
        faults.inject(Fault::Allocation { allocation: 2 });
        assert_eq!([(); 4].map(|()| faults.strikes_allocation()), [false, true, false, false]);
    }
}
