//! Mistral: the architecture of Llama, with a sliding window in all layers of the first 7B. GGUF files of Mistral call
//! themselves Llama.

use super::{
    facts::{Activation, Defaults, Family, WholeImages},
    llama,
};
use crate::{
    config::{Config, Keys, LayerType, MAX_SIZE, RopeScaling},
    error::Result,
};

pub(super) const FAMILY: Family = Family {
    name: "mistral",
    title: "Mistral",
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
    layer_names: &llama::NORMS,
    hf_names: &[("mistral", None), ("MistralForCausalLM", None)],
    defaults: DEFAULTS,
    check_hf: llama::check_hf,
    adapt_hf,
    adapt_gguf: llama::adapt_gguf,
};

pub(super) const DEFAULTS: Defaults = Defaults {
    layers: 32,
    hidden: 4096,
    intermediate: 14336,
    heads: 32,
    kv_heads: Some(8),
    head_dim: None,
    query_pre_attn_scalar: None,
    rope_theta: [1e4, 1e4],
    vocab: 32000,
    max_positions: 131_072,
    tie_embeddings: false,
    bos: Some(1),
    eos: &[2],
    pad: None,
};

/// Window of all layers where the config has no key for it: that of the first 7B. Later models have null.
const SLIDING_WINDOW: u32 = 4096;

fn adapt_hf(config: &mut Config, keys: &Keys) -> Result<()> {
    if keys.is_null("sliding_window") {
        return Ok(());
    }
    slide(config, keys, keys.size("sliding_window", MAX_SIZE, Some(SLIDING_WINDOW))?)
}

/// Gives all layers a sliding window.
pub(super) fn slide(config: &mut Config, keys: &Keys, window: u32) -> Result<()> {
    // Positions of sliding-window layers are not scaled.
    if config.rope_scaling != RopeScaling::None {
        let what = format!("{}sliding_window with RoPE scaling", keys.prefix);
        return Err(keys.unsupported(what, "use a model with one of them, or none"));
    }
    config.sliding_window = Some(window);
    config.layer_types.fill(LayerType::Sliding);
    config.rope_theta_local = config.rope_theta_global;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use crate::{AttentionSpan, Config};

    #[test]
    fn only_null_means_no_window() {
        let span = |config| {
            Config::from_hf(Path::new("config.json"), &config).unwrap().attentions().next().unwrap().span
        };
        let window = |window| AttentionSpan::Sliding { window };
        assert_eq!(span(json!({ "model_type": "mistral" })), window(4096));
        assert_eq!(span(json!({ "model_type": "mistral", "sliding_window": 512 })), window(512));
        assert_eq!(span(json!({ "model_type": "mistral", "sliding_window": null })), AttentionSpan::Full);
        let scaled = json!({ "model_type": "mistral", "rope_scaling": { "type": "linear", "factor": 2.0 } });
        let error = Config::from_hf(Path::new("config.json"), &scaled).unwrap_err().to_string();
        assert!(error.contains("sliding_window with RoPE scaling"), "{error}");
    }
}
