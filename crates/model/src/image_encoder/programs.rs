//! Recording the programs of an image encoder: what its kinds have in common.

mod gemma4;
mod siglip;
mod unified;

use checkpoint::{EncoderKind, Role, Slot, Transformer, VisionConfig};
use gpu::{Caps, Device, Recorder, View};
use kernels::{
    Activations, Epilogue, Matrix, Target, Vectors,
    attention::{
        flash::{self, FlashAttention},
        paged::{self, Mode, PagedAttention},
    },
    layer_norm::{self, LayerNorm},
    matmul::{
        coopmat::{
            self, Coopmat,
            policy::{Bias, SplitK},
        },
        gemm::{self, Gemm},
    },
    pool::{self, Pool, Standardise},
};
use weights::vision::{VisionMatrix, VisionWeights};

use super::{
    scratch::{AttentionScratch, Scratch, attention_shape},
    single,
};
use crate::{
    Result,
    loaded::MatrixUnits,
    offload::{self, Cuts, Rows},
};

/// The product of a matrix on cooperative matrices.
pub(super) fn coopmat_shape(
    weights: &VisionWeights,
    id: VisionMatrix,
    matrix: &Matrix,
    columns: usize,
) -> coopmat::policy::Shape {
    let (epilogue, output) = match has_gated_epilogue(weights, id) {
        true => (Epilogue::Geglu, Activations::F16),
        false => (Epilogue::None, Activations::F32),
    };
    let (weights, split_k) = (matrix.layout(), SplitK::Reduced);
    coopmat::policy::Shape { weights, columns, epilogue, output, split_k, bias: Bias::None }
}

/// Its plan where about the first `active` columns are active.
pub(super) fn coopmat_plan(
    units: MatrixUnits,
    caps: &Caps,
    shape: &coopmat::policy::Shape,
    active: usize,
) -> Option<coopmat::policy::Plan> {
    match units {
        MatrixUnits::Device(fragments) => coopmat::policy::partly_active_plan(caps, fragments, shape, active),
        MatrixUnits::Emulated => units.coopmat_plan(caps, shape),
    }
}

/// Whether the product of a matrix applies the gate: gate and up form one matrix, and nothing is clamped in between.
pub(super) fn has_gated_epilogue(weights: &VisionWeights, id: VisionMatrix) -> bool {
    matches!(id, VisionMatrix::GateUp(_)) && weights.clips.is_empty() && weights.by_id(id).count() == 1
}

/// Whether products of several images have other plans than those of one.
pub(super) fn plans_differ(
    units: MatrixUnits,
    caps: &Caps,
    config: &VisionConfig,
    weights: &VisionWeights,
    images: usize,
) -> bool {
    weights.matrices.iter().any(|(id, matrix)| {
        let rows = match id {
            VisionMatrix::Projection => config.max_soft_tokens(),
            _ => config.max_patches(),
        };
        let shape = coopmat_shape(weights, *id, matrix, rows as usize * images);
        let plan = |active| coopmat_plan(units, caps, &shape, active);
        plan(rows as usize) != plan(shape.columns)
    })
}

/// Records what the residual stream is before the first program: SigLIP's position embeddings.
pub(super) fn initialise_residual(
    recorder: &mut Recorder,
    config: &VisionConfig,
    weights: &VisionWeights,
    scratch: &Scratch,
    images: usize,
) -> Result<()> {
    if !matches!(config.encoder, EncoderKind::Siglip { .. }) {
        return Ok(());
    }
    let positions = vector(weights, Slot::vision(None, Role::PositionEmbed))?;
    for image in 0..images as u64 {
        let bytes = image * positions.len()..(image + 1) * positions.len();
        recorder.copy("positions", positions.clone(), scratch.residual.slice(bytes)?)?;
    }
    Ok(())
}

/// A norm, a bias or SigLIP's position embeddings.
fn vector(weights: &VisionWeights, slot: Slot) -> Result<View> {
    let missing =
        || gpu::Error::InvalidUse { what: format!("{:?}", slot.role), reason: "was not loaded".into() };
    Ok(weights.vectors.get(&slot).ok_or_else(missing)?.view())
}

/// What the programs are recorded from.
pub(super) struct Recording<'a> {
    pub device: &'a Device,
    pub config: &'a VisionConfig,
    pub weights: &'a VisionWeights,
    pub scratch: &'a Scratch,
    pub units: MatrixUnits,
    /// Images that plans are chosen for; programs encode as many as there are, up to those that there are buffers for.
    pub images: usize,
    /// Where the NPU multiplies.
    pub cuts: Option<&'a Cuts<'a>>,
}

/// Weight and bias of a LayerNorm.
struct LayerNormSlots {
    weight: Slot,
    bias: Slot,
}

/// Rows that are added to the residual stream.
struct Addend {
    /// The rows and their format, and the values from one to the next.
    x: View,
    format: Activations,
    x_stride: usize,
    /// Their bias.
    bias: View,
}

impl Recording<'_> {
    /// Number of programs: one per layer, or a single one.
    pub fn count(&self) -> u32 {
        self.config.layers().max(1)
    }

    /// Records a program: the first starts from the patches, the last ends with the soft tokens.
    pub fn program(&self, number: u32, recorder: Recorder) -> Result<Recorder> {
        match &self.config.encoder {
            EncoderKind::Siglip { transformer, .. } => self.siglip_layer(transformer, number, recorder),
            EncoderKind::Gemma4 { transformer, .. } => self.gemma4_layer(transformer, number, recorder),
            EncoderKind::Gemma4Unified { layer_norm_eps, .. } => self.unified(*layer_norm_eps, recorder),
        }
    }

    fn attention(&self) -> &AttentionScratch {
        self.scratch.attention.as_ref().expect("encoders with layers have these buffers")
    }

    /// block = patch embedding · patches.
    fn embed_patches(&self, recorder: &mut Recorder) -> Result<()> {
        let (id, x) = (VisionMatrix::PatchEmbed, &self.scratch.patches);
        self.products(recorder, "patch embedding", id, x, self.block_target()?)
    }

    /// Where the output of a block is f16. An NPU returns f32.
    fn half_block(&self) -> Option<&Vectors> {
        let rows = self.scratch.attention.as_ref()?.half_rows.as_ref()?;
        self.cuts.is_none().then_some(&rows.block)
    }

    /// Where products write the output of a block.
    fn block_target(&self) -> Result<Target> {
        match self.half_block() {
            Some(block) => Ok(Target::vectors(block)?),
            None => Ok(Target::contiguous(&self.scratch.block, self.config.hidden as usize)),
        }
    }

    /// The output of attention for queries, keys and values that have been written, in f32 where the scratch memory has that.
    fn attend(&self, recorder: &mut Recorder, transformer: &Transformer) -> Result<()> {
        let (scratch, attention) = (self.scratch, self.attention());
        let shape = attention_shape(self.config, transformer, attention.kv.shape.scheme);
        let floats = attention.attended_floats.as_ref();
        let operands = paged::Operands {
            q: attention.q.view(),
            kv: &attention.kv,
            table: &attention.table,
            positions: attention.positions.view(),
            last_visible: attention.last_visible.view(),
            slots: attention.slots.view(),
            active: scratch.active_range(),
            chunk_ends: Some(scratch.chunk_ends.view()),
            o: floats.unwrap_or(&attention.attended),
            scratch: None,
        };
        let rows = scratch.rows as u32;
        match self.units.flash_plan(self.device.caps(), &shape) {
            Some(plan) if attention.attended.kind() == Activations::F16 => {
                let output = if floats.is_some() { flash::Output::F32 } else { flash::Output::F16 };
                let kernel = FlashAttention::with_plan(self.device, shape, output, plan)?;
                kernel.record(recorder, "attention", rows, &operands)?;
            }
            _ => {
                let kernel = PagedAttention::new(self.device, shape, Mode::Prefill)?;
                kernel.record(recorder, "attention", rows, &operands)?;
            }
        }
        Ok(())
    }

    /// pooled = RMSNorm of the mean of each soft token's patches, times a factor, and standardised where that is given.
    fn pool(
        &self,
        recorder: &mut Recorder,
        factor: f32,
        standardise: Option<Standardise>,
        weight: Option<View>,
    ) -> Result<()> {
        let (scratch, config) = (self.scratch, self.config);
        let shape = pool::Shape {
            side: config.pooled_patches as usize,
            n: config.hidden as usize,
            factor,
            standardise: standardise.is_some(),
            weight: weight.is_some(),
            epsilon: config.soft_norm_eps,
            output: scratch.pooled.kind(),
        };
        let (x, x_stride) = match &scratch.encoded {
            Some(encoded) => (Target::vectors(encoded)?.y, encoded.stride()),
            None => (scratch.residual.view(), shape.n),
        };
        let operands = pool::Operands {
            x,
            x_stride,
            squares: scratch.squares.view(),
            standardise,
            weight,
            active: scratch.active_soft(),
            y: &scratch.pooled,
        };
        Ok(Pool::new(self.device, shape)?.record(recorder, "pool", &operands)?)
    }

    /// soft = projection · pooled.
    fn project(&self, recorder: &mut Recorder) -> Result<()> {
        let scratch = self.scratch;
        let matrix = single(self.weights, VisionMatrix::Projection)?;
        let target = Target::contiguous(&scratch.soft, self.config.text_hidden as usize);
        let active = scratch.active_soft();
        let x = &scratch.pooled;
        if self.cut(recorder, matrix, x, &target, Rows::Pooled)? {
            return Ok(());
        }
        self.product(recorder, "projection", VisionMatrix::Projection, matrix, x, &target, None, &active)
    }

    /// residual += what is added, if anything; y = LayerNorm(residual).
    fn layer_norm(
        &self,
        recorder: &mut Recorder,
        add: Option<Addend>,
        residual: View,
        slots: &LayerNormSlots,
        epsilon: f32,
        y: &Vectors,
    ) -> Result<()> {
        let fusion = layer_norm::Fusion {
            add: add.as_ref().map(|add| add.format),
            normed_residual: false,
            output: y.kind(),
        };
        let (x, x_stride, x_bias) = match add {
            Some(Addend { x, x_stride, bias, .. }) => (Some(x), x_stride, Some(bias)),
            None => (None, y.k, None),
        };
        let operands = layer_norm::Operands {
            x,
            x_stride,
            x_bias,
            residual,
            weight: self.vector(slots.weight)?,
            bias: self.vector(slots.bias)?,
            active: self.scratch.active(),
            y,
        };
        Ok(LayerNorm::new(self.device, fusion, y.k, epsilon)?.record(recorder, "norm", &operands)?)
    }

    /// The products of all matrices with an id, whose outputs follow each other in a row of the target.
    fn products(
        &self,
        recorder: &mut Recorder,
        name: &str,
        id: VisionMatrix,
        x: &Vectors,
        mut target: Target,
    ) -> Result<()> {
        let matrices = &self.weights.matrices;
        let mut numbers = (0..matrices.len()).filter(|number| matrices[*number].0 == id);
        // They fill a row together, in the host's copy of it or in the GPU's.
        let cuts =
            !has_gated_epilogue(self.weights, id) && self.cuts.is_some_and(|cuts| cuts.has_all(&mut numbers));
        for matrix in self.weights.by_id(id) {
            if !cuts || !self.cut(recorder, matrix, x, &target, Rows::All)? {
                self.product(recorder, name, id, matrix, x, &target, None, &self.scratch.active())?;
            }
            target.first += matrix.layout().rows;
        }
        Ok(())
    }

    /// Leaves a product to the NPU, if it takes it.
    fn cut(
        &self,
        recorder: &mut Recorder,
        matrix: &Matrix,
        x: &Vectors,
        target: &Target,
        rows: Rows,
    ) -> Result<bool> {
        match (self.cuts, offload::index_of(&self.weights.matrices, matrix)) {
            (Some(cuts), Some(number)) => cuts.cut(recorder, number, x, target, rows),
            _ => Ok(false),
        }
    }

    /// The same on cooperative matrices with a bias, one value per value of a row, to f16.
    #[expect(clippy::too_many_arguments, reason = "the operands of a product")]
    fn products_with_bias(
        &self,
        recorder: &mut Recorder,
        name: &str,
        id: VisionMatrix,
        x: &Vectors,
        mut target: Target,
        kind: Bias,
        bias: &View,
    ) -> Result<()> {
        let mut at = 0;
        for matrix in self.weights.by_id(id) {
            let rows = matrix.layout().rows;
            let bytes = at..at + rows as u64 * 4;
            at = bytes.end;
            let bias = Some((kind, bias.slice(bytes)?));
            self.product(recorder, name, id, matrix, x, &target, bias, &self.scratch.active())?;
            target.first += rows;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the operands of a product")]
    fn product(
        &self,
        recorder: &mut Recorder,
        name: &str,
        id: VisionMatrix,
        matrix: &Matrix,
        x: &Vectors,
        target: &Target,
        bias: Option<(Bias, View)>,
        active: &View,
    ) -> Result<()> {
        if x.kind() == Activations::F16 {
            let shape = coopmat_shape(self.weights, id, matrix, x.columns);
            let columns = x.columns / self.scratch.images * self.images;
            let plan = coopmat_plan(self.units, self.device.caps(), &shape, columns);
            let (kind, bias) = bias.map_or((Bias::None, None), |(kind, bias)| (kind, Some(bias)));
            let shape = coopmat::policy::Shape { output: target.kind(), bias: kind, ..shape };
            let plan = plan.expect("activations are f16 only where cooperative matrices take every matrix");
            let kernel = Coopmat::with_plan(self.device, shape, plan)?;
            let scratch = self.scratch.split_k.as_ref().map(|scratch| scratch.view());
            let operands = coopmat::Operands { w: matrix, x, target, active: active.clone(), scratch, bias };
            return Ok(kernel.record(recorder, name, &operands)?);
        }
        let gated = has_gated_epilogue(self.weights, id);
        let shape = gemm::policy::Shape {
            weights: matrix.layout(),
            columns: x.columns,
            activations: x.kind(),
            epilogue: if gated { Epilogue::Geglu } else { Epilogue::None },
            output: target.kind(),
        };
        Ok(Gemm::new(self.device, shape)?.record(recorder, name, matrix, x, target, active)?)
    }

    fn vector(&self, slot: Slot) -> Result<View> {
        vector(self.weights, slot)
    }
}
