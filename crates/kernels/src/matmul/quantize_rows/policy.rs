//! Selects the variant that converts rows to int16 or f16 on a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::variant;
use crate::{Activations, variant::Variant};

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads per workgroup.
    pub threads: u32,
    /// Vectors of four values per thread.
    pub per_thread: u32,
    /// Required subgroup size.
    pub subgroup: Subgroup,
}

/// Supported by every device, and small enough that one row is spread over several compute units.
const THREADS: u32 = 128;

impl Plan {
    /// Workgroups for a row of this many values, padding included.
    pub fn groups(&self, stride: usize) -> u32 {
        (stride as u32 / 4).div_ceil(self.threads * self.per_thread)
    }
}

/// The plan for a device.
pub fn plan(caps: &Caps, output: Activations) -> Plan {
    at_tier(caps, output, caps.tier().unwrap_or(Tier::T0).min(Tier::T1))
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, output: Activations, tier: Tier) -> Plan {
    // Without shuffles a thread takes all values that share a scale.
    let per_thread = if output == Activations::Int16 && tier < Tier::T1 { 4 } else { 1 };
    Plan { tier, threads: THREADS.min(caps.max_threads), per_thread, subgroup: Subgroup::Any }
}

/// All pipelines that the policy may request.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let tiers = [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier));
    let outputs = [Activations::Int16, Activations::F16];
    tiers.flat_map(|tier| outputs.map(|output| variant(output, at_tier(caps, output, tier)))).collect()
}
