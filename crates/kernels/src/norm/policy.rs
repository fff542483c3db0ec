//! Which variant norms rows of a length on a device: pure, tested without a GPU.

use gpu::{Caps, Subgroup, Tier};

use super::{Form, variant};
use crate::{GROUP, variant::Variant};

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// Threads of a workgroup, a power of two.
    pub threads: u32,
    /// Subgroup size.
    pub subgroup: Subgroup,
}

/// Most threads a row is given: more of them wait for each other longer than they save.
const MAX_THREADS: u32 = 512;

/// The plan for rows of `n` values.
pub fn plan(caps: &Caps, n: usize, form: Form) -> Plan {
    let tier = caps.tier().unwrap_or(Tier::T0).min(Tier::T1);
    at_tier(caps, n, form, tier)
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, n: usize, form: Form, tier: Tier) -> Plan {
    // A thread takes one value at a time, or one group when quantising.
    let items = n.div_ceil(if form.quantize { GROUP } else { 4 });
    let smallest = caps.max_subgroup_size.max(8).next_power_of_two();
    // The largest power of two that the device allows.
    let largest = MAX_THREADS.min(1 << caps.max_threads.ilog2());
    let threads = (items.next_power_of_two() as u32).clamp(smallest.min(largest), largest);
    Plan { tier, threads, subgroup: Subgroup::Any }
}

/// All pipelines that the policy may ask for: one of each form and tier, at the length of a 27B model.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let n = 5376;
    let mut list = Vec::new();
    for tier in [Tier::T0, Tier::T1].into_iter().filter(|tier| caps.tier() >= Some(*tier)) {
        for (post_norm, residual) in [(false, false), (false, true), (true, false), (true, true)] {
            for (quantize, gather) in [(false, false), (false, true), (true, false)] {
                let form = Form { post_norm, residual, quantize, gather };
                list.push(variant(form, at_tier(caps, n, form, tier)));
            }
        }
    }
    list
}
