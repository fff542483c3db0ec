//! Per-layer embeddings.

use checkpoint::Role;
use gpu::{Arena, Buffer, View};
use kernels::{
    Activations, Epilogue, Target, Vectors,
    embed::{self, Embed},
    matmul::{quantize_rows::QuantizeRows, tuning::Input},
    per_layer::{GateOperands, InputOperands, PerLayerGate, PerLayerInputs, Shape},
};
use weights::blueprint::MatrixId;

use super::{Step, StepBuffers, product::ProductRole};
use crate::{Model, Result, state::Batch};

/// Buffers of a step's per-layer embeddings.
pub(crate) struct PerLayerScratch {
    /// The projection's input, where its format differs from that of other products.
    normed: Option<Vectors>,
    /// f32, `[row][layer][width]`: the projection of the embeddings, and the embeddings of the tokens.
    projected: Buffer,
    tokens: Buffer,
    /// f32, `[layer][row][width]`.
    inputs: Buffer,
    /// f32, `[row][width]`.
    gate: Buffer,
    gated: Vectors,
    /// The same as the output projection takes it, where that is not f32.
    gated_packed: Option<Vectors>,
    width: usize,
}

impl PerLayerScratch {
    /// For a model's per-layer embeddings, where it has them. `rows` is the number of rows of a step, `kernel_rows` as in
    /// [`Scratch::new`](super::Scratch::new).
    pub fn new(model: &Model, arena: &mut Arena, rows: usize, kernel_rows: usize) -> Result<Option<Self>> {
        let Some(width) = model.config.per_layer_width.map(|width| width as usize) else { return Ok(None) };
        let floats = |count: usize| (count * rows * 4) as u64;
        let all = floats(width * model.config.layers as usize);
        let kind = model.activations(kernel_rows);
        let projection = model.single_matrix(MatrixId::PerLayerProjection)?.layout();
        let takes_f32 = projection.scheme.is_float() && kind != Activations::F32;
        let scratch = Self {
            normed: match takes_f32 {
                false => None,
                true => Some(Vectors::f32(arena, "normed embeddings", model.config.hidden as usize, rows)?),
            },
            projected: arena.buffer("per-layer projection", all)?,
            tokens: arena.buffer("per-layer embeddings", all)?,
            inputs: arena.buffer("per-layer inputs", all)?,
            gate: arena.buffer("per-layer gate", floats(width))?,
            gated: Vectors::f32(arena, "gated per-layer inputs", width, rows)?,
            gated_packed: match kind {
                Activations::F32 => None,
                kind => Some(Vectors::new(arena, "gated per-layer inputs", kind, width, rows)?),
            },
            width,
        };
        Ok(Some(scratch))
    }

    /// Zero padding of the columns, before the first step.
    pub fn record_clear(&self, recorder: &mut gpu::Recorder) -> Result<()> {
        for vectors in [&self.gated].into_iter().chain(&self.gated_packed).chain(&self.normed) {
            vectors.record_clear(recorder, "clear")?;
        }
        Ok(())
    }

    fn layer_inputs(&self, layer: u32, rows: usize) -> Result<View> {
        let bytes = (self.width * rows * 4) as u64;
        Ok(self.inputs.slice(u64::from(layer) * bytes..(u64::from(layer) + 1) * bytes)?)
    }
}

impl Step<'_> {
    fn per_layer_shape(&self) -> Shape {
        let config = self.config();
        Shape {
            hidden: config.hidden as usize,
            width: self.buffers.scratch.per_layer().width,
            layers: config.layers as usize,
            epsilon: config.rms_norm_eps,
        }
    }

    /// projected = W · norm(residual). A norm without a weight keeps the values in the range of any format; the kernel that
    /// reads the product undoes it.
    pub fn per_layer_projection(&mut self) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let matrix = model.single_matrix(MatrixId::PerLayerProjection)?;
        let target = Target::contiguous(&scratch.per_layer().projected, matrix.layout().rows);
        let normed = scratch.per_layer().normed.as_ref().unwrap_or(&scratch.normed);
        self.norm_into(self.unit_weight()?, normed)?;
        let x = Input::Vectors(normed);
        self.product(ProductRole::PerLayerProjection, matrix, Epilogue::None, x, &target, &state.active)
    }

    /// tokens = per-layer embeddings of the tokens; soft tokens have that of the padding token.
    pub fn per_layer_embed(&mut self) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let embeddings = model.single_matrix(MatrixId::PerLayerEmbedding)?;
        let operands = embed::Operands {
            embeddings,
            active: state.active.clone(),
            tokens: state.tokens.view(),
            soft_token: Some(model.config.pad.filter(|pad| *pad < model.config.vocab).unwrap_or(0)),
            residual: scratch.per_layer().tokens.view(),
        };
        let factor = (scratch.per_layer().width as f32).sqrt();
        let kernel = Embed::new(&model.device, embeddings.layout().scheme)?;
        Ok(kernel.record(self.recorder, "per-layer embed", scratch.rows, factor, &operands)?)
    }

    /// inputs = (norm(projected) + tokens) / √2, layer by layer.
    pub fn per_layer_inputs(&mut self) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let buffers = scratch.per_layer();
        let operands = InputOperands {
            embedding: scratch.residual.view(),
            projected: buffers.projected.view(),
            token: buffers.tokens.view(),
            weight: model.norm(None, Role::PerLayerProjectionNorm)?,
            active: state.active.clone(),
            inputs: buffers.inputs.view(),
        };
        let kernel = PerLayerInputs::new(&model.device, self.per_layer_shape())?;
        Ok(kernel.record(self.recorder, "per-layer inputs", scratch.rows, &operands)?)
    }

    /// gated = gelu(gate · residual) · inputs of the layer.
    pub fn per_layer_gate(&mut self, layer: u32) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let buffers = scratch.per_layer();
        let matrix = model.single_matrix(MatrixId::PerLayerGate(layer))?;
        let target = Target::contiguous(&buffers.gate, buffers.width);
        let x = Input::Vectors(&scratch.normed);
        self.product(ProductRole::PerLayerGate, matrix, Epilogue::None, x, &target, &state.active)?;
        let operands = GateOperands {
            residual: scratch.residual.view(),
            gate: buffers.gate.view(),
            inputs: buffers.layer_inputs(layer, scratch.rows)?,
            active: state.active.clone(),
            y: &buffers.gated,
        };
        let kernel = PerLayerGate::new(&model.device, self.per_layer_shape())?;
        kernel.record(self.recorder, "per-layer gated", &operands)?;
        let Some(packed) = &buffers.gated_packed else { return Ok(()) };
        let kernel = QuantizeRows::new(&model.device, packed.kind(), packed.k)?;
        let ranges = match self.batch {
            Batch::Decode | Batch::Verify => vec![&state.decode_range],
            Batch::Prefill => vec![&state.prefill_range],
            Batch::Mixed { .. } => vec![&state.decode_range, &state.prefill_range],
        };
        for range in ranges {
            kernel.record(self.recorder, "quantize", &buffers.gated, packed, range)?;
        }
        Ok(())
    }

    /// block = W · gated.
    pub fn per_layer_output(&mut self, layer: u32) -> Result<()> {
        let buffers = self.buffers.scratch.per_layer();
        let x = buffers.gated_packed.as_ref().unwrap_or(&buffers.gated);
        self.block_output(ProductRole::PerLayerOutput, MatrixId::PerLayerOutput(layer), x)
    }
}
