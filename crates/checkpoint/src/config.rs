//! The dimensions of a model, from `config.json` or from a GGUF's metadata, with what either leaves out filled in.
//!
//! [`Config::from_hf`] and [`Config::from_gguf`] are in a file each; both read through `keys`, so that every complaint
//! names the key it is about.

mod gguf;
mod hf;
mod keys;

use serde::{Deserialize, Serialize};

use crate::{
    Architecture,
    error::{Error, Result},
};

pub use keys::MetaValue;
pub(crate) use keys::{Keys, MAX_LAYERS, MAX_SIZE};

/// How far a layer's attention reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// Over the last [`Config::sliding_window`] positions, with the local RoPE base.
    Sliding,
    /// Over all positions, with the global RoPE base and its scaling.
    Global,
}

/// How RoPE's positions are scaled in global layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by a factor.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3's: low frequencies are divided, high ones are not, and those between by something between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f32,
        /// A frequency is low that turns less often than this within the original context.
        low: f32,
        /// A frequency is high that turns more often than this.
        high: f32,
        /// Positions of the original context.
        original: u32,
    },
    /// Each frequency is divided by a number of its own: how a GGUF has Llama 3's.
    Each {
        /// One for each pair of a head.
        divisors: Vec<f32>,
    },
}

/// Which values of a head RoPE turns together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePairs {
    /// One of the first half and one of the second.
    #[default]
    Halves,
    /// Two that follow each other: Llama's in GGUF files, whose rows are in another order.
    Neighbours,
}

/// Everything the forward pass needs to know about a model besides its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: u32,
    /// What a row of the embeddings is multiplied with: 1, or the square root of `hidden` for Gemma 3, which transformers rounds to
    /// the type of the embeddings; see [`Checkpoint::open`](crate::Checkpoint::open).
    pub embedding_factor: f32,
    /// Width of the feed-forward part.
    pub intermediate: u32,
    /// Number of layers.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of a head. Not `hidden / heads` in most sizes.
    pub head_dim: u32,
    /// Attention scores are divided by its square root.
    pub query_pre_attn_scalar: f32,
    /// Positions that a sliding layer sees, the current one counted; there whenever a layer slides.
    pub sliding_window: Option<u32>,
    /// The kind of each layer.
    pub layer_types: Vec<LayerType>,
    /// RoPE base of global layers.
    pub rope_theta_global: f32,
    /// RoPE base of sliding layers; their positions are never scaled.
    pub rope_theta_local: f32,
    /// Scaling of global layers' positions.
    pub rope_scaling: RopeScaling,
    /// Which values RoPE turns together. Files of ours that were written before other families than Gemma came do not say it.
    #[serde(default)]
    pub rope_pairs: RopePairs,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// Tokens. Hugging Face files of the multimodal sizes count 64 more than there are tokens.
    pub vocab: u32,
    /// Positions it was trained for.
    pub max_positions: u32,
    /// Whether the embeddings are the output projection too. A GGUF tells it by its tensors only, and counts as tied
    /// here; see [`Inventory::head`](crate::complete::Inventory::head).
    pub tie_embeddings: bool,
    /// Begin of sequence.
    pub bos: Option<u32>,
    /// Ends of sequence. A GGUF need not name them all: `<end_of_turn>` may only be in its vocabulary.
    pub eos: Vec<u32>,
    /// Padding.
    pub pad: Option<u32>,
}

impl Config {
    /// Whether the numbers can be those of a model: for a config that was not read key by key.
    pub(crate) fn is_sane(&self) -> bool {
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
            && self.rope_scaling.is_sane(self.head_dim)
    }

    /// Values of a head's RoPE, see [`RopeScaling::Each`].
    pub(crate) fn rope_pair_count(&self) -> u32 {
        self.head_dim / 2
    }

    /// Rows of the query projection.
    pub fn query_rows(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Rows of the key and of the value projection.
    pub fn kv_rows(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// What holds between values, with the keys they were read from.
    fn check(self, keys: &Keys, heads: &str, kv_heads: &str, head_dim: &str) -> Result<Self> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason = format!("is {}, which {heads} = {} is not a multiple of", self.kv_heads, self.heads);
            return Err(keys.error(kv_heads, reason));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err(keys.error(head_dim, format!("is {}, but RoPE turns pairs of values", self.head_dim)));
        }
        let rows = u64::from(self.heads) * u64::from(self.head_dim);
        if rows > u64::from(MAX_SIZE) {
            return Err(keys.error(heads, format!("times {head_dim} is {rows}, more than {MAX_SIZE}")));
        }
        if self.query_pre_attn_scalar < 1.0 {
            let scalar = self.query_pre_attn_scalar;
            return Err(keys.error(heads, format!("makes attention scores' divisor {scalar}, below 1")));
        }
        Ok(self)
    }
}

/// RoPE's part of a config, which both formats spell in several ways.
struct Rope {
    theta_global: f32,
    theta_local: f32,
    scaling: RopeScaling,
}

impl Rope {
    fn unsupported(keys: &Keys, kind: &str) -> Error {
        let kind: String = kind.chars().take(64).collect();
        let what = format!("RoPE scaling of kind '{}'", kind.escape_debug());
        keys.unsupported(what, "use a model whose positions are scaled linearly, as Llama 3's or not at all")
    }
}

impl RopeScaling {
    /// Whether the numbers can be a model's, for heads of such a width.
    fn is_sane(&self, head_dim: u32) -> bool {
        let above_zero = |value: f32| value.is_finite() && value > 0.0;
        match self {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } => above_zero(*factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                [*factor, *low, *high].into_iter().all(above_zero) && high > low && *original > 0
            }
            RopeScaling::Each { divisors } => {
                divisors.len() == head_dim as usize / 2 && divisors.iter().copied().all(above_zero)
            }
        }
    }
}

/// Every `n`th layer is global, the first ones slide. Gemma 3 has 6 where its files do not say otherwise.
pub(crate) fn every_nth_global(layers: u32, n: u32) -> Vec<LayerType> {
    let kind =
        |layer: u32| if (layer + 1).is_multiple_of(n) { LayerType::Global } else { LayerType::Sliding };
    (0..layers).map(kind).collect()
}

/// See [`every_nth_global`].
pub(crate) const PATTERN: u32 = 6;
