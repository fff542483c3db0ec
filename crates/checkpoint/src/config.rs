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
    layer::{Attention, Mixer},
    slot::{Role, Slot},
    source::Source,
};

pub(crate) use hf::nested_value;
pub use keys::MetaValue;
pub(crate) use keys::{Keys, MAX_LAYERS, MAX_SIZE, object};

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
    /// YaRN: low frequencies are divided, high ones are not, and those between are interpolated linearly in their index.
    Yarn {
        /// The divisor of low frequencies.
        factor: f32,
        /// Frequencies with more rotations than this within the original context are high.
        beta_fast: f32,
        /// Frequencies with fewer rotations than this are low.
        beta_slow: f32,
        /// Original context length.
        original: u32,
        /// Factor of queries and keys.
        attention_factor: f32,
    },
    /// Gemma 4: only the first pairs of a head rotate, with the frequencies they have where all do.
    Proportional {
        /// The part of the pairs that rotates.
        rotated: f32,
        /// The divisor of their frequencies.
        factor: f32,
    },
    /// Every frequency has its own divisor: how GGUF files store Llama 3's scaling and Gemma 4's partial rotation.
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
    /// Whether a dense block runs beside the experts, and their router has scales of its own (Gemma 4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside_dense: bool,
}

/// The heads of full-attention layers that differ from those of sliding-window layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GlobalAttention {
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Values are the key projection, before its norm and RoPE.
    pub values_from_keys: bool,
}

/// Layers without keys and values of their own, the last of a model: each attends to those of the last layer before them
/// that has the same attention span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KvSharing {
    /// Number of such layers.
    pub layers: u32,
    /// Width of their dense feed-forward blocks.
    pub intermediate: u32,
}

/// Queries are multiplied by `1 + beta · ln(1 + ⌊position / original⌋)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryTemperature {
    /// Growth with the logarithm of the position.
    pub beta: f32,
    /// Context length before the model was extended.
    pub original: u32,
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
    /// Width of the per-layer embeddings, where a model has them (Gemma 4 E2B, E4B).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_layer_width: Option<u32>,
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
    /// How queries grow with their position, where they do (Ministral 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_temperature: Option<QueryTemperature>,
    /// The heads of full-attention layers, where they differ from those of the others (Gemma 4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) global_attention: Option<GlobalAttention>,
    /// The last layers that attend to the keys and values of earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kv_sharing: Option<KvSharing>,
    /// Window of sliding-window layers in tokens, the current one included; set if any layer has one.
    pub(crate) sliding_window: Option<u32>,
    /// Attention type of each layer; public as [`Config::layer`].
    pub(crate) layer_types: Vec<LayerType>,
    /// Whether the tokens of an image see only what is before them, in a family that lets them see the whole image. Where
    /// a file does not say it, those of the models with per-layer embeddings do (Gemma 4 E2B, E4B).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) causal_images: Option<bool>,
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
    /// Soft cap of the logits: they become `cap · tanh(logits / cap)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_softcap: Option<f32>,
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
            && self.rope_scaling.is_plausible(self.rope_pair_count())
            && self.experts.is_none_or(|experts| experts.is_plausible())
            && self.per_layer_width.is_none_or(|width| (1..=MAX_SIZE / self.layers).contains(&width))
            && self.logit_softcap.is_none_or(|cap| cap.is_finite() && cap > 0.0)
            && self.query_temperature.is_none_or(|temperature| temperature.is_plausible())
            && self.global_attention.is_none_or(|global| global.is_plausible(self.heads))
            && self.kv_sharing.is_none_or(|sharing| {
                (1..=MAX_SIZE).contains(&sharing.intermediate)
                    && sharing.layers <= self.layers
                    && (self.layers - sharing.layers..self.layers)
                        .all(|layer| self.shares_kv_with(layer).is_some())
            })
    }

    /// GGUF files have no key for it: the values of full-attention layers come from their keys if no such layer has a
    /// value projection.
    pub(crate) fn detect_values(&mut self, source: &Source) {
        let architecture = self.architecture;
        let is_global = |layer: u32| self.layer_types.get(layer as usize) == Some(&LayerType::Global);
        let projects = source.tensors.iter().any(|tensor| {
            let slot = Slot::parse(architecture, &tensor.name);
            slot.is_some_and(|slot| {
                slot == Slot::text(slot.layer, Role::Value) && slot.layer.is_some_and(is_global)
            })
        });
        if let Some(global) = &mut self.global_attention {
            global.values_from_keys = !projects;
        }
    }

    /// Rotated pairs per head of full-attention layers, whose frequencies may be scaled.
    pub(crate) fn rope_pair_count(&self) -> u32 {
        self.global_attention.map_or(self.head_dim, |global| global.head_dim) / 2
    }

    /// Width of the widest dense feed-forward block; `None` if no layer has one.
    pub fn dense_intermediate(&self) -> Option<u32> {
        self.layer_specs().filter_map(|layer| Some(layer.feed_forward.dense()?.intermediate)).max()
    }

    /// The attention of each layer.
    pub fn attentions(&self) -> impl Iterator<Item = Attention> + '_ {
        self.layer_specs().map(|layer| {
            let Mixer::Attention(attention) = layer.mixer;
            attention
        })
    }

    /// Rows of the largest query projection.
    pub fn max_query_rows(&self) -> u32 {
        self.attentions().map(|attention| attention.query_rows()).max().unwrap_or(0)
    }

    /// Rows of the largest QKV product.
    pub fn max_qkv_rows(&self) -> u32 {
        self.attentions().map(|attention| attention.qkv_rows()).max().unwrap_or(0)
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
        if let Some(global) = self.global_attention.filter(|global| !global.is_plausible(self.heads)) {
            let reason = format!(
                "is {}, but full-attention layers have {} KV heads of {} elements",
                self.heads, global.kv_heads, global.head_dim
            );
            return Err(keys.error(heads, reason));
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

impl GlobalAttention {
    fn is_plausible(self, heads: u32) -> bool {
        let rows = u64::from(heads) * u64::from(self.head_dim);
        (1..=heads).contains(&self.kv_heads)
            && heads.is_multiple_of(self.kv_heads)
            && self.head_dim > 0
            && self.head_dim.is_multiple_of(2)
            && rows <= MAX_SIZE.into()
    }
}

impl QueryTemperature {
    fn is_plausible(self) -> bool {
        self.beta.is_finite() && self.beta >= 0.0 && self.original > 0
    }
}

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
        keys.unsupported(what, "use a model with linear, Llama 3, YaRN or no RoPE scaling")
    }
}

impl RopeScaling {
    /// Whether the values are plausible for heads of this many rotated pairs.
    fn is_plausible(&self, pairs: u32) -> bool {
        let is_positive = |value: f32| value.is_finite() && value > 0.0;
        match self {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } => is_positive(*factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                [*factor, *low, *high].into_iter().all(is_positive) && high > low && *original > 0
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original, attention_factor } => {
                [*factor, *beta_fast, *beta_slow, *attention_factor].into_iter().all(is_positive)
                    && beta_fast > beta_slow
                    && *original > 0
            }
            RopeScaling::Proportional { rotated, factor } => {
                (0.0..=1.0).contains(rotated) && is_positive(*factor)
            }
            RopeScaling::Each { divisors } => {
                divisors.len() == pairs as usize && divisors.iter().copied().all(is_positive)
            }
        }
    }
}

/// YaRN's factor of queries and keys for contexts that are `factor` times longer.
fn yarn_multiplier(factor: f32, scale: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

/// Every `n`th layer has full attention, the others a sliding window.
pub(crate) fn every_nth_global(layers: u32, n: u32) -> Vec<LayerType> {
    let kind =
        |layer: u32| if (layer + 1).is_multiple_of(n) { LayerType::Global } else { LayerType::Sliding };
    (0..layers).map(kind).collect()
}

/// Gemma 3's default for [`every_nth_global`].
pub(crate) const SLIDING_WINDOW_PATTERN: u32 = 6;
