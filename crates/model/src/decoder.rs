//! The decoder that all families share: a mixer and a feed-forward block in turn, each after a norm, each
//! added to the residual stream. A checkpoint's config describes every layer as a [`LayerSpec`]; the blocks
//! are recorded in the operations of [`Step`].
//!
//! A new kind of mixer or feed-forward block is a variant of [`Mixer`] or [`FeedForward`], a file beside
//! `attention` and `feed_forward`, and an arm of the matches below. Blocks that a family adds after them
//! (per-layer embeddings) follow here.
//!
//! Gemma's blocks end with a norm of their own before they are added. That norm, the addition and the norm
//! before the next block are one kernel, so a block's output waits until the next block begins: [`BlockEnd`]
//! says how it is added then.

mod attention;
mod feed_forward;
mod per_layer;

use std::ops::Range;

use checkpoint::{Config, FeedForward, LayerSpec, Mixer, Role};

use crate::{Result, step::Step};

/// How a block's output is added to the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockEnd {
    pub layer: u32,
    /// The norm of the output, which applies where the family has such norms.
    pub norm: Role,
    /// Whether the layer ends with it, and the stream may be scaled.
    pub ends_layer: bool,
}

impl BlockEnd {
    /// A block inside a layer.
    fn inside(layer: u32, norm: Role) -> Self {
        Self { layer, norm, ends_layer: false }
    }

    /// The last block of a layer.
    fn last(config: &Config, layer: u32) -> Self {
        let norm = match config.per_layer_width {
            Some(_) => Role::PostPerLayerNorm,
            None => Role::PostFeedForwardNorm,
        };
        Self { layer, norm, ends_layer: true }
    }
}

/// Records layers: from tokens, if the first is among them, to the last block's output and the residual
/// stream before it.
pub(crate) fn layers(step: &mut Step<'_>, layers: Range<u32>) -> Result<()> {
    for layer in layers {
        let LayerSpec { mixer, feed_forward, per_layer_width, .. } = step.config().layer(layer);
        let attention_norm = step.norm_weight(Some(layer), Role::AttentionNorm)?;
        if layer == 0 {
            step.embed()?;
            if per_layer_width.is_some() {
                per_layer::inputs(step)?;
            }
            step.norm(attention_norm)?;
        } else {
            step.add_and_norm(BlockEnd::last(step.config(), layer - 1), attention_norm)?;
        }
        match mixer {
            Mixer::Attention(attention) => attention::block(step, layer, &attention)?,
        }
        let feed_forward_norm = step.norm_weight(Some(layer), Role::FeedForwardNorm)?;
        let end = BlockEnd::inside(layer, Role::PostAttentionNorm);
        match feed_forward {
            FeedForward::Experts(_) => step.add_and_norm_for_router(end, feed_forward_norm)?,
            FeedForward::Dense(_) | FeedForward::DenseAndExperts(..) => {
                step.add_and_norm(end, feed_forward_norm)?
            }
        }
        match feed_forward {
            FeedForward::Dense(dense) => feed_forward::dense(step, layer, &dense)?,
            FeedForward::Experts(experts) => feed_forward::experts(step, layer, &experts)?,
            FeedForward::DenseAndExperts(dense, experts) => {
                feed_forward::dense_and_experts(step, layer, &dense, &experts)?;
            }
        }
        if per_layer_width.is_some() {
            let end = BlockEnd::inside(layer, Role::PostFeedForwardNorm);
            per_layer::block(step, layer, end)?;
        }
    }
    Ok(())
}

/// Records the logits of the output rows.
pub(crate) fn head(step: &mut Step<'_>) -> Result<()> {
    let last = step.config().layers - 1;
    let final_norm = step.norm_weight(None, Role::FinalNorm)?;
    step.add_and_norm_outputs(BlockEnd::last(step.config(), last), final_norm)?;
    step.head()?;
    step.softcap()
}
