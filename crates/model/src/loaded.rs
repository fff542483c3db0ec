//! A model's weights in GPU memory, with what is computed once from its config.

use std::time::Duration;

use checkpoint::{Checkpoint, Config, Role, Slot, Tower, config::LayerType, family::Activation};
use gpu::{Arena, Buffer, Device, Lifetime, Memory, Tier, View};
use kernels::{
    Activations, Epilogue, HALF_GROUP, Matrix,
    attention::{decode, flash, rope::Tables},
    matmul::{
        coopmat::{self, policy::Fragments},
        gemm, gemv,
        tuning::Tuning,
    },
};
use weights::{
    blueprint::MatrixId,
    load::{self, Weights},
    plan::Placement,
    stream::{Control, Options, Stats},
};

use crate::{Result, frequencies};

/// What multiplies f16 activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixUnits {
    /// Those of the device, which hold their operands so.
    Device(Fragments),
    /// None: for tests, the same shaders do without.
    Emulated,
}

/// A model, ready to be run.
pub struct Model {
    /// Where it is.
    pub device: Device,
    /// Its dimensions.
    pub config: Config,
    /// Its weights.
    pub weights: Weights,
    /// How the activations of a few rows are stored: what this device multiplies fastest.
    pub(crate) few_rows: Activations,
    /// How the activations of many rows are stored: f16 where matrix units multiply them, int16 where packed dot products do.
    pub(crate) many_rows: Activations,
    /// What multiplies f16 activations.
    pub(crate) matrix_units: MatrixUnits,
    /// A row gets the same bits whatever stands beside it, and however a prompt is cut.
    pub(crate) reproducible: bool,
    /// What is known of matrix–vector products on this device.
    pub(crate) tuning: Tuning,
    /// Attention of rows of different sequences is one dispatch.
    pub(crate) one_dispatch: bool,
    rope: [RopeTables; 2],
}

/// Drivers that run shaders on the CPU have smaller ones, and convert bytes to floats as fast as they multiply them.
const SMALLEST_GPU_SUBGROUP: u32 = 32;

/// A few rows are multiplied as they are read, bound by memory if nothing else is in the way: as int16, by packed dot products of
/// bytes, which is next to exact. That takes weights that are integers, rows of whole half groups, and gate and up in one.
fn takes_int16(config: &Config, weights: &Weights) -> bool {
    let lengths = [config.hidden, config.query_rows(), config.intermediate];
    let whole = lengths.iter().all(|length| (*length as usize).is_multiple_of(HALF_GROUP));
    let integers = weights.matrices.iter().all(|(_, matrix)| !matrix.layout().scheme.is_float());
    let joined = (0..config.layers).all(|layer| weights.by_id(MatrixId::GateUp(layer)).count() == 1);
    whole && integers && joined
}

/// Matrix units take matrices and activations in fours.
fn takes_f16(config: &Config, weights: &Weights) -> bool {
    let lengths = [config.hidden, config.query_rows(), config.intermediate];
    let fours = lengths.iter().all(|length| length.is_multiple_of(4));
    let rows = weights.matrices.iter().all(|(_, matrix)| coopmat::policy::supports(&matrix.layout()));
    fours && rows
}

/// Rows from which on matrix units are faster than products that read the weights for each row: measured on an H200.
const MATRIX_UNITS_FROM: usize = 3;

/// Some hundred KB; Mesa's CPU driver is slow.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Cosines and sines on the device, see [`Tables`].
pub(crate) struct RopeTables {
    pub coarse: Buffer,
    pub fine: Buffer,
}

impl Model {
    /// Loads a checkpoint to where the placement says.
    pub fn load(
        device: &Device,
        checkpoint: &Checkpoint,
        placement: &Placement,
        options: &Options,
        control: &Control,
    ) -> Result<(Self, Stats)> {
        let (weights, stats) = load::load(device, checkpoint, placement, options, control)?;
        Ok((Self::assemble(device, checkpoint.config.clone(), weights)?, stats))
    }

    /// Puts together what is in GPU memory already.
    pub(crate) fn assemble(device: &Device, config: Config, weights: Weights) -> Result<Self> {
        let rope = [LayerType::Global, LayerType::Sliding].map(|kind| rope_tables(device, &config, kind));
        let [global, sliding] = rope;
        let rope = [global?, sliding?];
        let packed = device.caps().tier() >= Some(Tier::T1);
        let gpu = device.caps().max_subgroup_size >= SMALLEST_GPU_SUBGROUP;
        let few_rows = match packed && gpu && takes_int16(&config, &weights) {
            true => Activations::Int16,
            false => Activations::F32,
        };
        let fragments = coopmat::fragments(device)?;
        let matrix_units = MatrixUnits::Device(fragments);
        let planned = |matrix: &Matrix| {
            let (columns, epilogue, output) = (16, gate(&config), Activations::F16);
            let parts = coopmat::policy::SplitK::Reduced;
            let shape = coopmat::policy::Shape {
                weights: matrix.layout(),
                columns,
                epilogue,
                output,
                split_k: parts,
            };
            coopmat::policy::plan(device.caps(), fragments, &shape).is_some()
        };
        let suited = weights.matrices.iter().all(|(_, matrix)| planned(matrix));
        let many_rows = if suited && takes_f16(&config, &weights) {
            Activations::F16
        } else if gemm::packed::is_preferred(device.caps()) && takes_int16(&config, &weights) {
            Activations::Int16
        } else {
            Activations::F32
        };
        let one_dispatch = decode::policy::is_preferred(device.caps());
        let (device, tuning) = (device.clone(), Tuning::open(device));
        Ok(Self {
            device,
            config,
            weights,
            few_rows,
            many_rows,
            matrix_units,
            reproducible: false,
            tuning,
            one_dispatch,
            rope,
        })
    }

    /// The same with the attention of decode steps in one dispatch or in several.
    pub fn with_one_dispatch(mut self, one_dispatch: bool) -> Self {
        self.one_dispatch = one_dispatch;
        self
    }

    /// The same with the activations of a few rows stored in another way, where the model's shape allows it.
    pub fn with_few_rows(mut self, activations: Activations) -> Self {
        if activations == Activations::F32 || takes_int16(&self.config, &self.weights) {
            self.few_rows = activations;
        }
        self
    }

    /// The same with logits that do not depend on the batch or on how a prompt is cut, bit by bit: one kernel with one order of sums
    /// serves any number of rows. One sequence alone is slower for it.
    pub fn with_reproducible(mut self, reproducible: bool) -> Self {
        self.reproducible = reproducible;
        self.one_dispatch = !reproducible && decode::policy::is_preferred(self.device.caps());
        self
    }

    /// Whether its logits are.
    pub fn is_reproducible(&self) -> bool {
        self.reproducible
    }

    /// The same with the way of matrix units, on a device that has none: slow, and for tests.
    pub fn with_emulated_matrix_units(mut self) -> Self {
        if takes_f16(&self.config, &self.weights) && coopmat::policy::emulates(self.device.caps()) {
            self.many_rows = Activations::F16;
            self.matrix_units = MatrixUnits::Emulated;
        }
        self
    }

    /// The same with the way of packed dot products for many rows, on a device that would do without: for tests.
    pub fn with_packed_products(mut self) -> Self {
        if takes_int16(&self.config, &self.weights) && gemm::packed::is_supported(self.device.caps()) {
            self.many_rows = Activations::Int16;
        }
        self
    }

    /// The plan of a product of f16 activations.
    pub(crate) fn matmul_plan(&self, shape: &coopmat::policy::Shape) -> Option<coopmat::policy::Plan> {
        let caps = self.device.caps();
        match self.matrix_units {
            MatrixUnits::Device(fragments) if self.reproducible => {
                coopmat::policy::reproducible(caps, fragments, shape)
            }
            MatrixUnits::Device(fragments) => coopmat::policy::plan(caps, fragments, shape),
            MatrixUnits::Emulated => coopmat::policy::emulated(caps, shape),
        }
    }

    /// The plan of attention that writes f16 activations for rows of a prompt, where there is one.
    pub(crate) fn flash_plan(&self, shape: &flash::policy::Shape) -> Option<flash::policy::Plan> {
        let caps = self.device.caps();
        match self.matrix_units {
            MatrixUnits::Device(_) => flash::policy::plan(caps, shape),
            MatrixUnits::Emulated => flash::policy::emulated(caps, shape),
        }
    }

    /// How activations are stored for the products of so many rows.
    pub(crate) fn activations(&self, rows: usize) -> Activations {
        let few = match self.many_rows {
            _ if self.reproducible => false,
            Activations::F16 => rows < MATRIX_UNITS_FROM,
            _ => rows <= gemv::MAX_COLUMNS,
        };
        if few { self.few_rows } else { self.many_rows }
    }

    pub(crate) fn rope_tables(&self, kind: LayerType) -> &RopeTables {
        match kind {
            LayerType::Global => &self.rope[0],
            LayerType::Sliding => &self.rope[1],
        }
    }

    /// What becomes of gate and up.
    pub(crate) fn gate(&self) -> Epilogue {
        gate(&self.config)
    }

    /// A norm's weight.
    pub(crate) fn norm(&self, layer: Option<u32>, role: Role) -> Result<View> {
        let slot = Slot { tower: Tower::Text, layer, role };
        let missing =
            || gpu::Error::InvalidUse { what: format!("{role:?}"), reason: "was not loaded".into() };
        Ok(self.weights.norms.get(&slot).ok_or_else(missing)?.view())
    }

    /// The embeddings.
    pub(crate) fn embeddings(&self) -> Result<&Matrix> {
        self.only(MatrixId::Embedding)
    }

    /// What makes logits: a matrix of its own, or the embeddings.
    pub(crate) fn head(&self) -> Result<&Matrix> {
        self.only(MatrixId::Head).or_else(|_| self.embeddings())
    }

    fn only(&self, place: MatrixId) -> Result<&Matrix> {
        let missing = || gpu::Error::InvalidUse { what: place.to_string(), reason: "was not loaded".into() };
        Ok(self.weights.by_id(place).next().ok_or_else(missing)?)
    }

    /// Bytes of weights that a step reads: all matrices, but of embeddings that are not the head only a row.
    pub fn bytes_per_step(&self) -> u64 {
        let has_head = self.weights.by_id(MatrixId::Head).next().is_some();
        let skipped = |place: &MatrixId| has_head && *place == MatrixId::Embedding;
        let matrices = self.weights.matrices.iter().filter(|(place, _)| !skipped(place));
        matrices.map(|(_, matrix)| matrix.bytes()).sum()
    }
}

fn gate(config: &Config) -> Epilogue {
    match config.architecture.family().activation {
        Activation::GeluTanh => Epilogue::Geglu,
        Activation::Silu => Epilogue::Swiglu,
    }
}

fn rope_tables(device: &Device, config: &Config, kind: LayerType) -> Result<RopeTables> {
    let frequencies = frequencies::of(config, kind);
    let tables = Tables::new(&frequencies, config.max_positions as usize);
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
