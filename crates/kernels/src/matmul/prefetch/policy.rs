//! How much to prefetch into the cache ahead of a product. Pure; tested without a GPU.

use gpu::Caps;
use tensor::Layout;

use super::variant;
use crate::variant::Variant;

/// Threads per workgroup.
pub(super) const THREADS: u32 = 256;
/// Loads per thread.
pub(super) const LOADS: u32 = 4;
/// Bytes read per workgroup.
pub const GROUP_BYTES: u32 = THREADS * LOADS * 16;

/// Evenly spaced ranges of a matrix's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Number of ranges.
    pub count: u32,
    /// Bytes per range, a multiple of [`GROUP_BYTES`].
    pub bytes: u32,
    /// Bytes from the start of one range to the next.
    pub stride: u32,
}

impl Ranges {
    /// Bytes from the start of the first range to the end of the last.
    pub fn end(&self) -> u64 {
        u64::from(self.count.saturating_sub(1)) * u64::from(self.stride) + u64::from(self.bytes)
    }

    /// Workgroups that read the ranges.
    pub fn groups(&self) -> u32 {
        self.count * (self.bytes / GROUP_BYTES)
    }
}

/// Maximum rows for which prefetching pays: with more, products are less bound by memory. Measured on an
/// H200.
pub const MAX_ROWS: usize = 96;

/// Minimum bytes of all weights for which prefetching pays: with fewer, the device's address translations
/// from the last step are still cached. On an H200 the 27B gains 3%, the 4B loses 1%.
pub const MIN_BYTES: u64 = 16 << 30;

/// Number of ranges per matrix, evenly spaced. A few bytes of every page help as much as many: what a product
/// waits for at its start is address translation. Measured on an H200, where 8 MB in one piece gain half as
/// much, and 16 MB in one piece nothing.
const RANGES: u32 = 192;

/// Minimum compute units for which prefetching pays: smaller devices have fewer idle ones during a norm.
const MIN_COMPUTE_UNITS: u32 = 64;

/// The ranges to prefetch ahead of a product of a few rows; none where it does not pay, or the matrix is
/// small.
pub fn ranges(caps: &Caps, weights: &Layout) -> Option<Ranges> {
    caps.compute_units.filter(|units| *units >= MIN_COMPUTE_UNITS)?;
    let (count, bytes) = (RANGES, GROUP_BYTES);
    let stride = u32::try_from(weights.value_bytes() / count as usize).ok()? / 16 * 16;
    (stride >= 4 * bytes).then_some(Ranges { count, bytes, stride })
}

/// All pipelines that the policy may request.
pub fn variants(_: &Caps) -> Vec<Variant> {
    vec![variant()]
}
