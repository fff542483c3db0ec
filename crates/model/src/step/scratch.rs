//! Activation buffers of a step.

use std::collections::{BTreeMap, btree_map::Entry};

use checkpoint::{FeedForward, LayerSpec};
use gpu::{Arena, Buffer, Lifetime, Memory};
use kernels::{Activations, Epilogue, Vectors};
use weights::blueprint::MatrixId;

use super::{
    experts::ExpertScratch,
    per_layer::PerLayerScratch,
    prefetch,
    split_k::{computes_own_norm, layer_products, norms_columns, partial_sums, split_k_scratch},
};
use crate::{Model, Result, state::CLEAR_TIMEOUT};

/// Activations of a bucket of rows.
pub(crate) struct Scratch {
    pub rows: usize,
    /// The number of rows for which kernels are chosen: 1 where each row must get the bits of a single one.
    pub kernel_rows: usize,
    /// The residual stream.
    pub residual: Buffer,
    /// A second one where products or routers compute their own norm: they write one while others still read the other.
    pub second_residual: Option<Buffer>,
    /// Whether products compute the norms before them.
    pub own_norm: bool,
    /// Whether routers add the block before them to the residual stream, and norm it.
    pub router_adds: bool,
    /// Whether down products over experts add up those of a row.
    pub sums_experts: bool,
    pub normed: Vectors,
    /// The factors of normed rows, where a single row has norms in the prologues of products, and these rows are too many.
    pub norm_factors: Option<Buffer>,
    pub qkv: Buffer,
    pub q: Buffer,
    /// By number of query rows: layers may differ.
    attended: BTreeMap<u32, Attended>,
    /// The output of a mixer or feed-forward block before it is added to the residual stream; several partial
    /// sums where its product is split along K. The norm that reads it adds them up.
    pub block: Buffer,
    /// By width: layers may differ.
    gated: BTreeMap<u32, Vectors>,
    /// Gate and up, where a model stores them in different schemes.
    pub gate_and_up: Option<[Buffer; 2]>,
    /// Split-K partial sums of cooperative-matrix products, and counters: initially zero.
    pub split_k: Option<Buffer>,
    /// Of layers with experts, where a model has them.
    experts: Option<ExpertScratch>,
    /// Of per-layer embeddings, where a model has them.
    per_layer: Option<PerLayerScratch>,
    /// Checksums that [`kernels::matmul::prefetch`] writes, where weights are prefetched.
    pub prefetch_sums: Option<Buffer>,
}

/// Attention's output.
pub(crate) struct Attended {
    pub floats: Vectors,
    /// The same as the output projection takes it, where that is not f32.
    pub packed: Option<Vectors>,
}

impl Attended {
    fn new(arena: &mut Arena, kind: Activations, query_rows: usize, rows: usize) -> Result<Self> {
        Ok(Self {
            floats: Vectors::f32(arena, "attention's output", query_rows, rows)?,
            packed: match kind {
                Activations::F32 => None,
                kind => Some(Vectors::new(arena, "attention's output", kind, query_rows, rows)?),
            },
        })
    }

    /// As the output projection takes it.
    pub fn activations(&self) -> &Vectors {
        self.packed.as_ref().unwrap_or(&self.floats)
    }
}

/// Logits of a number of output rows.
pub(crate) struct Outputs {
    pub normed: Vectors,
    /// f32, `[output row][vocab]`.
    pub logits: Buffer,
    /// As [`Scratch::split_k`], for the head.
    pub split_k: Option<Buffer>,
}

impl Outputs {
    /// For `rows` output rows, with the kernels of `kernel_rows`.
    pub fn new(model: &Model, rows: usize, kernel_rows: usize) -> Result<Self> {
        let mut arena = Arena::new(&model.device, Lifetime::Scratch, Memory::Device).with_block_size(4 << 20);
        let hidden = model.config.hidden as usize;
        let activations = model.activations(kernel_rows);
        let head = [(model.head()?, Epilogue::None)];
        let outputs = Self {
            normed: Vectors::new(&mut arena, "normed output rows", activations, hidden, rows)?,
            logits: arena.buffer("logits", u64::from(model.config.vocab) * rows as u64 * 4)?,
            split_k: split_k_scratch(model, &mut arena, kernel_rows, head.into_iter())?,
        };
        let mut recorder = model.device.recorder()?;
        outputs.normed.record_clear(&mut recorder, "clear")?;
        if let Some(split_k) = &outputs.split_k {
            recorder.fill("clear", split_k, 0)?;
        }
        recorder.seal()?.run(CLEAR_TIMEOUT)?;
        Ok(outputs)
    }
}

impl Scratch {
    /// For `rows` rows, with the kernels of `kernel_rows`: as many, or one.
    pub fn new(model: &Model, rows: usize, kernel_rows: usize) -> Result<Self> {
        let Model { device, config, weights, .. } = model;
        let mut arena = Arena::new(device, Lifetime::Scratch, Memory::Device).with_block_size(4 << 20);
        let floats = |count: u32| u64::from(count) * rows as u64 * 4;
        let activations = model.activations(kernel_rows);
        let mut attended = BTreeMap::new();
        for query_rows in config.attentions().map(|attention| attention.query_rows()) {
            if let Entry::Vacant(entry) = attended.entry(query_rows) {
                entry.insert(Attended::new(&mut arena, activations, query_rows as usize, rows)?);
            }
        }
        let mut gated = BTreeMap::new();
        for dense in config.layer_specs().filter_map(|layer| layer.feed_forward.dense()) {
            if let Entry::Vacant(entry) = gated.entry(dense.intermediate) {
                let width = dense.intermediate as usize;
                entry.insert(Vectors::new(&mut arena, "gated rows", activations, width, rows)?);
            }
        }
        // Models whose layers all have experts need nothing here.
        let intermediate = config.dense_intermediate().unwrap_or(0);
        let separate = (0..config.layers).any(|layer| weights.by_id(MatrixId::GateUp(layer)).count() > 1);
        let gate_and_up = match separate {
            false => None,
            true => {
                Some([arena.buffer("gate", floats(intermediate))?, arena.buffer("up", floats(intermediate))?])
            }
        };
        let max_partials = |matrices: &mut dyn Iterator<Item = MatrixId>| {
            u64::from(matrices.map(|matrix| partial_sums(model, kernel_rows, matrix)).max().unwrap_or(1))
        };
        let block_matrices = |layer| {
            [MatrixId::AttentionOutput(layer), MatrixId::Down(layer), MatrixId::PerLayerOutput(layer)]
        };
        let block_partials = max_partials(&mut (0..config.layers).flat_map(block_matrices));
        // Experts beside a dense block have a buffer of their own.
        let is_experts = |layer: LayerSpec| matches!(layer.feed_forward, FeedForward::Experts(_));
        let experts = model.experts().filter(|_| config.layer_specs().any(is_experts));
        let block_partials = block_partials.max(experts.map_or(1, |experts| experts.per_token.into()));
        let qkv_partials = max_partials(&mut (0..config.layers).map(MatrixId::Qkv));
        let own_norm = computes_own_norm(model, kernel_rows);
        let router_adds = super::experts::router_adds(model, kernel_rows);
        let norms_ahead = own_norm && rows > kernel_rows && !norms_columns(model, rows);
        let scratch = Self {
            rows,
            kernel_rows,
            own_norm,
            router_adds,
            sums_experts: super::experts::sums_experts(model, kernel_rows),
            residual: arena.buffer("residual stream", floats(config.hidden))?,
            second_residual: match own_norm || router_adds {
                false => None,
                true => Some(arena.buffer("residual stream", floats(config.hidden))?),
            },
            normed: Vectors::new(&mut arena, "normed rows", activations, config.hidden as usize, rows)?,
            norm_factors: match norms_ahead {
                false => None,
                true => Some(arena.buffer("factors of norms", floats(1))?),
            },
            qkv: arena.buffer("queries, keys and values", floats(config.max_qkv_rows()) * qkv_partials)?,
            q: arena.buffer("queries", floats(config.max_query_rows()))?,
            attended,
            block: arena.buffer("a block's output", floats(config.hidden) * block_partials)?,
            gated,
            gate_and_up,
            split_k: split_k_scratch(model, &mut arena, kernel_rows, layer_products(model))?,
            experts: ExpertScratch::new(model, &mut arena, rows)?,
            per_layer: PerLayerScratch::new(model, &mut arena, rows, kernel_rows)?,
            prefetch_sums: match prefetch::max_workgroups(model, kernel_rows) {
                0 => None,
                workgroups => Some(arena.buffer("checksums of weights", u64::from(workgroups) * 4)?),
            },
        };
        let mut recorder = device.recorder()?;
        let attended = scratch
            .attended
            .values()
            .flat_map(|attended| [&attended.floats].into_iter().chain(&attended.packed));
        for vectors in [&scratch.normed].into_iter().chain(attended).chain(scratch.gated.values()) {
            vectors.record_clear(&mut recorder, "clear")?;
        }
        if let Some(split_k) = &scratch.split_k {
            recorder.fill("clear", split_k, 0)?;
        }
        if let Some(experts) = &scratch.experts {
            experts.record_clear(&mut recorder)?;
        }
        if let Some(per_layer) = &scratch.per_layer {
            per_layer.record_clear(&mut recorder)?;
        }
        recorder.seal()?.run(CLEAR_TIMEOUT)?;
        Ok(scratch)
    }

    /// Attention's output of this many query rows.
    pub fn attended(&self, query_rows: u32) -> &Attended {
        &self.attended[&query_rows]
    }

    /// The gated rows of a dense block of this width.
    pub fn gated(&self, width: u32) -> &Vectors {
        &self.gated[&width]
    }

    /// The buffers of per-layer embeddings.
    pub(super) fn per_layer(&self) -> &PerLayerScratch {
        self.per_layer.as_ref().expect("a model with per-layer embeddings has memory for them")
    }

    /// The buffers of layers with experts.
    pub(crate) fn experts(&self) -> &ExpertScratch {
        self.experts.as_ref().expect("a model with experts has memory for them")
    }
}
