//! A checkpoint into GPU memory: which tensors share a matrix, and the matrices filled.
//!
//! Query, key and value rows follow each other in one matrix, and strips of gate and up alternate in one, so that one kernel
//! makes all of them; where a file stores them in different schemes they stay apart. Norms become f32, as they multiply.

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt};

use gpu::{Arena, Buffer, Device, Lifetime, Memory, Recorder};
use kernels::{Layout, Matrix, STRIP, quant, transcode::Placement};

use crate::{
    Error, Result, Tensor,
    checkpoint::Checkpoint,
    names::{Role, Slot},
    stream::{self, Control, Destination, Options, Stats},
};

/// A model's weights in GPU memory.
pub struct Weights {
    /// Token embeddings; the output projection too, unless there is a head.
    pub embedding: Matrix,
    /// The output projection, where it is not the embeddings.
    pub head: Option<Matrix>,
    /// Layer by layer.
    pub layers: Vec<LayerWeights>,
    /// Norm weights as they multiply, f32.
    pub norms: BTreeMap<Slot, Buffer>,
}

/// One layer's matrices.
pub struct LayerWeights {
    /// Query, key and value rows: one matrix, or one each.
    pub qkv: Vec<Matrix>,
    /// Attention's output projection.
    pub output: Matrix,
    /// Strips of gate and up in turn, or one matrix each.
    pub gate_up: Vec<Matrix>,
    /// Down projection.
    pub down: Matrix,
}

impl Weights {
    /// Bytes of all matrices.
    pub fn bytes(&self) -> u64 {
        let layer = |layer: &LayerWeights| {
            let joined = layer.qkv.iter().chain(&layer.gate_up).map(Matrix::bytes).sum::<u64>();
            joined + layer.output.bytes() + layer.down.bytes()
        };
        let ends = self.embedding.bytes() + self.head.as_ref().map_or(0, Matrix::bytes);
        ends + self.layers.iter().map(layer).sum::<u64>()
    }
}

/// Loads a checkpoint. On an error all GPU memory that was taken is given back.
pub fn load(
    device: &Device,
    checkpoint: &Checkpoint,
    options: &Options,
    control: &Control,
) -> Result<(Weights, Stats)> {
    let mut allocator = Allocator {
        arena: Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(256 << 20),
        device,
        checkpoint,
    };
    let mut layers = Vec::new();
    let mut sources: Vec<Sources<'_>> = Vec::new();
    for layer in 0..checkpoint.config.layers {
        let tensor = |role| checkpoint.need(Some(layer), role);
        let qkv = [tensor(Role::Query)?, tensor(Role::Key)?, tensor(Role::Value)?];
        let gate_up = [tensor(Role::Gate)?, tensor(Role::Up)?];
        let (output, down) = (tensor(Role::Output)?, tensor(Role::Down)?);
        let (qkv, qkv_sources) = allocator.joined(&qkv, Join::InTurn)?;
        let (gate_up, gate_up_sources) = allocator.joined(&gate_up, Join::Alternating)?;
        let output_matrix = allocator.matrix(&[output])?;
        let down_matrix = allocator.matrix(&[down])?;
        layers.push(LayerWeights { qkv, output: output_matrix, gate_up, down: down_matrix });
        let whole = |tensor| vec![(tensor, Placement::WHOLE)];
        sources.push([qkv_sources, vec![whole(output)], gate_up_sources, vec![whole(down)]].concat());
    }
    let embed = checkpoint.need(None, Role::Embed)?;
    let embedding = allocator.matrix(&[embed])?;
    let own_head = checkpoint.inventory.head().filter(|head| head.name != embed.name);
    let head = own_head.map(|tensor| allocator.matrix(&[tensor])).transpose()?;
    let norms = load_norms(device, checkpoint, options)?;

    let weights = Weights { embedding, head, layers, norms };
    let mut destinations = Vec::new();
    let list = [(embed, Placement::WHOLE)];
    destinations.extend(into(&weights.embedding, &list));
    if let (Some(matrix), Some(tensor)) = (&weights.head, own_head) {
        destinations.extend(into(matrix, &[(tensor, Placement::WHOLE)]));
    }
    for (layer, sources) in weights.layers.iter().zip(&sources) {
        let matrices = layer.qkv.iter().chain([&layer.output]).chain(&layer.gate_up).chain([&layer.down]);
        for (matrix, list) in matrices.zip(sources) {
            destinations.extend(into(matrix, list));
        }
    }
    let stats = stream::stream(device, &checkpoint.source, &destinations, options, control)?;
    drop(destinations);
    Ok((weights, stats))
}

fn into<'a>(
    matrix: &'a Matrix,
    tensors: &[(&'a Tensor, Placement)],
) -> impl Iterator<Item = Destination<'a>> + use<'a> {
    let list: Vec<_> = tensors.to_vec();
    list.into_iter().map(move |(tensor, placement)| Destination { tensor, matrix, placement })
}

/// How tensors share a matrix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Join {
    /// One after the other.
    InTurn,
    /// A strip of each in turn.
    Alternating,
}

/// For each matrix, the tensors in it and where they go.
type Sources<'a> = Vec<Vec<(&'a Tensor, Placement)>>;

struct Allocator<'a> {
    arena: Arena,
    device: &'a Device,
    checkpoint: &'a Checkpoint,
}

impl<'a> Allocator<'a> {
    /// One matrix for all tensors where they have one scheme, one K and whole strips; else one each.
    fn joined(&mut self, tensors: &[&'a Tensor], join: Join) -> Result<(Vec<Matrix>, Sources<'a>)> {
        let first = tensors[0];
        let same = tensors.iter().all(|tensor| {
            tensor.encoding.scheme() == first.encoding.scheme() && tensor.shape[1] == first.shape[1]
        });
        let strips: Vec<usize> = tensors.iter().map(|tensor| tensor.shape[0] as usize / STRIP).collect();
        let whole = tensors.iter().all(|tensor| tensor.shape[0].is_multiple_of(STRIP as u64));
        let even = join == Join::InTurn || strips.iter().all(|count| *count == strips[0]);
        if !(same && whole && even) {
            let matrices = tensors.iter().map(|tensor| self.matrix(&[tensor])).collect::<Result<_>>()?;
            return Ok((matrices, tensors.iter().map(|tensor| vec![(*tensor, Placement::WHOLE)]).collect()));
        }
        let mut first_strip = 0;
        let placed = tensors.iter().zip(&strips).map(|(tensor, count)| {
            let step = if join == Join::Alternating { tensors.len() } else { 1 };
            let placement = Placement { first_strip, step };
            first_strip += if join == Join::Alternating { 1 } else { *count };
            (*tensor, placement)
        });
        let placed = placed.collect();
        Ok((vec![self.matrix(tensors)?], vec![placed]))
    }

    /// A matrix with room for the rows of all tensors.
    fn matrix(&mut self, tensors: &[&Tensor]) -> Result<Matrix> {
        let first = tensors[0];
        let rows: u64 = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        let layout = Layout::new(first.encoding.scheme(), rows as usize, first.shape[1] as usize);
        let layout = layout.ok_or_else(|| {
            let path = &self.checkpoint.source.files[first.data.file];
            Error::tensor(
                path,
                &first.name,
                format!("{:?} has rows that are not whole groups of 32", first.shape),
            )
        })?;
        Ok(Matrix::allocate(&mut self.arena, &first.name, layout, self.device.caps())?)
    }
}

impl Checkpoint {
    /// A tensor that completeness has promised.
    fn need(&self, layer: Option<u32>, role: Role) -> Result<&Tensor> {
        self.inventory
            .get(layer, role)
            .ok_or_else(|| Error::invalid(&self.path, format!("has no {role:?} in layer {layer:?}")))
    }

    /// The values of a small tensor, read at once.
    pub fn read_vector(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let path = &self.source.files[tensor.data.file];
        let file = File::open(path).map_err(|error| Error::io(path, error))?;
        let mut bytes = vec![0; tensor.data.len as usize];
        file.read_exact_at(&mut bytes, tensor.data.offset).map_err(|source| Error::Read {
            path: path.clone(),
            tensor: tensor.name.clone(),
            offset: tensor.data.offset,
            source,
        })?;
        let mut values = vec![0.0; tensor.values().unwrap_or(0) as usize];
        quant::dequantize(tensor.encoding, &bytes, &mut values)
            .map_err(|error| Error::tensor(path, &tensor.name, error.to_string()))?;
        match values.iter().position(|value| !value.is_finite()) {
            Some(at) => Err(Error::tensor(path, &tensor.name, format!("value {at} is not a finite number"))),
            None => Ok(values),
        }
    }
}

/// Every one-dimensional tensor, as it multiplies.
fn load_norms(device: &Device, checkpoint: &Checkpoint, options: &Options) -> Result<BTreeMap<Slot, Buffer>> {
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(4 << 20);
    let mut staging = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(4 << 20);
    let mut recorder: Recorder = device.recorder()?;
    let mut norms = BTreeMap::new();
    for (slot, tensor) in checkpoint.inventory.iter().filter(|(_, tensor)| tensor.shape.len() == 1) {
        let mut values = checkpoint.read_vector(tensor)?;
        if checkpoint.norms_less_one() {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        let from = staging.buffer_from(&tensor.name, &values)?;
        let to = arena.buffer(&tensor.name, from.len())?;
        recorder.copy(&tensor.name, &from, &to)?;
        norms.insert(slot, to);
    }
    recorder.seal()?.run(options.timeout)?;
    Ok(norms)
}
