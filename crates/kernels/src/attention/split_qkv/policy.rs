//! Divides the items of all rows among workgroups. Pure; tested without a GPU.

use gpu::Caps;
use tensor::KvScheme;

use super::variant;
use crate::variant::Variant;

/// The heads of a row and the cache of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values per head, a multiple of 8.
    pub head_dim: u32,
    /// Positions per page, a power of two.
    pub page_size: u32,
    /// Storage scheme of keys and values: f16 or f32.
    pub scheme: KvScheme,
}

impl Shape {
    /// Values per row of the QKV product.
    pub fn row(&self) -> u32 {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// The reason why the kernel cannot compute this shape, if any.
    pub(super) fn check(&self) -> Result<(), String> {
        self.scheme.check(self.head_dim, self.page_size)?;
        if !matches!(self.scheme, KvScheme::F16 | KvScheme::F32) {
            return Err(format!("keys and values must be stored as f16 or f32, not {}", self.scheme));
        }
        if self.heads == 0 || self.kv_heads == 0 {
            return Err(format!("{self:?}: the numbers of query heads and KV heads must not be 0"));
        }
        Ok(())
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} × {} {}", self.heads, self.kv_heads, self.head_dim, self.scheme)
    }
}

/// The division of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Threads per workgroup.
    pub threads: u32,
    /// Maximum workgroups along x; more of them continue along y.
    pub max_groups_x: u32,
}

/// Values per thread.
const ITEM: u32 = 8;
/// Maximum threads per workgroup: nothing is shared between them.
const MAX_THREADS: u32 = 256;

impl Plan {
    /// Workgroups for a number of rows. None if the kernel cannot number their items with 32 bits.
    pub fn groups(&self, shape: &Shape, rows: u32) -> Option<[u32; 3]> {
        let items = u64::from(rows) * u64::from(shape.row() / ITEM);
        let groups = items.div_ceil(u64::from(self.threads));
        let y = groups.div_ceil(u64::from(self.max_groups_x)).max(1);
        let x = groups.div_ceil(y);
        let threads = x * y * u64::from(self.threads);
        (threads <= u64::from(u32::MAX)).then_some([x as u32, y as u32, 1])
    }
}

/// The plan for a device.
pub fn plan(caps: &Caps) -> Plan {
    Plan { threads: MAX_THREADS.min(caps.max_threads), max_groups_x: caps.max_groups }
}

/// Heads of Gemma 3's SigLIP encoder.
pub(super) const SIGLIP: Shape =
    Shape { heads: 16, kv_heads: 16, head_dim: 72, page_size: 64, scheme: KvScheme::F16 };

/// The pipelines that models request on a device.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    [KvScheme::F16, KvScheme::F32]
        .into_iter()
        .map(|scheme| variant(&Shape { scheme, ..SIGLIP }, plan(caps)))
        .collect()
}
