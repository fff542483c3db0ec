//! Llama 2 and 3, and models with the same architecture and name: SmolLM2, and GGUF files of Mistral 7B since
//! v0.2, which has no sliding window.

use super::facts::{Activation, Defaults, Family, WholeImages, adapt_nothing, reject_flags};
use crate::{
    config::{Config, Keys, MetaValue, RopePairs},
    error::Result,
    slot::{NameRow, Role},
};

pub(super) const FAMILY: Family = Family {
    name: "llama",
    title: "Llama",
    activation: Activation::Silu,
    post_norms: false,
    head_norms: false,
    qkv_bias: false,
    scaled_embeddings: false,
    value_norm: false,
    layer_scales: false,
    sliding_window: false,
    whole_images: WholeImages::Never,
    layers_differ: false,
    norms_plus_one: false,
    layer_names: &NORMS,
    hf_names: &[("llama", None), ("LlamaForCausalLM", None)],
    defaults: Defaults {
        layers: 32,
        hidden: 4096,
        intermediate: 11008,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        query_pre_attn_scalar: None,
        rope_theta: [1e4, 1e4],
        vocab: 32000,
        max_positions: 2048,
        tie_embeddings: false,
        bos: Some(1),
        eos: &[2],
        pad: None,
    },
    check_hf,
    adapt_hf: adapt_nothing,
    adapt_gguf,
};

/// `post_attention_layernorm` is the norm before the feed-forward block here; in Gemma it is a different
/// norm.
pub(super) const NORMS: [NameRow; 1] =
    [(Role::FeedForwardNorm, "post_attention_layernorm.weight", "ffn_norm.weight")];

/// The biases would include the output projection, which is not supported.
pub(super) fn check_hf(keys: &Keys) -> Result<()> {
    reject_flags(keys, &["attention_bias", "mlp_bias"], "use a model without biases")
}

pub(super) fn adapt_gguf(config: &mut Config, keys: &Keys) -> Result<()> {
    // Some converters write 0.
    if !matches!((keys.get)("expert_count"), None | Some(MetaValue::Unsigned(0 | 1))) {
        return Err(keys.unsupported("a mixture of experts", "use a dense model"));
    }
    // llama.cpp's converter permutes the rows of query and key for this.
    config.rope_pairs = RopePairs::Neighbours;
    Ok(())
}
