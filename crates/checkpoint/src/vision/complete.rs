//! Checks that tensors are a complete image encoder, as [`complete`](crate::complete) does for language models.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    EncoderKind, Transformer, VisionConfig, VisionNaming,
    config::CHANNELS,
    names::{self, Bound, BoundSlot},
};
use crate::{
    incomplete::{Incomplete, Problem},
    slot::{Role, Slot, Tower},
    source::{Format, Tensor},
};

/// The matrices whose inputs and outputs are clipped, in an encoder that clips any.
const CLIPPED: [Role; 7] =
    [Role::Query, Role::Key, Role::Value, Role::Output, Role::Gate, Role::Up, Role::Down];

/// The tensors of an image encoder and its projector.
#[derive(Clone, Debug, Default)]
pub(super) struct Tensors {
    pub by_slot: BTreeMap<Slot, Tensor>,
    /// Bounds of inputs and outputs: one value each.
    pub bounds: BTreeMap<BoundSlot, Tensor>,
}

/// The tensors of an image encoder and its projector, by slot: of all tensors of the multimodal parts of a folder, or
/// of an mmproj file. Encoders of sound are left out, and so is SigLIP's pooling.
pub(super) fn check(
    config: &VisionConfig,
    format: Format,
    tensors: &[Tensor],
) -> Result<Tensors, Incomplete> {
    let expected = expected(config, format);
    let expected_bounds = expected_bounds(config);
    let swapped = swapped_layers(config, format, tensors);
    let namings = VisionNaming::all(&config.encoder);
    let mut found = Tensors::default();
    let mut problems = Vec::new();
    for tensor in tensors {
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        let beyond = |layer: Option<u32>| match layer.is_some_and(|layer| layer >= config.layers()) {
            true => Problem::BeyondLastLayer { name: name.clone(), layers: config.layers() },
            false => Problem::Unknown { name: name.clone(), found: shape.clone() },
        };
        if let Some(slot) = namings.iter().find_map(|naming| naming.bound(&name)) {
            if !expected_bounds.contains(&slot) {
                problems.push(beyond(Some(slot.layer)));
                continue;
            }
            // One value: without dimensions, or with one.
            if !matches!(shape[..], [] | [1]) {
                problems.push(Problem::ShapeMismatch { name, expected: scalar(format), found: shape });
            }
            insert(&mut found.bounds, slot, tensor, &mut problems);
            continue;
        }
        let Some(slot) = namings.iter().find_map(|naming| naming.slot(&name)) else {
            if !names::is_audio(&name) {
                problems.push(beyond(None));
            }
            continue;
        };
        if slot.tower == Tower::Text || slot.role == Role::Image {
            continue;
        }
        let slot = match slot.layer.is_some_and(|layer| swapped.contains(&layer)) {
            true => Slot { role: other_projection(slot.role), ..slot },
            false => slot,
        };
        let Some(expected) = expected.get(&slot) else {
            problems.push(beyond(slot.layer));
            continue;
        };
        if *expected != shape {
            problems.push(Problem::ShapeMismatch { name, expected: expected.clone(), found: shape });
        }
        insert(&mut found.by_slot, slot, tensor, &mut problems);
    }
    let naming = VisionNaming::detect(&config.encoder, format, tensors);
    let missing = expected.iter().filter(|(slot, _)| !found.by_slot.contains_key(slot));
    let missing = missing.map(|(slot, shape)| {
        let name = naming.name(*slot).unwrap_or_else(|| format!("{slot:?}"));
        Problem::Missing { name, expected: shape.clone() }
    });
    let missing_bounds = expected_bounds.iter().filter(|slot| !found.bounds.contains_key(slot));
    let missing_bounds = missing_bounds.map(|slot| {
        let name = naming.bound_name(*slot).unwrap_or_else(|| format!("{slot:?}"));
        Problem::Missing { name, expected: scalar(format) }
    });
    let problems: Vec<Problem> = missing.chain(missing_bounds).chain(problems.iter().cloned()).collect();
    if !problems.is_empty() {
        return Err(Incomplete { family: family(config), problems });
    }
    // A convolution without overlap is a matrix product with patches as rows.
    if let Some(patches) = found.by_slot.get_mut(&Slot::vision(None, Role::PatchEmbed)) {
        patches.shape = vec![config.hidden.into(), config.patch_values().into()];
    }
    Ok(found)
}

/// In messages: not a complete … model.
fn family(config: &VisionConfig) -> &'static str {
    match config.encoder {
        EncoderKind::Siglip { .. } => "gemma3 vision",
        EncoderKind::Gemma4 { .. } | EncoderKind::Gemma4Unified { .. } => "gemma4 vision",
    }
}

fn insert<S: Ord>(map: &mut BTreeMap<S, Tensor>, slot: S, tensor: &Tensor, problems: &mut Vec<Problem>) {
    match map.get(&slot) {
        Some(first) => {
            problems.push(Problem::Duplicate { name: first.name.clone(), second: tensor.name.clone() });
        }
        None => {
            map.insert(slot, tensor.clone());
        }
    }
}

/// Every tensor with its shape, without those of bounds.
fn expected(config: &VisionConfig, format: Format) -> BTreeMap<Slot, Vec<u64>> {
    let (outside, layer) = match &config.encoder {
        EncoderKind::Siglip { transformer, .. } => siglip(config, transformer),
        EncoderKind::Gemma4 { positions, standardized, transformer, .. } => {
            gemma4(config, format, *positions, *standardized, transformer)
        }
        EncoderKind::Gemma4Unified { positions, .. } => (unified(config, format, *positions), vec![]),
    };
    let layers = (0..config.layers()).flat_map(|index| {
        layer.iter().map(move |(role, shape)| (Slot::vision(Some(index), *role), shape.clone()))
    });
    outside.into_iter().map(|(role, shape)| (Slot::vision(None, role), shape)).chain(layers).collect()
}

/// Roles with their shapes.
type Shapes = Vec<(Role, Vec<u64>)>;

/// The tensors outside of layers, and those of a layer.
fn siglip(config: &VisionConfig, transformer: &Transformer) -> (Shapes, Shapes) {
    let [hidden, intermediate, text] =
        [config.hidden, transformer.intermediate, config.text_hidden].map(u64::from);
    let outside = vec![
        (Role::PatchEmbed, convolution(config)),
        (Role::PatchEmbedBias, vec![hidden]),
        (Role::PositionEmbed, vec![config.max_patches().into(), hidden]),
        (Role::FinalNorm, vec![hidden]),
        (Role::FinalNormBias, vec![hidden]),
        (Role::SoftTokenNorm, vec![hidden]),
        (Role::Projection, vec![hidden, text]),
    ];
    let layer = vec![
        (Role::AttentionNorm, vec![hidden]),
        (Role::AttentionNormBias, vec![hidden]),
        (Role::Query, vec![hidden, hidden]),
        (Role::QueryBias, vec![hidden]),
        (Role::Key, vec![hidden, hidden]),
        (Role::KeyBias, vec![hidden]),
        (Role::Value, vec![hidden, hidden]),
        (Role::ValueBias, vec![hidden]),
        (Role::Output, vec![hidden, hidden]),
        (Role::OutputBias, vec![hidden]),
        (Role::FeedForwardNorm, vec![hidden]),
        (Role::FeedForwardNormBias, vec![hidden]),
        (Role::Up, vec![intermediate, hidden]),
        (Role::UpBias, vec![intermediate]),
        (Role::Down, vec![hidden, intermediate]),
        (Role::DownBias, vec![hidden]),
    ];
    (outside, layer)
}

/// The same for the encoder of Gemma 4 E2B, E4B, 26B and 31B.
fn gemma4(
    config: &VisionConfig,
    format: Format,
    positions: u32,
    standardized: bool,
    transformer: &Transformer,
) -> (Shapes, Shapes) {
    let [hidden, intermediate, text, positions] =
        [config.hidden, transformer.intermediate, config.text_hidden, positions].map(u64::from);
    let [attention, head] = [transformer.attention_width(), transformer.head_dim].map(u64::from);
    let patches = match format {
        Format::Gguf => convolution(config),
        _ => vec![hidden, config.patch_values().into()],
    };
    let mut outside = vec![
        (Role::PatchEmbed, patches),
        (Role::PositionEmbed, vec![2, positions, hidden]),
        (Role::Projection, vec![text, hidden]),
    ];
    if standardized {
        outside.extend([(Role::StandardizeBias, vec![hidden]), (Role::StandardizeScale, vec![hidden])]);
    }
    let layer = vec![
        (Role::AttentionNorm, vec![hidden]),
        (Role::Query, vec![attention, hidden]),
        (Role::Key, vec![attention, hidden]),
        (Role::Value, vec![attention, hidden]),
        (Role::QueryNorm, vec![head]),
        (Role::KeyNorm, vec![head]),
        (Role::Output, vec![hidden, attention]),
        (Role::PostAttentionNorm, vec![hidden]),
        (Role::FeedForwardNorm, vec![hidden]),
        (Role::Gate, vec![intermediate, hidden]),
        (Role::Up, vec![intermediate, hidden]),
        (Role::Down, vec![hidden, intermediate]),
        (Role::PostFeedForwardNorm, vec![hidden]),
    ];
    (outside, layer)
}

/// The tensors of the 12B's.
fn unified(config: &VisionConfig, format: Format, positions: u32) -> Shapes {
    let [hidden, text, values, positions] =
        [config.hidden, config.text_hidden, config.patch_values(), positions].map(u64::from);
    let tables = match format {
        Format::Gguf => vec![2, positions, hidden],
        _ => vec![positions, 2, hidden],
    };
    vec![
        (Role::PatchNorm, vec![values]),
        (Role::PatchNormBias, vec![values]),
        (Role::PatchEmbed, vec![hidden, values]),
        (Role::PatchEmbedBias, vec![hidden]),
        (Role::PatchEmbedNorm, vec![hidden]),
        (Role::PatchEmbedNormBias, vec![hidden]),
        (Role::PositionEmbed, tables),
        (Role::PositionNorm, vec![hidden]),
        (Role::PositionNormBias, vec![hidden]),
        (Role::Projection, vec![text, hidden]),
    ]
}

/// The shape of a patch embedding that is stored as a convolution.
fn convolution(config: &VisionConfig) -> Vec<u64> {
    [config.hidden, CHANNELS, config.patch_size, config.patch_size].map(u64::from).to_vec()
}

/// The bounds of all matrices, if the encoder has them.
fn expected_bounds(config: &VisionConfig) -> BTreeSet<BoundSlot> {
    let EncoderKind::Gemma4 { clipped: true, .. } = config.encoder else { return BTreeSet::new() };
    let matrices = (0..config.layers()).flat_map(|layer| CLIPPED.map(|matrix| (layer, matrix)));
    let bounds = |(layer, matrix)| Bound::ALL.map(|bound| BoundSlot { layer, matrix, bound });
    matrices.flat_map(bounds).collect()
}

/// The shape that files of a format have for one value.
fn scalar(format: Format) -> Vec<u64> {
    if format == Format::Gguf { vec![1] } else { vec![] }
}

/// The layers of a GGUF file in which `ffn_up` and `ffn_down` have each other's names, as the first converters of
/// llama.cpp wrote them for SigLIP. Only the shapes tell.
fn swapped_layers(config: &VisionConfig, format: Format, tensors: &[Tensor]) -> BTreeSet<u32> {
    let EncoderKind::Siglip { transformer, .. } = &config.encoder else { return BTreeSet::new() };
    let [hidden, intermediate] = [config.hidden, transformer.intermediate].map(u64::from);
    if format != Format::Gguf || hidden == intermediate {
        return BTreeSet::new();
    }
    let layers_with = |role: Role, shape: [u64; 2]| -> BTreeSet<u32> {
        let found = tensors.iter().filter(|tensor| tensor.shape == shape);
        let slots = found.filter_map(|tensor| VisionNaming::parse_siglip(&tensor.name));
        slots.filter(|slot| slot.role == role).filter_map(|slot| slot.layer).collect()
    };
    let (up, down) =
        (layers_with(Role::Up, [hidden, intermediate]), layers_with(Role::Down, [intermediate, hidden]));
    up.intersection(&down).copied().collect()
}

/// The role under which a swapped file has a tensor of the feed-forward block.
fn other_projection(role: Role) -> Role {
    match role {
        Role::Up => Role::Down,
        Role::Down => Role::Up,
        Role::UpBias => Role::DownBias,
        Role::DownBias => Role::UpBias,
        other => other,
    }
}
