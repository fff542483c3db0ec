//! Gemma 3, text-only or the language model of the multimodal sizes.

use super::facts::{Activation, Defaults, Family, WholeImages, adapt_nothing, reject_flags};
use crate::{
    config::{Config, Keys, MAX_LAYERS, MAX_SIZE, SLIDING_WINDOW_PATTERN, every_nth_global},
    error::Result,
    slot::Role,
};

pub(super) const FAMILY: Family = Family {
    name: "gemma3",
    title: "Gemma 3",
    activation: Activation::GeluTanh,
    post_norms: true,
    head_norms: true,
    qkv_bias: false,
    scaled_embeddings: true,
    value_norm: false,
    layer_scales: false,
    sliding_window: true,
    whole_images: WholeImages::InAllLayers,
    layers_differ: false,
    norms_plus_one: true,
    layer_names: &[
        (Role::PostAttentionNorm, "post_attention_layernorm.weight", "post_attention_norm.weight"),
        (Role::FeedForwardNorm, "pre_feedforward_layernorm.weight", "ffn_norm.weight"),
        (Role::PostFeedForwardNorm, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ],
    hf_names: &[
        ("gemma3", Some("text_config")),
        ("Gemma3ForConditionalGeneration", Some("text_config")),
        ("gemma3_text", None),
        ("Gemma3ForCausalLM", None),
    ],
    defaults: Defaults {
        layers: 26,
        hidden: 2304,
        intermediate: 9216,
        heads: 8,
        kv_heads: Some(4),
        head_dim: Some(256),
        query_pre_attn_scalar: Some(256.0),
        rope_theta: [1e6, 1e4],
        vocab: 262_208,
        max_positions: 131_072,
        tie_embeddings: true,
        bos: Some(2),
        eos: &[1],
        pad: Some(0),
    },
    check_hf,
    adapt_hf: adapt_nothing,
    adapt_gguf,
};

const USE_PUBLISHED: &str = "use a published Gemma 3 model";

fn check_hf(keys: &Keys) -> Result<()> {
    reject_flags(keys, &["attention_bias", "use_bidirectional_attention"], USE_PUBLISHED)?;
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if keys.has(key) {
            return Err(keys.unsupported(format!("{}{key}", keys.prefix), USE_PUBLISHED));
        }
    }
    Ok(())
}

/// Number of layers of the 27B, which llama.cpp identifies by it: only the 27B scales scores by
/// `hidden / heads`.
const LAYERS_27B: u32 = 62;

/// Values that llama.cpp's converter does not write get llama.cpp's defaults: attention scores are divided by
/// the square root of the head dimension (27B: of `hidden / heads`), and every sixth layer has full
/// attention. As in llama.cpp, a logit soft cap is not applied to models with sliding-window layers.
fn adapt_gguf(config: &mut Config, keys: &Keys) -> Result<()> {
    if keys.has("mm.tokens_per_image") {
        // Such files omit the RoPE scaling and list more tokens than embeddings.
        let fix = "use a file made by llama.cpp's converter";
        return Err(keys.unsupported("a multimodal file made by Ollama's own converter", fix));
    }
    let pattern = keys.size("attention.sliding_window_pattern", MAX_LAYERS, Some(SLIDING_WINDOW_PATTERN))?;
    config.sliding_window = Some(keys.size("attention.sliding_window", MAX_SIZE, None)?);
    config.layer_types = every_nth_global(config.layers, pattern);
    if config.layers == LAYERS_27B {
        config.query_pre_attn_scalar = (config.hidden / config.heads) as f32;
    }
    Ok(())
}
