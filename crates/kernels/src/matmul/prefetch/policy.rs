//! How much is brought into the cache ahead of a product: pure, tested without a GPU.

use gpu::Caps;

use super::variant;
use crate::{Layout, variant::Variant};

/// Threads of a workgroup.
pub(super) const THREADS: u32 = 256;
/// Loads of a thread.
pub(super) const LOADS: u32 = 4;
/// What a workgroup reads.
pub const GROUP_BYTES: u32 = THREADS * LOADS * 16;

/// What is read of a matrix's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// How many.
    pub count: u32,
    /// Bytes of each, a multiple of [`GROUP_BYTES`].
    pub bytes: u32,
    /// From the beginning of one to that of the next.
    pub stride: u32,
}

impl Ranges {
    /// Bytes from the first beginning to the last end.
    pub fn end(&self) -> u64 {
        u64::from(self.count.saturating_sub(1)) * u64::from(self.stride) + u64::from(self.bytes)
    }

    /// Workgroups that read them.
    pub fn groups(&self) -> u32 {
        self.count * (self.bytes / GROUP_BYTES)
    }
}

/// Rows up to which it pays: with more, products are less bound by the memory. Measured on an H200.
pub const MAX_ROWS: usize = 96;

/// Bytes of all weights from which on it pays: of fewer, the device has not forgotten where they are since the last step. On an H200 the
/// 27B gains three hundredths, the 4B loses one.
pub const MIN_BYTES: u64 = 16 << 30;

/// Ranges of a matrix, evenly stride. Few bytes of every page are as good as many: what a product waits for when it begins is where its
/// pages are. Measured on an H200, where 8 MB in one piece gain half as much, and 16 MB in one piece nothing.
const RANGES: u32 = 192;

/// Compute units from which on it pays: smaller devices have less idle beside a norm.
const MIN_COMPUTE_UNITS: u32 = 64;

/// What to read ahead of a product of a few rows; none where it does not pay, or the matrix is small.
pub fn ranges(caps: &Caps, weights: &Layout) -> Option<Ranges> {
    caps.compute_units.filter(|units| *units >= MIN_COMPUTE_UNITS)?;
    let (count, bytes) = (RANGES, GROUP_BYTES);
    let stride = u32::try_from(weights.value_bytes() / count as usize).ok()? / 16 * 16;
    (stride >= 4 * bytes).then_some(Ranges { count, bytes, stride })
}

/// All pipelines that the policy may ask for.
pub fn variants(_: &Caps) -> Vec<Variant> {
    vec![variant()]
}
