//! Selects the variant for a row length on a device. Pure; tested without a GPU.

use gpu::{Caps, Tier};

use super::{Fusion, variant};
use crate::{
    Activations,
    row::{self, RowPlan},
    variant::Variant,
};

/// A variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// T0 or T1.
    pub tier: Tier,
    /// The division of a row among threads.
    pub row: RowPlan,
}

/// The plan for rows of `n` values; none for a length that the kernel does not support.
pub fn plan(caps: &Caps, n: usize) -> Option<Plan> {
    at_tier(caps, n, row::tiers(caps).last()?)
}

/// The plan at a tier that need not be the device's best.
pub fn at_tier(caps: &Caps, n: usize, tier: Tier) -> Option<Plan> {
    row::plan(caps, n, tier).map(|row| Plan { tier, row })
}

/// Row lengths of the SigLIP encoder of Gemma 3, and of the patches and soft tokens of Gemma 4 12B.
const MODEL_LENGTHS: [usize; 3] = [1152, 6912, 3840];

/// Row lengths of BERT encoders: MiniLM, base and large.
const BERT_LENGTHS: [usize; 3] = [384, 768, 1024];

/// The pipelines that models request on a device, at every tier.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let outputs = [Activations::F32, Activations::F16];
    let plans = |n| row::tiers(caps).filter_map(move |tier| at_tier(caps, n, tier));
    let fusion = |add, normed_residual, output| Fusion { add, normed_residual, output };
    let addends = [None, Some(Activations::F32), Some(Activations::F16)];
    let images = outputs.into_iter().flat_map(|output| addends.map(|add| fusion(add, false, output)));
    let images = MODEL_LENGTHS
        .into_iter()
        .flat_map(plans)
        .flat_map(|plan| images.clone().map(move |fusion| variant(fusion, plan)));
    let texts = outputs.map(|output| fusion(Some(Activations::F32), true, output));
    let texts =
        BERT_LENGTHS.into_iter().flat_map(plans).flat_map(|plan| texts.map(|fusion| variant(fusion, plan)));
    images.chain(texts).collect()
}
