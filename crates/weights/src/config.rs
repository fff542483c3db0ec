//! The dimensions of a model, from `config.json` or from a GGUF's metadata, with what either leaves out filled in.
//!
//! [`Config::from_hf`] and [`Config::from_gguf`] are in a file each; both read through `keys`, so that every complaint
//! names the key it is about.

mod gguf;
mod hf;
mod keys;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

use keys::Keys;
pub use keys::MetaValue;

/// More layers than any dense model has; a hostile count would become a long list.
const MAX_LAYERS: u32 = 1024;
/// The largest width, length or vocabulary: their products stay far inside 64 bits.
const MAX_SIZE: u32 = 1 << 24;

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Gemma 3, alone or as the language model of the multimodal ones.
    Gemma3,
}

impl Architecture {
    /// All that are read.
    pub const ALL: [Architecture; 1] = [Architecture::Gemma3];

    /// Its name in messages and in GGUF metadata.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Gemma3 => "gemma3",
        }
    }

    fn unsupported(path: &Path, found: &str) -> Error {
        let known = Architecture::ALL.map(Architecture::name).join(", ");
        let found: String = found.chars().take(64).collect();
        Error::Unsupported {
            path: path.to_path_buf(),
            what: format!("the architecture '{}'", found.escape_debug()),
            fix: format!("use a model of one of these: {known}"),
        }
    }
}

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions are divided by a factor.
    Linear {
        /// The divisor.
        factor: f32,
    },
}

/// Everything the forward pass needs to know about a model besides its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: u32,
    /// What a row of the embeddings is multiplied with. Square root of `hidden` for Gemma 3, which transformers rounds to the
    /// type of the embeddings; see [`Checkpoint::open`](crate::Checkpoint::open).
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
        sizes.iter().all(|size| (1..=MAX_SIZE).contains(size))
            && products.iter().all(|(a, b)| a.checked_mul(*b).is_some_and(|rows| rows <= MAX_SIZE))
            && (1..=MAX_LAYERS).contains(&self.layers)
            && self.layer_types.len() == self.layers as usize
            && self.heads.is_multiple_of(self.kv_heads)
            && self.embedding_factor.is_finite()
            && self.rms_norm_eps.is_finite()
            && self.sliding_window != Some(0)
            && self.max_positions > 0
    }

    /// Gemma 3's factor on the embeddings, in f32.
    fn root_of(hidden: u32) -> f32 {
        f64::from(hidden).sqrt() as f32
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
    /// Gemma 3's bases: the defaults of transformers' class and of llama.cpp's converter.
    const GLOBAL_THETA: f32 = 1e6;
    const LOCAL_THETA: f32 = 1e4;

    fn unsupported(keys: &Keys, kind: &str) -> Error {
        let kind: String = kind.chars().take(64).collect();
        let what = format!("RoPE scaling of kind '{}'", kind.escape_debug());
        keys.unsupported(what, "use a model whose positions are scaled linearly or not at all")
    }
}

/// Every `n`th layer is global, the first ones slide. Gemma 3 has 6 where its files do not say otherwise.
fn every_nth_global(layers: u32, n: u32) -> Vec<LayerType> {
    let kind =
        |layer: u32| if (layer + 1).is_multiple_of(n) { LayerType::Global } else { LayerType::Sliding };
    (0..layers).map(kind).collect()
}

/// See [`every_nth_global`].
const PATTERN: u32 = 6;
