//! The encoder of Gemma 4 E2B, E4B, 26B and 31B, and the 12B's.

use super::{Column, Row, Tables, VisionNaming};
use crate::slot::Role;

/// The position embeddings of both encoders in mmproj files.
pub(in crate::vision) const GGUF_POSITIONS: &str = "v.position_embd.weight";

/// What mmproj files have if pooled rows are standardised.
pub(in crate::vision) const GGUF_STANDARDIZE: [&str; 2] = ["v.std_bias", "v.std_scale"];

pub(super) const NAMINGS: [VisionNaming; 3] = [
    naming("model.vision_tower.", "model.embed_vision.", Column::HuggingFace, &TABLES),
    naming("vision_tower.", "embed_vision.", Column::HuggingFace, &TABLES),
    GGUF,
];

const GGUF: VisionNaming = naming("v.", "mm.", Column::Gguf, &TABLES);

/// Transformers has all modules in `embed_vision`, but writes and reads the names of published files.
pub(super) const UNIFIED_NAMINGS: [VisionNaming; 5] = [
    naming("model.vision_embedder.", "model.embed_vision.", Column::HuggingFace, &UNIFIED),
    naming("vision_embedder.", "embed_vision.", Column::HuggingFace, &UNIFIED),
    naming("model.embed_vision.", "model.embed_vision.multimodal_embedder.", Column::HuggingFace, &UNIFIED),
    naming("embed_vision.", "embed_vision.multimodal_embedder.", Column::HuggingFace, &UNIFIED),
    naming("v.", "mm.", Column::Gguf, &UNIFIED),
];

const fn naming(
    vision: &'static str,
    projector: &'static str,
    column: Column,
    tables: &'static Tables,
) -> VisionNaming {
    VisionNaming { vision, projector, column, tables }
}

const TABLES: Tables =
    Tables { encoder: &ENCODER, layer: &LAYER, projector: &PROJECTOR, unused: &[], clipped: &CLIPPED };

const UNIFIED: Tables =
    Tables { encoder: &UNIFIED_ENCODER, layer: &[], projector: &PROJECTOR, unused: &[], clipped: &[] };

const ENCODER: [Row; 4] = [
    (Role::PatchEmbed, &["patch_embedder.input_proj.weight", "patch_embd.weight"]),
    (Role::PositionEmbed, &["patch_embedder.position_embedding_table", "position_embd.weight"]),
    (Role::StandardizeBias, &["std_bias", "std_bias"]),
    (Role::StandardizeScale, &["std_scale", "std_scale"]),
];

const LAYER: [Row; 13] = [
    (Role::AttentionNorm, &["input_layernorm.weight", "ln1.weight"]),
    (Role::Query, &["self_attn.q_proj.linear.weight", "attn_q.weight"]),
    (Role::Key, &["self_attn.k_proj.linear.weight", "attn_k.weight"]),
    (Role::Value, &["self_attn.v_proj.linear.weight", "attn_v.weight"]),
    (Role::QueryNorm, &["self_attn.q_norm.weight", "attn_q_norm.weight"]),
    (Role::KeyNorm, &["self_attn.k_norm.weight", "attn_k_norm.weight"]),
    (Role::Output, &["self_attn.o_proj.linear.weight", "attn_out.weight"]),
    (Role::PostAttentionNorm, &["post_attention_layernorm.weight", "attn_post_norm.weight"]),
    (Role::FeedForwardNorm, &["pre_feedforward_layernorm.weight", "ln2.weight"]),
    (Role::Gate, &["mlp.gate_proj.linear.weight", "ffn_gate.weight"]),
    (Role::Up, &["mlp.up_proj.linear.weight", "ffn_up.weight"]),
    (Role::Down, &["mlp.down_proj.linear.weight", "ffn_down.weight"]),
    (Role::PostFeedForwardNorm, &["post_feedforward_layernorm.weight", "ffn_post_norm.weight"]),
];

const CLIPPED: [Row; 7] = [
    (Role::Query, &["self_attn.q_proj", "attn_q"]),
    (Role::Key, &["self_attn.k_proj", "attn_k"]),
    (Role::Value, &["self_attn.v_proj", "attn_v"]),
    (Role::Output, &["self_attn.o_proj", "attn_out"]),
    (Role::Gate, &["mlp.gate_proj", "ffn_gate"]),
    (Role::Up, &["mlp.up_proj", "ffn_up"]),
    (Role::Down, &["mlp.down_proj", "ffn_down"]),
];

const UNIFIED_ENCODER: [Row; 9] = [
    (Role::PatchNorm, &["patch_ln1.weight", "patch_norm.1.weight"]),
    (Role::PatchNormBias, &["patch_ln1.bias", "patch_norm.1.bias"]),
    (Role::PatchEmbed, &["patch_dense.weight", "patch_embd.weight"]),
    (Role::PatchEmbedBias, &["patch_dense.bias", "patch_embd.bias"]),
    (Role::PatchEmbedNorm, &["patch_ln2.weight", "patch_norm.2.weight"]),
    (Role::PatchEmbedNormBias, &["patch_ln2.bias", "patch_norm.2.bias"]),
    (Role::PositionEmbed, &["pos_embedding", "position_embd.weight"]),
    (Role::PositionNorm, &["pos_norm.weight", "patch_norm.3.weight"]),
    (Role::PositionNormBias, &["pos_norm.bias", "patch_norm.3.bias"]),
];

const PROJECTOR: [Row; 1] = [(Role::Projection, &["embedding_projection.weight", "input_projection.weight"])];

/// Whether a tensor belongs to the encoder of sound, or to its projector.
pub(in crate::vision) fn is_audio(name: &str) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    ["audio_tower.", "embed_audio.", "a.", "mm.a."].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a tensor of an mmproj file bounds the inputs or outputs of a matrix of the image encoder.
pub(in crate::vision) fn is_gguf_bound(name: &str) -> bool {
    GGUF.bound(name).is_some()
}
