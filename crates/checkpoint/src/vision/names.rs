//! Names of the tensors of a SigLIP encoder and of Gemma 3's projector.
//!
//! | naming | a layer's query weights |
//! |---|---|
//! | Hugging Face, older | `vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight` |
//! | Hugging Face, newer | `model.vision_tower.encoder.layers.3.self_attn.q_proj.weight` |
//! | GGUF, in an mmproj file or (Ollama) with the language model | `v.blk.3.attn_q.weight` |

use crate::{
    names::split_index,
    slot::{Role, Slot, Tower},
    source::{Format, Source},
};

/// A naming scheme for the tensors of an image encoder and its projector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisionNaming {
    /// Prefix of the encoder's tensors.
    vision: &'static str,
    /// Prefix of the projector's tensors.
    projector: &'static str,
    names: Names,
}

/// The columns of the tables below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    HuggingFace,
    Gguf,
    Ollama,
}

/// A role with its name in Hugging Face files, in GGUF files of llama.cpp and in those of Ollama.
type Row = (Role, &'static str, &'static str, &'static str);

/// Tensors of the encoder outside of layers.
const ENCODER: [Row; 5] = [
    (Role::PatchEmbed, "embeddings.patch_embedding.weight", "patch_embd.weight", "patch_embedding.weight"),
    (Role::PatchEmbedBias, "embeddings.patch_embedding.bias", "patch_embd.bias", "patch_embedding.bias"),
    (
        Role::PositionEmbed,
        "embeddings.position_embedding.weight",
        "position_embd.weight",
        "position_embedding.weight",
    ),
    (Role::FinalNorm, "post_layernorm.weight", "post_ln.weight", "post_layernorm.weight"),
    (Role::FinalNormBias, "post_layernorm.bias", "post_ln.bias", "post_layernorm.bias"),
];

/// Tensors of a layer of the encoder.
const LAYER: [Row; 16] = [
    (Role::AttentionNorm, "layer_norm1.weight", "ln1.weight", "layer_norm1.weight"),
    (Role::AttentionNormBias, "layer_norm1.bias", "ln1.bias", "layer_norm1.bias"),
    (Role::Query, "self_attn.q_proj.weight", "attn_q.weight", "attn_q.weight"),
    (Role::QueryBias, "self_attn.q_proj.bias", "attn_q.bias", "attn_q.bias"),
    (Role::Key, "self_attn.k_proj.weight", "attn_k.weight", "attn_k.weight"),
    (Role::KeyBias, "self_attn.k_proj.bias", "attn_k.bias", "attn_k.bias"),
    (Role::Value, "self_attn.v_proj.weight", "attn_v.weight", "attn_v.weight"),
    (Role::ValueBias, "self_attn.v_proj.bias", "attn_v.bias", "attn_v.bias"),
    (Role::Output, "self_attn.out_proj.weight", "attn_out.weight", "attn_output.weight"),
    (Role::OutputBias, "self_attn.out_proj.bias", "attn_out.bias", "attn_output.bias"),
    (Role::FeedForwardNorm, "layer_norm2.weight", "ln2.weight", "layer_norm2.weight"),
    (Role::FeedForwardNormBias, "layer_norm2.bias", "ln2.bias", "layer_norm2.bias"),
    (Role::Up, "mlp.fc1.weight", "ffn_up.weight", "mlp.fc1.weight"),
    (Role::UpBias, "mlp.fc1.bias", "ffn_up.bias", "mlp.fc1.bias"),
    (Role::Down, "mlp.fc2.weight", "ffn_down.weight", "mlp.fc2.weight"),
    (Role::DownBias, "mlp.fc2.bias", "ffn_down.bias", "mlp.fc2.bias"),
];

const PROJECTOR: [Row; 2] = [
    (Role::Projection, "mm_input_projection_weight", "input_projection.weight", "mm_input_projection.weight"),
    (Role::SoftTokenNorm, "mm_soft_emb_norm.weight", "soft_emb_norm.weight", "mm_soft_emb_norm.weight"),
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

impl VisionNaming {
    /// Newer Hugging Face files put the whole model under `model.` and drop SigLIP's `vision_model.`; those between
    /// do one of the two.
    pub(crate) const ALL: [VisionNaming; 6] = [
        Self::new("vision_tower.vision_model.", "multi_modal_projector.", Names::HuggingFace),
        Self::new("model.vision_tower.", "model.multi_modal_projector.", Names::HuggingFace),
        Self::new("vision_tower.", "multi_modal_projector.", Names::HuggingFace),
        Self::new("model.vision_tower.vision_model.", "model.multi_modal_projector.", Names::HuggingFace),
        Self::new("v.", "mm.", Names::Gguf),
        Self::new("v.", "mm.", Names::Ollama),
    ];

    const fn new(vision: &'static str, projector: &'static str, names: Names) -> Self {
        Self { vision, projector, names }
    }

    /// The slot of the tensor `name`, in any naming.
    pub(crate) fn parse(name: &str) -> Option<Slot> {
        Self::ALL.iter().find_map(|naming| naming.slot(name))
    }

    /// The naming of most tensors of a source; without any, the first of its format.
    pub(crate) fn detect(source: &Source) -> Self {
        let count = |naming: &Self| {
            source.tensors.iter().filter(|tensor| naming.slot(&tensor.name).is_some()).count()
        };
        let of_format =
            |naming: &Self| (naming.names == Names::HuggingFace) == (source.format != Format::Gguf);
        // Of several with the same count, `max_by_key` returns the last.
        Self::ALL.into_iter().filter(of_format).rev().max_by_key(count).unwrap_or(Self::ALL[0])
    }

    fn slot(&self, name: &str) -> Option<Slot> {
        let find =
            |rows: &[Row], part: &str| rows.iter().find(|row| self.column(row) == part).map(|row| row.0);
        if let Some(part) = name.strip_prefix(self.projector) {
            return find(&PROJECTOR, part).map(|role| Slot::vision(None, role));
        }
        let part = name.strip_prefix(self.vision)?;
        if let Some(role) = find(&ENCODER, part) {
            return Some(Slot::vision(None, role));
        }
        if self.names == Names::HuggingFace && POOLING.contains(&part) {
            return Some(Slot::vision(None, Role::Image));
        }
        let (layer, part) = split_index(part.strip_prefix(self.layers())?)?;
        find(&LAYER, part).map(|role| Slot::vision(Some(layer), role))
    }

    /// The name of a tensor in this naming; `None` if it has none.
    pub(crate) fn name(&self, slot: Slot) -> Option<String> {
        let find =
            |rows: &[Row]| rows.iter().find(|row| row.0 == slot.role).map(|row| self.column(row).to_owned());
        match (slot.tower, slot.layer) {
            (Tower::Text, _) => None,
            (Tower::Projector, _) => Some(format!("{}{}", self.projector, find(&PROJECTOR)?)),
            (Tower::Vision, None) => Some(format!("{}{}", self.vision, find(&ENCODER)?)),
            (Tower::Vision, Some(layer)) => {
                Some(format!("{}{}{layer}.{}", self.vision, self.layers(), find(&LAYER)?))
            }
        }
    }

    fn layers(&self) -> &'static str {
        if self.names == Names::HuggingFace { "encoder.layers." } else { "blk." }
    }

    fn column(&self, row: &Row) -> &'static str {
        match self.names {
            Names::HuggingFace => row.1,
            Names::Gguf => row.2,
            Names::Ollama => row.3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_the_same_slot() {
        for naming in VisionNaming::ALL {
            let outside = ENCODER.iter().chain(&PROJECTOR).map(|row| Slot::vision(None, row.0));
            let layers = LAYER.iter().map(|row| Slot::vision(Some(26), row.0));
            for slot in outside.chain(layers) {
                let name = naming.name(slot).unwrap();
                assert_eq!(naming.slot(&name), Some(slot), "{name}");
                assert_eq!(VisionNaming::parse(&name), Some(slot), "{name}");
            }
        }
    }

    #[test]
    fn old_and_new_names_of_a_tensor() {
        let up = Some(Slot::vision(Some(3), Role::UpBias));
        for name in [
            "vision_tower.vision_model.encoder.layers.3.mlp.fc1.bias",
            "model.vision_tower.encoder.layers.3.mlp.fc1.bias",
            "v.blk.3.ffn_up.bias",
            "v.blk.3.mlp.fc1.bias",
        ] {
            assert_eq!(VisionNaming::parse(name), up, "{name}");
        }
        for name in
            ["v.blk.3.ffn_gate.weight", "v.head.probe", "vision_tower.blk.3.mlp.fc1.bias", "v.", "mm."]
        {
            assert_eq!(VisionNaming::parse(name), None, "{name}");
        }
    }
}
