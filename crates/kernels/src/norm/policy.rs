//! Which variant norms rows of a length on a device: pure, tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::{Fusion, variant};
use crate::{Activations, variant::Variant};

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads of a workgroup: a power of two, or whole subgroups where rows are held at T1.
    pub threads: u32,
    /// Four values times this a thread holds in registers; none: it walks through the row.
    pub per_thread: Option<u32>,
    /// Subgroup size.
    pub subgroup: Subgroup,
}

/// Most threads that walk through a row: more of them wait for each other longer than they save.
const MAX_WALKING: u32 = 512;
/// Most threads that hold a row.
const MAX_HOLDING: u32 = 1024;
/// Most that a thread holds, in fours: up to four vectors of it are in registers at once.
const MAX_PER_THREAD: usize = 4;
/// Longest row that is held: with a thousand threads there are few registers for each.
const MAX_HELD: usize = 8192;

/// The plan for rows of `n` values.
pub fn plan(caps: &Caps, n: usize, fusion: Fusion) -> Plan {
    let tier = caps.tier().unwrap_or(Tier::T0).min(Tier::T1);
    at_tier(caps, n, fusion, tier)
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, n: usize, fusion: Fusion, tier: Tier) -> Plan {
    held(caps, n, fusion, tier).unwrap_or_else(|| walked(caps, n, fusion, tier))
}

/// The plan that holds rows in registers, where one can.
pub fn held(caps: &Caps, n: usize, fusion: Fusion, tier: Tier) -> Option<Plan> {
    // A CPU driver works on one subgroup after the other: the fewer there are, the less it has to do where they wait.
    let least = if caps.max_subgroup_size < 32 { MAX_PER_THREAD } else { 1 };
    holding(caps, n, fusion, tier, least)
}

/// The same with at least so many fours a thread.
pub(super) fn holding(caps: &Caps, n: usize, fusion: Fusion, tier: Tier, least: usize) -> Option<Plan> {
    let whole = fusion.output_group().max(4);
    // Threads that share a scale; they join its values by shuffles.
    let sharing = whole as u32 / 4;
    let joined = sharing == 1 || tier >= Tier::T1 && caps.min_subgroup_size >= sharing;
    if n == 0 || n > MAX_HELD || !n.is_multiple_of(whole) || !joined {
        return None;
    }
    let largest = MAX_HOLDING.min(1 << caps.max_threads.ilog2());
    let fours = n / 4;
    let per_thread = fours.div_ceil(largest as usize).max(least);
    // The fewest threads that hold the row: they wait for each other twice.
    let threads = fours.div_ceil(per_thread) as u32;
    let threads = match tier {
        Tier::T0 => threads.next_power_of_two(),
        _ => threads.next_multiple_of(caps.max_subgroup_size.max(8)),
    };
    let plan = Plan { tier, threads, per_thread: Some(per_thread as u32), subgroup: Subgroup::Any };
    (per_thread <= MAX_PER_THREAD && threads <= largest).then_some(plan)
}

/// The plan that walks through rows of any length.
pub fn walked(caps: &Caps, n: usize, fusion: Fusion, tier: Tier) -> Plan {
    // A thread takes one value at a time to f32, else one group.
    let items = n.div_ceil(if fusion.output == Activations::F32 { 4 } else { fusion.output_group() });
    let smallest = caps.max_subgroup_size.max(8).next_power_of_two();
    // The largest power of two that the device allows.
    let largest = MAX_WALKING.min(1 << caps.max_threads.ilog2());
    let threads = (items.next_power_of_two() as u32).clamp(smallest.min(largest), largest);
    Plan { tier, threads, per_thread: None, subgroup: Subgroup::Any }
}

/// Lengths of rows of the Gemma 3 family.
const MODEL_LENGTHS: [usize; 5] = [5376, 3840, 2560, 1152, 640];

/// The pipelines that models ask for on such a device: every fusion at the length of a 27B model at every tier, and Gemma's fusions
/// at every model's length at the tier that the policy chooses.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let best = caps.tier().unwrap_or(Tier::T0).min(Tier::T1);
    let mut list: Vec<Variant> = Vec::new();
    let mut add = |n: usize, tier: Tier, post_norm: bool, residual: bool, output: Activations| {
        // Products on matrix units leave partials of parts.
        let most = if output == Activations::F16 && post_norm && residual { 8 } else { 1 };
        for (gather, partials) in [(false, 1), (true, 1), (false, most), (true, most)] {
            let fusion = Fusion { post_norm, residual, output, gather, partials };
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
    list
}
