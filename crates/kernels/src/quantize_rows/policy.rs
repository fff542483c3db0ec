//! Which variant quantises rows on a device: pure, tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::variant;
use crate::variant::Variant;

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Subgroup size.
    pub subgroup: Subgroup,
}

/// What every device allows, and few enough that one row is spread over several compute units.
const THREADS: u32 = 128;

impl Plan {
    /// Workgroups for a row of so many values, padding included.
    pub fn groups(&self, stride: usize) -> u32 {
        (stride as u32 / 4).div_ceil(self.threads * fours_per_thread(self.tier))
    }
}

/// Fours that a thread takes: as PER_THREAD of the shader.
fn fours_per_thread(tier: Tier) -> u32 {
    if tier >= Tier::T1 { 1 } else { 4 }
}

/// The plan for a device.
pub fn plan(caps: &Caps) -> Plan {
    at_tier(caps, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, tier: Tier) -> Plan {
    Plan { tier, threads: THREADS.min(caps.max_threads), subgroup: Subgroup::Any }
}

/// All pipelines that the policy may ask for.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    tiers.map(|tier| variant(at_tier(caps, tier))).collect()
}
