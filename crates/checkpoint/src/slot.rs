//! Where a tensor belongs in a model: its tower, layer and role.

use serde::Serialize;

/// The place of a tensor in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Slot {
    /// Which part of the model.
    pub tower: Tower,
    /// Which layer of it; none for what a tower has once.
    pub layer: Option<u32>,
    /// What it does there.
    pub role: Role,
}

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tower {
    /// The language model.
    Text,
    /// The image encoder.
    Vision,
    /// What brings the image encoder's output to the language model's width.
    Projector,
}

/// What a tensor does in its layer or tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embeddings; the head too, where it is tied.
    Embed,
    /// The norm after the last layer.
    FinalNorm,
    /// The output projection, where it is not the embeddings.
    Head,
    /// Factors on RoPE's frequencies (GGUF).
    RopeFreqs,
    /// The norm before attention.
    AttentionNorm,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Query bias.
    QueryBias,
    /// Key bias.
    KeyBias,
    /// Value bias.
    ValueBias,
    /// Norm of each query head.
    QueryNorm,
    /// Norm of each key head.
    KeyNorm,
    /// Attention's output projection.
    Output,
    /// The norm of attention's output, before it joins the residual stream.
    PostAttentionNorm,
    /// The norm before the feed-forward part.
    FeedForwardNorm,
    /// Gate projection.
    Gate,
    /// Up projection.
    Up,
    /// Down projection.
    Down,
    /// The norm of the feed-forward part's output, before it joins the residual stream.
    PostFeedForwardNorm,
    /// A part of the image encoder or projector, which are listed and not run.
    Image,
}

impl Slot {
    /// A tensor of the text tower.
    pub fn text(layer: Option<u32>, role: Role) -> Self {
        Slot { tower: Tower::Text, layer, role }
    }
}

/// A role with its name in Hugging Face files and in GGUF.
pub(crate) type Row = (Role, &'static str, &'static str);
