//! Which matrices a checkpoint makes, before any memory is taken: what `inspect` counts, `plan` places and `load` fills.
//!
//! Query, key and value rows follow each other in one matrix, and strips of gate and up alternate in one, so that one kernel
//! makes all of them; where a file stores them in different schemes they stay apart.

use checkpoint::{Checkpoint, Config, Role, Tensor, config::LayerType};
use kernels::transcode::Placement;
use tensor::{Encoding, KvScheme, Layout, STRIP, Scheme};

use crate::{
    Error, Result,
    plan::{Demand, Item, KvShape},
};

/// All matrices of a model.
#[derive(Clone, Debug)]
pub struct Blueprint<'a> {
    /// In the order in which a token meets them, the embeddings first.
    pub matrices: Vec<MatrixSpec<'a>>,
    /// Bytes of norms and other vectors, as f32.
    pub vector_bytes: u64,
}

/// One matrix to be made.
#[derive(Clone, Debug)]
pub struct MatrixSpec<'a> {
    /// Which one.
    pub place: Place,
    /// Shape and scheme.
    pub layout: Layout,
    /// The tensors in it, and which strips are theirs.
    pub tensors: Vec<(&'a Tensor, Placement)>,
}

/// What there must be room for beside the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Positions of a sequence.
    pub context: u64,
    /// Sequences at a time.
    pub batch: u64,
    /// How keys and values are stored.
    pub kv: KvScheme,
    /// Positions of a sequence that sliding layers keep.
    pub sliding_positions: u64,
    /// Bytes of activations and logits.
    pub scratch: u64,
}

impl Room {
    /// For weights alone.
    pub const NONE: Room = Room { context: 1, batch: 1, kv: KvScheme::F16, sliding_positions: 1, scratch: 0 };
}

/// What a matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Token embeddings.
    Embedding,
    /// The output projection, where it is not the embeddings.
    Head,
    /// Query, key and value rows of a layer, or some of them.
    Qkv(u32),
    /// Attention's output projection of a layer.
    Output(u32),
    /// Gate and up of a layer, or one of them.
    GateUp(u32),
    /// Down projection of a layer.
    Down(u32),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Embedding => f.write_str("embeddings"),
            Place::Head => f.write_str("head"),
            Place::Qkv(layer) => write!(f, "layer {layer} QKV"),
            Place::Output(layer) => write!(f, "layer {layer} output"),
            Place::GateUp(layer) => write!(f, "layer {layer} gate and up"),
            Place::Down(layer) => write!(f, "layer {layer} down"),
        }
    }
}

impl<'a> Blueprint<'a> {
    /// The matrices of a checkpoint.
    pub fn of(checkpoint: &'a Checkpoint) -> Result<Self> {
        let mut matrices = Vec::new();
        let embed = checkpoint.tensor(None, Role::Embed)?;
        add(&mut matrices, checkpoint, Place::Embedding, Join::InTurn, &[embed])?;
        for layer in 0..checkpoint.config.layers {
            let tensor = |role| checkpoint.tensor(Some(layer), role);
            let qkv = [tensor(Role::Query)?, tensor(Role::Key)?, tensor(Role::Value)?];
            let gate_up = [tensor(Role::Gate)?, tensor(Role::Up)?];
            add(&mut matrices, checkpoint, Place::Qkv(layer), Join::InTurn, &qkv)?;
            add(&mut matrices, checkpoint, Place::Output(layer), Join::InTurn, &[tensor(Role::Output)?])?;
            add(&mut matrices, checkpoint, Place::GateUp(layer), Join::Alternating, &gate_up)?;
            add(&mut matrices, checkpoint, Place::Down(layer), Join::InTurn, &[tensor(Role::Down)?])?;
        }
        if let Some(head) = checkpoint.inventory.head().filter(|head| head.name != embed.name) {
            add(&mut matrices, checkpoint, Place::Head, Join::InTurn, &[head])?;
        }
        let vectors = checkpoint.inventory.iter().filter(|(_, tensor)| tensor.shape.len() == 1);
        let vector_bytes = vectors.map(|(_, tensor)| tensor.values().unwrap_or(0) * 4).sum();
        Ok(Self { matrices, vector_bytes })
    }

    /// Bytes of all matrices and vectors on the GPU.
    pub fn bytes(&self) -> u64 {
        self.matrices.iter().map(MatrixSpec::bytes).sum::<u64>() + self.vector_bytes
    }

    /// Bytes that filling the matrices reads from files.
    pub fn file_bytes(&self) -> u64 {
        // Scales apart from encoded values are read with them and not counted; those of tiles are streamed like tiles.
        let bytes = |tensor: &Tensor| match tensor.encoding {
            Encoding::Tiled(_) => tensor.file_bytes(),
            _ => tensor.data.len,
        };
        self.matrices.iter().flat_map(|matrix| &matrix.tensors).map(|(tensor, _)| bytes(tensor)).sum()
    }

    /// What the model asks of memory; item i is matrix i, and the vectors come last.
    pub fn demand(&self, config: &Config, room: &Room) -> Demand {
        let has_head = self.matrices.iter().any(|matrix| matrix.place == Place::Head);
        let items = |scheme: Option<Scheme>| -> Vec<Item> {
            let vectors =
                Item { name: "norms".into(), bytes: self.vector_bytes, reads: self.vector_bytes, strip: 0 };
            let matrix =
                |matrix: &MatrixSpec<'_>| matrix.item(scheme.unwrap_or(matrix.layout.scheme), has_head);
            self.matrices.iter().map(matrix).chain([vectors]).collect()
        };
        let total = |items: &[Item]| items.iter().map(|item| item.bytes).sum::<u64>();
        let weights = items(None);
        let smaller = [Scheme::Int8, Scheme::Int4].map(|scheme| (scheme, items(Some(scheme))));
        let smaller = smaller.into_iter().filter(|(_, smaller)| total(smaller) < total(&weights)).collect();
        let global = config.layer_types.iter().filter(|kind| **kind == LayerType::Global).count() as u64;
        let kv = KvShape {
            global_layers: global,
            sliding_layers: u64::from(config.layers) - global,
            window: room.sliding_positions,
            kv_heads: u64::from(config.kv_heads),
            head_bytes: room.kv.head_bytes(config.head_dim),
        };
        Demand { weights, kv, context: room.context, batch: room.batch, scratch: room.scratch, smaller }
    }
}

impl MatrixSpec<'_> {
    /// Bytes of values and scales.
    pub fn bytes(&self) -> u64 {
        (self.layout.value_bytes() + self.layout.scale_bytes()) as u64
    }

    fn item(&self, scheme: Scheme, has_head: bool) -> Item {
        // A scheme that the shape does not allow stays as it is.
        let layout = Layout::new(scheme, self.layout.rows, self.layout.k).unwrap_or(self.layout);
        let bytes = (layout.value_bytes() + layout.scale_bytes()) as u64;
        let strip = (layout.strip_value_bytes() + layout.strip_scale_bytes()) as u64;
        // A token reads one row of the embeddings, unless they are the output projection too.
        let one_row = self.place == Place::Embedding && has_head;
        let reads = if one_row { bytes / layout.rows as u64 } else { bytes };
        Item { name: self.place.to_string(), bytes, reads, strip }
    }
}

/// How tensors share a matrix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Join {
    /// One after the other.
    InTurn,
    /// A strip of each in turn.
    Alternating,
}

/// One matrix for all tensors where they have one scheme, one K and whole strips; else one each.
fn add<'a>(
    matrices: &mut Vec<MatrixSpec<'a>>,
    checkpoint: &Checkpoint,
    place: Place,
    join: Join,
    tensors: &[&'a Tensor],
) -> Result<()> {
    let strips: Vec<usize> = tensors.iter().map(|tensor| tensor.shape[0] as usize / STRIP).collect();
    if tensors.len() > 1 && !can_join(tensors, join) {
        return tensors.iter().try_for_each(|tensor| add(matrices, checkpoint, place, join, &[tensor]));
    }
    let first = tensors[0];
    let rows: u64 = tensors.iter().map(|tensor| tensor.shape[0]).sum();
    let layout = Layout::new(first.encoding.scheme(), rows as usize, first.shape[1] as usize);
    let layout = layout.ok_or_else(|| {
        let path = &checkpoint.source.files[first.data.file];
        Error::tensor(
            path,
            &first.name,
            format!("{:?} has rows that are not whole groups of 32", first.shape),
        )
    })?;
    let mut first_strip = 0;
    let mut placed = Vec::new();
    for (tensor, count) in tensors.iter().zip(&strips) {
        let (step, taken) = if join == Join::Alternating { (tensors.len(), 1) } else { (1, *count) };
        placed.push((*tensor, Placement { first_strip, step }));
        first_strip += taken;
    }
    matrices.push(MatrixSpec { place, layout, tensors: placed });
    Ok(())
}

fn can_join(tensors: &[&Tensor], join: Join) -> bool {
    let first = tensors[0];
    tensors.iter().all(|tensor| {
        tensor.encoding.scheme() == first.encoding.scheme()
            && tensor.shape[1] == first.shape[1]
            && tensor.shape[0].is_multiple_of(STRIP as u64)
            && (join == Join::InTurn || tensor.shape[0] == first.shape[0])
    })
}
