//! Threads per workgroup. Pure; tested without a GPU.

use gpu::Caps;

use super::variant;
use crate::{Activations, variant::Variant};

/// Maximum threads per workgroup: nothing is shared between them, and small workgroups spread a batch of few texts.
const MAX_THREADS: u32 = 64;

/// Threads per workgroup for rows of `n` values.
pub fn threads(caps: &Caps, n: usize) -> u32 {
    let vec4s = u32::try_from(n / 4).unwrap_or(u32::MAX).clamp(1, MAX_THREADS);
    vec4s.next_multiple_of(caps.max_subgroup_size.max(8)).min(MAX_THREADS.min(caps.max_threads))
}

/// Hidden size of the smallest embedding models; all have at least as many threads.
const MODEL_LENGTH: usize = 384;

/// The pipelines that models request on a device.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    [Activations::F32, Activations::F16].map(|output| variant(output, threads(caps, MODEL_LENGTH))).to_vec()
}
