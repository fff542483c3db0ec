//! Limits on untrusted files, applied to what the header announces.

use crate::{
    error::{Error, Result},
    format::Format,
};

/// What decoding one image may cost. Concurrent decoding multiplies the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest file in bytes.
    pub max_bytes: u64,
    /// Most pixels, width × height.
    pub max_pixels: u64,
    /// Most memory in bytes that decoding may need, the result included.
    pub max_memory: u64,
}

impl Default for Limits {
    /// 32 MiB and 50 megapixels, more than the models use (at most 2.6 megapixels) and than most cameras take, and
    /// the memory that these pixels need in every format.
    fn default() -> Self {
        Self { max_bytes: 32 << 20, max_pixels: 50_000_000, max_memory: 640 << 20 }
    }
}

impl Limits {
    /// Compares an announced size with the limits.
    pub(crate) fn check(
        &self,
        format: Format,
        width: u32,
        height: u32,
        bytes_per_pixel: u64,
    ) -> Result<usize> {
        if width == 0 || height == 0 {
            return Err(Error::NoPixels { format, width, height });
        }
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.max_pixels {
            return Err(Error::TooManyPixels { width, height, limit: self.max_pixels });
        }
        let bytes = pixels.saturating_mul(bytes_per_pixel);
        match usize::try_from(pixels) {
            Ok(pixels) if bytes <= self.max_memory => Ok(pixels),
            _ => Err(Error::TooMuchMemory { format, width, height, bytes, limit: self.max_memory }),
        }
    }
}
