//! Threads per row. Pure; tested without a GPU.

use gpu::Caps;
use tensor::Scheme;

use super::variant;
use crate::variant::Variant;

/// Columns per thread.
const COLUMNS: usize = 4;

/// Threads per workgroup: few, so that even one row spreads over several compute units; on a CPU driver
/// workgroups are expensive and should be larger.
pub fn threads(caps: &Caps) -> u32 {
    let threads = if caps.max_subgroup_size < 32 { 256 } else { 64 };
    threads.min(caps.max_threads)
}

/// Workgroups per row.
pub fn groups(threads: u32, hidden: usize) -> u32 {
    hidden.div_ceil(COLUMNS * threads as usize) as u32
}

/// One pipeline per scheme.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    Scheme::ALL.map(|scheme| variant(scheme, threads(caps))).to_vec()
}
