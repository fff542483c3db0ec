//! The weights of an image encoder and its projector in GPU memory.

use std::collections::BTreeMap;

use checkpoint::{ClipRanges, EncoderKind, Role, Slot, Source, Tensor, Vision, VisionConfig};
use gpu::{Arena, Buffer, Caps, Device, Lifetime, Memory, Recorder};
use half::f16;
use kernels::{
    Matrix,
    clip::ClipRange,
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
    /// Norms, ready to multiply, biases, and SigLIP's position embeddings, `[patch][hidden]`: f32. The biases of query, key
    /// and value are in `qkv_biases`.
    pub vectors: BTreeMap<Slot, Buffer>,
    /// Per layer the biases of query, key and value, concatenated, in f32 (SigLIP).
    pub qkv_biases: Vec<Buffer>,
    /// The position embeddings of columns and of rows, `[position][hidden]`, in f32 (Gemma 4).
    pub positions: Option<[Buffer; 2]>,
    /// Per layer the ranges of its matrices, if the encoder is clipped.
    pub clips: Vec<LayerClips>,
}

/// The ranges that a clipped encoder clamps the inputs and outputs of a layer's matrices to. A buffer has two f32 per
/// column: minimum and maximum.
pub struct LayerClips {
    /// Inputs of each of the [`VisionMatrix::Qkv`] matrices.
    pub qkv_inputs: Vec<Buffer>,
    /// Outputs of all of them, concatenated.
    pub qkv_outputs: Buffer,
    /// Input of the output projection.
    pub attended: Buffer,
    /// Output of the output projection.
    pub attention_output: Buffer,
    /// Inputs of each of the [`VisionMatrix::GateUp`] matrices.
    pub gate_up_inputs: Vec<Buffer>,
    /// Output of the gate projection.
    pub gate: ClipRange,
    /// Output of the up projection.
    pub up: ClipRange,
    /// Input of the down projection.
    pub activated: ClipRange,
    /// Output of the down projection.
    pub feed_forward_output: Buffer,
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
    /// Up projection, also known as fc1, of an MLP without a gate.
    Up(u32),
    /// Gate and up projections, or one of them. If the encoder is clipped, the rows of the gate come first; otherwise their
    /// strips alternate.
    GateUp(u32),
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
            VisionMatrix::GateUp(layer) => write!(f, "image layer {layer} gate and up"),
            VisionMatrix::Down(layer) => write!(f, "image layer {layer} down"),
            VisionMatrix::Projection => f.write_str("projection of soft tokens"),
        }
    }
}

/// The matrices of an image encoder, known before any memory is allocated.
pub struct VisionBlueprint<'a> {
    vision: &'a Vision,
    /// All that are read from the file as they are, in the order of the forward pass.
    matrices: Vec<(VisionMatrix, Joined<'a>)>,
    /// The first role of each of them.
    roles: Vec<Role>,
    /// SigLIP's projection, which is transposed.
    transposed_projection: Option<Layout>,
}

impl<'a> VisionBlueprint<'a> {
    /// The matrices of an encoder.
    pub fn new(vision: &'a Vision) -> Result<Self> {
        let (mut matrices, mut first_roles) = (Vec::new(), Vec::new());
        let mut add = |id, layer, order, roles: &[Role]| -> Result<()> {
            let tensors = roles.iter().map(|role| vision.tensor(layer, *role));
            let tensors: Vec<&Tensor> = tensors.collect::<Result<_, checkpoint::Error>>()?;
            let joined = join(&vision.source, order, &tensors)?;
            // One matrix for all roles, or one for each.
            first_roles.extend(roles.iter().take(joined.len()));
            matrices.extend(joined.into_iter().map(|joined| (id, joined)));
            Ok(())
        };
        let sequential = StripOrder::Sequential;
        add(VisionMatrix::PatchEmbed, None, sequential, &[Role::PatchEmbed])?;
        for layer in 0..vision.config.layers() {
            for roles in input_groups(vision, layer, &QKV)? {
                add(VisionMatrix::Qkv(layer), Some(layer), sequential, &roles)?;
            }
            add(VisionMatrix::AttentionOutput(layer), Some(layer), sequential, &[Role::Output])?;
            match vision.config.encoder {
                EncoderKind::Siglip { .. } => {
                    add(VisionMatrix::Up(layer), Some(layer), sequential, &[Role::Up])?;
                }
                EncoderKind::Gemma4 { clipped: false, .. } | EncoderKind::Gemma4Unified { .. } => {
                    add(VisionMatrix::GateUp(layer), Some(layer), StripOrder::Alternating, &GATE_UP)?;
                }
                EncoderKind::Gemma4 { clipped: true, .. } => {
                    for roles in input_groups(vision, layer, &GATE_UP)? {
                        add(VisionMatrix::GateUp(layer), Some(layer), sequential, &roles)?;
                    }
                }
            }
            add(VisionMatrix::Down(layer), Some(layer), sequential, &[Role::Down])?;
        }
        let transposed_projection = match vision.config.encoder {
            EncoderKind::Siglip { .. } => {
                let VisionConfig { hidden, text_hidden, .. } = vision.config;
                let encoding = transposed_encoding(vision.tensor(None, Role::Projection)?.encoding);
                let layout = Layout::new(encoding.scheme(), text_hidden as usize, hidden as usize);
                Some(layout.expect("rows of floats have any length"))
            }
            EncoderKind::Gemma4 { .. } | EncoderKind::Gemma4Unified { .. } => {
                add(VisionMatrix::Projection, None, sequential, &[Role::Projection])?;
                None
            }
        };
        Ok(Self { vision, matrices, roles: first_roles, transposed_projection })
    }

    /// Every matrix with its layout.
    pub fn layouts(&self) -> impl Iterator<Item = (VisionMatrix, Layout)> {
        let matrices = self.matrices.iter().map(|(id, joined)| (*id, joined.layout));
        matrices.chain(self.transposed_projection.map(|layout| (VisionMatrix::Projection, layout)))
    }

    /// Bytes on the GPU.
    pub fn bytes(&self) -> u64 {
        let matrices = self.layouts().map(|(_, layout)| (layout.value_bytes() + layout.scale_bytes()) as u64);
        let vectors = vectors(self.vision).map(|(_, tensor)| tensor.values().unwrap_or(0) * 4);
        let config = &self.vision.config;
        let positions = match config.encoder {
            EncoderKind::Siglip { .. } => 0,
            _ => 2 * u64::from(config.max_patches_per_side()) * u64::from(config.hidden) * 4,
        };
        let clips = match config.encoder {
            EncoderKind::Gemma4 { clipped: true, transformer, .. } => {
                let widths = 3 * config.hidden + transformer.intermediate + 4 * transformer.attention_width();
                u64::from(transformer.layers) * u64::from(2 * config.hidden + widths) * 8
            }
            _ => 0,
        };
        matrices.sum::<u64>() + vectors.sum::<u64>() + positions + clips
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
        let mut clips = Vec::new();
        for layer in 0..vision.config.layers() {
            match vision.config.encoder {
                EncoderKind::Siglip { .. } => {
                    let mut values = Vec::new();
                    for role in QKV_BIASES {
                        values.extend(vision.source.read_vector(vision.tensor(Some(layer), role)?)?);
                    }
                    qkv_biases.push(upload.vector(&format!("biases of image layer {layer}"), &values)?);
                }
                EncoderKind::Gemma4 { clipped: true, .. } => clips.push(self.clips(&mut upload, layer)?),
                EncoderKind::Gemma4 { clipped: false, .. } | EncoderKind::Gemma4Unified { .. } => {}
            }
        }
        let positions = match vision.config.encoder {
            EncoderKind::Siglip { .. } => None,
            EncoderKind::Gemma4 { .. } | EncoderKind::Gemma4Unified { .. } => {
                let [columns, rows] = vision.position_tables(vision.config.max_patches_per_side())?;
                Some([
                    upload.vector("positions of columns", &columns)?,
                    upload.vector("positions of rows", &rows)?,
                ])
            }
        };
        if self.transposed_projection.is_some()
            && let Some((VisionMatrix::Projection, matrix)) = matrices.last_mut()
        {
            let tensor = vision.tensor(None, Role::Projection)?;
            upload.transposed(&vision.source, tensor, matrix)?;
        }
        upload.finish(options)?;
        Ok(VisionWeights { matrices, vectors: known, qkv_biases, positions, clips })
    }

    /// Uploads the ranges of a clipped layer.
    fn clips(&self, upload: &mut Upload<'_>, layer: u32) -> Result<LayerClips> {
        let vision = self.vision;
        let ranges = |role| clip_ranges(vision, layer, role);
        let width = |role, axis: usize| -> Result<usize> {
            Ok(vision.tensor(Some(layer), role)?.shape[axis] as usize)
        };
        let mut constant = |range: [f32; 2], columns: usize| {
            upload.vector(&format!("ranges of image layer {layer}"), &range.repeat(columns))
        };
        // As many as there are matrices with this id: tensors of different schemes may form several with one range.
        let mut inputs = |id: VisionMatrix| -> Result<Vec<Buffer>> {
            let of_id = self.matrices.iter().zip(&self.roles).filter(|((known, _), _)| *known == id);
            of_id.map(|(_, role)| constant(ranges(*role)?.input, width(*role, 1)?)).collect()
        };
        let (qkv_inputs, gate_up_inputs) =
            (inputs(VisionMatrix::Qkv(layer))?, inputs(VisionMatrix::GateUp(layer))?);
        let mut qkv = Vec::new();
        for role in QKV {
            qkv.extend(ranges(role)?.output.repeat(width(role, 0)?));
        }
        Ok(LayerClips {
            qkv_inputs,
            attended: constant(ranges(Role::Output)?.input, width(Role::Output, 1)?)?,
            attention_output: constant(ranges(Role::Output)?.output, width(Role::Output, 0)?)?,
            gate_up_inputs,
            gate: clip_range(ranges(Role::Gate)?.output),
            up: clip_range(ranges(Role::Up)?.output),
            activated: clip_range(ranges(Role::Down)?.input),
            feed_forward_output: constant(ranges(Role::Down)?.output, width(Role::Down, 0)?)?,
            qkv_outputs: upload.vector(&format!("ranges of image layer {layer}"), &qkv)?,
        })
    }

    /// Reads the matrices, but for a transposed projection.
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
    /// The matrices with this id: one, or several of query, key and value or of gate and up, where a file stores them in
    /// different schemes or clamps their inputs to different ranges.
    pub fn by_id(&self, id: VisionMatrix) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().filter(move |(known, _)| *known == id).map(|(_, matrix)| matrix)
    }
}

/// Small buffers share blocks of this many bytes.
const BLOCK_SIZE: u64 = 64 << 20;

/// The projections, in the row order of the QKV matrix.
const QKV: [Role; 3] = [Role::Query, Role::Key, Role::Value];

/// The projections, in the row order of the gate and up matrix.
const GATE_UP: [Role; 2] = [Role::Gate, Role::Up];

/// The biases, in the row order of the QKV matrix.
const QKV_BIASES: [Role; 3] = [Role::QueryBias, Role::KeyBias, Role::ValueBias];

/// The tensors that are uploaded as f32.
fn vectors(vision: &Vision) -> impl Iterator<Item = (Slot, &Tensor)> {
    let is_siglip = matches!(vision.config.encoder, EncoderKind::Siglip { .. });
    vision.iter().filter(move |(slot, tensor)| match slot.role {
        Role::PositionEmbed => is_siglip,
        _ => is_vector(*slot, tensor),
    })
}

/// The roles whose matrices have the same input: neighbours whose inputs are clamped to the same range.
fn input_groups(vision: &Vision, layer: u32, roles: &[Role]) -> Result<Vec<Vec<Role>>> {
    let ranges = roles.iter().map(|role| Ok(vision.clip_ranges(layer, *role)?.map(|ranges| ranges.input)));
    let ranges: Vec<Option<[f32; 2]>> = ranges.collect::<Result<_>>()?;
    let pairs: Vec<(Role, Option<[f32; 2]>)> = roles.iter().copied().zip(ranges).collect();
    let groups = pairs.chunk_by(|one, next| one.1 == next.1);
    Ok(groups.map(|group| group.iter().map(|(role, _)| *role).collect()).collect())
}

fn clip_range([low, high]: [f32; 2]) -> ClipRange {
    ClipRange { low, high }
}

/// The ranges of a matrix of a clipped encoder.
fn clip_ranges(vision: &Vision, layer: u32, role: Role) -> Result<ClipRanges> {
    Ok(vision.clip_ranges(layer, role)?.expect("a clipped encoder has ranges, or opening it fails"))
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
