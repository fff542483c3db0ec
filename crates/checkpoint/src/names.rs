//! Tensor names: every naming in use, parsed into a tower, a layer and a role.
//!
//! | naming | a layer's query weights |
//! |---|---|
//! | Hugging Face, text only | `model.layers.3.self_attn.q_proj.weight` |
//! | Hugging Face, multimodal (older) | `language_model.model.layers.3.self_attn.q_proj.weight` |
//! | Hugging Face, multimodal (newer) | `model.language_model.layers.3.self_attn.q_proj.weight` |
//! | GGUF | `blk.3.attn_q.weight` |
//!
//! Experts have tensors of their own in Hugging Face files (`mlp.experts.7.gate_proj.weight`) or share one, a
//! stacked tensor, as they always do in GGUF files.
//!
//! Vision layers are also called `layers.3`, so only complete names match; any other name is unknown.

use serde::Serialize;

use crate::{
    architecture::Architecture,
    slot::{NameRow, Role, Slot, Tower},
    vision::VisionNaming,
};

/// A naming scheme for tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    /// `model.…`
    HfText,
    /// `language_model.model.…`
    HfMultimodalOlder,
    /// `model.language_model.…`
    HfMultimodalNewer,
    /// `blk.N.…`
    Gguf,
}

/// Tensors outside of layers. The head of Hugging Face files is outside of the text tower, see [`HEADS`].
const MODEL: [NameRow; 6] = [
    (Role::Embed, "embed_tokens.weight", "token_embd.weight"),
    (Role::FinalNorm, "norm.weight", "output_norm.weight"),
    (Role::RopeFreqs, "", "rope_freqs.weight"),
    (Role::PerLayerEmbed, "embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    (Role::PerLayerProjection, "per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    (Role::PerLayerProjectionNorm, "per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
];

/// Name of the head per naming.
const HEADS: [(Naming, &str); 4] = [
    (Naming::HfText, "lm_head.weight"),
    (Naming::HfMultimodalOlder, "language_model.lm_head.weight"),
    (Naming::HfMultimodalNewer, "lm_head.weight"),
    (Naming::Gguf, "output.weight"),
];

/// Tensors of a layer that have the same name in most families; a family lists its own, and its own names.
const LAYER: [NameRow; 14] = [
    (Role::AttentionNorm, "input_layernorm.weight", "attn_norm.weight"),
    (Role::Query, "self_attn.q_proj.weight", "attn_q.weight"),
    (Role::Key, "self_attn.k_proj.weight", "attn_k.weight"),
    (Role::Value, "self_attn.v_proj.weight", "attn_v.weight"),
    (Role::QueryBias, "self_attn.q_proj.bias", "attn_q.bias"),
    (Role::KeyBias, "self_attn.k_proj.bias", "attn_k.bias"),
    (Role::ValueBias, "self_attn.v_proj.bias", "attn_v.bias"),
    (Role::QueryNorm, "self_attn.q_norm.weight", "attn_q_norm.weight"),
    (Role::KeyNorm, "self_attn.k_norm.weight", "attn_k_norm.weight"),
    (Role::Output, "self_attn.o_proj.weight", "attn_output.weight"),
    (Role::Router, "mlp.gate.weight", "ffn_gate_inp.weight"),
    (Role::Gate, "mlp.gate_proj.weight", "ffn_gate.weight"),
    (Role::Up, "mlp.up_proj.weight", "ffn_up.weight"),
    (Role::Down, "mlp.down_proj.weight", "ffn_down.weight"),
];

/// Prefix of an expert's tensors in a layer of Hugging Face files, before the expert's index.
const EXPERTS: &str = "mlp.experts.";

/// The tensors of an expert in Hugging Face files.
const EXPERT: [(Role, &str); 3] =
    [(Role::Gate, "gate_proj.weight"), (Role::Up, "up_proj.weight"), (Role::Down, "down_proj.weight")];

/// The names of [`Stacked`] tensors in a layer of Hugging Face files and of GGUF files.
const STACKED: [(&[Role], &str, &str); 6] = [
    (&[Role::Gate], "", "ffn_gate_exps.weight"),
    (&[Role::Up], "", "ffn_up_exps.weight"),
    (&[Role::Gate, Role::Up], "mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    (&[Role::Down], "mlp.experts.down_proj", "ffn_down_exps.weight"),
    // Gemma 4.
    (&[Role::Gate, Role::Up], "experts.gate_up_proj", ""),
    (&[Role::Down], "experts.down_proj", ""),
];

/// A tensor with a projection, or two, of all experts of a layer: `[expert][role][row][k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stacked {
    pub layer: u32,
    pub roles: &'static [Role],
}

impl Stacked {
    /// The stacked tensor with this name, in any naming.
    pub fn parse(name: &str) -> Option<Self> {
        Naming::ALL.iter().find_map(|naming| {
            let (layer, part) = naming.split_layer(name)?;
            let gguf = *naming == Naming::Gguf;
            let row =
                STACKED.iter().find(|row| (if gguf { row.2 } else { row.1 }) == part && !part.is_empty())?;
            Some(Self { layer, roles: row.0 })
        })
    }
}

impl Naming {
    const ALL: [Naming; 4] =
        [Naming::HfText, Naming::HfMultimodalOlder, Naming::HfMultimodalNewer, Naming::Gguf];

    /// The naming of a text tensor. The name of a head is ambiguous among the Hugging Face namings.
    pub fn detect(architecture: Architecture, name: &str) -> Option<Self> {
        Naming::ALL.into_iter().find(|naming| naming.text(architecture, name).is_some())
    }

    fn text(self, architecture: Architecture, name: &str) -> Option<Slot> {
        if HEADS.contains(&(self, name)) {
            return Some(Slot::text(None, Role::Head));
        }
        let rest = name.strip_prefix(self.tower_prefix())?;
        if let Some((role, ..)) = MODEL.iter().find(|row| self.column(row) == rest && !rest.is_empty()) {
            return Some(Slot::text(None, *role));
        }
        let (layer, part) = self.split_layer(name)?;
        if let Some(part) = part.strip_prefix(EXPERTS).filter(|_| self != Naming::Gguf) {
            let (expert, part) = split_index(part)?;
            let (role, _) = EXPERT.iter().find(|row| row.1 == part)?;
            return Some(Slot::expert(layer, expert, *role));
        }
        let (role, ..) = layer_rows(architecture).find(|row| self.column(row) == part)?;
        Some(Slot::text(Some(layer), *role))
    }

    /// The layer of a text tensor, and the rest of its name.
    fn split_layer(self, name: &str) -> Option<(u32, &str)> {
        split_index(name.strip_prefix(self.tower_prefix())?.strip_prefix(self.layer_prefix())?)
    }

    fn tower_prefix(self) -> &'static str {
        match self {
            Naming::HfText => "model.",
            Naming::HfMultimodalOlder => "language_model.model.",
            Naming::HfMultimodalNewer => "model.language_model.",
            Naming::Gguf => "",
        }
    }

    fn layer_prefix(self) -> &'static str {
        if self == Naming::Gguf { "blk." } else { "layers." }
    }

    fn column(self, row: &NameRow) -> &'static str {
        if self == Naming::Gguf { row.2 } else { row.1 }
    }
}

impl Slot {
    /// The slot of the tensor `name` in a model of this architecture; `None` if no naming has that name.
    pub fn parse(architecture: Architecture, name: &str) -> Option<Self> {
        Naming::ALL
            .iter()
            .find_map(|naming| naming.text(architecture, name))
            .or_else(|| siglip(architecture, name))
            .or_else(|| other_tower(architecture, name))
    }

    /// The name of a text tensor in a naming; `None` if the naming has no such tensor.
    pub fn name(&self, architecture: Architecture, naming: Naming) -> Option<String> {
        if (self.tower, self.role) == (Tower::Text, Role::Head) {
            return HEADS.iter().find(|head| head.0 == naming).map(|head| head.1.to_string());
        }
        let tower = naming.tower_prefix();
        let text =
            |row: &NameRow| Some(naming.column(row)).filter(|text| !text.is_empty() && row.0 == self.role);
        if let (Some(layer), Some(expert)) = (self.layer, self.expert) {
            let part = match naming {
                Naming::Gguf => STACKED.iter().find(|row| row.0 == [self.role])?.2.to_owned(),
                _ if architecture == Architecture::Gemma4 => {
                    let row = STACKED
                        .iter()
                        .find(|row| row.0.contains(&self.role) && row.1.starts_with("experts."));
                    row?.1.to_owned()
                }
                _ => format!("{EXPERTS}{expert}.{}", EXPERT.iter().find(|row| row.0 == self.role)?.1),
            };
            return Some(format!("{tower}{}{layer}.{part}", naming.layer_prefix()));
        }
        match self.layer {
            None => MODEL.iter().find_map(text).map(|text| format!("{tower}{text}")),
            Some(layer) => {
                let text = layer_rows(architecture).find_map(text)?;
                Some(format!("{tower}{}{layer}.{text}", naming.layer_prefix()))
            }
        }
    }
}

impl Slot {
    /// The name of a text tensor in native files: that of Hugging Face files, each expert with tensors of its own.
    pub fn native_name(&self, architecture: Architecture) -> Option<String> {
        let (Some(layer), Some(expert)) = (self.layer, self.expert) else {
            return self.name(architecture, Naming::HfText);
        };
        let (_, part) = EXPERT.iter().find(|row| row.0 == self.role)?;
        let (tower, prefix) = (Naming::HfText.tower_prefix(), Naming::HfText.layer_prefix());
        Some(format!("{tower}{prefix}{layer}.{EXPERTS}{expert}.{part}"))
    }
}

fn layer_rows(architecture: Architecture) -> impl Iterator<Item = &'static NameRow> {
    architecture.family().layer_names.iter().chain(&LAYER)
}

/// The roles of SigLIP matter where it is run: for Gemma 3. Those of Gemma 4's encoders are in
/// [`VisionNaming`].
fn siglip(architecture: Architecture, name: &str) -> Option<Slot> {
    let slot = VisionNaming::parse_siglip(name)?;
    Some(if architecture == Architecture::Gemma3 { slot } else { image(slot.tower, slot.layer) })
}

/// Encoders of images and sound that are not SigLIP, and the projections of their outputs: of Gemma 4 and of Mistral.
fn other_tower(architecture: Architecture, name: &str) -> Option<Slot> {
    let (encoders, projectors): (&[&str], &[&str]) = match architecture {
        Architecture::Gemma4 => (
            &["vision_tower.", "audio_tower.", "vision_embedder."],
            &["embed_vision.", "embed_audio.", "multimodal_embedder."],
        ),
        Architecture::Mistral | Architecture::Ministral3 => (&["vision_tower."], &["multi_modal_projector."]),
        _ => return None,
    };
    let name = name.strip_prefix("model.").unwrap_or(name);
    let has = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if has(encoders) {
        return Some(image(Tower::Vision, None));
    }
    has(projectors).then_some(image(Tower::Projector, None))
}

fn image(tower: Tower, layer: Option<u32>) -> Slot {
    Slot { tower, layer, expert: None, role: Role::Image }
}

/// Splits `12.rest`. Signs and leading zeros are rejected, so that every number has one spelling.
pub(crate) fn split_index(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.split_once('.')?;
    let plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    Some((digits.parse().ok().filter(|_| plain)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEMMA: Architecture = Architecture::Gemma3;

    fn parse(name: &str) -> Option<Slot> {
        Slot::parse(GEMMA, name)
    }

    #[test]
    fn names_of_text_slots_parse_to_the_same_slot() {
        for naming in Naming::ALL {
            let model = MODEL.iter().map(|row| Slot::text(None, row.0));
            let layers = layer_rows(GEMMA).map(|row| Slot::text(Some(61), row.0));
            let head = Slot::text(None, Role::Head);
            for slot in model.chain(layers).chain([head]) {
                let Some(name) = slot.name(GEMMA, naming) else {
                    assert!(slot.role == Role::RopeFreqs && naming != Naming::Gguf, "{slot:?} has no name");
                    continue;
                };
                assert_eq!(parse(&name), Some(slot), "{name}");
            }
        }
    }

    #[test]
    fn all_namings_parse_to_the_same_slot() {
        let query = Some(Slot::text(Some(3), Role::Query));
        assert_eq!(parse("model.layers.3.self_attn.q_proj.weight"), query);
        assert_eq!(parse("language_model.model.layers.3.self_attn.q_proj.weight"), query);
        assert_eq!(parse("model.language_model.layers.3.self_attn.q_proj.weight"), query);
        assert_eq!(parse("blk.3.attn_q.weight"), query);
        let norm = Some(Slot::text(Some(0), Role::FeedForwardNorm));
        assert_eq!(parse("model.layers.0.pre_feedforward_layernorm.weight"), norm);
        assert_eq!(parse("blk.0.ffn_norm.weight"), norm);
        let head = Some(Slot::text(None, Role::Head));
        for name in ["lm_head.weight", "language_model.lm_head.weight", "output.weight"] {
            assert_eq!(parse(name), head, "{name}");
        }
        assert_eq!(parse("rope_freqs.weight"), Some(Slot::text(None, Role::RopeFreqs)));
    }

    #[test]
    fn experts_have_tensors_of_their_own_or_share_one() {
        let parse = |name| Slot::parse(Architecture::Qwen3Moe, name);
        let gate = Slot::expert(3, 7, Role::Gate);
        let name = "model.layers.3.mlp.experts.7.gate_proj.weight";
        assert_eq!(parse(name), Some(gate));
        assert_eq!(gate.name(Architecture::Qwen3Moe, Naming::HfText).as_deref(), Some(name));
        let shared = gate.name(Architecture::Qwen3Moe, Naming::Gguf).unwrap();
        assert_eq!(shared, "blk.3.ffn_gate_exps.weight");
        assert_eq!(parse(&shared), None, "it is not the tensor of one expert");
        let stacked =
            |name, roles| assert_eq!(Stacked::parse(name), Some(Stacked { layer: 3, roles }), "{name}");
        stacked(&shared, &[Role::Gate]);
        stacked("blk.3.ffn_gate_up_exps.weight", &[Role::Gate, Role::Up]);
        stacked("model.layers.3.mlp.experts.gate_up_proj", &[Role::Gate, Role::Up]);
        stacked("model.layers.3.mlp.experts.down_proj", &[Role::Down]);
        for name in [
            "blk.3.ffn_gate.weight",
            "blk.3.",
            "model.layers.3.",
            "model.layers.3.mlp.experts.down_proj.weight",
        ] {
            assert_eq!(Stacked::parse(name), None, "{name}");
        }
        for name in
            ["model.layers.3.mlp.experts.07.gate_proj.weight", "model.layers.3.mlp.experts.7.gate_proj"]
        {
            assert_eq!(parse(name), None, "{name}");
        }
        assert_eq!(parse("blk.3.ffn_gate_inp.weight"), Some(Slot::text(Some(3), Role::Router)));
        assert_eq!(parse("model.layers.3.mlp.gate.weight"), Some(Slot::text(Some(3), Role::Router)));
    }

    #[test]
    fn vision_layers_are_not_confused_with_text_layers() {
        let query = Some(Slot::vision(Some(3), Role::Query));
        for name in [
            "vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight",
            "vision_tower.encoder.layers.3.self_attn.q_proj.weight",
            "model.vision_tower.encoder.layers.3.self_attn.q_proj.weight",
            "v.blk.3.attn_q.weight",
        ] {
            assert_eq!(parse(name), query, "{name}");
            let other = Slot::parse(Architecture::Llama, name);
            assert_eq!(other, Some(image(Tower::Vision, Some(3))), "{name}: no encoder of Llama is run");
        }
        let norm = Slot::vision(None, Role::SoftTokenNorm);
        assert_eq!(parse("multi_modal_projector.mm_soft_emb_norm.weight"), Some(norm));
        let projection = Slot { tower: Tower::Projector, ..Slot::vision(None, Role::Projection) };
        assert_eq!(parse("mm.input_projection.weight"), Some(projection));
        assert_eq!(parse("model.vision_tower.head.probe"), Some(image(Tower::Vision, None)));
    }

    #[test]
    fn partial_names_are_unknown() {
        for name in [
            "",
            "model.",
            "layers.3.self_attn.q_proj.weight",
            "model.layers.3.self_attn.q_proj",
            "model.layers.3.self_attn.q_proj.weight_scale",
            "model.layers.3.self_attn.q_proj.weight.absmax",
            "x.model.layers.3.self_attn.q_proj.weight",
            "model.model.layers.3.self_attn.q_proj.weight",
            "model.layers.03.self_attn.q_proj.weight",
            "model.layers.+3.self_attn.q_proj.weight",
            "model.layers.4294967296.self_attn.q_proj.weight",
            "model.layers..self_attn.q_proj.weight",
            "model.layers.3.attn_q.weight",
            "model.embed_tokens.bias",
            "blk.3.self_attn.q_proj.weight",
            "model.blk.3.attn_q.weight",
            "vision_tower.encoder.layers.3.self_attn.o_proj.weight",
            "v.blk.3.attn_o.weight",
            "v.blk.3.mlp.fc1",
            "v.blk.3.self_attn.q_proj.weight",
            "mm.input_projection",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
