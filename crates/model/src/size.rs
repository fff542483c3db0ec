//! Dimensions of published models, for benchmarks with random weights.

use checkpoint::{Config, EncoderKind, PatchOrder, Transformer, VisionConfig};
use serde_json::{Value, json};

use crate::Result;

/// A published model size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Gemma 3 of 270 million parameters.
    Gemma3Of270M,
    /// Gemma 3 1B.
    Gemma3Of1B,
    /// Gemma 3 4B.
    Gemma3Of4B,
    /// Gemma 3 12B.
    Gemma3Of12B,
    /// Gemma 3 27B.
    Gemma3Of27B,
    /// Gemma 4 E2B.
    Gemma4E2B,
    /// Gemma 4 E4B.
    Gemma4E4B,
    /// Gemma 4 12B.
    Gemma4Of12B,
    /// Gemma 4 26B-A4B.
    Gemma4Of26B,
    /// Gemma 4 31B.
    Gemma4Of31B,
    /// SmolLM2 135M.
    SmolLm135M,
    /// Llama 3.2 1B.
    Llama1B,
    /// Llama 3.1 8B.
    Llama8B,
    /// Ministral 3 8B.
    Ministral3Of8B,
    /// Qwen 2.5 1.5B, and Qwen 2.5 Coder.
    Qwen1B5,
    /// Qwen 2.5 7B.
    Qwen7B,
    /// Qwen 3 8B.
    Qwen3Of8B,
    /// Qwen 3 30B-A3B, and Qwen 3 Coder.
    Qwen3Of30B,
}

impl Size {
    /// The sizes of Gemma 3, smallest first.
    pub const GEMMA3: [Size; 5] =
        [Size::Gemma3Of270M, Size::Gemma3Of1B, Size::Gemma3Of4B, Size::Gemma3Of12B, Size::Gemma3Of27B];

    /// Every size.
    pub const ALL: [Size; 18] = [
        Size::Gemma3Of270M,
        Size::Gemma3Of1B,
        Size::Gemma3Of4B,
        Size::Gemma3Of12B,
        Size::Gemma3Of27B,
        Size::Gemma4E2B,
        Size::Gemma4E4B,
        Size::Gemma4Of12B,
        Size::Gemma4Of26B,
        Size::Gemma4Of31B,
        Size::SmolLm135M,
        Size::Llama1B,
        Size::Llama8B,
        Size::Ministral3Of8B,
        Size::Qwen1B5,
        Size::Qwen7B,
        Size::Qwen3Of8B,
        Size::Qwen3Of30B,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Size::Gemma3Of270M => "gemma3-270m",
            Size::Gemma3Of1B => "gemma3-1b",
            Size::Gemma3Of4B => "gemma3-4b",
            Size::Gemma3Of12B => "gemma3-12b",
            Size::Gemma3Of27B => "gemma3-27b",
            Size::Gemma4E2B => "gemma4-e2b",
            Size::Gemma4E4B => "gemma4-e4b",
            Size::Gemma4Of12B => "gemma4-12b",
            Size::Gemma4Of26B => "gemma4-26b-a4b",
            Size::Gemma4Of31B => "gemma4-31b",
            Size::SmolLm135M => "smollm2-135m",
            Size::Llama1B => "llama3.2-1b",
            Size::Llama8B => "llama3.1-8b",
            Size::Ministral3Of8B => "ministral3-8b",
            Size::Qwen1B5 => "qwen2.5-1.5b",
            Size::Qwen7B => "qwen2.5-7b",
            Size::Qwen3Of8B => "qwen3-8b",
            Size::Qwen3Of30B => "qwen3-30b-a3b",
        }
    }

    /// Its dimensions.
    pub fn config(self) -> Result<Config> {
        Ok(Config::from_hf(self.name().as_ref(), &self.json())?)
    }

    /// The dimensions of its image encoder, where it has one.
    pub fn vision(self) -> Result<Option<VisionConfig>> {
        let text_hidden = self.config()?.hidden;
        Ok(match self {
            Size::Gemma3Of4B | Size::Gemma3Of12B | Size::Gemma3Of27B => Some(gemma3_vision(text_hidden)),
            Size::Gemma4E2B | Size::Gemma4E4B => Some(gemma4_small_vision(text_hidden)),
            Size::Gemma4Of12B => Some(gemma4_unified_vision(text_hidden)),
            Size::Gemma4Of26B | Size::Gemma4Of31B => Some(gemma4_large_vision(text_hidden)),
            _ => None,
        })
    }

    fn json(self) -> Value {
        match self {
            Size::Gemma3Of270M => gemma3(18, 640, 2048, [4, 1, 256], 256, 512, 32768),
            Size::Gemma3Of1B => gemma3(26, 1152, 6912, [4, 1, 256], 256, 512, 32768),
            Size::Gemma3Of4B => gemma3(34, 2560, 10240, [8, 4, 256], 256, 1024, 131_072),
            Size::Gemma3Of12B => gemma3(48, 3840, 15360, [16, 8, 256], 256, 1024, 131_072),
            Size::Gemma3Of27B => gemma3(62, 5376, 21504, [32, 16, 128], 168, 1024, 131_072),
            Size::Gemma4E2B => per_layer(gemma4(35, 1536, 6144, [8, 1, 1], 5, 512), 20, true),
            Size::Gemma4E4B => per_layer(gemma4(42, 2560, 10240, [8, 2, 2], 6, 512), 18, false),
            Size::Gemma4Of12B => gemma4(48, 3840, 15360, [16, 8, 1], 6, 1024),
            Size::Gemma4Of26B => {
                let mut config = gemma4(30, 2816, 2112, [16, 8, 2], 6, 1024);
                config["enable_moe_block"] = json!(true);
                config["num_experts"] = json!(128);
                config["top_k_experts"] = json!(8);
                config["moe_intermediate_size"] = json!(704);
                config
            }
            Size::Gemma4Of31B => gemma4(60, 5376, 21504, [32, 16, 4], 6, 1024),
            Size::SmolLm135M => dense("llama", 30, 576, 1536, [9, 3, 64], 49152, true, 8192),
            Size::Llama1B => llama3(16, 2048, 8192, [32, 8, 64], true, 32),
            Size::Llama8B => llama3(32, 4096, 14336, [32, 8, 128], false, 8),
            // The defaults of the config class are those of the 8B.
            Size::Ministral3Of8B => json!({ "model_type": "ministral3" }),
            Size::Qwen1B5 => dense("qwen2", 28, 1536, 8960, [12, 2, 128], 151_936, true, 32768),
            Size::Qwen7B => dense("qwen2", 28, 3584, 18944, [28, 4, 128], 152_064, false, 32768),
            Size::Qwen3Of8B => dense("qwen3", 36, 4096, 12288, [32, 8, 128], 151_936, false, 40960),
            Size::Qwen3Of30B => experts(
                dense("qwen3_moe", 48, 2048, 6144, [32, 4, 128], 151_936, false, 262_144),
                [128, 8, 768],
            ),
        }
    }
}

fn gemma3(
    layers: u32,
    hidden: u32,
    intermediate: u32,
    heads: [u32; 3],
    scalar: u32,
    window: u32,
    positions: u32,
) -> Value {
    let scaling =
        if positions > 32768 { json!({ "rope_type": "linear", "factor": 8.0 }) } else { json!(null) };
    json!({
        "model_type": "gemma3_text", "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_attention_heads": heads[0], "num_key_value_heads": heads[1],
        "head_dim": heads[2], "query_pre_attn_scalar": scalar, "sliding_window": window,
        "max_position_embeddings": positions, "vocab_size": 262_144, "rope_scaling": scaling,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    })
}

/// Gemma 4 with values from keys in full-attention layers: query heads, and KV heads of sliding-window and of
/// full-attention layers; every `nth` layer has full attention.
fn gemma4(layers: u32, hidden: u32, intermediate: u32, heads: [u32; 3], nth: u32, window: u32) -> Value {
    let kind =
        |layer: u32| if (layer + 1).is_multiple_of(nth) { "full_attention" } else { "sliding_attention" };
    json!({
        "model_type": "gemma4_text", "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_attention_heads": heads[0], "num_key_value_heads": heads[1],
        "num_global_key_value_heads": heads[2], "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": true,
        "sliding_window": window, "layer_types": (0..layers).map(kind).collect::<Vec<_>>(),
        "max_position_embeddings": if window == 512 { 131_072 } else { 262_144 }, "vocab_size": 262_144,
        "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision",
    })
}

/// The same with per-layer embeddings, projected values, and keys and values shared by the last layers.
fn per_layer(mut config: Value, shared_layers: u32, double_wide: bool) -> Value {
    config["attention_k_eq_v"] = json!(false);
    config["hidden_size_per_layer_input"] = json!(256);
    config["use_bidirectional_attention"] = json!(null);
    config["num_kv_shared_layers"] = json!(shared_layers);
    config["use_double_wide_mlp"] = json!(double_wide);
    config
}

#[expect(clippy::too_many_arguments, reason = "a row of a table")]
fn dense(
    family: &str,
    layers: u32,
    hidden: u32,
    intermediate: u32,
    heads: [u32; 3],
    vocab: u32,
    tied: bool,
    positions: u32,
) -> Value {
    json!({
        "model_type": family, "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": heads[2],
        "max_position_embeddings": positions, "vocab_size": vocab, "tie_word_embeddings": tied,
        "rope_theta": if family == "llama" { 1e5 } else { 1e6 },
    })
}

/// The same with experts: their number, those per token, and their width.
fn experts(mut config: Value, [count, per_token, intermediate]: [u32; 3]) -> Value {
    config["num_experts"] = json!(count);
    config["num_experts_per_tok"] = json!(per_token);
    config["moe_intermediate_size"] = json!(intermediate);
    config["norm_topk_prob"] = json!(true);
    config
}

fn llama3(layers: u32, hidden: u32, intermediate: u32, heads: [u32; 3], tied: bool, factor: u32) -> Value {
    let mut config = dense("llama", layers, hidden, intermediate, heads, 128_256, tied, 131_072);
    config["rope_theta"] = json!(5e5);
    config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 8192,
    });
    config
}

/// The encoder of all published Gemma 3 models that have one.
fn gemma3_vision(text_hidden: u32) -> VisionConfig {
    VisionConfig {
        patch_size: 14,
        pooled_patches: 4,
        patch_order: PatchOrder::ChannelsFirst,
        hidden: 1152,
        text_hidden,
        soft_norm_eps: 1e-6,
        encoder: EncoderKind::Siglip {
            image_size: 896,
            image_mean: [0.5; 3],
            image_std: [0.5; 3],
            transformer: Transformer {
                layers: 27,
                heads: 16,
                head_dim: 72,
                intermediate: 4304,
                norm_eps: 1e-6,
            },
        },
    }
}

/// The encoder of Gemma 4 E2B and E4B.
fn gemma4_small_vision(text_hidden: u32) -> VisionConfig {
    let transformer = Transformer { layers: 16, heads: 12, head_dim: 64, intermediate: 3072, norm_eps: 1e-6 };
    gemma4_vision(768, text_hidden, transformer, true)
}

/// The encoder of Gemma 4 26B and 31B.
fn gemma4_large_vision(text_hidden: u32) -> VisionConfig {
    let transformer = Transformer { layers: 27, heads: 16, head_dim: 72, intermediate: 4304, norm_eps: 1e-6 };
    gemma4_vision(1152, text_hidden, transformer, false)
}

fn gemma4_vision(hidden: u32, text_hidden: u32, transformer: Transformer, clipped: bool) -> VisionConfig {
    VisionConfig {
        patch_size: 16,
        pooled_patches: 3,
        patch_order: PatchOrder::ChannelsLast,
        hidden,
        text_hidden,
        soft_norm_eps: 1e-6,
        encoder: EncoderKind::Gemma4 {
            max_soft_tokens: 280,
            positions: 10_240,
            rope_theta: 100.0,
            clipped,
            standardized: !clipped,
            transformer,
        },
    }
}

/// What Gemma 4 12B has instead of an encoder.
fn gemma4_unified_vision(text_hidden: u32) -> VisionConfig {
    VisionConfig {
        patch_size: 48,
        pooled_patches: 1,
        patch_order: PatchOrder::ChannelsLast,
        hidden: 3840,
        text_hidden,
        soft_norm_eps: 1e-6,
        encoder: EncoderKind::Gemma4Unified { max_soft_tokens: 280, positions: 1120, layer_norm_eps: 1e-5 },
    }
}
