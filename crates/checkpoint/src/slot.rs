//! Where a tensor belongs in a model: its tower, layer and role.

use serde::Serialize;

/// The position of a tensor in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Slot {
    /// Part of the model.
    pub tower: Tower,
    /// Layer index; `None` for tensors outside of layers.
    pub layer: Option<u32>,
    /// Index of the expert; `None` for tensors that do not belong to one.
    pub expert: Option<u32>,
    /// Function of the tensor.
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
    /// The projection from the image encoder's output to the language model.
    Projector,
    /// The dense layers of an embedding model, after pooling.
    Pooled,
}

/// The function of a tensor in its layer or tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embeddings; also the head if tied.
    Embed,
    /// Embeddings of segment types (BERT).
    TypeEmbed,
    /// The norm of the embeddings (BERT).
    EmbedNorm,
    /// Its bias.
    EmbedNormBias,
    /// The norm after the last layer.
    FinalNorm,
    /// The output projection, if it is not the embedding matrix.
    Head,
    /// RoPE frequency divisors (GGUF).
    RopeFreqs,
    /// Per-layer embeddings of tokens: the rows of all layers side by side.
    PerLayerEmbed,
    /// Projection from the embeddings to the per-layer inputs of all layers.
    PerLayerProjection,
    /// The norm of each layer's part of that projection.
    PerLayerProjectionNorm,
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
    /// Output projection of attention.
    Output,
    /// The norm of attention's output, before the residual addition.
    PostAttentionNorm,
    /// The norm before the feed-forward block.
    FeedForwardNorm,
    /// The norm before the experts, where a dense block runs beside them.
    ExpertNorm,
    /// Factor per element of the router's input.
    RouterScale,
    /// Factor per expert of its routing weight.
    ExpertScales,
    /// The router: projection from the hidden state to one logit per expert.
    Router,
    /// Gate projection.
    Gate,
    /// Up projection.
    Up,
    /// Down projection.
    Down,
    /// The norm of the dense block's output, where experts run beside it.
    PostDenseNorm,
    /// The norm of the experts' output, where a dense block runs beside them.
    PostExpertsNorm,
    /// The norm of the feed-forward block's output, before the residual addition.
    PostFeedForwardNorm,
    /// Projection from the residual stream to the gate of a layer's per-layer input.
    PerLayerGate,
    /// Projection from the gated per-layer input to the residual stream.
    PerLayerOutput,
    /// The norm of that projection's output, before the residual addition.
    PostPerLayerNorm,
    /// Factor of the residual stream after a layer.
    LayerScale,
    /// Norm of a patch's values, before the patch embedding (Gemma 4 12B), in the order of its columns.
    PatchNorm,
    /// Its bias.
    PatchNormBias,
    /// Patch embedding of the image encoder: a matrix whose columns are in the order of
    /// [`PatchOrder`](crate::PatchOrder).
    PatchEmbed,
    /// Bias of the patch embedding.
    PatchEmbedBias,
    /// Norm of the patch embedding's output (Gemma 4 12B).
    PatchEmbedNorm,
    /// Its bias.
    PatchEmbedNormBias,
    /// Learned position embeddings of the image encoder. SigLIP has one row per patch; the encoders of Gemma 4 have a
    /// table of columns and one of rows, see [`Vision::position_tables`](crate::Vision::position_tables).
    PositionEmbed,
    /// Norm of patches after position embeddings are added (Gemma 4 12B).
    PositionNorm,
    /// Its bias.
    PositionNormBias,
    /// Bias of the norm before attention, in an image encoder.
    AttentionNormBias,
    /// Bias of attention's output projection.
    OutputBias,
    /// Bias of the norm after attention (BERT).
    PostAttentionNormBias,
    /// Bias of the norm after the feed-forward block (BERT).
    PostFeedForwardNormBias,
    /// A dense layer after pooling (EmbeddingGemma).
    Dense,
    /// Bias of the norm before the feed-forward block.
    FeedForwardNormBias,
    /// Bias of the up projection.
    UpBias,
    /// Bias of the down projection.
    DownBias,
    /// Bias of the norm after the last layer.
    FinalNormBias,
    /// Subtracted from pooled patches (Gemma 4).
    StandardizeBias,
    /// Factor of the difference.
    StandardizeScale,
    /// RMSNorm of soft tokens, before their projection; that of Gemma 4 has no weight.
    SoftTokenNorm,
    /// Projection of soft tokens to the hidden size of the language model. Gemma 3's is `[hidden, text hidden]`, the
    /// transpose of other projections.
    Projection,
    /// Any tensor of an image encoder or projector that is listed but not run.
    Image,
}

impl Slot {
    /// A tensor of the text tower.
    pub fn text(layer: Option<u32>, role: Role) -> Self {
        Slot { tower: Tower::Text, layer, expert: None, role }
    }

    /// A tensor of the image encoder or of its projector, which have no role in common.
    pub fn vision(layer: Option<u32>, role: Role) -> Self {
        let tower = match role {
            Role::SoftTokenNorm | Role::Projection => Tower::Projector,
            _ => Tower::Vision,
        };
        Slot { tower, layer, expert: None, role }
    }

    /// A dense layer after pooling.
    pub fn dense(index: u32) -> Self {
        Slot { tower: Tower::Pooled, layer: Some(index), expert: None, role: Role::Dense }
    }

    /// A tensor of an expert.
    pub fn expert(layer: u32, expert: u32, role: Role) -> Self {
        Slot { tower: Tower::Text, layer: Some(layer), expert: Some(expert), role }
    }
}

/// A role with its name in Hugging Face files and in GGUF files.
pub(crate) type NameRow = (Role, &'static str, &'static str);
