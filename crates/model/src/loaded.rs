//! A model's weights in GPU memory, with the tables and choices that follow from its config and device.

use std::time::Duration;

use checkpoint::{Attention, Checkpoint, Config, Experts, Role, Slot, family::Activation};
use gpu::{Arena, Buffer, Caps, Device, Lifetime, Memory, Tier, View};
use kernels::{
    Activations, Epilogue, HALF_GROUP, Matrix,
    attention::{decode, flash, rope::Tables},
    matmul::{
        coopmat::{self, policy::Fragments},
        gemm, gemv,
    },
};
use weights::{
    blueprint::MatrixId,
    load::{self, Weights},
    plan::Placement,
    stream::{Control, Options, Stats},
};

#[cfg(doc)]
use crate::Runner;
use crate::{Result, frequencies, pacer::MatrixSizes, tune::TunedPlans};

/// The units that multiply f16 activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixUnits {
    /// The device's cooperative matrices, with this fragment layout.
    Device(Fragments),
    /// The same shaders without cooperative matrices: for tests.
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code, reason = "constructed by tests"))]
    Emulated,
}

impl MatrixUnits {
    /// Plan of a product of f16 activations, where there is one.
    pub fn coopmat_plan(self, caps: &Caps, shape: &coopmat::policy::Shape) -> Option<coopmat::policy::Plan> {
        match self {
            MatrixUnits::Device(fragments) => coopmat::policy::plan(caps, fragments, shape),
            MatrixUnits::Emulated => coopmat::policy::emulated(caps, shape),
        }
    }

    /// Plan of flash attention, where there is one.
    pub fn flash_plan(self, caps: &Caps, shape: &flash::policy::Shape) -> Option<flash::policy::Plan> {
        match self {
            MatrixUnits::Device(fragments) => flash::policy::plan(caps, fragments, shape),
            MatrixUnits::Emulated => flash::policy::emulated(caps, shape),
        }
    }
}

/// Why the rows of a verify step cannot get the bits of single decode steps from their kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoExactVerify {
    /// Products over experts are planned for all rows together.
    #[error("products over experts sum in a different order for several rows than for one")]
    Experts,
    /// The device lacks packed dot products or shared memory, or has attention in several dispatches.
    #[error("the device has no kernels that sum in the same order for one row and for several")]
    Device,
}

/// A model in GPU memory, ready to run.
pub struct Model {
    /// The device that it is on.
    pub device: Device,
    /// Its dimensions.
    pub config: Config,
    /// Its weights.
    pub weights: Weights,
    /// How activations of few rows are stored: the format that this device multiplies fastest.
    few_rows: Activations,
    /// How activations of many rows are stored: f16 for cooperative matrices, int16 for packed dot products.
    many_rows: Activations,
    matrix_units: MatrixUnits,
    /// Whether logits are batch-invariant: a row gets the same bits whatever else is in the batch, and
    /// however a prompt is split into chunks.
    pub(crate) reproducible: bool,
    /// Whether a row of a step with few rows gets the same bits however many rows there are.
    row_invariant: bool,
    /// Autotuned plans of matrix–vector products on this device.
    pub(crate) tuning: TunedPlans,
    /// Whether attention of decode rows is a single dispatch.
    one_dispatch: bool,
    /// The distinct attention specs of the layers, and their RoPE tables.
    attention_variants: Vec<Attention>,
    rope: Vec<RopeTables>,
    /// A one per element of the residual stream, for models with per-layer embeddings.
    ones: Option<Buffer>,
}

/// CPU drivers have smaller subgroups, and convert bytes to floats as fast as they multiply them.
const MIN_GPU_SUBGROUP: u32 = 32;

/// Minimum rows for which cooperative matrices are faster than products that read the weights for each row:
/// measured on an H200.
const COOPMAT_MIN_ROWS: usize = 3;

/// Maximum rows whose pairs are not grouped by expert. Of four rows with 8 of 128 experts each, 29 of 32 pairs have an
/// expert of their own.
const MAX_ROWS_WITHOUT_GROUPS: usize = 4;

/// Timeout of uploading some hundred KB; Mesa's CPU driver is slow.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The lengths of the rows that products take.
fn product_lengths(config: &Config) -> impl Iterator<Item = u32> {
    let widths = config.layer_specs().flat_map(|layer| {
        let dense = layer.feed_forward.dense().map(|dense| dense.intermediate);
        let experts = layer.feed_forward.experts().map(|experts| experts.intermediate);
        dense.into_iter().chain(experts).chain(layer.per_layer_width)
    });
    let queries = config.attentions().map(|attention| attention.query_rows());
    [config.hidden].into_iter().chain(queries).chain(widths)
}

/// The matrices that decide about the format of activations: not tables of embeddings, nor a per-layer projection in
/// floats, as GGUF files have it, which takes f32 whatever the others take.
fn multiplied(weights: &Weights) -> impl Iterator<Item = &Matrix> {
    let is_multiplied = |id: MatrixId, matrix: &Matrix| match id {
        MatrixId::PerLayerEmbedding => false,
        MatrixId::PerLayerProjection => !matrix.layout().scheme.is_float(),
        _ => true,
    };
    weights.matrices.iter().filter(move |(id, matrix)| is_multiplied(*id, matrix)).map(|(_, matrix)| matrix)
}

/// Whether few rows can be int16: products are then packed dot products of bytes, bound by memory and next to
/// exact. That takes integer weights, rows of whole half groups, and gate and up in one matrix.
fn supports_int16(config: &Config, weights: &Weights) -> bool {
    let aligned = product_lengths(config).all(|length| (length as usize).is_multiple_of(HALF_GROUP));
    let integers = multiplied(weights).all(|matrix| !matrix.layout().scheme.is_float());
    let joined = (0..config.layers).all(|layer| weights.by_id(MatrixId::GateUp(layer)).count() <= 1);
    aligned && integers && joined
}

/// Whether cooperative matrices take the model's matrices and activations, which they load four values at a
/// time.
fn supports_f16(config: &Config, weights: &Weights) -> bool {
    let aligned = product_lengths(config).all(|length| length.is_multiple_of(4));
    let supported = multiplied(weights).all(|matrix| coopmat::policy::supports(&matrix.layout()));
    aligned && supported
}

/// Maximum rows of a verify step on any device.
pub const MAX_VERIFY_ROWS: usize = 16;

/// Maximum rows of a verify step on a device. On GPUs they are those that the products of few rows take: more would read the
/// weights with kernels that add up in another order. CPU drivers have one kernel for any number; there more than 16
/// have not been tried.
pub fn max_verify_rows(caps: &Caps) -> usize {
    if Model::row_invariance_is_free(caps) { MAX_VERIFY_ROWS } else { gemv::MAX_COLUMNS }
}

/// Cosines and sines on the device, see [`Tables`].
pub(crate) struct RopeTables {
    pub coarse: Buffer,
    pub fine: Buffer,
}

impl Model {
    /// Loads a checkpoint's matrices into the heaps that the placement assigns them to.
    pub fn load(
        device: &Device,
        checkpoint: &Checkpoint,
        placement: &Placement,
        options: &Options,
        control: &Control,
    ) -> Result<(Self, Stats)> {
        let (weights, stats) = load::load(device, checkpoint, placement, options, control)?;
        Ok((Self::from_weights(device, checkpoint.config.clone(), weights)?, stats))
    }

    /// A model from weights that are already in GPU memory.
    pub(crate) fn from_weights(device: &Device, config: Config, weights: Weights) -> Result<Self> {
        let attention_variants = attention_variants(&config);
        let rope = attention_variants.iter().map(|attention| rope_tables(device, &config, attention));
        let rope = rope.collect::<Result<Vec<_>>>()?;
        let ones = config.per_layer_width.map(|_| ones(device, config.hidden)).transpose()?;
        let packed = device.caps().tier() >= Some(Tier::T1);
        let gpu = device.caps().max_subgroup_size >= MIN_GPU_SUBGROUP;
        let few_rows = match packed && gpu && supports_int16(&config, &weights) {
            true => Activations::Int16,
            false => Activations::F32,
        };
        let fragments = coopmat::fragments(device)?;
        let planned = |matrix: &Matrix| {
            let shape = coopmat::policy::Shape {
                weights: matrix.layout(),
                columns: 16,
                epilogue: epilogue(config.architecture.family().activation),
                output: Activations::F16,
                split_k: coopmat::policy::SplitK::Reduced,
                bias: coopmat::policy::Bias::None,
            };
            coopmat::policy::plan(device.caps(), fragments, &shape).is_some()
        };
        let all_planned = multiplied(&weights).all(planned);
        let many_rows = if all_planned && supports_f16(&config, &weights) {
            Activations::F16
        } else if gemm::packed::is_preferred(device.caps()) && supports_int16(&config, &weights) {
            Activations::Int16
        } else {
            Activations::F32
        };
        Ok(Self {
            one_dispatch: decode::policy::is_preferred(device.caps()),
            tuning: TunedPlans::open(device),
            device: device.clone(),
            config,
            weights,
            few_rows,
            many_rows,
            matrix_units: MatrixUnits::Device(fragments),
            reproducible: false,
            row_invariant: false,
            attention_variants,
            rope,
            ones,
        })
    }

    /// Makes logits batch-invariant: bit for bit independent of the batch and of the prefill chunks. One
    /// kernel with one order of summation serves any number of rows, which is slower for a single sequence.
    pub fn with_reproducible(mut self, reproducible: bool) -> Self {
        self.reproducible = reproducible;
        self
    }

    /// Makes logits of steps with up to [`Model::max_verify_rows`] rows independent of the number of rows, bit for bit, so that
    /// tokens do not depend on how many drafts are verified. Such steps use the kernels of batch-invariant logits, except
    /// that attention is split as that of a single row. On CPU drivers they are the same as without.
    pub fn with_row_invariant(mut self, row_invariant: bool) -> Self {
        self.row_invariant = row_invariant;
        self
    }

    /// Whether verify steps on this device can have the kernels of a single row: see [`Runner::with_exact_verify`].
    pub fn check_exact_verify(&self) -> std::result::Result<(), NoExactVerify> {
        if self.experts().is_some() {
            return Err(NoExactVerify::Experts);
        }
        let equal_sums = gemv::policy::has_equal_sums(self.device.caps());
        if equal_sums && self.attends_in_one_dispatch(1) { Ok(()) } else { Err(NoExactVerify::Device) }
    }

    /// Whether row-invariant logits cost nothing on a device: a CPU driver has one kernel for any number of rows. On a GPU
    /// the fastest kernels for a single row add up in another order than those for several; an H200 decodes 87.9 instead
    /// of 118.8 tok/s (27B, int8) without them.
    pub fn row_invariance_is_free(caps: &Caps) -> bool {
        caps.max_subgroup_size < MIN_GPU_SUBGROUP
    }

    /// Maximum rows of a verify step: see [`max_verify_rows`].
    pub fn max_verify_rows(&self) -> usize {
        max_verify_rows(self.device.caps())
    }

    /// Prefill rows of a step that are too few to fill the device: their attention is split as that of decode rows is. Those
    /// of a verify step are always few, since they must get the bits of decode rows.
    pub(crate) fn few_prefill_rows(&self) -> usize {
        self.max_verify_rows()
    }

    /// Whether the products of a step of this many rows must not depend on that number.
    pub(crate) fn is_invariant(&self, rows: usize) -> bool {
        self.reproducible || self.row_invariant && rows <= self.max_verify_rows()
    }

    /// Whether the attention of this many decode rows is a single dispatch.
    pub(crate) fn attends_in_one_dispatch(&self, rows: usize) -> bool {
        self.one_dispatch && !self.is_invariant(rows)
    }

    /// Whether logits are batch-invariant.
    pub fn is_reproducible(&self) -> bool {
        self.reproducible
    }

    /// Plan of a product of f16 activations.
    pub(crate) fn coopmat_plan(&self, shape: &coopmat::policy::Shape) -> Option<coopmat::policy::Plan> {
        let caps = self.device.caps();
        match self.matrix_units {
            MatrixUnits::Device(fragments) if self.is_invariant(shape.columns) => {
                coopmat::policy::reproducible(caps, fragments, shape)
            }
            units => units.coopmat_plan(caps, shape),
        }
    }

    /// Plan of a product of f16 activations over experts, in a step of this many rows.
    pub(crate) fn expert_coopmat_plan(
        &self,
        shape: &coopmat::policy::Shape,
        rows: usize,
    ) -> Option<coopmat::policy::Plan> {
        let caps = self.device.caps();
        match self.matrix_units {
            MatrixUnits::Device(fragments) if self.is_invariant(rows) => {
                let narrow = coopmat::policy::expert_plan(
                    caps,
                    fragments,
                    &coopmat::policy::Shape { columns: 16, ..*shape },
                )?;
                let plan = coopmat::policy::expert_plan(caps, fragments, shape)?;
                Some(coopmat::policy::Plan { direct: narrow.direct, ..plan })
            }
            MatrixUnits::Device(fragments) => coopmat::policy::expert_plan(caps, fragments, shape),
            MatrixUnits::Emulated => coopmat::policy::emulated(caps, shape),
        }
    }

    /// The experts, where the model's layers have them.
    pub(crate) fn experts(&self) -> Option<Experts> {
        self.config.layer_specs().find_map(|layer| layer.feed_forward.experts())
    }

    /// The router of a layer with experts.
    pub(crate) fn router(&self, layer: u32) -> Result<View> {
        let missing = || gpu::Error::InvalidUse {
            what: format!("router of layer {layer}"),
            reason: "was not loaded".into(),
        };
        Ok(self.weights.routers.get(&layer).ok_or_else(missing)?.view())
    }

    /// Plan of flash attention, which writes f16 activations for prefill rows, where there is one.
    pub(crate) fn flash_plan(&self, shape: &flash::policy::Shape) -> Option<flash::policy::Plan> {
        self.matrix_units.flash_plan(self.device.caps(), shape)
    }

    /// The units that multiply f16 activations.
    pub(crate) fn matrix_units(&self) -> MatrixUnits {
        self.matrix_units
    }

    /// The device's layout of fragments, for products of few rows on cooperative matrices.
    pub(crate) fn fragments(&self) -> Fragments {
        match self.matrix_units {
            MatrixUnits::Device(fragments) => fragments,
            MatrixUnits::Emulated => Fragments::Other,
        }
    }

    /// How activations are stored for products of this many rows.
    pub(crate) fn activations(&self, rows: usize) -> Activations {
        let few = match self.many_rows {
            _ if self.is_invariant(rows) => false,
            Activations::F16 => rows < COOPMAT_MIN_ROWS,
            _ => rows <= gemv::MAX_COLUMNS,
        };
        if few { self.few_rows } else { self.many_rows }
    }

    /// Activations of products over experts, where they need not be those of the step's other products: with a few rows
    /// nearly every pair has an expert of its own, and products that read the weights for each pair lose nothing.
    pub(crate) fn expert_activations(&self, rows: usize) -> Activations {
        let few = rows <= MAX_ROWS_WITHOUT_GROUPS && !self.is_invariant(rows);
        match self.few_rows {
            Activations::Int16 if few => Activations::Int16,
            _ => self.activations(rows),
        }
    }

    /// The distinct attention specs of the layers.
    pub(crate) fn attention_variants(&self) -> &[Attention] {
        &self.attention_variants
    }

    /// The index of a layer's attention among the variants.
    pub(crate) fn attention_variant(&self, attention: &Attention) -> usize {
        let index = self.attention_variants.iter().position(|variant| variant == attention);
        index.expect("the variants are those of all layers")
    }

    pub(crate) fn rope_tables(&self, attention: &Attention) -> &RopeTables {
        &self.rope[self.attention_variant(attention)]
    }

    /// Sizes of the matrices of each layer and, last, of the head.
    pub(crate) fn matrix_sizes(&self) -> Vec<MatrixSizes> {
        let layers = self.config.layers as usize;
        let mut sizes = vec![MatrixSizes::default(); layers + 1];
        let tied = self.weights.by_id(MatrixId::Head).next().is_none();
        for (id, matrix) in &self.weights.matrices {
            let unit = match id {
                MatrixId::Qkv(layer)
                | MatrixId::AttentionOutput(layer)
                | MatrixId::GateUp(layer)
                | MatrixId::Down(layer)
                | MatrixId::ExpertGateUp(layer)
                | MatrixId::ExpertDown(layer)
                | MatrixId::PerLayerGate(layer)
                | MatrixId::PerLayerOutput(layer) => *layer as usize,
                MatrixId::PerLayerProjection => 0,
                MatrixId::Head => layers,
                MatrixId::Embedding if tied => layers,
                MatrixId::Embedding | MatrixId::PerLayerEmbedding => continue,
            };
            let weights = (matrix.layout().rows * matrix.layout().k) as u64;
            sizes[unit].bytes += matrix.bytes();
            sizes[unit].row_bytes += self.read_per_row(*id, matrix.bytes());
            sizes[unit].weights += self.read_per_row(*id, weights);
        }
        sizes
    }

    /// A norm's weight.
    pub(crate) fn norm(&self, layer: Option<u32>, role: Role) -> Result<View> {
        let slot = Slot::text(layer, role);
        let missing =
            || gpu::Error::InvalidUse { what: format!("{role:?}"), reason: "was not loaded".into() };
        Ok(self.weights.norms.get(&slot).ok_or_else(missing)?.view())
    }

    /// The factor of the residual stream after a layer, where it has one.
    pub(crate) fn layer_scale(&self, layer: u32) -> Option<View> {
        self.weights.norms.get(&Slot::text(Some(layer), Role::LayerScale)).map(Buffer::view)
    }

    /// All-ones weight, for norms without a learned weight.
    pub(crate) fn unit_weight(&self) -> Result<View> {
        let missing = || gpu::Error::InvalidUse {
            what: "a norm without weight".into(),
            reason: "the model has none".into(),
        };
        Ok(self.ones.as_ref().ok_or_else(missing)?.view())
    }

    /// The embedding matrix.
    pub(crate) fn embeddings(&self) -> Result<&Matrix> {
        self.single_matrix(MatrixId::Embedding)
    }

    /// The output projection: a matrix of its own, or the embeddings.
    pub(crate) fn head(&self) -> Result<&Matrix> {
        self.single_matrix(MatrixId::Head).or_else(|_| self.embeddings())
    }

    pub(crate) fn single_matrix(&self, id: MatrixId) -> Result<&Matrix> {
        let missing = || gpu::Error::InvalidUse { what: id.to_string(), reason: "was not loaded".into() };
        Ok(self.weights.by_id(id).next().ok_or_else(missing)?)
    }

    /// Bytes of weights that a step of this many rows reads: all matrices, except embeddings that are not also the head.
    /// `distinct_experts` is the number of experts per layer that its rows pass through; `None` where it is not known and
    /// depends on the experts that several rows have in common.
    pub fn bytes_per_step(&self, rows: usize, distinct_experts: Option<u32>) -> Option<u64> {
        let hit = match self.experts() {
            Some(experts) if rows == 1 => experts.per_token,
            Some(_) => distinct_experts?,
            None => 0,
        };
        let has_head = self.weights.by_id(MatrixId::Head).next().is_some();
        let skipped = |id: &MatrixId| match id {
            MatrixId::Embedding => has_head,
            MatrixId::PerLayerEmbedding => true,
            _ => false,
        };
        let matrices = self.weights.matrices.iter().filter(|(id, _)| !skipped(id));
        Some(matrices.map(|(id, matrix)| self.read_by_experts(*id, matrix.bytes(), hit)).sum())
    }

    /// The part of `all`, bytes or weights of a matrix, that a single row reads: of the experts, that of its own.
    fn read_per_row(&self, id: MatrixId, all: u64) -> u64 {
        self.read_by_experts(id, all, self.experts().map_or(0, |experts| experts.per_token))
    }

    /// The same for `hit` experts.
    fn read_by_experts(&self, id: MatrixId, all: u64, hit: u32) -> u64 {
        match (id, self.experts()) {
            (MatrixId::ExpertGateUp(_) | MatrixId::ExpertDown(_), Some(experts)) => {
                all / u64::from(experts.count) * u64::from(hit)
            }
            _ => all,
        }
    }
}

/// Code paths that a device would not choose by itself.
#[cfg(any(test, feature = "testing"))]
impl Model {
    /// Attention of decode steps in a single dispatch, or in several.
    pub fn with_one_dispatch(mut self, one_dispatch: bool) -> Self {
        self.one_dispatch = one_dispatch;
        self
    }

    /// Sets how activations of few rows are stored, where the model's shape allows it.
    pub fn with_few_rows(mut self, activations: Activations) -> Self {
        if activations == Activations::F32 || supports_int16(&self.config, &self.weights) {
            self.few_rows = activations;
        }
        self
    }

    /// The code path of cooperative matrices on a device that has none: slow.
    pub fn with_emulated_matrix_units(mut self) -> Self {
        if supports_f16(&self.config, &self.weights) && coopmat::policy::can_emulate(self.device.caps()) {
            self.many_rows = Activations::F16;
            self.matrix_units = MatrixUnits::Emulated;
        }
        self
    }

    /// Packed dot products for many rows.
    pub fn with_packed_products(mut self) -> Self {
        if supports_int16(&self.config, &self.weights) && gemm::packed::is_supported(self.device.caps()) {
            self.many_rows = Activations::Int16;
        }
        self
    }
}

/// The distinct attention specs of a model's layers.
fn attention_variants(config: &Config) -> Vec<Attention> {
    let mut variants = vec![];
    for attention in config.attentions() {
        if !variants.contains(&attention) {
            variants.push(attention);
        }
    }
    variants
}

/// The epilogue of gate and up.
pub(crate) fn epilogue(activation: Activation) -> Epilogue {
    match activation {
        Activation::GeluTanh => Epilogue::Geglu,
        Activation::Silu => Epilogue::Swiglu,
    }
}

fn ones(device: &Device, count: u32) -> Result<Buffer> {
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(1 << 16);
    let buffer = arena.buffer("ones", u64::from(count) * 4)?;
    let mut recorder = device.recorder()?;
    recorder.fill("ones", &buffer, 1_f32.to_bits())?;
    recorder.seal()?.run(UPLOAD_TIMEOUT)?;
    Ok(buffer)
}

pub(crate) fn rope_tables(device: &Device, config: &Config, attention: &Attention) -> Result<RopeTables> {
    let frequencies = frequencies::rope_frequencies(config, attention);
    let factor = frequencies::rotation_factor(config, attention);
    let tables = Tables::scaled(&frequencies, config.max_positions as usize, factor);
    let mut arena = Arena::new(device, Lifetime::Weights, Memory::Device).with_block_size(1 << 20);
    let mut staging = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(1 << 20);
    let mut recorder = device.recorder()?;
    let mut upload = |values: &[f32]| -> Result<Buffer> {
        let from = staging.buffer_from("RoPE table", values)?;
        let to = arena.buffer("RoPE table", from.len())?;
        recorder.copy("RoPE table", &from, &to)?;
        Ok(to)
    };
    let (coarse, fine) = (upload(&tables.coarse)?, upload(&tables.fine)?);
    recorder.seal()?.run(UPLOAD_TIMEOUT)?;
    Ok(RopeTables { coarse, fine })
}
