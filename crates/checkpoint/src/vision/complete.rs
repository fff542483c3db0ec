//! Checks that a source holds a complete image encoder, as [`complete`](crate::complete) does for language models.

use std::collections::{BTreeMap, BTreeSet};

use super::{VisionConfig, VisionNaming, config::CHANNELS};
use crate::{
    architecture::Architecture,
    incomplete::{Incomplete, Problem},
    slot::{Role, Slot, Tower},
    source::{Format, Source, Tensor},
};

/// In messages: not a complete … model.
const FAMILY: &str = "gemma3 vision";

/// The tensors of an image encoder and its projector, by slot. Those of the language model are left out, and so is
/// SigLIP's pooling.
pub(super) fn check(config: &VisionConfig, source: &Source) -> Result<BTreeMap<Slot, Tensor>, Incomplete> {
    let expected = expected(config);
    let swapped = swapped_layers(config, source);
    let mut tensors: BTreeMap<Slot, Tensor> = BTreeMap::new();
    let mut problems = Vec::new();
    for tensor in &source.tensors {
        let (name, found) = (tensor.name.clone(), tensor.shape.clone());
        let Some(slot) = Slot::parse(Architecture::Gemma3, &name) else {
            problems.push(Problem::Unknown { name, found });
            continue;
        };
        if slot.tower == Tower::Text || slot.role == Role::Image {
            continue;
        }
        let slot = match slot.layer.is_some_and(|layer| swapped.contains(&layer)) {
            true => Slot { role: other_projection(slot.role), ..slot },
            false => slot,
        };
        let Some(shape) = expected.get(&slot) else {
            problems.push(Problem::BeyondLastLayer { name, layers: config.layers });
            continue;
        };
        if *shape != found {
            problems.push(Problem::ShapeMismatch { name: name.clone(), expected: shape.clone(), found });
        }
        if let Some(first) = tensors.get(&slot) {
            problems.push(Problem::Duplicate { name: first.name.clone(), second: name });
            continue;
        }
        tensors.insert(slot, tensor.clone());
    }
    let naming = VisionNaming::detect(source);
    let missing = expected.iter().filter(|(slot, _)| !tensors.contains_key(slot));
    let missing = missing.map(|(slot, shape)| {
        let name = naming.name(*slot).unwrap_or_else(|| format!("{slot:?}"));
        Problem::Missing { name, expected: shape.clone() }
    });
    let problems: Vec<Problem> = missing.chain(problems.iter().cloned()).collect();
    if !problems.is_empty() {
        return Err(Incomplete { family: FAMILY, problems });
    }
    // A convolution without overlap is a matrix product with patches as rows.
    if let Some(patches) = tensors.get_mut(&Slot::vision(None, Role::PatchEmbed)) {
        patches.shape = vec![config.hidden.into(), config.patch_values().into()];
    }
    Ok(tensors)
}

/// Every tensor with its shape.
fn expected(config: &VisionConfig) -> BTreeMap<Slot, Vec<u64>> {
    let [hidden, intermediate, text] =
        [config.hidden, config.intermediate, config.text_hidden].map(u64::from);
    let [channels, side, patches] = [CHANNELS, config.patch_size, config.patches()].map(u64::from);
    let outside = [
        (Role::PatchEmbed, vec![hidden, channels, side, side]),
        (Role::PatchEmbedBias, vec![hidden]),
        (Role::PositionEmbed, vec![patches, hidden]),
        (Role::FinalNorm, vec![hidden]),
        (Role::FinalNormBias, vec![hidden]),
        (Role::SoftTokenNorm, vec![hidden]),
        (Role::Projection, vec![hidden, text]),
    ];
    let layer = [
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
    let layers = (0..config.layers).flat_map(|index| {
        layer.iter().map(move |(role, shape)| (Slot::vision(Some(index), *role), shape.clone()))
    });
    outside.into_iter().map(|(role, shape)| (Slot::vision(None, role), shape)).chain(layers).collect()
}

/// The layers of a GGUF file in which `ffn_up` and `ffn_down` have each other's names, as the first converters of
/// llama.cpp wrote them. Only the shapes tell.
fn swapped_layers(config: &VisionConfig, source: &Source) -> BTreeSet<u32> {
    let [hidden, intermediate] = [config.hidden, config.intermediate].map(u64::from);
    if source.format != Format::Gguf || hidden == intermediate {
        return BTreeSet::new();
    }
    let layers_with = |role: Role, shape: [u64; 2]| -> BTreeSet<u32> {
        let found = source.tensors.iter().filter(|tensor| tensor.shape == shape);
        let slots = found.filter_map(|tensor| VisionNaming::parse(&tensor.name));
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
