//! Divides a row among workgroups and threads, as the activation of an MLP does. Pure; tested without a GPU.

use gpu::Caps;

use super::variant;
pub use crate::bias_gelu::policy::{Plan, plan};
use crate::{Activations, variant::Variant};

/// Rows of the image encoder of Gemma 4's small models, and whether they are gated: residual stream, queries with keys
/// and values, MLP.
const ENCODER_ROWS: [(usize, bool); 3] = [(768, false), (2304, false), (3072, true)];

/// The pipelines that models request on a device.
pub fn variants(caps: &Caps) -> Vec<Variant> {
    let mut list: Vec<Variant> = Vec::new();
    for (n, gated) in ENCODER_ROWS {
        for output in [Activations::F32, Activations::F16] {
            let new = plan(caps, n).map(|plan| variant(output, gated, plan));
            list.extend(new.filter(|new| !list.iter().any(|known| known.same_code(new))));
        }
    }
    list
}
