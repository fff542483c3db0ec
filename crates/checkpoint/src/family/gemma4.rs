//! Gemma 4: dense (12B, 31B), with experts beside the dense block (26B-A4B), or with per-layer embeddings and shared keys
//! and values (E2B, E4B); text-only or the language model of the multimodal classes.

use super::facts::{Activation, Defaults, Family, WholeImages, reject_flags};
use crate::{
    config::{
        Config, ExpertConfig, GlobalAttention, Keys, KvSharing, LayerType, MAX_LAYERS, MAX_SIZE, RopeScaling,
    },
    error::Result,
    slot::Role,
};

pub(super) const FAMILY: Family = Family {
    name: "gemma4",
    title: "Gemma 4",
    activation: Activation::GeluTanh,
    post_norms: true,
    head_norms: true,
    qkv_bias: false,
    scaled_embeddings: true,
    value_norm: true,
    layer_scales: true,
    sliding_window: true,
    whole_images: WholeImages::InSlidingLayers,
    layers_differ: true,
    norms_plus_one: false,
    layer_names: &[
        (Role::PostAttentionNorm, "post_attention_layernorm.weight", "post_attention_norm.weight"),
        (Role::FeedForwardNorm, "pre_feedforward_layernorm.weight", "ffn_norm.weight"),
        (Role::PostFeedForwardNorm, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
        (Role::LayerScale, "layer_scalar", "layer_output_scale.weight"),
        (Role::Router, "router.proj.weight", "ffn_gate_inp.weight"),
        (Role::RouterScale, "router.scale", "ffn_gate_inp.scale"),
        (Role::ExpertScales, "router.per_expert_scale", "ffn_down_exps.scale"),
        (Role::ExpertNorm, "pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
        (Role::PostDenseNorm, "post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
        (Role::PostExpertsNorm, "post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
        (Role::PerLayerGate, "per_layer_input_gate.weight", "inp_gate.weight"),
        (Role::PerLayerOutput, "per_layer_projection.weight", "proj.weight"),
        (Role::PostPerLayerNorm, "post_per_layer_input_norm.weight", "post_norm.weight"),
    ],
    hf_names: &[
        ("gemma4", Some("text_config")),
        ("Gemma4ForConditionalGeneration", Some("text_config")),
        ("gemma4_unified", Some("text_config")),
        ("Gemma4UnifiedForConditionalGeneration", Some("text_config")),
        ("gemma4_text", None),
        ("Gemma4ForCausalLM", None),
        ("gemma4_unified_text", None),
        ("Gemma4UnifiedForCausalLM", None),
    ],
    defaults: Defaults {
        layers: 30,
        hidden: 2304,
        intermediate: 9216,
        heads: 8,
        kv_heads: Some(4),
        head_dim: Some(256),
        // Scores are not scaled: the norms of query and key heads do it.
        query_pre_attn_scalar: Some(1.0),
        rope_theta: [1e6, 1e4],
        vocab: 262_144,
        max_positions: 131_072,
        tie_embeddings: true,
        bos: Some(2),
        eos: &[1],
        pad: Some(0),
    },
    check_hf,
    adapt_hf,
    adapt_gguf,
};

const USE_PUBLISHED: &str = "use a published Gemma 4 model";
/// The part of a full-attention head that RoPE rotates, where the config does not say.
const ROTATED: f32 = 0.25;
const SLIDING_WINDOW: u32 = 512;
const SLIDING_WINDOW_UNIFIED: u32 = 1024;
const GLOBAL_HEAD_DIM: u32 = 512;
const PER_LAYER_WIDTH: u32 = 256;

fn check_hf(keys: &Keys) -> Result<()> {
    reject_flags(keys, &["attention_bias"], USE_PUBLISHED)?;
    if keys.text("use_bidirectional_attention")? == Some("all") {
        let what = format!("{}use_bidirectional_attention = 'all'", keys.prefix);
        return Err(keys.unsupported(what, USE_PUBLISHED));
    }
    Ok(())
}

fn adapt_hf(config: &mut Config, keys: &Keys) -> Result<()> {
    // The config class of the 12B has other defaults.
    let unified = keys.text("model_type")? == Some("gemma4_unified_text");
    let window = if unified { SLIDING_WINDOW_UNIFIED } else { SLIDING_WINDOW };
    config.sliding_window = Some(keys.size("sliding_window", MAX_SIZE, Some(window))?);
    if unified {
        config.max_positions = keys.size("max_position_embeddings", MAX_SIZE, Some(262_144))?;
    }
    // As transformers does, with a warning.
    if let Some(last) = config.layer_types.last_mut() {
        *last = LayerType::Global;
    }
    if !keys.has("rope_parameters") {
        config.rope_scaling = RopeScaling::Proportional { rotated: ROTATED, factor: 1.0 };
    }
    config.causal_images = Some(match keys.text("use_bidirectional_attention")? {
        Some(tokens) => tokens != "vision",
        None => !unified || keys.is_null("use_bidirectional_attention"),
    });
    config.logit_softcap = keys.optional_number("final_logit_softcapping")?;
    let values_from_keys = keys.flag("attention_k_eq_v")?.unwrap_or(false);
    config.global_attention = Some(global_attention_hf(config, keys, values_from_keys)?);
    let default = if unified { 0 } else { PER_LAYER_WIDTH };
    config.per_layer_width = match keys.is_null("hidden_size_per_layer_input") {
        true => None,
        false => keys.count("hidden_size_per_layer_input", MAX_SIZE / config.layers, default)?,
    };
    if let Some(layers) = keys.count("num_kv_shared_layers", MAX_LAYERS, 0)? {
        let wide = keys.flag("use_double_wide_mlp")?.unwrap_or(false);
        let intermediate = config.intermediate * if wide { 2 } else { 1 };
        share_kv(config, keys, "num_kv_shared_layers", KvSharing { layers, intermediate })?;
    }
    if keys.flag("enable_moe_block")?.unwrap_or(false) {
        config.experts = Some(ExpertConfig {
            count: keys.size("num_experts", MAX_SIZE, None)?,
            per_token: keys.size("top_k_experts", MAX_SIZE, None)?,
            intermediate: keys.size("moe_intermediate_size", MAX_SIZE, None)?,
            renormalize: true,
            beside_dense: true,
        });
        config.check_experts(keys, "num_experts", "top_k_experts")?;
    }
    Ok(())
}

/// Newer versions of transformers write an object per full-attention layer instead of two keys.
fn global_attention_hf(config: &Config, keys: &Keys, values_from_keys: bool) -> Result<GlobalAttention> {
    if !keys.has("per_layer_config") {
        let kv_heads = if values_from_keys { "num_global_key_value_heads" } else { "num_key_value_heads" };
        return Ok(GlobalAttention {
            head_dim: keys.size("global_head_dim", MAX_SIZE, Some(GLOBAL_HEAD_DIM))?,
            kv_heads: keys.size(kv_heads, MAX_SIZE, Some(config.kv_heads))?,
            values_from_keys,
        });
    }
    let mut found = None;
    for (index, kind) in config.layer_types.iter().enumerate() {
        let head_dim =
            keys.size(&format!("per_layer_config.{index}.head_dim"), MAX_SIZE, Some(config.head_dim))?;
        let kv_heads = keys.size(
            &format!("per_layer_config.{index}.num_key_value_heads"),
            MAX_SIZE,
            Some(config.kv_heads),
        )?;
        let expected = match kind {
            LayerType::Sliding => (config.head_dim, config.kv_heads),
            LayerType::Global => *found.get_or_insert((head_dim, kv_heads)),
        };
        if (head_dim, kv_heads) != expected {
            let what = format!("{}per_layer_config with layers of one kind that differ", keys.prefix);
            return Err(keys.unsupported(what, USE_PUBLISHED));
        }
    }
    let (head_dim, kv_heads) = found.unwrap_or((config.head_dim, config.kv_heads));
    Ok(GlobalAttention { head_dim, kv_heads, values_from_keys })
}

/// Lists have one value per layer. Whether values come from keys is not in the metadata, but which tensors there are; see
/// [`Config::detect_values`].
fn adapt_gguf(config: &mut Config, keys: &Keys) -> Result<()> {
    let layers = config.layers;
    config.sliding_window = Some(keys.size("attention.sliding_window", MAX_SIZE, None)?);
    let pattern = "attention.sliding_window_pattern";
    let sliding = keys.flags(pattern, layers)?.ok_or_else(|| keys.error(pattern, "is missing"))?;
    let kind = |sliding: &bool| if *sliding { LayerType::Sliding } else { LayerType::Global };
    config.layer_types = sliding.iter().map(kind).collect();
    config.query_pre_attn_scalar = 1.0;
    config.logit_softcap = keys.optional_number("final_logit_softcapping")?;
    let kv_heads = keys.sizes("attention.head_count_kv", layers, MAX_SIZE, Some(config.heads))?;
    let uniform = |kind: LayerType, values: &[u32], key: &str| -> Result<Option<u32>> {
        let mut values = config
            .layer_types
            .iter()
            .zip(values)
            .filter(|(known, _)| **known == kind)
            .map(|(_, value)| *value);
        let first = values.next();
        match values.all(|value| Some(value) == first) {
            true => Ok(first),
            false => Err(keys.error(key, "differs between layers of one kind, which is not supported")),
        }
    };
    let global_heads = uniform(LayerType::Global, &kv_heads, "attention.head_count_kv")?;
    let sliding_heads = uniform(LayerType::Sliding, &kv_heads, "attention.head_count_kv")?;
    let head_dim = config.head_dim;
    config.global_attention = Some(GlobalAttention {
        head_dim,
        kv_heads: global_heads.unwrap_or(config.kv_heads),
        values_from_keys: false,
    });
    config.kv_heads = sliding_heads.or(global_heads).unwrap_or(config.kv_heads);
    config.head_dim = keys.size("attention.key_length_swa", MAX_SIZE, Some(head_dim))?;
    for (key, expected) in
        [("attention.value_length_swa", config.head_dim), ("rope.dimension_count_swa", config.head_dim)]
    {
        if keys.size(key, MAX_SIZE, Some(expected))? != expected {
            return Err(keys.error(key, format!("is not {expected}, the length of a key")));
        }
    }
    config.per_layer_width = keys.count("embedding_length_per_layer_input", MAX_SIZE / layers, 0)?;
    let widths = keys.sizes("feed_forward_length", layers, MAX_SIZE, None)?;
    let shared = keys.count("attention.shared_kv_layers", layers, 0)?.unwrap_or(0);
    let (own, sharing) = widths.split_at((layers - shared) as usize);
    for widths in [own, sharing] {
        if widths.iter().any(|width| *width != widths[0]) {
            return Err(keys
                .error("feed_forward_length", "differs between layers of one kind, which is not supported"));
        }
    }
    config.intermediate = widths[0];
    if let Some(intermediate) = sharing.first() {
        share_kv(
            config,
            keys,
            "attention.shared_kv_layers",
            KvSharing { layers: shared, intermediate: *intermediate },
        )?;
    }
    if keys.count("expert_count", MAX_SIZE, 0)?.is_some() {
        config.experts = Some(ExpertConfig {
            count: keys.size("expert_count", MAX_SIZE, None)?,
            per_token: keys.size("expert_used_count", MAX_SIZE, None)?,
            intermediate: keys.size("expert_feed_forward_length", MAX_SIZE, None)?,
            renormalize: true,
            beside_dense: true,
        });
        config.check_experts(keys, "expert_count", "expert_used_count")?;
    }
    Ok(())
}

fn share_kv(config: &mut Config, keys: &Keys, key: &str, sharing: KvSharing) -> Result<()> {
    config.kv_sharing = Some(sharing);
    let first = config.layers.saturating_sub(sharing.layers);
    match (first..config.layers).find(|layer| config.shares_kv_with(*layer).is_none()) {
        None => Ok(()),
        Some(layer) => {
            let reason = format!(
                "is {}, but no layer before the last {0} has the attention span of layer {layer}",
                sharing.layers
            );
            Err(keys.error(key, reason))
        }
    }
}
