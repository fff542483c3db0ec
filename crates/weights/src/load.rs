//! A checkpoint into GPU memory: memory taken as planned, matrices filled by the stream, norms as they multiply.

use std::collections::BTreeMap;

use checkpoint::{Checkpoint, Role, Slot};
use gpu::{Arena, Buffer, Device, Lifetime, Memory};
use kernels::Matrix;

use crate::{
    Result,
    blueprint::{Blueprint, Place},
    plan::{self, Part},
    stream::{self, Control, Destination, Options, Stats},
};

/// A model's weights in GPU memory.
pub struct Weights {
    /// Every matrix with what it is for, in the order of the blueprint.
    pub matrices: Vec<(Place, Matrix)>,
    /// Norm weights as they multiply, f32.
    pub norms: BTreeMap<Slot, Buffer>,
    /// Biases of queries, keys and values of each layer, one behind the other, f32; none where the family has none.
    pub qkv_biases: Vec<Buffer>,
}

impl Weights {
    /// The matrices of a place: one, or several where a file stores its parts in different schemes.
    pub fn of(&self, place: Place) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().filter(move |(known, _)| *known == place).map(|(_, matrix)| matrix)
    }

    /// Bytes of all matrices.
    pub fn bytes(&self) -> u64 {
        self.matrices.iter().map(|(_, matrix)| matrix.bytes()).sum()
    }
}

/// Loads a checkpoint to where the placement says. On an error all GPU memory that was taken is given back.
pub fn load(
    device: &Device,
    checkpoint: &Checkpoint,
    placement: &plan::Placement,
    options: &Options,
    control: &Control,
) -> Result<(Weights, Stats)> {
    let blueprint = Blueprint::of(checkpoint)?;
    // Small buffers share blocks of this size; larger ones get blocks of their own, exactly as large as they are.
    let arena = |memory| Arena::new(device, Lifetime::Weights, memory).with_block_size(BLOCK);
    let (mut local, mut host) = (arena(Memory::Device), arena(Memory::Host));
    let mut matrices = Vec::new();
    for (index, spec) in blueprint.matrices.iter().enumerate() {
        let arena = if is_local(placement, index) { &mut local } else { &mut host };
        let matrix = Matrix::allocate(arena, &spec.place.to_string(), spec.layout, device.caps())?;
        matrices.push((spec.place, matrix));
    }
    let (norms, qkv_biases) = load_vectors(device, checkpoint, options)?;
    let pairs = blueprint.matrices.iter().zip(&matrices);
    let destinations: Vec<Destination<'_>> = pairs
        .flat_map(|(spec, (_, matrix))| {
            spec.tensors.iter().map(move |(tensor, placement)| Destination {
                tensor,
                matrix,
                placement: *placement,
            })
        })
        .collect();
    let stats = stream::stream(device, &checkpoint.source, &destinations, options, control)?;
    drop(destinations);
    Ok((Weights { matrices, norms, qkv_biases }, stats))
}

const BLOCK: u64 = 64 << 20;

/// Whether all of a matrix goes to the device's own memory. One that the plan divides between heaps goes to the host's, which
/// has room for what the device's has not.
fn is_local(placement: &plan::Placement, index: usize) -> bool {
    let heap_of = |piece: &plan::Piece| placement.heaps[placement.blocks[piece.block].heap].heap;
    placement.pieces(Part::Weight(index)).all(|piece| heap_of(piece).device_local)
}

/// Every one-dimensional tensor: norms as they multiply, and biases.
fn load_vectors(
    device: &Device,
    checkpoint: &Checkpoint,
    options: &Options,
) -> Result<(BTreeMap<Slot, Buffer>, Vec<Buffer>)> {
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(4 << 20);
    let mut staging = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(4 << 20);
    let mut recorder = device.recorder()?;
    let mut upload = |name: &str, values: &[f32]| -> Result<Buffer> {
        let from = staging.buffer_from(name, values)?;
        let to = arena.buffer(name, from.len())?;
        recorder.copy(name, &from, &to)?;
        Ok(to)
    };
    let mut norms = BTreeMap::new();
    let vectors = checkpoint.inventory.iter().filter(|(_, tensor)| tensor.shape.len() == 1);
    for (slot, tensor) in vectors.filter(|(slot, _)| !QKV_BIASES.contains(&slot.role)) {
        let mut values = checkpoint.read_vector(tensor)?;
        if checkpoint.norms_less_one() {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        norms.insert(slot, upload(&tensor.name, &values)?);
    }
    let mut qkv_biases = Vec::new();
    if checkpoint.config.architecture.family().qkv_bias {
        for layer in 0..checkpoint.config.layers {
            let mut values = Vec::new();
            for role in QKV_BIASES {
                values.extend(checkpoint.read_vector(checkpoint.tensor(Some(layer), role)?)?);
            }
            qkv_biases.push(upload(&format!("biases of layer {layer}"), &values)?);
        }
    }
    recorder.seal()?.run(options.timeout)?;
    Ok((norms, qkv_biases))
}

/// In the order in which the rows of one matrix have them.
const QKV_BIASES: [Role; 3] = [Role::QueryBias, Role::KeyBias, Role::ValueBias];
