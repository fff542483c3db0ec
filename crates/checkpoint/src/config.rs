//! The dimensions and constants of a model, from `config.json` or GGUF metadata, with defaults filled in.
//!
//! [`Config::from_hf`] and [`Config::from_gguf`] read keys through the same typed accessors, so that every
//! error names the key.

mod gguf;
mod hf;
mod keys;

use serde::{Deserialize, Serialize};

use crate::{
    architecture::Architecture,
    error::{Error, Result},
    layer::FeedForward,
};

pub use keys::MetaValue;
pub(crate) use keys::{Keys, MAX_LAYERS, MAX_SIZE};

/// The attention type of a layer, as stored in configs; see [`AttentionSpan`](crate::AttentionSpan).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LayerType {
    /// Over the last [`Config::sliding_window`] tokens, with the local RoPE base.
    Sliding,
    /// Over the whole context, with the global RoPE base and its scaling.
    Global,
}

/// RoPE scaling in full-attention layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Positions are divided by a factor.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3: low frequencies are divided, high ones are not, and those between are interpolated.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f32,
        /// Frequencies with fewer rotations than this within the original context are low.
        low: f32,
        /// Frequencies with more rotations than this are high.
        high: f32,
        /// Original context length.
        original: u32,
    },
    /// Every frequency has its own divisor: how GGUF files store Llama 3's scaling.
    Each {
        /// One per rotated pair of a head.
        divisors: Vec<f32>,
    },
}

/// Which elements of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePairs {
    /// Element i of the first half with element i of the second half (NEOX).
    #[default]
    Halves,
    /// Adjacent elements: Llama in GGUF files, whose rows are permuted accordingly.
    Neighbours,
}

/// The experts of a model that has them in its feed-forward blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExpertConfig {
    /// Experts per layer.
    pub count: u32,
    /// Experts that a token passes through.
    pub per_token: u32,
    /// Width of an expert.
    pub intermediate: u32,
    /// Whether the weights of a token's experts are scaled to a sum of 1.
    pub renormalize: bool,
}

/// All parameters of the forward pass other than the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Hidden size: width of the residual stream.
    pub hidden: u32,
    /// Factor applied to embeddings: 1, or the square root of `hidden` for Gemma 3, which transformers rounds
    /// to the dtype of the embeddings; see [`Checkpoint::open`](crate::Checkpoint::open).
    pub embedding_factor: f32,
    /// Width of the dense feed-forward block, which not all models with experts have; see [`Config::layer`].
    pub intermediate: u32,
    /// The experts, where the feed-forward blocks have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) experts: Option<ExpertConfig>,
    /// Number of layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements per head. Not `hidden / heads` in most models.
    pub head_dim: u32,
    /// Attention scores are divided by its square root.
    pub query_pre_attn_scalar: f32,
    /// Window of sliding-window layers in tokens, the current one included; set if any layer has one.
    pub(crate) sliding_window: Option<u32>,
    /// Attention type of each layer; public as [`Config::layer`].
    pub(crate) layer_types: Vec<LayerType>,
    /// RoPE base of full-attention layers.
    pub rope_theta_global: f32,
    /// RoPE base of sliding-window layers, which are never scaled.
    pub rope_theta_local: f32,
    /// RoPE scaling of full-attention layers.
    pub rope_scaling: RopeScaling,
    /// Which elements RoPE rotates together. Absent from native files written before families other than
    /// Gemma were supported.
    #[serde(default)]
    pub rope_pairs: RopePairs,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Vocabulary size. Hugging Face files of the multimodal sizes count 64 more than there are tokens.
    pub vocab: u32,
    /// Context length that the model was trained with.
    pub max_positions: u32,
    /// Whether the embedding matrix is also the output projection. GGUF metadata does not contain this, so
    /// GGUF files count as tied here; see [`Inventory::head`](crate::complete::Inventory::head).
    pub tie_embeddings: bool,
    /// Beginning-of-sequence token.
    pub bos: Option<u32>,
    /// End-of-sequence tokens. A GGUF file may not list all: `<end_of_turn>` may only be in its vocabulary.
    pub eos: Vec<u32>,
    /// Padding token.
    pub pad: Option<u32>,
}

impl Config {
    /// Whether all values are plausible, for a config that was deserialised rather than read key by key.
    pub(crate) fn is_plausible(&self) -> bool {
        let sizes = [self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim, self.vocab];
        let products = [(self.heads, self.head_dim), (self.kv_heads, self.head_dim)];
        let numbers =
            [self.rms_norm_eps, self.query_pre_attn_scalar, self.rope_theta_global, self.rope_theta_local];
        let slides = self.layer_types.contains(&LayerType::Sliding);
        sizes.iter().all(|size| (1..=MAX_SIZE).contains(size))
            && products.iter().all(|(a, b)| a.checked_mul(*b).is_some_and(|rows| rows <= MAX_SIZE))
            && (1..=MAX_LAYERS).contains(&self.layers)
            && self.layer_types.len() == self.layers as usize
            && self.heads.is_multiple_of(self.kv_heads)
            && self.head_dim.is_multiple_of(2)
            && self.embedding_factor.is_finite()
            && numbers.iter().all(|number| number.is_finite() && *number > 0.0)
            && (1..=MAX_SIZE).contains(&self.max_positions)
            && self.sliding_window.map_or(!slides, |window| window > 0)
            && self.rope_scaling.is_plausible(self.head_dim)
            && self.experts.is_none_or(|experts| experts.is_plausible())
    }

    /// Rotated pairs per head.
    pub(crate) fn rope_pair_count(&self) -> u32 {
        self.head_dim / 2
    }

    /// Width of the widest dense feed-forward block; `None` if every layer has experts.
    pub fn dense_intermediate(&self) -> Option<u32> {
        let widths = self.layer_specs().filter_map(|layer| match layer.feed_forward {
            FeedForward::Dense { intermediate, .. } => Some(intermediate),
            FeedForward::Experts(_) => None,
        });
        widths.max()
    }

    /// Rows of the query projection.
    pub fn query_rows(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Rows of the key and of the value projection.
    pub fn kv_rows(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Checks the experts; the other arguments are the keys they were read from.
    pub(crate) fn check_experts(&self, keys: &Keys, count: &str, per_token: &str) -> Result<()> {
        let Some(experts) = self.experts else { return Ok(()) };
        if experts.per_token > experts.count {
            let reason = format!("is {}, but {count} is only {}", experts.per_token, experts.count);
            return Err(keys.error(per_token, reason));
        }
        if experts.count > MAX_EXPERTS {
            return Err(keys.error(count, format!("is {}, but the limit is {MAX_EXPERTS}", experts.count)));
        }
        if experts.per_token > MAX_EXPERTS_PER_TOKEN {
            let reason = format!("is {}, but the limit is {MAX_EXPERTS_PER_TOKEN}", experts.per_token);
            return Err(keys.error(per_token, reason));
        }
        Ok(())
    }

    /// Checks relations between values; the other arguments are the keys they were read from.
    fn check(self, keys: &Keys, heads: &str, kv_heads: &str, head_dim: &str) -> Result<Self> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason =
                format!("is {}, but {heads} = {} is not a multiple of it", self.kv_heads, self.heads);
            return Err(keys.error(kv_heads, reason));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err(keys.error(head_dim, format!("is {}, but RoPE needs an even number", self.head_dim)));
        }
        let rows = u64::from(self.heads) * u64::from(self.head_dim);
        if rows > u64::from(MAX_SIZE) {
            return Err(keys.error(heads, format!("times {head_dim} is {rows}, but the limit is {MAX_SIZE}")));
        }
        if self.query_pre_attn_scalar < 1.0 {
            let scalar = self.query_pre_attn_scalar;
            return Err(keys.error(heads, format!("gives a query_pre_attn_scalar of {scalar}, below 1")));
        }
        Ok(self)
    }
}

/// Maximum number of experts per layer: the router kernel keeps a score per expert in shared memory.
pub const MAX_EXPERTS: u32 = 512;
/// Maximum number of experts per token: the router kernel keeps as many.
pub const MAX_EXPERTS_PER_TOKEN: u32 = 16;

impl ExpertConfig {
    fn is_plausible(self) -> bool {
        (1..=MAX_EXPERTS).contains(&self.count)
            && (1..=self.count.min(MAX_EXPERTS_PER_TOKEN)).contains(&self.per_token)
            && (1..=MAX_SIZE).contains(&self.intermediate)
    }
}

/// The RoPE parameters of a config, which both formats spell in several ways.
struct Rope {
    theta_global: f32,
    theta_local: f32,
    scaling: RopeScaling,
}

impl Rope {
    fn unsupported(keys: &Keys, kind: &str) -> Error {
        let kind: String = kind.chars().take(64).collect();
        let what = format!("RoPE scaling of type '{}'", kind.escape_debug());
        keys.unsupported(what, "use a model with linear, Llama 3 or no RoPE scaling")
    }
}

impl RopeScaling {
    /// Whether the values are plausible for heads of `head_dim` elements.
    fn is_plausible(&self, head_dim: u32) -> bool {
        let is_positive = |value: f32| value.is_finite() && value > 0.0;
        match self {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } => is_positive(*factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                [*factor, *low, *high].into_iter().all(is_positive) && high > low && *original > 0
            }
            RopeScaling::Each { divisors } => {
                divisors.len() == head_dim as usize / 2 && divisors.iter().copied().all(is_positive)
            }
        }
    }
}

/// Every `n`th layer has full attention, the others a sliding window.
pub(crate) fn every_nth_global(layers: u32, n: u32) -> Vec<LayerType> {
    let kind =
        |layer: u32| if (layer + 1).is_multiple_of(n) { LayerType::Global } else { LayerType::Sliding };
    (0..layers).map(kind).collect()
}

/// Gemma 3's default for [`every_nth_global`].
pub(crate) const SLIDING_WINDOW_PATTERN: u32 = 6;
