//! Decoder layers: a mixer followed by a feed-forward block.
//!
//! A checkpoint's [`Config`] describes each of its layers as a [`LayerSpec`]. Everything that depends on the
//! form of a layer iterates over these: the tensors a checkpoint must contain
//! ([`complete`](crate::complete)), the matrices on the GPU, the size of the KV cache and the decoder itself.
//! A family whose layers differ (mixture of experts, linear attention, heads of several widths) adds a
//! variant or a field here, and the compiler points out the code that must handle it.

use crate::{
    config::{Config, ExpertConfig, GlobalAttention, LayerType},
    family::{Activation, WholeImages},
};

/// One decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// The part that mixes tokens.
    pub mixer: Mixer,
    /// The part that transforms each token independently.
    pub feed_forward: FeedForward,
    /// Width of the layer's per-layer input, which is added after the feed-forward block, where it has one.
    pub per_layer_width: Option<u32>,
    /// Whether the residual stream is multiplied by a factor at the end.
    pub scaled: bool,
}

/// How a layer mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention over a KV cache.
    Attention(Attention),
}

/// Grouped-query attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Which past tokens a token attends to.
    pub span: AttentionSpan,
    /// Whether each query and key head passes through an RMSNorm before RoPE.
    pub head_norms: bool,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Where values come from.
    pub values: Values,
    /// Whether each value head passes through an RMSNorm without weight.
    pub value_norm: bool,
    /// The earlier layer whose keys and values it attends to, where it has none of its own.
    pub shares_kv_with: Option<u32>,
    /// Whether the tokens of an image see each other in both directions; otherwise they see what is before them, as text
    /// does.
    pub whole_images: bool,
}

/// Where the values of attention come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Values {
    /// A projection of their own.
    Projected,
    /// The key projection, before its norm and RoPE.
    FromKeys,
}

impl Attention {
    /// Rows of the query projection.
    pub fn query_rows(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Rows of the key projection, and of the value projection.
    pub fn kv_rows(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Rows of query, key and value projections, as far as the layer has them.
    pub fn qkv_rows(&self) -> u32 {
        let projections = match (self.shares_kv_with, self.values) {
            (Some(_), _) => 0,
            (None, Values::FromKeys) => 1,
            (None, Values::Projected) => 2,
        };
        self.query_rows() + projections * self.kv_rows()
    }
}

/// Which past tokens a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionSpan {
    /// The whole context, with the global RoPE base and its scaling.
    Full,
    /// The most recent tokens only, with the local RoPE base.
    Sliding {
        /// Number of tokens, the current one included.
        window: u32,
    },
}

impl AttentionSpan {
    /// Whether only a window of tokens is visible.
    pub fn is_sliding(self) -> bool {
        matches!(self, AttentionSpan::Sliding { .. })
    }

    /// Size of the window in tokens; `None` for full attention.
    pub fn window(self) -> Option<u32> {
        match self {
            AttentionSpan::Full => None,
            AttentionSpan::Sliding { window } => Some(window),
        }
    }
}

/// How a layer transforms each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// A gated MLP.
    Dense(Dense),
    /// A mixture of experts, each a gated MLP.
    Experts(Experts),
    /// Both side by side, each with norms of its own: `norm(norm(dense(x)) + norm(experts(x)))` (Gemma 4).
    DenseAndExperts(Dense, Experts),
}

/// The gated MLP: `down(activation(gate(x)) * up(x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Rows of the gate projection, and of the up projection.
    pub intermediate: u32,
    /// Activation of the gate.
    pub activation: Activation,
}

/// A mixture of experts: `Σ weight(e) · expert(e, x)` over the experts that a router selects for each token.
///
/// The router's scores are a matrix product of the block's input. Softmax over all experts makes weights of them, and the
/// experts with the largest are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of the layer.
    pub count: u32,
    /// Experts that a token passes through.
    pub per_token: u32,
    /// Rows of an expert's gate projection, and of its up projection.
    pub intermediate: u32,
    /// Whether the weights of a token's experts are scaled to a sum of 1.
    pub renormalize: bool,
    /// Whether each expert's weight is multiplied by a factor of its own afterwards.
    pub scaled: bool,
    /// Activation of the gate.
    pub activation: Activation,
}

impl FeedForward {
    /// The dense MLP, where there is one.
    pub fn dense(self) -> Option<Dense> {
        match self {
            FeedForward::Dense(dense) | FeedForward::DenseAndExperts(dense, _) => Some(dense),
            FeedForward::Experts(_) => None,
        }
    }

    /// The experts, where there are any.
    pub fn experts(self) -> Option<Experts> {
        match self {
            FeedForward::Experts(experts) | FeedForward::DenseAndExperts(_, experts) => Some(experts),
            FeedForward::Dense(_) => None,
        }
    }

    /// Activation of the gate.
    pub fn activation(&self) -> Activation {
        match self {
            FeedForward::Dense(dense) | FeedForward::DenseAndExperts(dense, _) => dense.activation,
            FeedForward::Experts(experts) => experts.activation,
        }
    }
}

impl Config {
    /// The layer with this index.
    ///
    /// # Panics
    /// If `index` is not below [`Config::layers`].
    pub fn layer(&self, index: u32) -> LayerSpec {
        let family = self.architecture.family();
        let span = match self.layer_types[index as usize] {
            LayerType::Global => AttentionSpan::Full,
            // A config with sliding layers always has a window: both readers and `is_plausible` ensure it.
            LayerType::Sliding => AttentionSpan::Sliding { window: self.sliding_window.unwrap_or(1) },
        };
        let global = self.global_attention.filter(|_| !span.is_sliding());
        let (kv_heads, head_dim) =
            global.map_or((self.kv_heads, self.head_dim), |global| (global.kv_heads, global.head_dim));
        let shares_kv_with = self.shares_kv_with(index);
        LayerSpec {
            mixer: Mixer::Attention(Attention {
                heads: self.heads,
                kv_heads,
                head_dim,
                span,
                head_norms: family.head_norms,
                qkv_bias: family.qkv_bias,
                values: match global {
                    Some(GlobalAttention { values_from_keys: true, .. }) => Values::FromKeys,
                    _ => Values::Projected,
                },
                value_norm: family.value_norm,
                shares_kv_with,
                whole_images: !self.causal_images.unwrap_or(self.per_layer_width.is_some())
                    && match family.whole_images {
                        WholeImages::Never => false,
                        WholeImages::InSlidingLayers => span.is_sliding(),
                        WholeImages::InAllLayers => true,
                    },
            }),
            feed_forward: self.feed_forward(shares_kv_with.is_some()),
            per_layer_width: self.per_layer_width,
            scaled: family.layer_scales,
        }
    }

    fn feed_forward(&self, shares_kv: bool) -> FeedForward {
        let activation = self.architecture.family().activation;
        let intermediate =
            self.kv_sharing.filter(|_| shares_kv).map_or(self.intermediate, |sharing| sharing.intermediate);
        let dense = Dense { intermediate, activation };
        let Some(ExpertConfig { count, per_token, intermediate, renormalize, beside_dense }) = self.experts
        else {
            return FeedForward::Dense(dense);
        };
        let experts =
            Experts { count, per_token, intermediate, renormalize, scaled: beside_dense, activation };
        match beside_dense {
            true => FeedForward::DenseAndExperts(dense, experts),
            false => FeedForward::Experts(experts),
        }
    }

    /// The layer whose keys and values this one attends to, if they are another's.
    pub(crate) fn shares_kv_with(&self, index: u32) -> Option<u32> {
        let first = self.layers.checked_sub(self.kv_sharing?.layers)?;
        let kind = self.layer_types[index as usize];
        (index >= first).then(|| (0..first).rev().find(|layer| self.layer_types[*layer as usize] == kind))?
    }

    /// All layers, in order.
    pub fn layer_specs(&self) -> impl ExactSizeIterator<Item = LayerSpec> + '_ {
        (0..self.layers).map(|index| self.layer(index))
    }
}
