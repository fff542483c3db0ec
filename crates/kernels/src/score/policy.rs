//! Selects the variant for a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::variant;
use crate::variant::Variant;

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads per workgroup, a power of two.
    pub threads: u32,
    /// Required subgroup size.
    pub subgroup: Subgroup,
}

/// Threads per row: enough to keep a compute unit's loads in flight.
const THREADS: u32 = 512;
/// The same on a CPU driver, which runs threads one after the other: few, but enough to keep each thread's sum
/// accurate.
const CPU_THREADS: u32 = 64;

/// The plan at the device's best tier.
pub fn plan(caps: &Caps) -> Plan {
    at_tier(caps, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, tier: Tier) -> Plan {
    let threads = if caps.max_subgroup_size < 32 { CPU_THREADS } else { THREADS };
    Plan { tier, threads: threads.min(1 << caps.max_threads.ilog2()), subgroup: Subgroup::Any }
}

/// All pipelines that the policy may request.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    tiers.flat_map(|tier| [true, false].map(|vec4_loads| variant(at_tier(caps, tier), vec4_loads))).collect()
}
