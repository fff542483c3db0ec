//! The shape of a decode step's attention.

use gpu::{Error, Result};
use tensor::KvScheme;

use crate::{
    Activations, HALF_GROUP,
    attention::{
        paged,
        rope::{self, KeysAndValues, QueryTemperature, Rotation},
    },
};

/// The attention to compute: constants of a model and its runner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Query heads, a multiple of the KV heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values per head: a multiple of 8, of 16 where the output is int16, of 32 where keys and values are
    /// int8; at most 512.
    pub head_dim: u32,
    /// Positions per page, a power of two.
    pub page_size: u32,
    /// Storage scheme of keys and values.
    pub scheme: KvScheme,
    /// Sliding window: positions that a row attends to, its own included; 0 for all up to its own.
    pub window: u32,
    /// Maximum context length, which bounds useful splitting.
    pub context_length: u32,
    /// What the QKV product holds besides queries.
    pub keys_and_values: KeysAndValues,
    /// Epsilon of the query and key norms, for models that have them (Gemma 3).
    pub norm: Option<f32>,
    /// Also norms value heads, without a weight (Gemma 4). Needs `norm`.
    pub value_norm: bool,
    /// Adds a bias first (Qwen2).
    pub bias: bool,
    /// The pairs of values that RoPE rotates; not [`Rotation::Grid`].
    pub rotation: Rotation,
    /// Scales the queries by their position, after RoPE (Ministral 3).
    pub temperature: Option<QueryTemperature>,
    /// Split-K partial sums of the QKV product, at least 1.
    pub partials: u32,
    /// Scale of the queries.
    pub scale: f32,
    /// Output format: f32, f16 or int16.
    pub output: Activations,
}

impl Shape {
    /// The shape of the computation of queries, keys and values.
    pub fn rope(&self) -> rope::Shape {
        rope::Shape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            page_size: self.page_size,
            scheme: self.scheme,
            keys_and_values: self.keys_and_values,
            norm: self.norm.is_some(),
            value_norm: self.value_norm,
            bias: self.bias,
            rotation: self.rotation,
            temperature: self.temperature,
            partials: self.partials,
        }
    }

    /// The shape of the attention itself.
    pub fn attention(&self) -> paged::policy::Shape {
        paged::policy::Shape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            page_size: self.page_size,
            scheme: self.scheme,
            window: self.window,
            context_length: self.context_length,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.attention().check()?;
        let wrong = |reason: String| Err(Error::InvalidUse { what: "attention_decode".into(), reason });
        self.rope().check().or_else(wrong)?;
        // Only image encoders rotate so, and their rows attend to each other.
        if self.rotation == Rotation::Grid {
            return wrong(
                "rotation by a position in two dimensions is not for decode: use rope and paged attention"
                    .into(),
            );
        }
        match self.output {
            Activations::Int8 => wrong("the output must be f32, f16 or int16, not int8".into()),
            Activations::Int16 if !self.head_dim.is_multiple_of(HALF_GROUP as u32) => {
                wrong(format!("a head_dim of {} is not a multiple of {HALF_GROUP}", self.head_dim))
            }
            _ => Ok(()),
        }
    }
}
