//! Selects the variant for a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::variant;
use crate::variant::Variant;

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0.
    pub tier: Tier,
    /// Threads per workgroup.
    pub threads: u32,
    /// Experts per workgroup.
    pub expert_tile: u32,
    /// Rows per workgroup.
    pub rows: u32,
    /// Required subgroup size.
    pub subgroup: Subgroup,
}

/// Rows from which workgroups have four, and eight: they read W fewer times, and there are still enough of them.
const SEVERAL_ROWS: usize = 32;
const MANY_ROWS: usize = 256;

/// The plan for steps of this many rows.
pub fn plan(caps: &Caps, rows: usize) -> Plan {
    // CPU drivers run threads one after the other, and workgroups are expensive.
    let (threads, few, several, many) = match caps.max_subgroup_size < 32 {
        true => (32, (16, 1), (16, 8), (16, 8)),
        false => (256, (4, 1), (4, 4), (16, 8)),
    };
    let (expert_tile, rows) = match rows {
        ..SEVERAL_ROWS => few,
        SEVERAL_ROWS..MANY_ROWS => several,
        _ => many,
    };
    Plan {
        tier: Tier::T0,
        threads: threads.min(caps.max_threads),
        expert_tile,
        rows,
        subgroup: Subgroup::Any,
    }
}

/// All pipelines that the policy may request.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let plans = [1, SEVERAL_ROWS, MANY_ROWS].map(|rows| plan(caps, rows));
    let mut plans = plans.to_vec();
    plans.dedup();
    let choices = [(true, false), (false, false), (true, true)];
    let of_plan = |plan| choices.map(|(renormalize, scaled)| variant(plan, renormalize, scaled));
    plans.into_iter().flat_map(of_plan).collect()
}
