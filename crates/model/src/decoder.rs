//! The decoder that all families are: attention and a gated feed-forward part in turn, each after a norm, each added to the residual
//! stream. What sets families apart is in [`checkpoint::family`], a file each.
//!
//! Gemma's sublayers end with a norm of their own before they join the stream. That norm, the addition and the norm before the next
//! sublayer are one kernel, so a sublayer's output waits until the next one begins.

use std::ops::Range;

use checkpoint::Role;
use weights::blueprint::MatrixId;

use crate::{Result, step::Step};

/// Records some layers, one after the other: tokens into the first of all; the last sublayer's output, and the residual stream
/// before it, out of each.
pub(crate) fn layers(step: &mut Step<'_>, layers: Range<u32>) -> Result<()> {
    for layer in layers {
        if layer == 0 {
            step.embed()?;
            step.norm(layer, Role::AttentionNorm)?;
        } else {
            step.add_and_norm((layer - 1, Role::PostFeedForwardNorm), (layer, Role::AttentionNorm))?;
        }
        step.warm(MatrixId::Qkv(layer))?;
        step.qkv(MatrixId::Qkv(layer))?;
        step.attention(layer)?;
        step.warm(MatrixId::AttentionOutput(layer))?;
        step.output(MatrixId::AttentionOutput(layer))?;

        step.add_and_norm((layer, Role::PostAttentionNorm), (layer, Role::FeedForwardNorm))?;
        step.warm(MatrixId::GateUp(layer))?;
        step.gated(MatrixId::GateUp(layer))?;
        step.down(MatrixId::Down(layer))?;
    }
    Ok(())
}

/// Records the logits of the rows that are wanted.
pub(crate) fn head(step: &mut Step<'_>) -> Result<()> {
    let last = step.config().layers - 1;
    step.add_and_norm_outputs((last, Role::PostFeedForwardNorm), Role::FinalNorm)?;
    step.head()
}
