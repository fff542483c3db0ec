//! Feed-forward blocks.

use checkpoint::family::Activation;
use weights::blueprint::MatrixId;

use crate::{Result, loaded::epilogue, step::Step};

/// block = down · (activation(gate · normed) · (up · normed)).
pub(super) fn dense(step: &mut Step<'_>, layer: u32, activation: Activation) -> Result<()> {
    step.prefetch(MatrixId::GateUp(layer))?;
    step.gated(layer, epilogue(activation))?;
    step.down(layer)
}
