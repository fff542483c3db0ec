//! Decoder layers: a mixer followed by a feed-forward block.
//!
//! A checkpoint's [`Config`] describes each of its layers as a [`LayerSpec`]. Everything that depends on the
//! form of a layer iterates over these: the tensors a checkpoint must contain
//! ([`complete`](crate::complete)), the matrices on the GPU, the size of the KV cache and the decoder itself.
//! A family whose layers differ (mixture of experts, linear attention, heads of several widths) adds a
//! variant or a field here, and the compiler points out the code that must handle it.

use crate::{
    config::{Config, ExpertConfig, LayerType},
    family::Activation,
};

/// One decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// The part that mixes tokens.
    pub mixer: Mixer,
    /// The part that transforms each token independently.
    pub feed_forward: FeedForward,
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
    /// The gated MLP: `down(activation(gate(x)) * up(x))`.
    Dense {
        /// Rows of the gate projection, and of the up projection.
        intermediate: u32,
        /// Activation of the gate.
        activation: Activation,
    },
    /// A mixture of experts, each a gated MLP.
    Experts(Experts),
}

/// A mixture of experts: `Σ weight(e) · expert(e, x)` over the experts that a router chooses for each token.
///
/// The router's scores are a matrix product of the block's input. Softmax over all experts makes weights of them, and the
/// experts with the largest are chosen.
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
    /// Activation of the gate.
    pub activation: Activation,
}

impl FeedForward {
    /// Activation of the gate.
    pub fn activation(&self) -> Activation {
        match self {
            FeedForward::Dense { activation, .. } => *activation,
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
        LayerSpec {
            mixer: Mixer::Attention(Attention {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                span,
                head_norms: family.head_norms,
                qkv_bias: family.qkv_bias,
            }),
            feed_forward: match self.experts {
                None => FeedForward::Dense { intermediate: self.intermediate, activation: family.activation },
                Some(ExpertConfig { count, per_token, intermediate, renormalize }) => {
                    let activation = family.activation;
                    FeedForward::Experts(Experts { count, per_token, intermediate, renormalize, activation })
                }
            },
        }
    }

    /// All layers, in order.
    pub fn layer_specs(&self) -> impl ExactSizeIterator<Item = LayerSpec> + '_ {
        (0..self.layers).map(|index| self.layer(index))
    }
}
