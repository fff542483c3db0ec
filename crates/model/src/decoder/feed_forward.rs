//! Feed-forward blocks.

use checkpoint::{Experts, family::Activation};
use weights::blueprint::MatrixId;

use crate::{Result, loaded::epilogue, step::Step};

/// block = down · (activation(gate · normed) · (up · normed)).
pub(super) fn dense(step: &mut Step<'_>, layer: u32, activation: Activation) -> Result<()> {
    step.prefetch(MatrixId::GateUp(layer))?;
    step.gated(layer, epilogue(activation))?;
    step.down(layer)
}

/// block = the weighted sum of the experts that the router chooses for each row.
pub(super) fn experts(step: &mut Step<'_>, layer: u32, experts: &Experts) -> Result<()> {
    step.route(layer, experts)?;
    // Concurrently with the end of routing, which keeps a single workgroup busy.
    step.prefetch(MatrixId::ExpertGateUp(layer))?;
    step.expert_products(layer, experts)
}
