//! Selects the variant for a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::{AddShape, Shape, variant};
use crate::{Activations, variant::Variant};

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
/// Rows from which small workgroups are faster: there are enough of them to fill the device, and reducing the sums of many
/// threads would cost more than the products of each.
const PROMPT_ROWS: usize = 256;

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
        (MANY_ROWS..PROMPT_ROWS, _) => (256, 8, 8),
        _ => (64, 8, 8),
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

/// Maximum rows for which adding a block in the router pays: every workgroup of a row repeats it, which must be cheaper
/// than a dispatch of its own.
const MAX_ROWS_TO_ADD: usize = 64;

/// Whether the router should add the block before it, and norm the sum, in steps of this many rows of `k` values.
pub fn adds(caps: &Caps, k: usize, rows: usize) -> bool {
    caps.tier() >= Some(Tier::T1) && k.is_multiple_of(crate::HALF_GROUP) && rows <= MAX_ROWS_TO_ADD
}

/// Qwen 3 30B-A3B.
const LISTED_SHAPE: Shape =
    Shape { k: 2048, experts: 128, per_token: 8, renormalize: true, scaled: false, epsilon: 1e-6, add: None };

/// The pipelines that models request, for a common number of experts.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    let rows = |tier| [1, SEVERAL_ROWS, MANY_ROWS, PROMPT_ROWS].map(|rows| at_tier(caps, rows, tier));
    let mut plans: Vec<Plan> = tiers.flat_map(rows).collect();
    plans.dedup();
    let add = |partials, output| Shape { add: Some(AddShape { partials, output }), ..LISTED_SHAPE };
    // What the policy selects for steps that add: one row, and several.
    let adding = [(1, add(1, Activations::Int16)), (SEVERAL_ROWS, add(4, Activations::F16))]
        .map(|(rows, shape)| variant(plan(caps, rows), &shape));
    let adding = adding.into_iter().filter(|_| adds(caps, LISTED_SHAPE.k, 1));
    let shapes =
        [LISTED_SHAPE, Shape { renormalize: false, ..LISTED_SHAPE }, Shape { scaled: true, ..LISTED_SHAPE }];
    let of_plan = |plan: Plan| shapes.map(|shape| variant(plan, &shape));
    plans.into_iter().flat_map(of_plan).chain(adding).collect()
}
