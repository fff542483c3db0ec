//! The facts that distinguish one family from another.

use crate::{
    config::{Config, Keys},
    error::Result,
    slot::Row,
};

/// What is known of a family.
pub struct Family {
    /// Its name in messages and in GGUF metadata.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What stands before gate and up become one.
    pub activation: Activation,
    /// Each sublayer's output has a norm of its own before it joins the residual stream.
    pub post_norms: bool,
    /// Query and key heads are normed before RoPE.
    pub head_norms: bool,
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Embeddings are multiplied by the square root of their length.
    pub scaled_embeddings: bool,
    /// Some layers see a window of positions only, with a RoPE base of their own.
    pub sliding_window: bool,
    /// Hugging Face files store norm weights less one.
    pub norms_less_one: bool,
    /// Names of a layer's norms; those of everything else are the same in all families.
    pub(crate) norms: &'static [Row],
    /// What config.json calls it, by `model_type` or by class, and where in it the language model's part is.
    pub(crate) hf_names: &'static [(&'static str, Option<&'static str>)],
    /// What transformers' config class assumes where config.json is silent.
    pub(crate) defaults: Defaults,
    /// Refuses what config.json allows and the family as published has not: to ignore it would be to answer wrongly without a word.
    pub(crate) check_hf: fn(&Keys) -> Result<()>,
    /// What a GGUF says in the family's own way.
    pub(crate) adapt_gguf: fn(&mut Config, &Keys) -> Result<()>,
}

/// The function that a gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU, by its approximation with tanh.
    GeluTanh,
    /// SiLU.
    Silu,
}

impl Family {
    /// Factor applied to embeddings of length `hidden`, in f32.
    pub(crate) fn embedding_factor(&self, hidden: u32) -> f32 {
        match self.scaled_embeddings {
            true => f64::from(hidden).sqrt() as f32,
            false => 1.0,
        }
    }
}

impl Activation {
    /// What config.json calls it.
    pub(crate) fn hf_name(self) -> &'static str {
        match self {
            Activation::GeluTanh => "gelu_pytorch_tanh",
            Activation::Silu => "silu",
        }
    }
}

/// Values of a config class.
pub(crate) struct Defaults {
    pub layers: u32,
    pub hidden: u32,
    pub intermediate: u32,
    pub heads: u32,
    /// None for as many as `heads`.
    pub kv_heads: Option<u32>,
    /// None for `hidden / heads`.
    pub head_dim: Option<u32>,
    /// None where scores are always divided by the root of `head_dim`.
    pub query_pre_attn_scalar: Option<f32>,
    /// Of global layers, and of sliding ones. llama.cpp has the same.
    pub rope_theta: [f32; 2],
    pub vocab: u32,
    pub max_positions: u32,
    pub tie_embeddings: bool,
    pub bos: Option<u32>,
    pub eos: &'static [u32],
    pub pad: Option<u32>,
}

/// Refuses a flag that is set.
pub(super) fn refuse_flags(keys: &Keys, flags: &[&str], fix: &str) -> Result<()> {
    for key in flags {
        if keys.flag(key)? == Some(true) {
            return Err(keys.unsupported(format!("{}{key} = true", keys.prefix), fix));
        }
    }
    Ok(())
}
