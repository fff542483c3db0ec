//! Divides a row among workgroups and threads. Pure; tested without a GPU.

use std::cmp::Reverse;

use gpu::Caps;

use super::{Gelu, variant};
use crate::{Activations, variant::Variant};

/// The division of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Workgroups per row.
    pub groups_per_row: u32,
    /// Threads per workgroup, whole subgroups where the device allows as many.
    pub threads: u32,
    /// Vec4s per thread, all loaded at once.
    pub vec4s_per_thread: u32,
}

/// Maximum threads per workgroup: nothing is shared between them, and small workgroups leave no gaps when they end.
const MAX_THREADS: u32 = 256;
/// Maximum vec4s per thread.
const MAX_VEC4S_PER_THREAD: u32 = 4;

/// The plan for rows of `n` values: the most loads in flight per thread among the divisions with at most an
/// eighth more threads than necessary. None if `n` is not a multiple of 4.
pub fn plan(caps: &Caps, n: usize) -> Option<Plan> {
    let vec4s = u32::try_from(n / 4).ok().filter(|vec4s| *vec4s > 0 && n.is_multiple_of(4))?;
    let max_threads = MAX_THREADS.min(caps.max_threads);
    let plans = (1..=MAX_VEC4S_PER_THREAD).map(|vec4s_per_thread| {
        let groups_per_row = vec4s.div_ceil(max_threads * vec4s_per_thread);
        let threads = vec4s.div_ceil(groups_per_row * vec4s_per_thread);
        let threads = threads.next_multiple_of(caps.max_subgroup_size.max(8)).min(max_threads);
        Plan { groups_per_row, threads, vec4s_per_thread }
    });
    plans.min_by_key(|plan| {
        let slots = plan.groups_per_row * plan.threads * plan.vec4s_per_thread;
        (slots.max(vec4s + vec4s / 8), Reverse(plan.vec4s_per_thread))
    })
}

/// Length of the MLP of Gemma 3's SigLIP encoder.
const ENCODER_LENGTH: usize = 4304;

/// Length of the MLP of MiniLM, which the exact activation is for.
const BERT_LENGTH: usize = 1536;

/// The pipelines that models request on a device.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let plans = [(Gelu::Tanh, plan(caps, ENCODER_LENGTH)), (Gelu::Erf, plan(caps, BERT_LENGTH))];
    let of = |output| plans.map(|(gelu, plan)| plan.map(|plan| variant(gelu, output, plan)));
    [Activations::F32, Activations::F16].into_iter().flat_map(of).flatten().collect()
}
