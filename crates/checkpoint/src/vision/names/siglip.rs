//! SigLIP and the projector of Gemma 3.

use super::{Column, Row, Tables, VisionNaming};
use crate::slot::Role;

/// Newer Hugging Face files put the whole model under `model.` and drop SigLIP's `vision_model.`; those between
/// do one of the two.
pub(super) const NAMINGS: [VisionNaming; 6] = [
    naming("vision_tower.vision_model.", "multi_modal_projector.", Column::HuggingFace),
    naming("model.vision_tower.", "model.multi_modal_projector.", Column::HuggingFace),
    naming("vision_tower.", "multi_modal_projector.", Column::HuggingFace),
    naming("model.vision_tower.vision_model.", "model.multi_modal_projector.", Column::HuggingFace),
    naming("v.", "mm.", Column::Gguf),
    naming("v.", "mm.", Column::Ollama),
];

const fn naming(vision: &'static str, projector: &'static str, column: Column) -> VisionNaming {
    VisionNaming { vision, projector, column, tables: &TABLES }
}

const TABLES: Tables =
    Tables { encoder: &ENCODER, layer: &LAYER, projector: &PROJECTOR, unused: &POOLING, clipped: &[] };

const ENCODER: [Row; 5] = [
    (Role::PatchEmbed, &["embeddings.patch_embedding.weight", "patch_embd.weight", "patch_embedding.weight"]),
    (Role::PatchEmbedBias, &["embeddings.patch_embedding.bias", "patch_embd.bias", "patch_embedding.bias"]),
    (
        Role::PositionEmbed,
        &["embeddings.position_embedding.weight", "position_embd.weight", "position_embedding.weight"],
    ),
    (Role::FinalNorm, &["post_layernorm.weight", "post_ln.weight", "post_layernorm.weight"]),
    (Role::FinalNormBias, &["post_layernorm.bias", "post_ln.bias", "post_layernorm.bias"]),
];

const LAYER: [Row; 16] = [
    (Role::AttentionNorm, &["layer_norm1.weight", "ln1.weight", "layer_norm1.weight"]),
    (Role::AttentionNormBias, &["layer_norm1.bias", "ln1.bias", "layer_norm1.bias"]),
    (Role::Query, &["self_attn.q_proj.weight", "attn_q.weight", "attn_q.weight"]),
    (Role::QueryBias, &["self_attn.q_proj.bias", "attn_q.bias", "attn_q.bias"]),
    (Role::Key, &["self_attn.k_proj.weight", "attn_k.weight", "attn_k.weight"]),
    (Role::KeyBias, &["self_attn.k_proj.bias", "attn_k.bias", "attn_k.bias"]),
    (Role::Value, &["self_attn.v_proj.weight", "attn_v.weight", "attn_v.weight"]),
    (Role::ValueBias, &["self_attn.v_proj.bias", "attn_v.bias", "attn_v.bias"]),
    (Role::Output, &["self_attn.out_proj.weight", "attn_out.weight", "attn_output.weight"]),
    (Role::OutputBias, &["self_attn.out_proj.bias", "attn_out.bias", "attn_output.bias"]),
    (Role::FeedForwardNorm, &["layer_norm2.weight", "ln2.weight", "layer_norm2.weight"]),
    (Role::FeedForwardNormBias, &["layer_norm2.bias", "ln2.bias", "layer_norm2.bias"]),
    (Role::Up, &["mlp.fc1.weight", "ffn_up.weight", "mlp.fc1.weight"]),
    (Role::UpBias, &["mlp.fc1.bias", "ffn_up.bias", "mlp.fc1.bias"]),
    (Role::Down, &["mlp.fc2.weight", "ffn_down.weight", "mlp.fc2.weight"]),
    (Role::DownBias, &["mlp.fc2.bias", "ffn_down.bias", "mlp.fc2.bias"]),
];

const PROJECTOR: [Row; 2] = [
    (
        Role::Projection,
        &["mm_input_projection_weight", "input_projection.weight", "mm_input_projection.weight"],
    ),
    (Role::SoftTokenNorm, &["mm_soft_emb_norm.weight", "soft_emb_norm.weight", "mm_soft_emb_norm.weight"]),
];

/// SigLIP's pooling in Hugging Face files, whose output Gemma 3 does not use.
const POOLING: [&str; 11] = [
    "head.probe",
    "head.attention.in_proj_weight",
    "head.attention.in_proj_bias",
    "head.attention.out_proj.weight",
    "head.attention.out_proj.bias",
    "head.layernorm.weight",
    "head.layernorm.bias",
    "head.mlp.fc1.weight",
    "head.mlp.fc1.bias",
    "head.mlp.fc2.weight",
    "head.mlp.fc2.bias",
];
