//! Selects the variant for a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::variant;
use crate::variant::Variant;

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads per workgroup.
    pub threads: u32,
    /// Experts per workgroup.
    pub expert_tile: u32,
    /// Rows per workgroup.
    pub rows: u32,
    /// Threads that add up their sums before these go through shared memory.
    pub threads_per_partial: u32,
    /// Required subgroup size.
    pub subgroup: Subgroup,
}

/// Rows from which workgroups have four, and eight: they read W fewer times, and there are still enough of them.
const SEVERAL_ROWS: usize = 4;
const MANY_ROWS: usize = 48;

/// Minimum compute units for workgroups of few experts and many threads.
const MIN_COMPUTE_UNITS: u32 = 64;

/// The plan for steps of this many rows.
pub fn plan(caps: &Caps, rows: usize) -> Plan {
    at_tier(caps, rows, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, rows: usize, tier: Tier) -> Plan {
    let is_large = caps.compute_units.is_some_and(|units| units >= MIN_COMPUTE_UNITS);
    // Threads, experts and rows.
    let (threads, expert_tile, rows) = match (rows, tier) {
        // CPU drivers run threads one after the other, and workgroups are expensive.
        (..SEVERAL_ROWS, _) if caps.max_subgroup_size < 32 => (32, 16, 1),
        _ if caps.max_subgroup_size < 32 => (32, 8, 4),
        // Without subgroup operations every thread's sums are in shared memory.
        (..SEVERAL_ROWS, Tier::T0) => (128, 4, 1),
        (_, Tier::T0) => (128, 4, 4),
        (..SEVERAL_ROWS, _) if is_large => (512, 2, 1),
        (..SEVERAL_ROWS, _) => (256, 4, 1),
        (SEVERAL_ROWS..MANY_ROWS, _) if is_large => (512, 4, 4),
        (SEVERAL_ROWS..MANY_ROWS, _) => (256, 4, 4),
        // More threads would have too few registers each.
        _ => (256, 8, 8),
    };
    Plan {
        tier,
        threads: threads.min(caps.max_threads),
        expert_tile,
        rows,
        threads_per_partial: if tier >= Tier::T1 { caps.min_subgroup_size } else { 1 },
        subgroup: Subgroup::Any,
    }
}

/// Experts of listed pipelines.
const LISTED_EXPERTS: usize = 128;

/// All pipelines that the policy may request, for a common number of experts.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    let rows = |tier| [1, SEVERAL_ROWS, MANY_ROWS].map(|rows| at_tier(caps, rows, tier));
    let mut plans: Vec<Plan> = tiers.flat_map(rows).collect();
    plans.dedup();
    let choices = [(true, false), (false, false), (true, true)];
    let of_plan =
        |plan| choices.map(|(renormalize, scaled)| variant(plan, LISTED_EXPERTS, renormalize, scaled));
    plans.into_iter().flat_map(of_plan).collect()
}
