//! The decoder that all families share: a mixer and a feed-forward block in turn, each after a norm, each
//! added to the residual stream. A checkpoint's config describes every layer as a [`LayerSpec`]; the blocks
//! are recorded in the operations of [`Step`].
//!
//! A new kind of mixer or feed-forward block is a variant of [`Mixer`] or [`FeedForward`], a file beside
//! `attention` and `feed_forward`, and an arm of the matches below. Operations that a family adds
//! around its blocks (per-layer embeddings, an output scale) go between them here.
//!
//! Gemma's blocks end with a norm of their own before they are added. That norm, the addition and the norm
//! before the next block are one kernel, so a block's output waits until the next block begins.

mod attention;
mod feed_forward;

use std::ops::Range;

use checkpoint::{FeedForward, LayerSpec, Mixer, Role};

use crate::{Result, step::Step};

/// Records layers: from tokens, if the first is among them, to the last block's output and the residual
/// stream before it.
pub(crate) fn layers(step: &mut Step<'_>, layers: Range<u32>) -> Result<()> {
    for layer in layers {
        let LayerSpec { mixer, feed_forward, .. } = step.config().layer(layer);
        if layer == 0 {
            step.embed()?;
            step.norm(layer, Role::AttentionNorm)?;
        } else {
            step.add_and_norm((layer - 1, Role::PostFeedForwardNorm), (layer, Role::AttentionNorm))?;
        }
        match mixer {
            Mixer::Attention(attention) => attention::block(step, layer, &attention)?,
        }
        step.add_and_norm((layer, Role::PostAttentionNorm), (layer, Role::FeedForwardNorm))?;
        match feed_forward {
            FeedForward::Dense(dense) => feed_forward::dense(step, layer, dense.activation)?,
            FeedForward::Experts(experts) => feed_forward::experts(step, layer, &experts)?,
            FeedForward::DenseAndExperts(..) => todo!(),
        }
    }
    Ok(())
}

/// Records the logits of the output rows.
pub(crate) fn head(step: &mut Step<'_>) -> Result<()> {
    let last = step.config().layers - 1;
    step.add_and_norm_outputs((last, Role::PostFeedForwardNorm), Role::FinalNorm)?;
    step.head()
}
