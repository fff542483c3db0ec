//! Selects the variant for a row length on a device, as LayerNorm does. Pure; tested without a GPU.

use gpu::Caps;

use super::{Shape, variant};
pub use crate::layer_norm::policy::{Plan, at_tier, plan};
use crate::{Activations, row, variant::Variant};

/// Image encoder of Gemma 3 (SigLIP).
pub(super) const GEMMA3: Shape = Shape {
    side: 4,
    n: 1152,
    factor: 1.0,
    standardise: false,
    weight: true,
    epsilon: 1e-6,
    output: Activations::F32,
};
/// Image encoder of the small models of Gemma 4: the factor is √768.
pub(super) const GEMMA4_SMALL: Shape = Shape { side: 3, n: 768, factor: 27.712_812, weight: false, ..GEMMA3 };
/// Image encoder of the large models of Gemma 4: the factor is √1152.
pub(super) const GEMMA4_LARGE: Shape =
    Shape { n: 1152, factor: 33.941_125, standardise: true, ..GEMMA4_SMALL };

/// Gemma 4 12B, whose patches are soft tokens.
pub(super) const GEMMA4_UNIFIED: Shape = Shape { side: 1, n: 3840, factor: 1.0, weight: false, ..GEMMA3 };

/// The pipelines that models request on a device, at every tier.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let mut list = Vec::new();
    for tier in row::tiers(caps) {
        for shape in [GEMMA3, GEMMA4_SMALL, GEMMA4_LARGE, GEMMA4_UNIFIED] {
            let outputs = [Activations::F32, Activations::F16].map(|output| Shape { output, ..shape });
            let plan = at_tier(caps, shape.n, tier);
            list.extend(plan.into_iter().flat_map(|plan| outputs.map(|shape| variant(&shape, plan))));
        }
    }
    list
}
