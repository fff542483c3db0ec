//! Per-layer embeddings (Gemma 4 E2B, E4B): every token has a small vector per layer beside its embedding, which the layer
//! adds to the residual stream through a gate.

use weights::blueprint::MatrixId;

use super::BlockEnd;
use crate::{Result, step::Step};

/// inputs = the vectors of all layers, from the rows' tokens and from their embeddings in the residual stream.
pub(super) fn inputs(step: &mut Step<'_>) -> Result<()> {
    step.per_layer_projection()?;
    step.per_layer_embed()?;
    step.per_layer_inputs()
}

/// block = output · (gelu(gate · residual) · inputs of the layer), after the previous block was added.
pub(super) fn block(step: &mut Step<'_>, layer: u32, previous: BlockEnd) -> Result<()> {
    step.add_and_norm(previous, step.unit_weight()?)?;
    step.prefetch(MatrixId::PerLayerGate(layer))?;
    step.per_layer_gate(layer)?;
    step.per_layer_output(layer)
}
