//! Selects the variant for a row length on a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::{Fusion, variant};
use crate::{Activations, variant::Variant};

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads per workgroup: a power of two, or whole subgroups where rows are in registers at T1.
    pub threads: u32,
    /// Vec4s per thread, if the row is kept in registers; otherwise the workgroup loops over it.
    pub vec4s_per_thread: Option<u32>,
    /// Required subgroup size.
    pub subgroup: Subgroup,
}

/// Maximum threads that loop over a row: more would lose more time at barriers than they save.
const MAX_THREADS_LOOPED: u32 = 512;
/// Maximum threads that keep a row in registers.
const MAX_THREADS_IN_REGISTERS: u32 = 1024;
/// Maximum vec4s per thread: up to four arrays of this length are in registers at once.
const MAX_VEC4S_PER_THREAD: usize = 4;
/// Maximum row length in registers: with a thousand threads there are few registers for each.
const MAX_LENGTH_IN_REGISTERS: usize = 8192;

/// The plan for rows of `n` values.
pub fn plan(caps: &Caps, n: usize, fusion: Fusion) -> Plan {
    let tier = caps.tier().unwrap_or(Tier::T0).min(Tier::T1);
    at_tier(caps, n, fusion, tier)
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, n: usize, fusion: Fusion, tier: Tier) -> Plan {
    in_registers(caps, n, fusion, tier).unwrap_or_else(|| looped(caps, n, fusion, tier))
}

/// The plan that keeps rows in registers, where possible.
pub fn in_registers(caps: &Caps, n: usize, fusion: Fusion, tier: Tier) -> Option<Plan> {
    // A CPU driver runs one subgroup after the other: the fewer there are, the cheaper the barriers.
    let min_vec4s = if caps.max_subgroup_size < 32 { MAX_VEC4S_PER_THREAD } else { 1 };
    in_registers_with(caps, n, fusion, tier, min_vec4s)
}

/// The same with at least `min_vec4s` vec4s per thread.
pub(super) fn in_registers_with(
    caps: &Caps,
    n: usize,
    fusion: Fusion,
    tier: Tier,
    min_vec4s: usize,
) -> Option<Plan> {
    let multiple = fusion.output_group().max(4);
    // Threads that share a scale; they combine its values by shuffles.
    let threads_per_scale = multiple as u32 / 4;
    let combinable =
        threads_per_scale == 1 || tier >= Tier::T1 && caps.min_subgroup_size >= threads_per_scale;
    if n == 0 || n > MAX_LENGTH_IN_REGISTERS || !n.is_multiple_of(multiple) || !combinable {
        return None;
    }
    let max_threads = MAX_THREADS_IN_REGISTERS.min(1 << caps.max_threads.ilog2());
    let vec4s = n / 4;
    let vec4s_per_thread = vec4s.div_ceil(max_threads as usize).max(min_vec4s);
    // The fewest threads that hold the row, because of the two barriers.
    let threads = vec4s.div_ceil(vec4s_per_thread) as u32;
    let threads = match tier {
        Tier::T0 => threads.next_power_of_two(),
        _ => threads.next_multiple_of(caps.max_subgroup_size.max(8)),
    };
    let plan =
        Plan { tier, threads, vec4s_per_thread: Some(vec4s_per_thread as u32), subgroup: Subgroup::Any };
    (vec4s_per_thread <= MAX_VEC4S_PER_THREAD && threads <= max_threads).then_some(plan)
}

/// The plan that loops over rows of any length.
pub fn looped(caps: &Caps, n: usize, fusion: Fusion, tier: Tier) -> Plan {
    // Values per thread: for f32 four, one at a time; for the other formats a whole group.
    let items = n.div_ceil(if fusion.output == Activations::F32 { 4 } else { fusion.output_group() });
    let min_threads = caps.max_subgroup_size.max(8).next_power_of_two();
    // The largest power of two that the device allows.
    let max_threads = MAX_THREADS_LOOPED.min(1 << caps.max_threads.ilog2());
    let threads = (items.next_power_of_two() as u32).clamp(min_threads.min(max_threads), max_threads);
    Plan { tier, threads, vec4s_per_thread: None, subgroup: Subgroup::Any }
}

/// Row lengths of the Gemma 3 family, and of the image encoder of Gemma 4 E2B and E4B.
const MODEL_LENGTHS: [usize; 6] = [5376, 3840, 2560, 1152, 640, 768];

/// The pipelines that models request on a device: every fusion at the row length of a 27B model at every
/// tier, and Gemma's fusions at every model's length at the policy's tier.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let best = caps.tier().unwrap_or(Tier::T0).min(Tier::T1);
    let mut list: Vec<Variant> = Vec::new();
    let mut add = |n: usize, tier: Tier, post_norm: bool, residual: bool, output: Activations| {
        // Products on cooperative matrices may write partial sums.
        let partials = if output == Activations::F16 && post_norm && residual { 8 } else { 1 };
        for (gather, partials) in [(false, 1), (true, 1), (false, partials), (true, partials)] {
            let fusion =
                Fusion { post_norm, residual, scaled: false, output, gather, partials, weighted: false };
            let new = variant(fusion, at_tier(caps, n, fusion, tier));
            let same =
                |known: &Variant| known.shader.name == new.shader.name && known.constants == new.constants;
            if !list.iter().any(same) {
                list.push(new);
            }
        }
    };
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| *tier <= best) {
        for output in Activations::ALL {
            for (post_norm, residual) in [(false, false), (false, true), (true, false), (true, true)] {
                add(MODEL_LENGTHS[0], tier, post_norm, residual, output);
            }
        }
    }
    for n in MODEL_LENGTHS {
        for output in [Activations::F32, Activations::Int16, Activations::F16] {
            add(n, best, false, false, output);
            add(n, best, true, true, output);
        }
    }
    // Qwen 3 MoE: the outputs of eight experts.
    for output in [Activations::F32, Activations::Int16, Activations::F16] {
        for gather in [false, true] {
            let fusion = Fusion {
                post_norm: false,
                residual: true,
                scaled: false,
                output,
                gather,
                partials: 8,
                weighted: true,
            };
            list.push(variant(fusion, at_tier(caps, 2048, fusion, best)));
            // Gemma 4.
            let fusion = Fusion { post_norm: true, scaled: true, partials: 1, weighted: false, ..fusion };
            list.push(variant(fusion, at_tier(caps, 2816, fusion, best)));
        }
    }
    list
}
