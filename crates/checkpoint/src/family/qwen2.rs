//! Qwen 2 and 2.5: Llama with biases on query, key and value.

use super::{
    facts::{Activation, Defaults, Family, WholeImages, adapt_nothing, reject_flags},
    llama,
};
use crate::{config::Keys, error::Result};

pub(super) const FAMILY: Family = Family {
    name: "qwen2",
    title: "Qwen 2",
    activation: Activation::Silu,
    post_norms: false,
    head_norms: false,
    qkv_bias: true,
    scaled_embeddings: false,
    value_norm: false,
    layer_scales: false,
    sliding_window: false,
    whole_images: WholeImages::Never,
    layers_differ: false,
    norms_plus_one: false,
    layer_names: &llama::NORMS,
    hf_names: &[("qwen2", None), ("Qwen2ForCausalLM", None)],
    defaults: DEFAULTS,
    check_hf,
    adapt_hf: adapt_nothing,
    adapt_gguf: adapt_nothing,
};

pub(super) const DEFAULTS: Defaults = Defaults {
    layers: 32,
    hidden: 4096,
    intermediate: 22016,
    heads: 32,
    kv_heads: Some(32),
    head_dim: None,
    query_pre_attn_scalar: None,
    rope_theta: [1e4, 1e4],
    vocab: 151_936,
    max_positions: 32768,
    tie_embeddings: false,
    bos: None,
    eos: &[],
    pad: None,
};

/// Published configs specify a sliding window, but do not enable it.
pub(super) fn check_hf(keys: &Keys) -> Result<()> {
    reject_flags(keys, &["use_sliding_window"], "use a published model, without sliding window")
}
