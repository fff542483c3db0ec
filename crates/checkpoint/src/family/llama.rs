//! Llama 2 and 3, and what is built the same way and says so: SmolLM2, and GGUF files of Mistral 7B from v0.2 on, which has no window.

use super::facts::{Activation, Defaults, Family, refuse_flags};
use crate::{
    config::{Config, Keys, MetaValue, RopePairs},
    error::Result,
    slot::{Role, Row},
};

pub(super) const FAMILY: Family = Family {
    name: "llama",
    title: "Llama",
    activation: Activation::Silu,
    post_norms: false,
    head_norms: false,
    qkv_bias: false,
    scaled_embeddings: false,
    sliding_window: false,
    norms_less_one: false,
    norms: &NORMS,
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
    adapt_gguf,
};

/// What its files call `post_attention_layernorm` is the norm before the feed-forward part: Gemma's norm of that name is another.
pub(super) const NORMS: [Row; 1] =
    [(Role::FeedForwardNorm, "post_attention_layernorm.weight", "ffn_norm.weight")];

/// Biases would be on the output projection too, for which there is no place.
fn check_hf(keys: &Keys) -> Result<()> {
    refuse_flags(keys, &["attention_bias", "mlp_bias"], "use a model without biases")
}

fn adapt_gguf(config: &mut Config, keys: &Keys) -> Result<()> {
    // Some converters write a zero.
    if !matches!((keys.get)("expert_count"), None | Some(MetaValue::Unsigned(0 | 1))) {
        return Err(keys.unsupported("a mixture of experts", "use a dense model"));
    }
    // llama.cpp's converter changes the order of the rows of queries and keys so.
    config.rope_pairs = RopePairs::Neighbours;
    Ok(())
}
