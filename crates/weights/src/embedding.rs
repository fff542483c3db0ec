//! The weights of an embedding model in GPU memory.

use std::collections::BTreeMap;

use checkpoint::{EmbeddingCheckpoint, Role, Slot, Tensor, TextLayers};
use gpu::{Arena, Buffer, Device, Lifetime, Memory};
use kernels::Matrix;
use tensor::Layout;

use crate::{
    blueprint::{Joined, StripOrder, is_vector, join},
    error::Result,
    plan::{Demand, WeightDemand},
    stream::{self, Control, Destination, Options, Stats},
};

/// An embedding model's weights in GPU memory.
pub struct EmbeddingWeights {
    /// Every matrix with its id, in the order of the forward pass.
    pub matrices: Vec<(EmbeddingMatrix, Matrix)>,
    /// Norms, ready to multiply, and biases, in f32. The embedding of the first segment type is among them; the biases of
    /// query, key and value are in `qkv_biases`.
    pub vectors: BTreeMap<Slot, Buffer>,
    /// Per layer the biases of query, key and value, concatenated, in f32 (BERT).
    pub qkv_biases: Vec<Buffer>,
}

impl EmbeddingWeights {
    /// The matrices with this id: one, or several of query, key and value or of gate and up, where a file stores them in
    /// different schemes.
    pub fn by_id(&self, id: EmbeddingMatrix) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().filter(move |(known, _)| *known == id).map(|(_, matrix)| matrix)
    }
}

/// Identifies a matrix of an embedding model. The number is the index of its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingMatrix {
    /// Embeddings of tokens.
    Tokens,
    /// Embeddings of positions (BERT).
    Positions,
    /// Query, key and value projections, or one of them.
    Qkv(u32),
    /// Output projection of attention.
    AttentionOutput(u32),
    /// Up projection of an MLP without a gate (BERT).
    Up(u32),
    /// Gate and up projections, or one of them.
    GateUp(u32),
    /// Down projection.
    Down(u32),
    /// A dense layer after pooling.
    Dense(u32),
}

impl EmbeddingMatrix {
    /// Whether rows of it are looked up; the others are multiplied.
    pub fn is_table(self) -> bool {
        matches!(self, EmbeddingMatrix::Tokens | EmbeddingMatrix::Positions)
    }
}

impl std::fmt::Display for EmbeddingMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EmbeddingMatrix::Tokens => f.write_str("embeddings"),
            EmbeddingMatrix::Positions => f.write_str("position embeddings"),
            EmbeddingMatrix::Qkv(layer) => write!(f, "layer {layer} QKV"),
            EmbeddingMatrix::AttentionOutput(layer) => write!(f, "layer {layer} output"),
            EmbeddingMatrix::Up(layer) => write!(f, "layer {layer} up"),
            EmbeddingMatrix::GateUp(layer) => write!(f, "layer {layer} gate and up"),
            EmbeddingMatrix::Down(layer) => write!(f, "layer {layer} down"),
            EmbeddingMatrix::Dense(index) => write!(f, "dense layer {index}"),
        }
    }
}

/// The matrices of an embedding model, known before any memory is allocated.
pub struct EmbeddingBlueprint<'a> {
    checkpoint: &'a EmbeddingCheckpoint,
    /// In the order of the forward pass.
    matrices: Vec<(EmbeddingMatrix, Joined<'a>)>,
}

impl<'a> EmbeddingBlueprint<'a> {
    /// The matrices of a checkpoint.
    pub fn new(checkpoint: &'a EmbeddingCheckpoint) -> Result<Self> {
        let mut matrices = Vec::new();
        let mut add = |id, order, slots: &[Slot]| -> Result<()> {
            let tensors = slots.iter().map(|slot| checkpoint.slot(*slot));
            let tensors: Vec<&Tensor> = tensors.collect::<Result<_, checkpoint::Error>>()?;
            matrices
                .extend(join(&checkpoint.source, order, &tensors)?.into_iter().map(|joined| (id, joined)));
            Ok(())
        };
        let sequential = StripOrder::Sequential;
        let is_bert = matches!(checkpoint.config.layers, TextLayers::Bert(_));
        add(EmbeddingMatrix::Tokens, sequential, &[Slot::text(None, Role::Embed)])?;
        if is_bert {
            add(EmbeddingMatrix::Positions, sequential, &[Slot::text(None, Role::PositionEmbed)])?;
        }
        for layer in 0..checkpoint.config.layer_count() {
            let slot = |role| Slot::text(Some(layer), role);
            add(EmbeddingMatrix::Qkv(layer), sequential, &[Role::Query, Role::Key, Role::Value].map(slot))?;
            add(EmbeddingMatrix::AttentionOutput(layer), sequential, &[slot(Role::Output)])?;
            match is_bert {
                true => add(EmbeddingMatrix::Up(layer), sequential, &[slot(Role::Up)])?,
                false => {
                    let roles = [Role::Gate, Role::Up].map(slot);
                    add(EmbeddingMatrix::GateUp(layer), StripOrder::Alternating, &roles)?;
                }
            }
            add(EmbeddingMatrix::Down(layer), sequential, &[slot(Role::Down)])?;
        }
        for index in 0..checkpoint.config.dense.len() as u32 {
            add(EmbeddingMatrix::Dense(index), sequential, &[Slot::dense(index)])?;
        }
        Ok(Self { checkpoint, matrices })
    }

    /// Every matrix with its layout.
    pub fn layouts(&self) -> impl Iterator<Item = (EmbeddingMatrix, Layout)> {
        self.matrices.iter().map(|(id, joined)| (*id, joined.layout))
    }

    /// Bytes on the GPU.
    pub fn bytes(&self) -> u64 {
        let matrices = self.layouts().map(|(_, layout)| (layout.value_bytes() + layout.scale_bytes()) as u64);
        let vectors = self.checkpoint.iter().filter(|(slot, tensor)| is_vector(*slot, tensor));
        matrices.sum::<u64>() + vectors.map(|(_, tensor)| tensor.values().unwrap_or(0) * 4).sum::<u64>()
    }

    /// Bytes that are read from files to fill the matrices.
    pub fn file_bytes(&self) -> u64 {
        let tensors = self.matrices.iter().flat_map(|(_, joined)| &joined.tensors);
        tensors.map(|(tensor, _)| tensor.data.len).sum()
    }

    /// The memory that the model needs, with this much for activations.
    pub fn demand(&self, scratch_bytes: u64) -> Demand {
        let weight = |name: String, bytes, split_unit| WeightDemand {
            name,
            bytes,
            bytes_per_token: bytes,
            split_unit,
            in_host_memory: false,
        };
        let matrix = |(id, layout): (EmbeddingMatrix, Layout)| {
            let bytes = (layout.value_bytes() + layout.scale_bytes()) as u64;
            let strip = (layout.strip_value_bytes() + layout.strip_scale_bytes()) as u64;
            weight(id.to_string(), bytes, strip)
        };
        let mut weights: Vec<WeightDemand> = self.layouts().map(matrix).collect();
        let matrices: u64 = weights.iter().map(|weight| weight.bytes).sum();
        weights.push(weight("norms".into(), self.bytes() - matrices, 0));
        // A text encoder keeps no keys and values.
        Demand {
            weights,
            kv_layers: vec![],
            context_length: 1,
            max_sequences: 1,
            scratch_bytes,
            smaller: vec![],
        }
    }

    /// Allocates the matrices and reads everything.
    pub fn load(
        &self,
        device: &Device,
        memory: Memory,
        options: &Options,
        control: &Control,
    ) -> Result<(EmbeddingWeights, Stats)> {
        let mut arena = Arena::new(device, Lifetime::Weights, memory).with_block_size(BLOCK_SIZE);
        let allocate = |(id, layout): (EmbeddingMatrix, Layout)| {
            Ok((id, Matrix::allocate(&mut arena, &id.to_string(), layout, device.caps())?))
        };
        let matrices = self.layouts().map(allocate).collect::<Result<Vec<_>>>()?;
        let (vectors, qkv_biases) = self.load_vectors(device, options)?;
        let pairs = self.matrices.iter().zip(&matrices);
        let destinations: Vec<Destination<'_>> = pairs
            .flat_map(|((_, joined), (_, matrix))| {
                joined.tensors.iter().map(move |(tensor, strips)| Destination {
                    tensor,
                    matrix,
                    strips: *strips,
                })
            })
            .collect();
        let stats = stream::stream(device, &self.checkpoint.source, &destinations, options, control)?;
        Ok((EmbeddingWeights { matrices, vectors, qkv_biases }, stats))
    }

    /// Uploads norms, ready to multiply, and biases.
    fn load_vectors(
        &self,
        device: &Device,
        options: &Options,
    ) -> Result<(BTreeMap<Slot, Buffer>, Vec<Buffer>)> {
        let checkpoint = self.checkpoint;
        let read = |tensor: &Tensor| checkpoint.source.read_vector(tensor);
        let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(4 << 20);
        let mut staging = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(4 << 20);
        let mut recorder = device.recorder()?;
        let mut upload = |name: &str, values: &[f32]| -> Result<Buffer> {
            let from = staging.buffer_from(name, values)?;
            let to = arena.buffer(name, from.len())?;
            recorder.copy(name, &from, &to)?;
            Ok(to)
        };
        let mut vectors = BTreeMap::new();
        for (slot, tensor) in checkpoint.iter().filter(|(slot, _)| !QKV_BIASES.contains(&slot.role)) {
            let values = match slot.role {
                Role::TypeEmbed => {
                    let mut values = read(tensor)?;
                    values.truncate(checkpoint.config.hidden() as usize);
                    values
                }
                _ if !is_vector(slot, tensor) => continue,
                // All vectors of a decoder are norms.
                _ if checkpoint.norms_need_plus_one() => {
                    read(tensor)?.into_iter().map(|value| value + 1.0).collect()
                }
                _ => read(tensor)?,
            };
            vectors.insert(slot, upload(&tensor.name, &values)?);
        }
        let mut qkv_biases = Vec::new();
        if matches!(checkpoint.config.layers, TextLayers::Bert(_)) {
            for layer in 0..checkpoint.config.layer_count() {
                let mut values = Vec::new();
                for role in QKV_BIASES {
                    values.extend(read(checkpoint.tensor(Some(layer), role)?)?);
                }
                qkv_biases.push(upload(&format!("biases of layer {layer}"), &values)?);
            }
        }
        recorder.seal()?.run(options.timeout)?;
        Ok((vectors, qkv_biases))
    }
}

/// Small buffers share blocks of this many bytes.
const BLOCK_SIZE: u64 = 64 << 20;

/// The biases, in the row order of the QKV matrix.
const QKV_BIASES: [Role; 3] = [Role::QueryBias, Role::KeyBias, Role::ValueBias];
