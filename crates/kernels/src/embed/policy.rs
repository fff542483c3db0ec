//! How many threads copy a row: pure, tested without a GPU.

use gpu::Caps;

use super::variant;
use crate::{Scheme, variant::Variant};

/// Columns that one thread takes.
const COLUMNS: usize = 4;

/// Threads of a workgroup: few, so that even one row spreads over several compute units; a CPU driver pays by the
/// workgroup and wants larger ones.
pub fn threads(caps: &Caps) -> u32 {
    let wanted = if caps.max_subgroup_size < 32 { 256 } else { 64 };
    wanted.min(caps.max_threads)
}

/// Workgroups for one row.
pub fn groups(threads: u32, hidden: usize) -> u32 {
    hidden.div_ceil(COLUMNS * threads as usize) as u32
}

/// One pipeline a scheme.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    Scheme::ALL.map(|scheme| variant(scheme, threads(caps))).to_vec()
}
