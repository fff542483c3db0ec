//! Selects the variant for a row length on a device. Pure; tested without a GPU.

use gpu::{Caps, Subgroup, Tier};
use tensor::QUAD;

use super::variant;
use crate::{
    matmul::gemv::policy::{Prologue, has_prologue, prologue_subgroup},
    variant::Variant,
};

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Threads per workgroup, which takes a row.
    pub threads: u32,
    /// Required subgroup size: that of products with a prologue, whose sums have the same order.
    pub subgroup: Subgroup,
}

/// Maximum threads of a workgroup. A row has one workgroup, so the more, the shorter it takes.
const MAX_THREADS: u32 = 1024;

/// The plan for rows of `k` values.
pub fn plan(caps: &Caps, k: usize) -> Plan {
    let subgroup = prologue_subgroup(caps);
    let multiple = match subgroup {
        Subgroup::Exactly(size) => size,
        Subgroup::Any => caps.max_subgroup_size.max(32),
    };
    let max_threads = MAX_THREADS.min(caps.max_threads) / multiple * multiple;
    let quarters = (k.div_ceil(QUAD) * QUAD / 4) as u32;
    Plan { threads: quarters.next_multiple_of(multiple).min(max_threads), subgroup }
}

/// Row lengths of the Gemma 3 family.
const MODEL_LENGTHS: [usize; 5] = [5376, 3840, 2560, 1152, 640];

/// The pipelines that models request on a device.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let added = |partials, post_norm, scaled| Prologue::AddAndNorm { partials, post_norm, scaled };
    let mut list = vec![];
    for k in MODEL_LENGTHS.into_iter().filter(|k| caps.tier() >= Some(Tier::T1) && has_prologue(caps, *k, 1))
    {
        for prologue in [
            Prologue::Norm,
            added(1, true, false),
            added(3, true, false),
            added(1, false, false),
            added(1, true, true),
        ] {
            list.push(variant(prologue, k, plan(caps, k)));
        }
    }
    list
}
