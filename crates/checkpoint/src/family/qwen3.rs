//! Qwen 3, dense: Qwen 2 with norms of query and key heads instead of biases.

use super::{
    facts::{Activation, Defaults, Family, WholeImages, adapt_nothing, reject_flags},
    llama, qwen2,
};
use crate::{config::Keys, error::Result};

pub(super) const FAMILY: Family = Family {
    name: "qwen3",
    title: "Qwen 3",
    activation: Activation::Silu,
    post_norms: false,
    head_norms: true,
    qkv_bias: false,
    scaled_embeddings: false,
    value_norm: false,
    layer_scales: false,
    sliding_window: false,
    whole_images: WholeImages::Never,
    layers_differ: false,
    norms_plus_one: false,
    layer_names: &llama::NORMS,
    hf_names: &[("qwen3", None), ("Qwen3ForCausalLM", None)],
    defaults: Defaults { head_dim: Some(128), ..qwen2::DEFAULTS },
    check_hf,
    adapt_hf: adapt_nothing,
    adapt_gguf: adapt_nothing,
};

pub(super) fn check_hf(keys: &Keys) -> Result<()> {
    reject_flags(keys, &["attention_bias"], "use a model without biases")?;
    qwen2::check_hf(keys)
}
