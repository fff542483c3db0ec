//! Feed-forward blocks.

use checkpoint::{Dense, Experts};
use weights::blueprint::MatrixId;

use crate::{Result, step::Step};

/// block = down · (activation(gate · normed) · (up · normed)).
pub(super) fn dense(step: &mut Step<'_>, layer: u32, dense: &Dense) -> Result<()> {
    step.prefetch(MatrixId::GateUp(layer))?;
    step.gated(layer, dense)?;
    step.down(layer, dense)
}

/// block = the weighted sum of the experts that the router selects for each row; the next norm adds them up.
pub(super) fn experts(step: &mut Step<'_>, layer: u32, experts: &Experts) -> Result<()> {
    step.route(layer, experts)?;
    step.expert_products(layer, experts)
}

/// block = norm(dense block) + norm(experts). Both take the residual stream, each with a norm of its own, and run
/// concurrently: hence the order.
pub(super) fn dense_and_experts(
    step: &mut Step<'_>,
    layer: u32,
    dense: &Dense,
    experts: &Experts,
) -> Result<()> {
    step.gated(layer, dense)?;
    step.norm_for_experts(layer)?;
    step.route(layer, experts)?;
    step.down(layer, dense)?;
    step.expert_products(layer, experts)?;
    step.combine(layer, experts)
}
