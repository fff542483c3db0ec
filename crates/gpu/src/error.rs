//! The one error type of the GPU layer. Each variant is something a caller can decide on.

use std::{path::PathBuf, time::Duration};

use ash::vk;

/// Shorthand used through the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong between the host and the GPU. The text says what, where and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `libvulkan.so.1` could not be opened.
    #[error(
        "no Vulkan loader ({reason}): install the package libvulkan1 (Debian, Ubuntu), vulkan-loader (Fedora) or \
         vulkan-icd-loader (Arch)"
    )]
    NoLoader {
        /// What the dynamic linker said.
        reason: String,
    },
    /// The loader is there, but no driver answered.
    #[error(
        "no Vulkan driver found: install the package mesa-vulkan-drivers (AMD, Intel and the CPU driver) or NVIDIA's \
         driver, and check VK_DRIVER_FILES if it is set"
    )]
    NoDriver,
    /// `--device` or `INDRIK_DEVICE` names none of the devices, or more than one.
    #[error("{matches} Vulkan device matches '{wanted}': choose by index or name from {available}")]
    NoSuchDevice {
        /// What was asked for.
        wanted: String,
        /// "no" or "more than one".
        matches: &'static str,
        /// The devices there are, as `0: name, 1: name`.
        available: String,
    },
    /// The device lacks something that is needed.
    #[error("{device} cannot do this: {missing}; {fix}")]
    Unsupported {
        /// Device name.
        device: String,
        /// What it lacks.
        missing: String,
        /// What the user can do.
        fix: String,
    },
    /// Device memory ran out, or would.
    #[error("out of GPU memory: {what} {}: {fix}", needs(*.wanted, *.available))]
    OutOfDeviceMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes the heap still had, where the driver tells.
        available: Option<u64>,
        /// What the user can do.
        fix: &'static str,
    },
    /// The host ran out of memory inside the driver.
    #[error("out of system memory in {during}: close other programs")]
    OutOfHostMemory {
        /// The Vulkan call.
        during: &'static str,
    },
    /// One buffer may not be as large as this on this driver.
    #[error("{what} needs {} in one piece, and this driver allows {}: split it", format_bytes(*.wanted), format_bytes(*.limit))]
    AllocationTooLarge {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        wanted: u64,
        /// The driver's limit.
        limit: u64,
    },
    /// The GPU stopped answering: crash, reset, or watchdog. Nothing on this device works any more.
    #[error(
        "the GPU was lost during {during}: open the device again and reload; see the kernel log (dmesg) for why"
    )]
    DeviceLost {
        /// What was being done.
        during: &'static str,
    },
    /// The GPU did not finish in time. It may still.
    #[error(
        "the GPU did not finish {what} within {waited:?}: it hangs or is busy with other work; close other programs that use \
         it, see the kernel log (dmesg), or take a smaller model or another device (indrik devices)"
    )]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// A file's content is not what it should be.
    #[error("{}: {reason}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// Why it was refused, and what to do.
        reason: String,
    },
    /// A call that the caller got wrong: a size or range that cannot be.
    #[error("{what}: {reason}")]
    InvalidUse {
        /// The buffer, kernel or program.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Any other answer of the driver.
    #[error(
        "{call} failed with {result:?}: this is a bug in Indrik or in the driver; please report both versions"
    )]
    Vulkan {
        /// The Vulkan call.
        call: &'static str,
        /// Its result.
        result: vk::Result,
    },
}

impl Error {
    /// Sorts a driver's answer into the variant that a caller can act on.
    pub(crate) fn from_vk(call: &'static str, result: vk::Result) -> Self {
        match result {
            vk::Result::ERROR_DEVICE_LOST => Error::DeviceLost { during: call },
            vk::Result::ERROR_OUT_OF_HOST_MEMORY => Error::OutOfHostMemory { during: call },
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => Error::OutOfDeviceMemory {
                what: call.to_string(),
                wanted: 0,
                available: None,
                fix: OUT_OF_MEMORY_FIX,
            },
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => Error::NoDriver,
            result => Error::Vulkan { call, result },
        }
    }
}

/// What always helps when memory runs out.
pub(crate) const OUT_OF_MEMORY_FIX: &str = "close other programs that use the GPU, choose a smaller model or context, \
                                            or another device (indrik devices)";

fn needs(wanted: u64, available: Option<u64>) -> String {
    match (wanted, available) {
        (0, _) => "failed for want of it".to_string(),
        (wanted, None) => format!("needs {} and the driver has no more", format_bytes(wanted)),
        (wanted, Some(left)) => format!("needs {} and {} are left", format_bytes(wanted), format_bytes(left)),
    }
}

/// Bytes for people: binary units, three significant digits.
pub fn format_bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if count == 1 {
        "1 byte".to_string()
    } else if unit == 0 {
        format!("{count} bytes")
    } else if value < 10.0 {
        format!("{value:.2} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_and_what_to_do() {
        let error = Error::OutOfDeviceMemory {
            what: "KV cache".into(),
            wanted: 3 << 30,
            available: Some(512 << 20),
            fix: OUT_OF_MEMORY_FIX,
        };
        let text = error.to_string();
        assert!(text.contains("KV cache needs 3.00 GiB and 512.0 MiB are left"), "{text}");
        assert!(text.contains("smaller model"), "{text}");
    }

    #[test]
    fn driver_answers_become_decisions() {
        assert!(matches!(
            Error::from_vk("vkQueueSubmit2", vk::Result::ERROR_DEVICE_LOST),
            Error::DeviceLost { during: "vkQueueSubmit2" }
        ));
        assert!(matches!(
            Error::from_vk("vkAllocateMemory", vk::Result::ERROR_OUT_OF_DEVICE_MEMORY),
            Error::OutOfDeviceMemory { .. }
        ));
    }
}
