//! The error type of the GPU layer. Callers can act on each variant.

use std::{path::PathBuf, time::Duration};

use ash::vk;

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure between the host and the GPU. The message says what failed, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `libvulkan.so.1` could not be opened.
    #[error(
        "no Vulkan loader ({reason}): install the package libvulkan1 (Debian, Ubuntu), vulkan-loader (Fedora) or \
         vulkan-icd-loader (Arch)"
    )]
    NoLoader {
        /// The dynamic linker's message.
        reason: String,
    },
    /// The loader found no driver.
    #[error(
        "no Vulkan driver found: install the package mesa-vulkan-drivers (AMD, Intel and the CPU driver) or NVIDIA's \
         driver, and check VK_DRIVER_FILES if it is set"
    )]
    NoDriver,
    /// `--device` or `INDRIK_DEVICE` matches no device, or more than one.
    #[error("{matches} Vulkan device matches '{wanted}': choose by index or name from {available}")]
    NoSuchDevice {
        /// The requested device.
        wanted: String,
        /// "no" or "more than one".
        matches: &'static str,
        /// The available devices, as `0: name, 1: name`.
        available: String,
    },
    /// The device lacks a required feature.
    #[error("{device} does not support this: {missing}; {fix}")]
    Unsupported {
        /// Device name.
        device: String,
        /// The missing feature.
        missing: String,
        /// Suggested remedy.
        fix: String,
    },
    /// Not enough device memory.
    #[error("out of GPU memory: {what} {}: {fix}", needs(*.wanted, *.available))]
    OutOfDeviceMemory {
        /// Name of the buffer, or the Vulkan call.
        what: String,
        /// Requested bytes; 0 if unknown.
        wanted: u64,
        /// Bytes left in the heap, if known.
        available: Option<u64>,
        /// Suggested remedy.
        fix: &'static str,
    },
    /// Not enough host memory inside the driver.
    #[error("out of system memory in {during}: close other programs")]
    OutOfHostMemory {
        /// The Vulkan call.
        during: &'static str,
    },
    /// The buffer exceeds the driver's limit for one allocation.
    #[error("{what} needs {} in one allocation, but the driver allows {}: split it", format_bytes(*.wanted), format_bytes(*.limit))]
    AllocationTooLarge {
        /// Name of the buffer.
        what: String,
        /// Requested bytes; 0 if unknown.
        wanted: u64,
        /// The driver's limit.
        limit: u64,
    },
    /// The device is lost: a crash, a reset or the driver's watchdog. All further calls on it fail.
    #[error(
        "the device was lost during {during}: open it again and reload; the kernel log (dmesg) has the cause"
    )]
    DeviceLost {
        /// The Vulkan call or operation.
        during: &'static str,
    },
    /// The GPU did not finish in time. It may still be running.
    #[error(
        "the GPU did not finish {what} within {waited:?}: it hangs or is busy with other work; close other programs that use \
         it, check the kernel log (dmesg), or choose a smaller model or another device (indrik devices)"
    )]
    Timeout {
        /// The operation.
        what: &'static str,
        /// The timeout.
        waited: Duration,
    },
    /// A file's content is invalid.
    #[error("{}: {reason}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// The problem, and its consequence or remedy.
        reason: String,
    },
    /// A call with invalid arguments, such as a range outside a buffer.
    #[error("{what}: {reason}")]
    InvalidUse {
        /// The buffer, kernel or program.
        what: String,
        /// The problem.
        reason: String,
    },
    /// Any other error of the driver.
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
    /// Maps a driver result to the variant that callers act on.
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

/// General advice when memory runs out.
pub(crate) const OUT_OF_MEMORY_FIX: &str = "close other programs that use the GPU, choose a smaller model or context, \
                                            or another device (indrik devices)";

fn needs(wanted: u64, available: Option<u64>) -> String {
    match (wanted, available) {
        (0, _) => "failed".to_string(),
        (wanted, None) => format!("needs {}, which the driver could not allocate", format_bytes(wanted)),
        (wanted, Some(left)) => {
            format!("needs {}, but only {} are free", format_bytes(wanted), format_bytes(left))
        }
    }
}

/// A byte count in binary units with about three significant digits, such as `1.50 GiB`.
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
    fn errors_name_the_buffer_and_give_advice() {
        let error = Error::OutOfDeviceMemory {
            what: "KV cache".into(),
            wanted: 3 << 30,
            available: Some(512 << 20),
            fix: OUT_OF_MEMORY_FIX,
        };
        let text = error.to_string();
        assert!(text.contains("KV cache needs 3.00 GiB, but only 512.0 MiB are free"), "{text}");
        assert!(text.contains("smaller model"), "{text}");
    }

    #[test]
    fn driver_results_map_to_variants() {
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
