//! The weights of an image encoder and its projector in GPU memory.

use std::collections::BTreeMap;

use checkpoint::{Role, Slot, Source, Tensor, Vision, VisionConfig};
use gpu::{Arena, Buffer, Caps, Device, Lifetime, Memory, Recorder};
use half::f16;
use kernels::{
    Matrix,
    transcode::{Rows, StripMap, Transcode},
};
use tensor::{Encoding, Layout, Scheme};

use crate::{
    blueprint::{Joined, StripOrder, is_vector, join},
    error::{Error, Result},
    plan::WeightDemand,
    stream::{self, Control, Destination, Options, Stats},
};

/// An image encoder's weights in GPU memory.
pub struct VisionWeights {
    /// Every matrix with its id, in the order of the forward pass.
    pub matrices: Vec<(VisionMatrix, Matrix)>,
    /// The position embeddings, `[patch][hidden]`, norms, ready to multiply, and biases: f32. Those of query, key and value
    /// are in `qkv_biases`.
    pub vectors: BTreeMap<Slot, Buffer>,
    /// Per layer the biases of query, key and value, concatenated, in f32.
    pub qkv_biases: Vec<Buffer>,
}

/// Identifies a matrix of an image encoder. The number is the index of its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionMatrix {
    /// Patch embedding.
    PatchEmbed,
    /// Query, key and value projections, or one of them.
    Qkv(u32),
    /// Output projection of attention.
    AttentionOutput(u32),
    /// Up projection, also known as fc1.
    Up(u32),
    /// Down projection, also known as fc2.
    Down(u32),
    /// Projection of soft tokens to the hidden size of the language model.
    Projection,
}

impl std::fmt::Display for VisionMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VisionMatrix::PatchEmbed => f.write_str("patch embedding"),
            VisionMatrix::Qkv(layer) => write!(f, "image layer {layer} QKV"),
            VisionMatrix::AttentionOutput(layer) => write!(f, "image layer {layer} output"),
            VisionMatrix::Up(layer) => write!(f, "image layer {layer} up"),
            VisionMatrix::Down(layer) => write!(f, "image layer {layer} down"),
            VisionMatrix::Projection => f.write_str("projection of soft tokens"),
        }
    }
}

/// The matrices of an image encoder, known before any memory is allocated.
pub struct VisionBlueprint<'a> {
    vision: &'a Vision,
    /// All but the projection, in the order of the forward pass.
    matrices: Vec<(VisionMatrix, Joined<'a>)>,
    projection: Layout,
}

impl<'a> VisionBlueprint<'a> {
    /// The matrices of an encoder.
    pub fn new(vision: &'a Vision) -> Result<Self> {
        let mut matrices = Vec::new();
        let mut add = |id, layer, roles: &[Role]| -> Result<()> {
            let tensors = roles.iter().map(|role| vision.tensor(layer, *role));
            let tensors: Vec<&Tensor> = tensors.collect::<Result<_, checkpoint::Error>>()?;
            let joined = join(&vision.source, StripOrder::Sequential, &tensors)?;
            matrices.extend(joined.into_iter().map(|joined| (id, joined)));
            Ok(())
        };
        add(VisionMatrix::PatchEmbed, None, &[Role::PatchEmbed])?;
        for layer in 0..vision.config.layers {
            add(VisionMatrix::Qkv(layer), Some(layer), &[Role::Query, Role::Key, Role::Value])?;
            add(VisionMatrix::AttentionOutput(layer), Some(layer), &[Role::Output])?;
            add(VisionMatrix::Up(layer), Some(layer), &[Role::Up])?;
            add(VisionMatrix::Down(layer), Some(layer), &[Role::Down])?;
        }
        let VisionConfig { hidden, text_hidden, .. } = vision.config;
        let projection = transposed_encoding(vision.tensor(None, Role::Projection)?.encoding);
        let layout = Layout::new(projection.scheme(), text_hidden as usize, hidden as usize);
        let projection = layout.expect("rows of floats have any length");
        Ok(Self { vision, matrices, projection })
    }

    /// Every matrix with its layout.
    pub fn layouts(&self) -> impl Iterator<Item = (VisionMatrix, Layout)> {
        let matrices = self.matrices.iter().map(|(id, joined)| (*id, joined.layout));
        matrices.chain([(VisionMatrix::Projection, self.projection)])
    }

    /// Bytes on the GPU.
    pub fn bytes(&self) -> u64 {
        let matrices = self.layouts().map(|(_, layout)| (layout.value_bytes() + layout.scale_bytes()) as u64);
        let vectors = vectors(self.vision).map(|(_, tensor)| tensor.values().unwrap_or(0) * 4);
        matrices.sum::<u64>() + vectors.sum::<u64>()
    }

    /// Bytes that are read from files to fill the matrices.
    pub fn file_bytes(&self) -> u64 {
        let tensors = self.matrices.iter().flat_map(|(_, joined)| &joined.tensors);
        tensors.map(|(tensor, _)| tensor.data.len).sum()
    }

    /// The memory that the encoder needs. Tokens do not read it.
    pub fn demand(&self) -> WeightDemand {
        WeightDemand {
            name: "image encoder".into(),
            bytes: self.bytes(),
            bytes_per_token: 0,
            split_unit: 0,
            in_host_memory: false,
        }
    }

    /// Allocates the matrices and uploads everything else. [`VisionBlueprint::fill`] reads the matrices.
    pub fn allocate(&self, device: &Device, memory: Memory, options: &Options) -> Result<VisionWeights> {
        let vision = self.vision;
        let mut arena = Arena::new(device, Lifetime::Weights, memory).with_block_size(BLOCK_SIZE);
        let mut matrices = allocate(&mut arena, device.caps(), self.layouts())?;
        let mut upload = Upload::new(device, memory)?;
        let mut known = BTreeMap::new();
        for (slot, tensor) in vectors(vision).filter(|(slot, _)| !QKV_BIASES.contains(&slot.role)) {
            let mut values = vision.source.read_vector(tensor)?;
            if slot.role == Role::SoftTokenNorm && vision.soft_norm_needs_plus_one() {
                values.iter_mut().for_each(|value| *value += 1.0);
            }
            known.insert(slot, upload.vector(&tensor.name, &values)?);
        }
        let mut qkv_biases = Vec::new();
        for layer in 0..vision.config.layers {
            let mut values = Vec::new();
            for role in QKV_BIASES {
                values.extend(vision.source.read_vector(vision.tensor(Some(layer), role)?)?);
            }
            qkv_biases.push(upload.vector(&format!("biases of image layer {layer}"), &values)?);
        }
        if let Some((VisionMatrix::Projection, matrix)) = matrices.last_mut() {
            let tensor = vision.tensor(None, Role::Projection)?;
            upload.transposed(&vision.source, tensor, matrix)?;
        }
        upload.finish(options)?;
        Ok(VisionWeights { matrices, vectors: known, qkv_biases })
    }

    /// Reads the matrices, but for the projection.
    pub fn fill(
        &self,
        weights: &VisionWeights,
        device: &Device,
        options: &Options,
        control: &Control,
    ) -> Result<Stats> {
        let pairs = self.matrices.iter().zip(&weights.matrices);
        let destinations: Vec<Destination<'_>> = pairs
            .flat_map(|((_, joined), (_, matrix))| {
                joined.tensors.iter().map(move |(tensor, strips)| Destination {
                    tensor,
                    matrix,
                    strips: *strips,
                })
            })
            .collect();
        stream::stream(device, &self.vision.source, &destinations, options, control)
    }
}

/// Allocates matrices; their content is undefined until they are filled.
pub fn allocate(
    arena: &mut Arena,
    caps: &Caps,
    layouts: impl Iterator<Item = (VisionMatrix, Layout)>,
) -> Result<Vec<(VisionMatrix, Matrix)>> {
    layouts.map(|(id, layout)| Ok((id, Matrix::allocate(arena, &id.to_string(), layout, caps)?))).collect()
}

impl VisionWeights {
    /// The matrices with this id: one, or several where a file stores query, key and value in different schemes.
    pub fn by_id(&self, id: VisionMatrix) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().filter(move |(known, _)| *known == id).map(|(_, matrix)| matrix)
    }
}

/// Small buffers share blocks of this many bytes.
const BLOCK_SIZE: u64 = 64 << 20;

/// The biases, in the row order of the QKV matrix.
const QKV_BIASES: [Role; 3] = [Role::QueryBias, Role::KeyBias, Role::ValueBias];

/// The tensors that are uploaded as f32.
fn vectors(vision: &Vision) -> impl Iterator<Item = (Slot, &Tensor)> {
    vision.iter().filter(|(slot, tensor)| is_vector(*slot, tensor) || slot.role == Role::PositionEmbed)
}

/// How the transposed projection is stored: as in the file if that is floats.
fn transposed_encoding(encoding: Encoding) -> Encoding {
    match encoding {
        Encoding::F32 | Encoding::Bf16 => encoding,
        _ => Encoding::F16,
    }
}

/// Uploads of small tensors, in one submission.
struct Upload<'a> {
    device: &'a Device,
    arena: Arena,
    staging: Arena,
    recorder: Recorder,
    damage: Option<Buffer>,
}

impl<'a> Upload<'a> {
    fn new(device: &'a Device, memory: Memory) -> Result<Self> {
        Ok(Self {
            device,
            arena: Arena::new(device, Lifetime::Weights, memory).with_block_size(4 << 20),
            staging: Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(4 << 20),
            recorder: device.recorder()?,
            damage: None,
        })
    }

    fn vector(&mut self, name: &str, values: &[f32]) -> Result<Buffer> {
        let from = self.staging.buffer_from(name, values)?;
        let to = self.arena.buffer(name, from.len())?;
        self.recorder.copy(name, &from, &to)?;
        Ok(to)
    }

    /// The transpose of a tensor, which products multiply like other matrices.
    fn transposed(&mut self, source: &Source, tensor: &Tensor, matrix: &Matrix) -> Result<()> {
        let values = source.read_vector(tensor)?;
        let Layout { scheme, rows, k, .. } = matrix.layout();
        let mut bytes = Vec::new();
        for row in 0..rows {
            for value in (0..k).map(|column| values[column * rows + row]) {
                match scheme {
                    Scheme::F32 => bytes.extend(value.to_le_bytes()),
                    // Exact: the values were of this type.
                    Scheme::Bf16 => bytes.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
                    _ => bytes.extend(f16::from_f32(value).to_le_bytes()),
                }
            }
        }
        if scheme == Scheme::F16 && values.iter().any(|value| !f16::from_f32(*value).is_finite()) {
            let path = &source.files[tensor.data.file];
            return Err(Error::tensor(path, &tensor.name, "has a value that is too large for f16"));
        }
        // The kernel reads whole words, past the last row.
        bytes.extend([0; 8]);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let from = self.staging.buffer_from(&tensor.name, &bytes)?;
        let mut damage = Arena::new(self.device, Lifetime::Staging, Memory::Readback).with_block_size(4096);
        let damage = self.damage.insert(damage.buffer_from("damage", &[u32::MAX])?);
        for block in matrix.blocks() {
            self.recorder.fill("clear", &block.values, 0)?;
        }
        let rows = Rows { source: from.view(), first_byte: 0, count: rows, first_row: 0, scales: None };
        let kernel = Transcode::new(self.device, transposed_encoding(tensor.encoding))?;
        let identity = StripMap::IDENTITY;
        Ok(kernel.record(&mut self.recorder, &tensor.name, &rows, matrix, identity, &damage.view())?)
    }

    fn finish(self, options: &Options) -> Result<()> {
        Ok(self.recorder.seal()?.run(options.timeout)?)
    }
}
