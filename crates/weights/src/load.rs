//! Loading a checkpoint into GPU memory: buffers allocated as planned, matrices filled by
//! [`stream`], norms uploaded ready to multiply.

use std::collections::BTreeMap;

use checkpoint::{Checkpoint, FeedForward, Mixer, Role, Slot, Tensor};
use gpu::{Arena, Buffer, Device, Lifetime, Memory};
use kernels::Matrix;

use crate::{
    blueprint::{Blueprint, MatrixId, is_vector},
    error::Result,
    plan::{Content, Extent, Placement},
    stream::{self, Control, Destination, Options, Stats},
};

/// A model's weights in GPU memory.
pub struct Weights {
    /// Every matrix with its id, in the order of the blueprint.
    pub matrices: Vec<(MatrixId, Matrix)>,
    /// Norm weights, ready to multiply (Gemma's `1 + w` is applied), and factors of layers and experts, in f32.
    pub norms: BTreeMap<Slot, Buffer>,
    /// Per layer the biases of query, key and value, concatenated, in f32; empty for families without biases.
    pub qkv_biases: Vec<Buffer>,
    /// The router of each layer that has experts: f32, `[expert][hidden]`, multiplied by the weight of the norm before it.
    pub routers: BTreeMap<u32, Buffer>,
}

impl Weights {
    /// The matrices with this id: one, or several where a file stores the projections in different schemes.
    pub fn by_id(&self, id: MatrixId) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().filter(move |(known, _)| *known == id).map(|(_, matrix)| matrix)
    }

    /// Reads the matrices of the checkpoint that these weights were allocated for.
    pub fn fill(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
        options: &Options,
        control: &Control,
    ) -> Result<Stats> {
        let blueprint = Blueprint::new(checkpoint)?;
        let pairs = blueprint.matrices.iter().zip(&self.matrices);
        let destinations: Vec<Destination<'_>> = pairs
            .flat_map(|(spec, (_, matrix))| {
                spec.tensors.iter().map(move |(tensor, strips)| Destination {
                    tensor,
                    matrix,
                    strips: *strips,
                })
            })
            .collect();
        stream::stream(device, &checkpoint.source, &destinations, options, control)
    }

    /// Bytes of all matrices.
    pub fn bytes(&self) -> u64 {
        self.matrices.iter().map(|(_, matrix)| matrix.bytes()).sum()
    }
}

/// Loads a checkpoint into the memory that the placement assigns. On an error all GPU memory is freed again.
pub fn load(
    device: &Device,
    checkpoint: &Checkpoint,
    placement: &Placement,
    options: &Options,
    control: &Control,
) -> Result<(Weights, Stats)> {
    let weights = allocate(device, checkpoint, placement, options)?;
    let stats = weights.fill(device, checkpoint, options, control)?;
    Ok((weights, stats))
}

/// Allocates the memory that the placement assigns, and uploads norms and biases. [`Weights::fill`] reads the matrices.
pub fn allocate(
    device: &Device,
    checkpoint: &Checkpoint,
    placement: &Placement,
    options: &Options,
) -> Result<Weights> {
    let blueprint = Blueprint::new(checkpoint)?;
    let arena = |memory| Arena::new(device, Lifetime::Weights, memory).with_block_size(BLOCK_SIZE);
    let (mut local, mut host) = (arena(Memory::Device), arena(Memory::Host));
    let mut matrices = Vec::new();
    for (index, spec) in blueprint.matrices.iter().enumerate() {
        let arena = if is_device_local(placement, index) { &mut local } else { &mut host };
        let matrix = Matrix::allocate(arena, &spec.id.to_string(), spec.layout, device.caps())?;
        matrices.push((spec.id, matrix));
    }
    let vectors = load_vectors(device, checkpoint, options)?;
    let Vectors { norms, qkv_biases, routers } = vectors;
    Ok(Weights { matrices, norms, qkv_biases, routers })
}

/// Small buffers share blocks of this many bytes; a larger buffer gets a block of exactly its own size.
const BLOCK_SIZE: u64 = 64 << 20;

/// Whether a matrix goes entirely to device-local memory. A matrix that the plan divides between heaps goes
/// to host memory, which has room for the remainder.
pub fn is_device_local(placement: &Placement, index: usize) -> bool {
    let heap = |extent: &Extent| placement.heaps[placement.blocks[extent.block].heap].heap;
    placement.extents(Content::Weight(index)).all(|extent| heap(extent).device_local)
}

/// What is uploaded as f32.
struct Vectors {
    norms: BTreeMap<Slot, Buffer>,
    qkv_biases: Vec<Buffer>,
    routers: BTreeMap<u32, Buffer>,
}

/// Uploads norms, ready to multiply, biases and routers.
fn load_vectors(device: &Device, checkpoint: &Checkpoint, options: &Options) -> Result<Vectors> {
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(4 << 20);
    let mut staging = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(4 << 20);
    let mut recorder = device.recorder()?;
    let mut upload = |name: &str, values: &[f32]| -> Result<Buffer> {
        let from = staging.buffer_from(name, values)?;
        let to = arena.buffer(name, from.len())?;
        recorder.copy(name, &from, &to)?;
        Ok(to)
    };
    let read_norm = |tensor: &Tensor| -> Result<Vec<f32>> {
        let mut values = checkpoint.read_vector(tensor)?;
        if checkpoint.norms_need_plus_one() {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        Ok(values)
    };
    let mut norms = BTreeMap::new();
    let mut routers = BTreeMap::new();
    let vectors = checkpoint.inventory.iter().filter(|(slot, tensor)| is_vector(*slot, tensor));
    for (slot, tensor) in vectors.filter(|(slot, _)| !QKV_BIASES.contains(&slot.role)) {
        match (slot.layer, slot.role) {
            (Some(layer), Role::Router) => {
                let factors = router_factors(checkpoint, layer, &read_norm)?;
                let scores = checkpoint.read_vector(tensor)?;
                let scaled = scores
                    .chunks(factors.len())
                    .flat_map(|row| row.iter().zip(&factors).map(|(w, factor)| w * factor));
                routers.insert(layer, upload(&tensor.name, &scaled.collect::<Vec<f32>>())?);
            }
            _ => _ = norms.insert(slot, upload(&tensor.name, &read_norm(tensor)?)?),
        }
    }
    let mut qkv_biases = Vec::new();
    for (index, spec) in (0..).zip(checkpoint.config.layer_specs()) {
        match spec.mixer {
            Mixer::Attention(attention) if attention.qkv_bias => {
                let mut values = Vec::new();
                for role in QKV_BIASES {
                    values.extend(checkpoint.read_vector(checkpoint.tensor(Some(index), role)?)?);
                }
                qkv_biases.push(upload(&format!("biases of layer {index}"), &values)?);
            }
            Mixer::Attention(_) => {}
        }
    }
    recorder.seal()?.run(options.timeout)?;
    Ok(Vectors { norms, qkv_biases, routers })
}

/// The factors of a router's input after its norm: the weight of the norm before the block or, for a router with a norm
/// of its own, its scale over the square root of the hidden size.
fn router_factors(
    checkpoint: &Checkpoint,
    layer: u32,
    read_norm: &dyn Fn(&Tensor) -> Result<Vec<f32>>,
) -> Result<Vec<f32>> {
    match checkpoint.config.layer(layer).feed_forward {
        FeedForward::DenseAndExperts(..) => {
            let root = (checkpoint.config.hidden as f32).sqrt();
            let scale = checkpoint.read_vector(checkpoint.tensor(Some(layer), Role::RouterScale)?)?;
            Ok(scale.into_iter().map(|scale| scale / root).collect())
        }
        _ => read_norm(checkpoint.tensor(Some(layer), Role::FeedForwardNorm)?),
    }
}

/// The biases, in the row order of the QKV matrix.
const QKV_BIASES: [Role; 3] = [Role::QueryBias, Role::KeyBias, Role::ValueBias];
