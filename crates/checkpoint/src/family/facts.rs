//! The facts that distinguish one family from another.

use crate::{
    config::{Config, Keys},
    error::Result,
    slot::NameRow,
};

/// The facts of a family.
pub struct Family {
    /// Name in messages and in GGUF metadata.
    pub name: &'static str,
    /// Display name.
    pub title: &'static str,
    /// Activation of the gate in the feed-forward block.
    pub activation: Activation,
    /// The outputs of mixer and feed-forward block pass through a norm before the residual addition.
    pub post_norms: bool,
    /// Query and key heads pass through an RMSNorm before RoPE.
    pub head_norms: bool,
    /// The query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Embeddings are multiplied by the square root of the hidden size.
    pub scaled_embeddings: bool,
    /// Value heads pass through an RMSNorm without weight.
    pub value_norm: bool,
    /// The residual stream is multiplied by a factor after each layer.
    pub layer_scales: bool,
    /// Some layers have sliding-window attention, with a separate RoPE base.
    pub sliding_window: bool,
    /// The layers in which the tokens of an image see each other in both directions.
    pub whole_images: WholeImages,
    /// Layers may have different numbers of KV heads or widths, which GGUF files store as lists.
    pub(crate) layers_differ: bool,
    /// Norms multiply by 1 + w, where w is the weight in Hugging Face files.
    pub norms_plus_one: bool,
    /// Names of the tensors in a layer that not all families have, or that they name differently.
    pub(crate) layer_names: &'static [NameRow],
    /// Names in config.json, as `model_type` or class, each with the key under which the language model's
    /// config is nested.
    pub(crate) hf_names: &'static [(&'static str, Option<&'static str>)],
    /// Defaults of transformers' config class, for keys absent from config.json.
    pub(crate) defaults: Defaults,
    /// Rejects options that config.json allows but no published model uses: ignoring them would give silently
    /// wrong output.
    pub(crate) check_hf: fn(&Keys) -> Result<()>,
    /// Reads what only this family has in config.json.
    pub(crate) adapt_hf: fn(&mut Config, &Keys) -> Result<()>,
    /// Applies the family's own GGUF conventions.
    pub(crate) adapt_gguf: fn(&mut Config, &Keys) -> Result<()>,
}

/// The layers in which the tokens of an image see each other in both directions. In the others, and in a model without
/// images, a token sees only what comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeImages {
    /// None.
    Never,
    /// Those with sliding-window attention.
    InSlidingLayers,
    /// All.
    InAllLayers,
}

/// Activation of the gate in a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its tanh approximation.
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
    /// Name in config.json.
    pub(crate) fn hf_name(self) -> &'static str {
        match self {
            Activation::GeluTanh => "gelu_pytorch_tanh",
            Activation::Silu => "silu",
        }
    }
}

/// Defaults of a config class.
pub(crate) struct Defaults {
    pub layers: u32,
    pub hidden: u32,
    pub intermediate: u32,
    pub heads: u32,
    /// `None` for the same as `heads`.
    pub kv_heads: Option<u32>,
    /// `None` for `hidden / heads`.
    pub head_dim: Option<u32>,
    /// `None` if scores are always divided by the square root of `head_dim`.
    pub query_pre_attn_scalar: Option<f32>,
    /// Of full-attention layers, and of sliding-window layers. llama.cpp has the same defaults.
    pub rope_theta: [f32; 2],
    pub vocab: u32,
    pub max_positions: u32,
    pub tie_embeddings: bool,
    pub bos: Option<u32>,
    pub eos: &'static [u32],
    pub pad: Option<u32>,
}

/// For families that have nothing of their own in a format.
pub(super) fn adapt_nothing(_: &mut Config, _: &Keys) -> Result<()> {
    Ok(())
}

/// Rejects flags that are set.
pub(super) fn reject_flags(keys: &Keys, flags: &[&str], fix: &str) -> Result<()> {
    for key in flags {
        if keys.flag(key)? == Some(true) {
            return Err(keys.unsupported(format!("{}{key} = true", keys.prefix), fix));
        }
    }
    Ok(())
}
