//! Selects the variant for a row length on a device, as LayerNorm does. Pure; tested without a GPU.

use gpu::Caps;

use super::variant;
pub use crate::layer_norm::policy::{Plan, at_tier, plan};
use crate::{Activations, row, variant::Variant};

/// Row length of the SigLIP encoder of Gemma 3.
const ENCODER_LENGTH: usize = 1152;

/// The pipelines that models request on a device, at every tier.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let plans = row::tiers(caps).filter_map(|tier| at_tier(caps, ENCODER_LENGTH, tier));
    plans.flat_map(|plan| [Activations::F32, Activations::F16].map(|output| variant(output, plan))).collect()
}
