//! Names of the tensors of image encoders and of their projectors.
//!
//! | naming | a layer's query weights |
//! |---|---|
//! | Hugging Face, Gemma 3, older | `vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight` |
//! | Hugging Face, Gemma 3, newer | `model.vision_tower.encoder.layers.3.self_attn.q_proj.weight` |
//! | Hugging Face, Gemma 4 | `model.vision_tower.encoder.layers.3.self_attn.q_proj.linear.weight` |
//! | GGUF, in an mmproj file or (Ollama) with the language model | `v.blk.3.attn_q.weight` |

mod gemma4;
mod siglip;

pub(super) use gemma4::{GGUF_POSITIONS, GGUF_STANDARDIZE, is_audio, is_gguf_bound};

use super::EncoderKind;
use crate::{
    names::split_index,
    slot::{Role, Slot, Tower},
    source::{Format, Tensor},
};

/// A naming scheme for the tensors of an image encoder and its projector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisionNaming {
    /// Prefix of the encoder's tensors.
    vision: &'static str,
    /// Prefix of the projector's tensors.
    projector: &'static str,
    column: Column,
    tables: &'static Tables,
}

/// The names of an encoder's tensors after their prefixes.
#[derive(Debug)]
struct Tables {
    /// Tensors of the encoder outside of layers.
    encoder: &'static [Row],
    /// Tensors of a layer of the encoder.
    layer: &'static [Row],
    projector: &'static [Row],
    /// Tensors in Hugging Face files that are not used.
    unused: &'static [&'static str],
    /// Matrices of a layer that may have clipping ranges, without `weight`.
    clipped: &'static [Row],
}

/// A role with its names by [`Column`].
type Row = (Role, &'static [&'static str]);

/// The columns of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    HuggingFace,
    /// llama.cpp.
    Gguf,
    Ollama,
}

/// The tensor that bounds the inputs or the outputs of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BoundSlot {
    pub layer: u32,
    pub matrix: Role,
    pub bound: Bound,
}

/// A bound of a matrix's inputs or outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bound {
    InputMin,
    InputMax,
    OutputMin,
    OutputMax,
}

impl Bound {
    pub const ALL: [Bound; 4] = [Bound::InputMin, Bound::InputMax, Bound::OutputMin, Bound::OutputMax];

    fn name(self) -> &'static str {
        match self {
            Bound::InputMin => "input_min",
            Bound::InputMax => "input_max",
            Bound::OutputMin => "output_min",
            Bound::OutputMax => "output_max",
        }
    }
}

impl VisionNaming {
    /// The namings of an encoder.
    pub(crate) fn all(encoder: &EncoderKind) -> &'static [VisionNaming] {
        match encoder {
            EncoderKind::Siglip { .. } => &siglip::NAMINGS,
            EncoderKind::Gemma4 { .. } => &gemma4::NAMINGS,
            EncoderKind::Gemma4Unified { .. } => &gemma4::UNIFIED_NAMINGS,
        }
    }

    /// The slot of the tensor `name` of a SigLIP encoder, in any naming.
    pub(crate) fn parse_siglip(name: &str) -> Option<Slot> {
        siglip::NAMINGS.iter().find_map(|naming| naming.slot(name))
    }

    /// The naming of most tensors; without any, the first of the format.
    pub(crate) fn detect(encoder: &EncoderKind, format: Format, tensors: &[Tensor]) -> Self {
        let count =
            |naming: &&Self| tensors.iter().filter(|tensor| naming.slot(&tensor.name).is_some()).count();
        let of_format = |naming: &&Self| (naming.column == Column::HuggingFace) == (format != Format::Gguf);
        let all = Self::all(encoder);
        // Of several with the same count, `max_by_key` returns the last.
        *all.iter().filter(of_format).rev().max_by_key(count).unwrap_or(&all[0])
    }

    /// The slot of the tensor `name`, in this naming.
    pub(crate) fn slot(&self, name: &str) -> Option<Slot> {
        let find =
            |rows: &[Row], part: &str| rows.iter().find(|row| self.text(row) == Some(part)).map(|row| row.0);
        // One of the prefixes may begin with the other.
        let projector = name.strip_prefix(self.projector).and_then(|part| find(self.tables.projector, part));
        if let Some(role) = projector {
            return Some(Slot::vision(None, role));
        }
        let part = name.strip_prefix(self.vision)?;
        if let Some(role) = find(self.tables.encoder, part) {
            return Some(Slot::vision(None, role));
        }
        if self.column == Column::HuggingFace && self.tables.unused.contains(&part) {
            return Some(Slot::vision(None, Role::Image));
        }
        let (layer, part) = self.split_layer(name)?;
        find(self.tables.layer, part).map(|role| Slot::vision(Some(layer), role))
    }

    /// The bound that the tensor `name` holds, in this naming.
    pub(crate) fn bound(&self, name: &str) -> Option<BoundSlot> {
        let (layer, part) = self.split_layer(name)?;
        let (matrix, bound) = part.rsplit_once('.')?;
        let bound = Bound::ALL.into_iter().find(|known| known.name() == bound)?;
        let (matrix, _) = self.tables.clipped.iter().find(|row| self.text(row) == Some(matrix))?;
        Some(BoundSlot { layer, matrix: *matrix, bound })
    }

    /// The name of a tensor in this naming; `None` if it has none.
    pub(crate) fn name(&self, slot: Slot) -> Option<String> {
        let find = |rows: &[Row]| rows.iter().find(|row| row.0 == slot.role).and_then(|row| self.text(row));
        match (slot.tower, slot.layer) {
            (Tower::Text | Tower::Pooled, _) => None,
            (Tower::Projector, _) => Some(format!("{}{}", self.projector, find(self.tables.projector)?)),
            (Tower::Vision, None) => Some(format!("{}{}", self.vision, find(self.tables.encoder)?)),
            (Tower::Vision, Some(layer)) => {
                Some(format!("{}{}{layer}.{}", self.vision, self.layers(), find(self.tables.layer)?))
            }
        }
    }

    /// The name of a bound in this naming; `None` if it has none.
    pub(crate) fn bound_name(&self, slot: BoundSlot) -> Option<String> {
        let row = self.tables.clipped.iter().find(|row| row.0 == slot.matrix)?;
        let (matrix, bound) = (self.text(row)?, slot.bound.name());
        Some(format!("{}{}{}.{matrix}.{bound}", self.vision, self.layers(), slot.layer))
    }

    /// The layer of a tensor of the encoder, and the rest of its name.
    fn split_layer<'a>(&self, name: &'a str) -> Option<(u32, &'a str)> {
        split_index(name.strip_prefix(self.vision)?.strip_prefix(self.layers())?)
    }

    fn layers(&self) -> &'static str {
        if self.column == Column::HuggingFace { "encoder.layers." } else { "blk." }
    }

    fn text(&self, row: &Row) -> Option<&'static str> {
        row.1.get(self.column as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_the_same_slot() {
        let namings = [&siglip::NAMINGS[..], &gemma4::NAMINGS, &gemma4::UNIFIED_NAMINGS].concat();
        for naming in namings {
            let Tables { encoder, layer, projector, clipped, .. } = naming.tables;
            let outside = encoder.iter().chain(*projector).map(|row| Slot::vision(None, row.0));
            let layers = layer.iter().map(|row| Slot::vision(Some(26), row.0));
            for slot in outside.chain(layers) {
                let name = naming.name(slot).unwrap();
                assert_eq!(naming.slot(&name), Some(slot), "{name}");
                assert_eq!(naming.bound(&name), None, "{name}");
            }
            let bounds =
                Bound::ALL.into_iter().flat_map(|bound| clipped.iter().map(move |row| (row.0, bound)));
            for (matrix, bound) in bounds {
                let slot = BoundSlot { layer: 26, matrix, bound };
                let name = naming.bound_name(slot).unwrap();
                assert_eq!((naming.bound(&name), naming.slot(&name)), (Some(slot), None), "{name}");
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
            assert_eq!(VisionNaming::parse_siglip(name), up, "{name}");
        }
        for name in
            ["v.blk.3.ffn_gate.weight", "v.head.probe", "vision_tower.blk.3.mlp.fc1.bias", "v.", "mm."]
        {
            assert_eq!(VisionNaming::parse_siglip(name), None, "{name}");
        }
        let unified = |name: &str| gemma4::UNIFIED_NAMINGS.iter().find_map(|naming| naming.slot(name));
        for name in [
            "model.embed_vision.embedding_projection.weight",
            "embed_vision.embedding_projection.weight",
            "model.embed_vision.multimodal_embedder.embedding_projection.weight",
            "mm.input_projection.weight",
        ] {
            assert_eq!(unified(name), Some(Slot::vision(None, Role::Projection)), "{name}");
        }
        for name in
            ["model.vision_embedder.pos_norm.bias", "embed_vision.pos_norm.bias", "v.patch_norm.3.bias"]
        {
            assert_eq!(unified(name), Some(Slot::vision(None, Role::PositionNormBias)), "{name}");
        }
        assert_eq!(unified("model.embed_vision.multimodal_embedder.patch_ln1.weight"), None);
    }

    #[test]
    fn bounds_of_matrices() {
        let bound = |name: &str| gemma4::NAMINGS.iter().find_map(|naming| naming.bound(name));
        let expected = BoundSlot { layer: 11, matrix: Role::Output, bound: Bound::InputMax };
        for name in [
            "model.vision_tower.encoder.layers.11.self_attn.o_proj.input_max",
            "vision_tower.encoder.layers.11.self_attn.o_proj.input_max",
            "v.blk.11.attn_out.input_max",
        ] {
            assert_eq!(bound(name), Some(expected), "{name}");
        }
        for name in
            ["v.blk.11.attn_out.input_mean", "v.blk.11.ln1.input_max", "a.blk.0.attn_q.input_max", "v.blk.1"]
        {
            assert_eq!(bound(name), None, "{name}");
            assert!(!is_gguf_bound(name), "{name}");
        }
        assert!(is_gguf_bound("v.blk.0.ffn_gate.output_min"));
    }
}
