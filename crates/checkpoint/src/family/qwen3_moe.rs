//! Qwen 3 with experts: Qwen 3 whose feed-forward blocks are mixtures of experts.

use super::{
    facts::{Activation, Defaults, Family, WholeImages},
    llama, qwen2, qwen3,
};
use crate::{
    config::{Config, ExpertConfig, Keys, MAX_SIZE},
    error::Result,
};

pub(super) const FAMILY: Family = Family {
    name: "qwen3moe",
    title: "Qwen 3 MoE",
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
    hf_names: &[("qwen3_moe", None), ("Qwen3MoeForCausalLM", None)],
    defaults: Defaults {
        layers: 24,
        hidden: 2048,
        intermediate: 6144,
        kv_heads: Some(4),
        head_dim: Some(128),
        ..qwen2::DEFAULTS
    },
    check_hf,
    adapt_hf,
    adapt_gguf,
};

/// Dense layers among those with experts exist in the config class, but in no published model.
fn check_hf(keys: &Keys) -> Result<()> {
    let has_dense = match (keys.get)("mlp_only_layers") {
        Some(crate::config::MetaValue::Array(count)) => count > 0,
        _ => false,
    };
    if has_dense || keys.size("decoder_sparse_step", MAX_SIZE, Some(1))? != 1 {
        let what = format!("{}mlp_only_layers or decoder_sparse_step", keys.prefix);
        return Err(keys.unsupported(what, "use a model whose layers all have experts"));
    }
    qwen3::check_hf(keys)
}

fn adapt_hf(config: &mut Config, keys: &Keys) -> Result<()> {
    // Newer versions of transformers write another name.
    let count =
        ["num_experts", "num_local_experts"].into_iter().find(|key| keys.has(key)).unwrap_or("num_experts");
    config.experts = Some(ExpertConfig {
        count: keys.size(count, MAX_SIZE, Some(128))?,
        per_token: keys.size("num_experts_per_tok", MAX_SIZE, Some(8))?,
        intermediate: keys.size("moe_intermediate_size", MAX_SIZE, Some(768))?,
        renormalize: keys.flag("norm_topk_prob")?.unwrap_or(false),
        beside_dense: false,
    });
    config.check_experts(keys, count, "num_experts_per_tok")
}

/// llama.cpp renormalises unless the file says otherwise.
fn adapt_gguf(config: &mut Config, keys: &Keys) -> Result<()> {
    config.experts = Some(ExpertConfig {
        count: keys.size("expert_count", MAX_SIZE, None)?,
        per_token: keys.size("expert_used_count", MAX_SIZE, None)?,
        intermediate: keys.size("expert_feed_forward_length", MAX_SIZE, None)?,
        renormalize: keys.flag("expert_weights_norm")?.unwrap_or(true),
        beside_dense: false,
    });
    config.check_experts(keys, "expert_count", "expert_used_count")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use crate::{Config, FeedForward, config::MetaValue};

    fn hf(changes: Value) -> crate::Result<Config> {
        let mut config = json!({ "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        Config::from_hf(Path::new("config.json"), &config)
    }

    #[test]
    fn experts_are_read_from_both_spellings() {
        let experts = |changes| {
            let experts = hf(changes).unwrap().layer(0).feed_forward.experts().unwrap();
            (experts.count, experts.per_token, experts.intermediate, experts.renormalize)
        };
        assert_eq!(experts(json!({})), (128, 8, 768, true));
        assert_eq!(experts(json!({ "num_experts": null, "num_local_experts": 64 })), (64, 8, 768, true));
        assert_eq!(
            experts(json!({ "norm_topk_prob": null, "moe_intermediate_size": 32 })),
            (128, 8, 32, false)
        );
    }

    #[test]
    fn impossible_choices_are_rejected() {
        for (changes, expected) in [
            (
                json!({ "num_experts_per_tok": 129 }),
                "num_experts_per_tok is 129, but num_experts is only 128",
            ),
            (json!({ "num_experts": 0 }), "num_experts is 0"),
            (json!({ "num_experts": 1024 }), "num_experts is 1024, but the limit is 512"),
            (json!({ "num_experts_per_tok": 17 }), "num_experts_per_tok is 17, but the limit is 16"),
            (json!({ "mlp_only_layers": [3] }), "mlp_only_layers or decoder_sparse_step"),
            (json!({ "decoder_sparse_step": 2 }), "mlp_only_layers or decoder_sparse_step"),
        ] {
            let error = hf(changes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn gguf_files_must_name_their_experts() {
        use MetaValue::{Array, Float, Text, Unsigned};
        let keys = [
            ("general.architecture", Text("qwen3moe")),
            ("qwen3moe.context_length", Unsigned(40960)),
            ("qwen3moe.embedding_length", Unsigned(2048)),
            ("qwen3moe.block_count", Unsigned(48)),
            ("qwen3moe.feed_forward_length", Unsigned(6144)),
            ("qwen3moe.attention.head_count", Unsigned(32)),
            ("qwen3moe.attention.head_count_kv", Unsigned(4)),
            ("qwen3moe.attention.key_length", Unsigned(128)),
            ("qwen3moe.attention.value_length", Unsigned(128)),
            ("qwen3moe.attention.layer_norm_rms_epsilon", Float(1e-6)),
            ("qwen3moe.expert_count", Unsigned(128)),
            ("qwen3moe.expert_used_count", Unsigned(8)),
            ("qwen3moe.expert_feed_forward_length", Unsigned(768)),
            ("tokenizer.ggml.tokens", Array(151_936)),
        ];
        let read = |without: &str| {
            let get =
                |key: &str| keys.iter().find(|known| known.0 == key && key != without).map(|known| known.1);
            Config::from_gguf(Path::new("model.gguf"), &get)
        };
        let FeedForward::Experts(experts) = read("").unwrap().layer(47).feed_forward else {
            panic!("experts")
        };
        assert_eq!((experts.count, experts.per_token, experts.intermediate), (128, 8, 768));
        assert!(experts.renormalize, "as llama.cpp does");
        for key in ["expert_count", "expert_used_count", "expert_feed_forward_length"] {
            let error = read(&format!("qwen3moe.{key}")).unwrap_err().to_string();
            assert!(error.contains(&format!("qwen3moe.{key} is missing")), "{error}");
        }
    }
}
