//! Ministral 3: the architecture of Llama with YaRN, and queries that grow with their position. Also the language model of
//! Mistral's multimodal classes.

use super::{
    facts::{Activation, Defaults, Family, WholeImages},
    llama, mistral,
};
use crate::{
    config::{Config, Keys, MAX_SIZE, QueryTemperature, RopeScaling},
    error::Result,
};

pub(super) const FAMILY: Family = Family {
    name: "mistral3",
    title: "Ministral 3",
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
    hf_names: &[
        ("ministral3", None),
        ("Ministral3ForCausalLM", None),
        ("mistral3", Some("text_config")),
        ("Mistral3ForConditionalGeneration", Some("text_config")),
    ],
    defaults: Defaults {
        layers: 34,
        head_dim: Some(128),
        rope_theta: [1e6, 1e6],
        vocab: 131_072,
        max_positions: 262_144,
        pad: Some(11),
        ..mistral::DEFAULTS
    },
    check_hf: llama::check_hf,
    adapt_hf,
    adapt_gguf,
};

/// Context length before it was extended.
const ORIGINAL: u32 = 16384;

fn adapt_hf(config: &mut Config, keys: &Keys) -> Result<()> {
    config.rms_norm_eps = keys.number("rms_norm_eps", Some(1e-5))?;
    let scaling = ["rope_scaling", "rope_parameters"].into_iter().find(|key| keys.has(key));
    let Some(scaling) = scaling else {
        config.rope_scaling = RopeScaling::Yarn {
            factor: 16.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original: ORIGINAL,
            attention_factor: 1.0,
        };
        config.query_temperature = Some(QueryTemperature { beta: 0.1, original: ORIGINAL });
        return slide(config, keys);
    };
    let (beta, original) =
        (format!("{scaling}.llama_4_scaling_beta"), format!("{scaling}.original_max_position_embeddings"));
    if keys.has(&beta) {
        config.query_temperature = Some(QueryTemperature {
            beta: keys.number(&beta, None)?,
            original: keys.size(&original, MAX_SIZE, None)?,
        });
    }
    slide(config, keys)
}

fn slide(config: &mut Config, keys: &Keys) -> Result<()> {
    match keys.has("sliding_window") {
        true => mistral::slide(config, keys, keys.size("sliding_window", MAX_SIZE, None)?),
        false => Ok(()),
    }
}

fn adapt_gguf(config: &mut Config, keys: &Keys) -> Result<()> {
    llama::adapt_gguf(config, keys)?;
    if keys.has("attention.temperature_scale") {
        config.query_temperature = Some(QueryTemperature {
            beta: keys.number("attention.temperature_scale", None)?,
            original: keys.size("rope.scaling.original_context_length", MAX_SIZE, None)?,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use crate::{
        Architecture, Config,
        config::{QueryTemperature, RopeScaling},
    };

    #[test]
    fn yarn_and_the_temperature_are_read_or_defaults() {
        let read = |config| Config::from_hf(Path::new("config.json"), &config).unwrap();
        let plain = read(json!({ "model_type": "ministral3" }));
        let RopeScaling::Yarn { factor, original, attention_factor, .. } = plain.rope_scaling else {
            panic!("YaRN")
        };
        assert_eq!((factor, original, attention_factor), (16.0, 16384, 1.0));
        assert_eq!(plain.query_temperature, Some(QueryTemperature { beta: 0.1, original: 16384 }));
        let rope = json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 1.0,
            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5, "rope_theta": 1e5,
        });
        let nested = read(json!({
            "model_type": "mistral3", "text_config": { "model_type": "ministral3", "rope_parameters": rope }
        }));
        assert_eq!(nested.architecture, Architecture::Ministral3);
        assert_eq!(nested.query_temperature, Some(QueryTemperature { beta: 0.5, original: 8 }));
        assert_eq!(nested.rope_theta_global, 1e5);
    }

    #[test]
    fn the_nested_config_names_its_own_family() {
        let config = json!({ "model_type": "mistral3", "text_config": { "model_type": "mistral", "sliding_window": null } });
        let config = Config::from_hf(Path::new("config.json"), &config).unwrap();
        assert_eq!((config.architecture, config.query_temperature), (Architecture::Mistral, None));
        assert_eq!(config.rope_scaling, RopeScaling::None);
    }
}
