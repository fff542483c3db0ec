//! The GPU matrices of a checkpoint, known before any memory is allocated: `inspect` reports them,
//! [`plan`](crate::plan) places them and [`load`](crate::load) fills them.
//!
//! The rows of query, key and value follow each other in one matrix, and strips of gate and up alternate in
//! one, so that one kernel computes all of them. Where a file stores them in different schemes they remain
//! separate matrices. The experts of a layer follow each other in one matrix.

use checkpoint::{
    Attention, AttentionSpan, Checkpoint, Config, Experts, Mixer, Role, Slot, Source, Tensor, Values,
};
use kernels::transcode::StripMap;
use tensor::{Encoding, KvScheme, Layout, STRIP, Scheme};

use crate::{
    error::{Error, Result},
    plan::{Demand, KvLayerDemand, WeightDemand},
};

/// All matrices of a model.
#[derive(Clone, Debug)]
pub struct Blueprint<'a> {
    /// In the order of the forward pass, the embeddings first.
    pub matrices: Vec<MatrixSpec<'a>>,
    /// Bytes of norms and other vectors, as f32.
    pub vector_bytes: u64,
}

/// One matrix on the GPU.
#[derive(Clone, Debug)]
pub struct MatrixSpec<'a> {
    /// Identifies the matrix.
    pub id: MatrixId,
    /// Shape and scheme.
    pub layout: Layout,
    /// The tensors it is made of, and the strips that each one fills.
    pub tensors: Vec<(&'a Tensor, StripMap)>,
    /// The experts that it holds, if it does: a token reads only some of them.
    pub experts: Option<Experts>,
}

/// Memory to reserve beside the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Tokens per sequence.
    pub context_length: u64,
    /// Concurrent sequences.
    pub max_sequences: u64,
    /// How keys and values are stored.
    pub kv_scheme: KvScheme,
    /// Tokens per sequence that sliding-window layers keep.
    pub sliding_tokens: u64,
    /// Bytes of activations, logits and tables.
    pub scratch_bytes: u64,
}

impl Reservation {
    /// Nothing beside the weights.
    pub const WEIGHTS_ONLY: Reservation = Reservation {
        context_length: 1,
        max_sequences: 1,
        kv_scheme: KvScheme::F16,
        sliding_tokens: 1,
        scratch_bytes: 0,
    };
}

/// Identifies a matrix. The number is the index of its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixId {
    /// Token embeddings.
    Embedding,
    /// Per-layer embeddings of tokens, all layers side by side.
    PerLayerEmbedding,
    /// Projection from the embeddings to the per-layer inputs of all layers.
    PerLayerProjection,
    /// The output projection, if it is not the embedding matrix.
    Head,
    /// Query, key and value projections, or one of them.
    Qkv(u32),
    /// Output projection of attention.
    AttentionOutput(u32),
    /// Gate and up projections, or one of them.
    GateUp(u32),
    /// Down projection.
    Down(u32),
    /// Gate and up projections of all experts.
    ExpertGateUp(u32),
    /// Down projections of all experts.
    ExpertDown(u32),
    /// Projection from the residual stream to the gate of the per-layer input.
    PerLayerGate(u32),
    /// Projection from the gated per-layer input to the residual stream.
    PerLayerOutput(u32),
}

impl std::fmt::Display for MatrixId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MatrixId::Embedding => f.write_str("embeddings"),
            MatrixId::PerLayerEmbedding => f.write_str("per-layer embeddings"),
            MatrixId::PerLayerProjection => f.write_str("per-layer projection"),
            MatrixId::Head => f.write_str("head"),
            MatrixId::Qkv(layer) => write!(f, "layer {layer} QKV"),
            MatrixId::AttentionOutput(layer) => write!(f, "layer {layer} output"),
            MatrixId::GateUp(layer) => write!(f, "layer {layer} gate and up"),
            MatrixId::Down(layer) => write!(f, "layer {layer} down"),
            MatrixId::ExpertGateUp(layer) => write!(f, "layer {layer} gate and up of experts"),
            MatrixId::ExpertDown(layer) => write!(f, "layer {layer} down of experts"),
            MatrixId::PerLayerGate(layer) => write!(f, "layer {layer} per-layer gate"),
            MatrixId::PerLayerOutput(layer) => write!(f, "layer {layer} per-layer output"),
        }
    }
}

impl<'a> Blueprint<'a> {
    /// The matrices of a checkpoint.
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Self> {
        let mut matrices = Vec::new();
        let embedding = checkpoint.tensor(None, Role::Embed)?;
        add(&mut matrices, checkpoint, MatrixId::Embedding, StripOrder::Sequential, &[embedding])?;
        if checkpoint.config.per_layer_width.is_some() {
            for (id, role) in [
                (MatrixId::PerLayerEmbedding, Role::PerLayerEmbed),
                (MatrixId::PerLayerProjection, Role::PerLayerProjection),
            ] {
                let tensor = checkpoint.tensor(None, role)?;
                add(&mut matrices, checkpoint, id, StripOrder::Sequential, &[tensor])?;
            }
        }
        for (index, spec) in (0..).zip(checkpoint.config.layer_specs()) {
            let tensor = |role| checkpoint.tensor(Some(index), role);
            let mut add =
                |id, order, tensors: &[&'a Tensor]| add(&mut matrices, checkpoint, id, order, tensors);
            match spec.mixer {
                Mixer::Attention(attention) => {
                    let mut qkv = vec![tensor(Role::Query)?];
                    if attention.shares_kv_with.is_none() {
                        qkv.push(tensor(Role::Key)?);
                        if attention.values == Values::Projected {
                            qkv.push(tensor(Role::Value)?);
                        }
                    }
                    add(MatrixId::Qkv(index), StripOrder::Sequential, &qkv)?;
                    let output = tensor(Role::Output)?;
                    add(MatrixId::AttentionOutput(index), StripOrder::Sequential, &[output])?;
                }
            }
            if spec.feed_forward.dense().is_some() {
                let gate_up = [tensor(Role::Gate)?, tensor(Role::Up)?];
                add(MatrixId::GateUp(index), StripOrder::Alternating, &gate_up)?;
                add(MatrixId::Down(index), StripOrder::Sequential, &[tensor(Role::Down)?])?;
            }
            if spec.per_layer_width.is_some() {
                add(MatrixId::PerLayerGate(index), StripOrder::Sequential, &[tensor(Role::PerLayerGate)?])?;
                add(
                    MatrixId::PerLayerOutput(index),
                    StripOrder::Sequential,
                    &[tensor(Role::PerLayerOutput)?],
                )?;
            }
            if let Some(experts) = spec.feed_forward.experts() {
                experts_of_layer(&mut matrices, checkpoint, index, experts)?;
            }
        }
        if let Some(head) = checkpoint.inventory.head().filter(|head| head.name != embedding.name) {
            add(&mut matrices, checkpoint, MatrixId::Head, StripOrder::Sequential, &[head])?;
        }
        let vectors = checkpoint.inventory.iter().filter(|(slot, tensor)| is_vector(*slot, tensor));
        let vector_bytes = vectors.map(|(_, tensor)| tensor.values().unwrap_or(0) * 4).sum();
        Ok(Self { matrices, vector_bytes })
    }

    /// Bytes of all matrices and vectors on the GPU.
    pub fn bytes(&self) -> u64 {
        self.matrices.iter().map(MatrixSpec::bytes).sum::<u64>() + self.vector_bytes
    }

    /// Bytes that are read from files to fill the matrices.
    pub fn file_bytes(&self) -> u64 {
        // The stream counts the scale plane of tiles like the tiles themselves, but not the scale tensors of
        // other encodings, which are read along with their values.
        let bytes = |tensor: &Tensor| match tensor.encoding {
            Encoding::Tiled(_) => tensor.file_bytes(),
            _ => tensor.data.len,
        };
        self.matrices.iter().flat_map(|matrix| &matrix.tensors).map(|(tensor, _)| bytes(tensor)).sum()
    }

    /// The memory that the model needs. Weight i is matrix i; the vectors come last.
    pub fn demand(&self, config: &Config, reservation: &Reservation) -> Demand {
        let has_head = self.matrices.iter().any(|matrix| matrix.id == MatrixId::Head);
        let weights_in = |scheme: Option<Scheme>| -> Vec<WeightDemand> {
            let vectors = WeightDemand {
                name: "norms".into(),
                bytes: self.vector_bytes,
                bytes_per_token: self.vector_bytes,
                split_unit: 0,
                in_host_memory: false,
            };
            let matrix =
                |matrix: &MatrixSpec<'_>| matrix.demand(scheme.unwrap_or(matrix.layout.scheme), has_head);
            self.matrices.iter().map(matrix).chain([vectors]).collect()
        };
        let total = |weights: &[WeightDemand]| weights.iter().map(|weight| weight.bytes).sum::<u64>();
        let weights = weights_in(None);
        let smaller = [Scheme::Int8, Scheme::Int4].map(|scheme| (scheme, weights_in(Some(scheme))));
        let smaller = smaller.into_iter().filter(|(_, smaller)| total(smaller) < total(&weights)).collect();
        Demand {
            weights,
            kv_layers: kv_layers(config, reservation),
            context_length: reservation.context_length,
            max_sequences: reservation.max_sequences,
            scratch_bytes: reservation.scratch_bytes,
            smaller,
        }
    }
}

/// The KV cache demand of each layer that has keys and values of its own.
pub fn kv_layers(config: &Config, reservation: &Reservation) -> Vec<KvLayerDemand> {
    let attention = |attention: Attention| KvLayerDemand {
        bytes_per_token: 2
            * u64::from(attention.kv_heads)
            * reservation.kv_scheme.head_bytes(attention.head_dim),
        max_tokens: match attention.span {
            AttentionSpan::Full => None,
            AttentionSpan::Sliding { .. } => Some(reservation.sliding_tokens),
        },
    };
    let own = config.attentions().filter(|attention| attention.shares_kv_with.is_none());
    own.map(attention).collect()
}

impl MatrixSpec<'_> {
    /// Bytes of values and scales.
    pub fn bytes(&self) -> u64 {
        (self.layout.value_bytes() + self.layout.scale_bytes()) as u64
    }

    fn demand(&self, scheme: Scheme, has_head: bool) -> WeightDemand {
        // A matrix whose shape does not allow the scheme keeps its own.
        let layout = Layout::new(scheme, self.layout.rows, self.layout.k).unwrap_or(self.layout);
        let bytes = (layout.value_bytes() + layout.scale_bytes()) as u64;
        // Products over experts need all of them in one allocation.
        let split_unit = match self.experts {
            None => (layout.strip_value_bytes() + layout.strip_scale_bytes()) as u64,
            Some(_) => 0,
        };
        // A token reads one row of the embeddings, unless they are also the output projection.
        let in_host_memory = self.id == MatrixId::PerLayerEmbedding;
        let one_row = self.id == MatrixId::Embedding && has_head || in_host_memory;
        let bytes_per_token = match self.experts {
            _ if one_row => bytes / layout.rows as u64,
            Some(experts) => bytes / u64::from(experts.count) * u64::from(experts.per_token),
            None => bytes,
        };
        WeightDemand { name: self.id.to_string(), bytes, bytes_per_token, split_unit, in_host_memory }
    }
}

/// How the strips of several tensors are ordered in one matrix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StripOrder {
    /// All strips of the first tensor, then those of the second, …
    Sequential,
    /// One strip of each tensor in turn.
    Alternating,
}

fn add<'a>(
    matrices: &mut Vec<MatrixSpec<'a>>,
    checkpoint: &Checkpoint,
    id: MatrixId,
    order: StripOrder,
    tensors: &[&'a Tensor],
) -> Result<()> {
    let joined = join(&checkpoint.source, order, tensors)?.into_iter();
    matrices.extend(joined.map(|Joined { layout, tensors }| MatrixSpec {
        id,
        layout,
        tensors,
        experts: None,
    }));
    Ok(())
}

/// A matrix made of whole tensors, and the strips that each one fills.
pub(crate) struct Joined<'a> {
    pub layout: Layout,
    pub tensors: Vec<(&'a Tensor, StripMap)>,
}

/// One matrix for all tensors if they share a scheme and K and consist of whole strips; else one matrix per tensor.
pub(crate) fn join<'a>(
    source: &Source,
    order: StripOrder,
    tensors: &[&'a Tensor],
) -> Result<Vec<Joined<'a>>> {
    let strips: Vec<usize> = tensors.iter().map(|tensor| tensor.shape[0] as usize / STRIP).collect();
    if tensors.len() > 1 && !can_join(tensors, order) {
        let each = tensors.iter().map(|tensor| join(source, order, &[tensor]));
        return Ok(each.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect());
    }
    let first = tensors[0];
    let rows: u64 = tensors.iter().map(|tensor| tensor.shape[0]).sum();
    let layout = Layout::new(first.encoding.scheme(), rows as usize, first.shape[1] as usize);
    let layout = layout.ok_or_else(|| {
        let path = &source.files[first.data.file];
        let reason =
            format!("shape {:?}: rows must divide into quantisation groups of 32 values", first.shape);
        Error::tensor(path, &first.name, reason)
    })?;
    let mut first_strip = 0;
    let mut placed = Vec::new();
    for (tensor, count) in tensors.iter().zip(&strips) {
        let (step, taken) = match order {
            StripOrder::Sequential => (1, *count),
            StripOrder::Alternating => (tensors.len(), 1),
        };
        placed.push((*tensor, StripMap { first_strip, step }));
        first_strip += taken;
    }
    Ok(vec![Joined { layout, tensors: placed }])
}

/// Whether a tensor is uploaded as f32 instead of becoming a matrix: norms, biases, and routers, which would select other
/// experts if they were quantised.
pub(crate) fn is_vector(slot: Slot, tensor: &Tensor) -> bool {
    tensor.shape.len() == 1 || slot.role == Role::Router
}

/// Adds the matrices of a layer's experts: strips of gate and up alternate within each expert.
fn experts_of_layer<'a>(
    matrices: &mut Vec<MatrixSpec<'a>>,
    checkpoint: &'a Checkpoint,
    layer: u32,
    experts: Experts,
) -> Result<()> {
    let mut add = |id, roles: &[Role]| -> Result<()> {
        let mut tensors = Vec::new();
        for expert in 0..experts.count {
            for role in roles {
                tensors.push(checkpoint.slot(Slot::expert(layer, expert, *role))?);
            }
        }
        let first: &Tensor = tensors[0];
        let wrong = |tensor: &Tensor, reason: String| {
            let path = &checkpoint.source.files[tensor.data.file];
            Err(Error::tensor(path, &tensor.name, reason))
        };
        let (scheme, rows, k) = (first.encoding.scheme(), first.shape[0] as usize, first.shape[1] as usize);
        if let Some(other) = tensors.iter().find(|tensor| tensor.encoding.scheme() != scheme) {
            let reason = format!(
                "is stored as {}, but '{}' as {scheme}: experts need one scheme",
                other.encoding.scheme(),
                first.name
            );
            return wrong(other, reason);
        }
        let layout = Layout::new(scheme, rows * tensors.len(), k).filter(|_| rows.is_multiple_of(STRIP));
        let Some(layout) = layout else {
            let reason = format!(
                "shape {:?}: rows must divide into quantisation groups of 32 values, and come in multiples of {STRIP}",
                first.shape
            );
            return wrong(first, reason);
        };
        let strips = rows / STRIP;
        let placed = tensors.into_iter().enumerate().map(|(index, tensor)| {
            let (expert, role) = (index / roles.len(), index % roles.len());
            (tensor, StripMap { first_strip: expert * roles.len() * strips + role, step: roles.len() })
        });
        matrices.push(MatrixSpec { id, layout, tensors: placed.collect(), experts: Some(experts) });
        Ok(())
    };
    add(MatrixId::ExpertGateUp(layer), &[Role::Gate, Role::Up])?;
    add(MatrixId::ExpertDown(layer), &[Role::Down])
}

fn can_join(tensors: &[&Tensor], order: StripOrder) -> bool {
    let first = tensors[0];
    tensors.iter().all(|tensor| {
        tensor.encoding.scheme() == first.encoding.scheme()
            && tensor.shape[1] == first.shape[1]
            && tensor.shape[0].is_multiple_of(STRIP as u64)
            && (order == StripOrder::Sequential || tensor.shape[0] == first.shape[0])
    })
}
