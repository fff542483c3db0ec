//! Checks that a source holds a complete model: every tensor that the config requires, exactly once, with the
//! right shape, and no unknown tensors. All problems are reported at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    architecture::Architecture,
    config::Config,
    incomplete::{Incomplete, Problem},
    layer::{FeedForward, LayerSpec, Mixer, Values},
    names::{Naming, Stacked},
    slot::{Role, Slot, Tower},
    source::{Format, Source, Span, Tensor},
};

/// Extra embedding rows that are allowed beyond the vocabulary: Hugging Face files of the multimodal Gemma 3
/// sizes have 262208 rows for 262144 tokens. No token uses them.
const SPARE_ROWS: u64 = 64;

/// Old Llama files contain these tensors in each layer; transformers recomputes them.
const RECOMPUTED_SUFFIX: &str = ".self_attn.rotary_emb.inv_freq";

/// The tensors of a complete model, by slot.
#[derive(Clone, Debug)]
pub struct Inventory {
    tensors: BTreeMap<Slot, Tensor>,
    own_head: bool,
    /// Tensors of the encoders of images and sound and of their projectors; see
    /// [`Checkpoint::vision`](crate::Checkpoint::vision).
    pub images: Vec<Tensor>,
}

impl Inventory {
    /// A tensor by its slot.
    pub fn slot(&self, slot: Slot) -> Option<&Tensor> {
        self.tensors.get(&slot)
    }

    /// A tensor of the text tower; `None` if the family has no such tensor.
    pub fn get(&self, layer: Option<u32>, role: Role) -> Option<&Tensor> {
        self.tensors.get(&Slot::text(layer, role))
    }

    /// The output projection: the head, or the embeddings if tied.
    pub fn head(&self) -> Option<&Tensor> {
        self.get(None, if self.own_head { Role::Head } else { Role::Embed })
    }

    /// Removes a tensor.
    pub(crate) fn take(&mut self, layer: Option<u32>, role: Role) -> Option<Tensor> {
        self.tensors.remove(&Slot::text(layer, role))
    }

    /// All tensors of the text tower: those outside of layers first, then layer by layer.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Tensor)> {
        self.tensors.iter().map(|(slot, tensor)| (*slot, tensor))
    }
}

/// Checks the tensors of a source against a config.
pub fn check(config: &Config, source: &Source) -> Result<Inventory, Incomplete> {
    let architecture = config.architecture;
    let expected = expected(config);
    let mut tensors: BTreeMap<Slot, Tensor> = BTreeMap::new();
    let mut images = Vec::new();
    let mut problems = Vec::new();
    for tensor in source.tensors.iter().filter(|tensor| !tensor.name.ends_with(RECOMPUTED_SUFFIX)) {
        let (name, found) = (tensor.name.clone(), tensor.shape.clone());
        if let Some(stacked) = Stacked::parse(&tensor.name).filter(|_| tensor.scales.is_none()) {
            match slices(config, &expected, &stacked, tensor) {
                Ok(slices) => {
                    for (slot, slice) in slices {
                        if let Some(first) = tensors.insert(slot, slice) {
                            let problem = Problem::Duplicate { name: first.name, second: name.clone() };
                            problems.extend((!problems.contains(&problem)).then_some(problem));
                        }
                    }
                }
                Err(problem) => problems.push(problem),
            }
            continue;
        }
        let Some(slot) = Slot::parse(architecture, &tensor.name) else {
            problems.push(Problem::Unknown { name, found });
            continue;
        };
        if slot.tower != Tower::Text {
            images.push(tensor.clone());
            continue;
        }
        if is_unused(config, slot) {
            continue;
        }
        let Some(shape) = expected.get(&slot) else {
            let beyond = slot.layer.is_some_and(|layer| layer >= config.layers);
            problems.push(match beyond {
                true => Problem::BeyondLastLayer { name, layers: config.layers },
                false => Problem::Unknown { name, found },
            });
            continue;
        };
        if !shape_matches(source.format, slot.role, shape, &found) {
            problems.push(Problem::ShapeMismatch { name: name.clone(), expected: shape.clone(), found });
        }
        if let Some(first) = tensors.get(&slot) {
            problems.push(Problem::Duplicate { name: first.name.clone(), second: name });
            continue;
        }
        tensors.insert(slot, tensor.clone());
    }
    let naming = naming(architecture, source);
    let optional = |slot: &Slot| match slot.role {
        Role::Head => config.tie_embeddings,
        // llama.cpp takes an absent scale for 1.
        Role::RopeFreqs | Role::LayerScale => true,
        _ => false,
    };
    let missing = expected.iter().filter(|(slot, _)| !tensors.contains_key(slot) && !optional(slot));
    // A layer whose stacked tensors have a problem is not reported again for lack of their experts.
    let stacked_layer = |name: &str| Stacked::parse(name).map(|stacked| stacked.layer);
    let reported: BTreeSet<u32> =
        problems.iter().filter_map(|problem| stacked_layer(problem.name())).collect();
    let missing = missing.filter(|(slot, _)| {
        slot.expert.is_none() || slot.layer.is_none_or(|layer| !reported.contains(&layer))
    });
    let mut names = BTreeSet::new();
    let missing = missing.filter_map(|(slot, shape)| {
        let name = slot.name(architecture, naming).unwrap_or_else(|| format!("{slot:?}"));
        let stacked = Stacked::parse(&name).zip(config.experts);
        let expected = stacked.map_or(shape.clone(), |(stacked, experts)| {
            stacked_shape(experts.count, stacked.roles.len(), shape)
        });
        // A stacked tensor once, not once per expert.
        names.insert(name.clone()).then_some(Problem::Missing { name, expected })
    });
    let problems: Vec<Problem> = missing.chain(problems.iter().cloned()).collect();
    if !problems.is_empty() {
        return Err(Incomplete { family: architecture.name(), problems });
    }
    // A head in a GGUF or native file is used. In Hugging Face folders with tied embeddings it is ignored, as
    // transformers does.
    let head = Slot::text(None, Role::Head);
    let use_head = !config.tie_embeddings || matches!(source.format, Format::Gguf | Format::Native);
    if !use_head {
        tensors.remove(&head);
    }
    let own_head = tensors.contains_key(&head);
    Ok(Inventory { tensors, own_head, images })
}

/// Published checkpoints have the keys and values of layers that attend to those of others.
fn is_unused(config: &Config, slot: Slot) -> bool {
    let shares = |layer: u32| layer < config.layers && config.shares_kv_with(layer).is_some();
    matches!(slot.role, Role::Key | Role::Value | Role::KeyNorm) && slot.layer.is_some_and(shares)
}

/// The tensors of the experts in a stacked one.
fn slices(
    config: &Config,
    expected: &BTreeMap<Slot, Vec<u64>>,
    stacked: &Stacked,
    tensor: &Tensor,
) -> Result<Vec<(Slot, Tensor)>, Problem> {
    let Stacked { layer, roles } = *stacked;
    let (name, found) = (tensor.name.clone(), tensor.shape.clone());
    let (Some(experts), Some(shape)) = (config.experts, expected.get(&Slot::expert(layer, 0, roles[0])))
    else {
        return Err(match config.experts {
            Some(_) if layer >= config.layers => Problem::BeyondLastLayer { name, layers: config.layers },
            _ => Problem::Unknown { name, found },
        });
    };
    let whole = stacked_shape(experts.count, roles.len(), shape);
    // Rows are whole blocks of the encoding: the reader has checked it.
    let Some(len) = tensor.encoding.bytes(shape).filter(|_| found == whole) else {
        return Err(Problem::ShapeMismatch { name, expected: whole, found });
    };
    let slice = |index: usize, expert: u32, role: Role| {
        let data = Span { offset: tensor.data.offset + index as u64 * len, len, ..tensor.data };
        let name = format!("{}, {role:?} of expert {expert}", tensor.name);
        (Slot::expert(layer, expert, role), Tensor { name, shape: shape.clone(), data, ..tensor.clone() })
    };
    let all = (0..experts.count).flat_map(|expert| roles.iter().map(move |role| (expert, *role)));
    Ok(all.enumerate().map(|(index, (expert, role))| slice(index, expert, role)).collect())
}

/// The shape of a tensor with `count` experts of this shape, each with `roles` projections.
fn stacked_shape(count: u32, roles: usize, shape: &[u64]) -> Vec<u64> {
    vec![count.into(), roles as u64 * shape[0], shape[1]]
}

/// Every tensor of the text tower with its shape.
fn expected(config: &Config) -> BTreeMap<Slot, Vec<u64>> {
    let [hidden, vocab] = [config.hidden, config.vocab].map(u64::from);
    let mut model = vec![
        (Role::Embed, vec![vocab, hidden]),
        (Role::FinalNorm, vec![hidden]),
        (Role::Head, vec![vocab, hidden]),
    ];
    // Gemma 3 has none.
    if !config.architecture.family().sliding_window || config.global_attention.is_some() {
        model.push((Role::RopeFreqs, vec![config.rope_pair_count().into()]));
    }
    if let Some(width) = config.per_layer_width {
        let all = u64::from(config.layers) * u64::from(width);
        model.extend([
            (Role::PerLayerEmbed, vec![vocab, all]),
            (Role::PerLayerProjection, vec![all, hidden]),
            (Role::PerLayerProjectionNorm, vec![width.into()]),
        ]);
    }
    let model = model.into_iter().map(|(role, shape)| (Slot::text(None, role), shape));
    let layers = (0..).zip(config.layer_specs()).flat_map(|(index, spec)| {
        let tensors = layer_tensors(config, &spec).into_iter();
        let tensors = tensors.map(move |(role, shape)| (Slot::text(Some(index), role), shape));
        tensors.chain(expert_tensors(hidden, index, &spec))
    });
    model.chain(layers).collect()
}

/// The tensors of one layer's experts with their shapes.
fn expert_tensors(hidden: u64, layer: u32, spec: &LayerSpec) -> Vec<(Slot, Vec<u64>)> {
    let Some(experts) = spec.feed_forward.experts() else { return vec![] };
    let intermediate = u64::from(experts.intermediate);
    let shapes = [
        (Role::Gate, [intermediate, hidden]),
        (Role::Up, [intermediate, hidden]),
        (Role::Down, [hidden, intermediate]),
    ];
    let slots = |expert| shapes.map(|(role, shape)| (Slot::expert(layer, expert, role), shape.to_vec()));
    (0..experts.count).flat_map(slots).collect()
}

/// The tensors of one layer with their shapes.
fn layer_tensors(config: &Config, spec: &LayerSpec) -> Vec<(Role, Vec<u64>)> {
    let hidden = u64::from(config.hidden);
    let mut tensors = vec![(Role::AttentionNorm, vec![hidden]), (Role::FeedForwardNorm, vec![hidden])];
    if config.architecture.family().post_norms {
        tensors.extend([(Role::PostAttentionNorm, vec![hidden]), (Role::PostFeedForwardNorm, vec![hidden])]);
    }
    match spec.mixer {
        Mixer::Attention(attention) => {
            let [query, kv] = [attention.query_rows(), attention.kv_rows()].map(u64::from);
            let head = u64::from(attention.head_dim);
            tensors.extend([(Role::Query, vec![query, hidden]), (Role::Output, vec![hidden, query])]);
            if attention.head_norms {
                tensors.push((Role::QueryNorm, vec![head]));
            }
            if attention.shares_kv_with.is_none() {
                tensors.push((Role::Key, vec![kv, hidden]));
                if attention.values == Values::Projected {
                    tensors.push((Role::Value, vec![kv, hidden]));
                }
                if attention.head_norms {
                    tensors.push((Role::KeyNorm, vec![head]));
                }
            }
            if attention.qkv_bias {
                tensors.extend([
                    (Role::QueryBias, vec![query]),
                    (Role::KeyBias, vec![kv]),
                    (Role::ValueBias, vec![kv]),
                ]);
            }
        }
    }
    if let Some(dense) = spec.feed_forward.dense() {
        let intermediate = u64::from(dense.intermediate);
        tensors.extend([
            (Role::Gate, vec![intermediate, hidden]),
            (Role::Up, vec![intermediate, hidden]),
            (Role::Down, vec![hidden, intermediate]),
        ]);
    }
    if let Some(experts) = spec.feed_forward.experts() {
        tensors.push((Role::Router, vec![experts.count.into(), hidden]));
        if experts.scaled {
            tensors.push((Role::ExpertScales, vec![experts.count.into()]));
        }
    }
    if let FeedForward::DenseAndExperts(..) = spec.feed_forward {
        let norms = [Role::RouterScale, Role::ExpertNorm, Role::PostDenseNorm, Role::PostExpertsNorm];
        tensors.extend(norms.map(|role| (role, vec![hidden])));
    }
    if let Some(width) = spec.per_layer_width {
        tensors.extend([
            (Role::PerLayerGate, vec![width.into(), hidden]),
            (Role::PerLayerOutput, vec![hidden, width.into()]),
            (Role::PostPerLayerNorm, vec![hidden]),
        ]);
    }
    if spec.scaled {
        tensors.push((Role::LayerScale, vec![1]));
    }
    tensors
}

fn shape_matches(format: Format, role: Role, expected: &[u64], found: &[u64]) -> bool {
    let spare_rows = match (format, role) {
        // A native file keeps the rows of its source.
        (Format::HuggingFace | Format::Layerwise | Format::Native, Role::Embed | Role::Head) => SPARE_ROWS,
        _ => 0,
    };
    match (expected, found) {
        // Native files hold it as a vector: it is not quantised.
        ([experts, hidden], [values]) if (format, role) == (Format::Native, Role::Router) => {
            values == &(experts * hidden)
        }
        ([expected, inner], [rows, width]) => {
            width == inner && (*expected..=expected + spare_rows).contains(rows)
        }
        _ => expected == found,
    }
}

/// The naming of a source, judged by its first tensor in a layer.
fn naming(architecture: Architecture, source: &Source) -> Naming {
    let layered = source
        .tensors
        .iter()
        .filter(|tensor| Slot::parse(architecture, &tensor.name).is_some_and(|slot| slot.layer.is_some()));
    let fallback = if source.format == Format::Gguf { Naming::Gguf } else { Naming::HfText };
    layered.filter_map(|tensor| Naming::detect(architecture, &tensor.name)).next().unwrap_or(fallback)
}
