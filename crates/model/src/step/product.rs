//! Matrix products of a step, and the kernel that computes each.

use checkpoint::{Attention, Dense};
use gpu::{Buffer, View};
use kernels::{
    Activations, Epilogue, Matrix, Target, Vectors,
    matmul::{
        coopmat::{
            self, Coopmat,
            policy::{Shape, SplitK},
        },
        gated::Gated,
        gemm::{self, Gemm},
        gemv::{self, Gemv, Sublayer, policy::Prologue},
        tuning::{Input, Product},
    },
};
use weights::blueprint::MatrixId;

use super::{
    BlockOutput, Step, StepBuffers,
    split_k::{consumer_split_k, coopmat_shape, partial_sums},
};
use crate::{Result, loaded::epilogue};

/// What a product computes in the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductRole {
    /// Queries, keys and values.
    Qkv,
    /// The output projection of attention.
    AttentionOutput,
    /// Gate and up in one matrix, with the gated activation as the epilogue.
    GateUp,
    /// The gate, where it is a matrix of its own.
    Gate,
    /// Up, where it is a matrix of its own.
    Up,
    /// The down projection of a feed-forward block.
    Down,
    /// The projection from the embeddings to the per-layer inputs.
    PerLayerProjection,
    /// The gate of a layer's per-layer input.
    PerLayerGate,
    /// The projection from the gated per-layer input.
    PerLayerOutput,
    /// The logits.
    Head,
}

impl ProductRole {
    /// The name of its commands in profiles.
    pub fn name(self) -> &'static str {
        match self {
            ProductRole::Qkv => "QKV",
            ProductRole::AttentionOutput => "output",
            ProductRole::GateUp => "gate and up",
            ProductRole::Gate => "gate",
            ProductRole::Up => "up",
            ProductRole::Down => "down",
            ProductRole::PerLayerProjection => "per-layer projection",
            ProductRole::PerLayerGate => "per-layer gate",
            ProductRole::PerLayerOutput => "per-layer output",
            ProductRole::Head => "head",
        }
    }

    /// Whether it is a block's output, which is added to the residual stream.
    fn ends_block(self) -> bool {
        matches!(self, ProductRole::AttentionOutput | ProductRole::Down | ProductRole::PerLayerOutput)
    }

    /// Whether the kernel that reads its output adds up partial sums.
    fn consumer_reduces(self) -> bool {
        self.ends_block() || self == ProductRole::Qkv
    }
}

impl<'a> Step<'a> {
    /// qkv = W · normed: queries, keys and values of a row follow each other, whether in one matrix or in
    /// three.
    pub fn qkv(&mut self, layer: u32, rows: usize) -> Result<()> {
        let scratch = self.buffers.scratch;
        let target = Target::contiguous(&scratch.qkv, rows);
        let x = self.normed_or(&scratch.normed);
        self.products(ProductRole::Qkv, MatrixId::Qkv(layer), x, target)
    }

    /// block = W · attended.
    pub fn attention_output(&mut self, layer: u32, attention: &Attention) -> Result<()> {
        let attended = self.buffers.scratch.attended(attention.query_rows());
        let x = attended.activations();
        self.block_output(ProductRole::AttentionOutput, MatrixId::AttentionOutput(layer), x)
    }

    /// block = W · gated.
    pub fn down(&mut self, layer: u32, dense: &Dense) -> Result<()> {
        let gated = self.buffers.scratch.gated(dense.intermediate);
        self.block_output(ProductRole::Down, MatrixId::Down(layer), gated)
    }

    pub(super) fn block_output(&mut self, role: ProductRole, matrix: MatrixId, x: &'a Vectors) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        self.block = BlockOutput::partial_sums(partial_sums(model, scratch.kernel_rows, matrix));
        let target = Target::contiguous(&scratch.block, model.config.hidden as usize);
        self.products(role, matrix, Input::Vectors(x), target)
    }

    /// gated = activation(gate · normed) · (up · normed).
    pub fn gated(&mut self, layer: u32, dense: &Dense) -> Result<()> {
        let StepBuffers { model, state, scratch, .. } = self.buffers;
        let (gated, activation) = (scratch.gated(dense.intermediate), epilogue(dense.activation));
        let matrices: Vec<&'a Matrix> = model.weights.by_id(MatrixId::GateUp(layer)).collect();
        match (&matrices[..], &scratch.gate_and_up) {
            ([joined], _) => {
                let target = Target::vectors(gated)?;
                let x = self.normed_or(&scratch.normed);
                self.product(ProductRole::GateUp, joined, activation, x, &target, &state.active)
            }
            ([gate, up], Some(buffers)) => {
                let x = self.normed_or(&scratch.normed);
                let again = without_stream(&x);
                for (role, matrix, x, buffer) in
                    [(ProductRole::Gate, gate, x, &buffers[0]), (ProductRole::Up, up, again, &buffers[1])]
                {
                    let target = Target::contiguous(buffer, matrix.layout().rows);
                    self.product(role, matrix, Epilogue::None, x, &target, &state.active)?;
                }
                let kernel = Gated::new(&model.device, activation, gated.kind(), gated.k)?;
                let [gate, up] = [buffers[0].view(), buffers[1].view()];
                Ok(kernel.record(self.recorder, "gated", &gate, &up, gated, &state.active)?)
            }
            _ => unreachable!("the blueprint makes one or two matrices of gate and up"),
        }
    }

    /// logits = W · normed output rows, by the head or, where it is tied, by the embeddings.
    pub fn head(&mut self) -> Result<()> {
        let StepBuffers { model, state, outputs, .. } = self.buffers;
        let Some(outputs) = outputs else { return Ok(()) };
        let target = Target::contiguous(&outputs.logits, model.config.vocab as usize);
        let x = self.normed_or(&outputs.normed);
        self.product(ProductRole::Head, model.head()?, Epilogue::None, x, &target, &state.outputs.view())
    }

    /// All matrices of an id, side by side into one output row.
    fn products(&mut self, role: ProductRole, matrix: MatrixId, x: Input<'a>, target: Target) -> Result<()> {
        let StepBuffers { model, state, .. } = self.buffers;
        let (mut target, mut x) = (target, x);
        for matrix in model.weights.by_id(matrix) {
            let again = without_stream(&x);
            let x = std::mem::replace(&mut x, again);
            self.product(role, matrix, Epilogue::None, x, &target, &state.active)?;
            target.first += matrix.layout().rows;
        }
        Ok(())
    }

    pub(super) fn product(
        &mut self,
        role: ProductRole,
        matrix: &'a Matrix,
        epilogue: Epilogue,
        x: Input<'a>,
        target: &Target,
        active: &View,
    ) -> Result<()> {
        let model = self.buffers.model;
        let (device, name) = (&model.device, role.name());
        let (columns, activations, prologue) = match &x {
            Input::Vectors(x) => (x.columns, x.kind(), Prologue::None),
            Input::Norm(norm) => (norm.rows, Activations::Int16, self.prologue(norm)),
            Input::Normed { x, .. } => (x.columns, Activations::Int16, Prologue::Factors),
        };
        if let (Input::Vectors(x), Activations::F16) = (&x, activations) {
            let whole_row = matrix.layout().rows == target.stride;
            let split_k = match role.consumer_reduces() && whole_row {
                true => consumer_split_k(model, columns),
                false => SplitK::Reduced,
            };
            let shape = Shape { split_k, ..coopmat_shape(matrix, columns, epilogue) };
            return self.coopmat(role, matrix, shape, x, target, active);
        }
        let (weights, output) = (matrix.layout(), target.kind());
        let shape = gemm::policy::Shape { weights, columns, activations, epilogue, output };
        // On CPU drivers one shader serves both, and gives the same bits.
        let lanes =
            || matches!(gemm::policy::plan(device.caps(), &shape).method, gemm::policy::Method::Lanes(_));
        if let Input::Vectors(x) = x
            && (columns > gemv::MAX_COLUMNS || model.is_invariant(columns) && !lanes())
        {
            return Ok(Gemm::new(device, shape)?.record(self.recorder, name, matrix, x, target, active)?);
        }
        let shape = gemv::policy::Shape {
            weights: matrix.layout(),
            columns,
            activations,
            prologue,
            epilogue,
            output: target.kind(),
            splits: if role.ends_block() { self.block.partials } else { 1 },
        };
        if let Some(products) = &mut self.products {
            products.push(Product { shape, matrix, x, target: target.clone() });
            return Ok(());
        }
        let plan = match columns > 1 && self.buffers.scratch.kernel_rows == 1 {
            false => model.tuning.plan(device.caps(), &shape),
            // A column gets the sums that it gets by itself, in a decode step of one row.
            true => {
                let prologue = if let Input::Normed { prologue, .. } = x { prologue } else { shape.prologue };
                let alone = gemv::policy::Shape { columns: 1, prologue, ..shape };
                let plan = model.tuning.plan(device.caps(), &alone);
                gemv::policy::with_sums_of(device.caps(), model.fragments(), &shape, &plan)
            }
        };
        Ok(Gemv::with_plan(device, shape, plan)?.record(self.recorder, name, matrix, x.source(), target)?)
    }

    fn coopmat(
        &mut self,
        role: ProductRole,
        w: &Matrix,
        shape: Shape,
        x: &Vectors,
        target: &Target,
        active: &View,
    ) -> Result<()> {
        let StepBuffers { model, scratch, outputs, .. } = self.buffers;
        let plan = model.coopmat_plan(&shape);
        let plan = plan.expect("activations are f16 only where cooperative matrices take every matrix");
        let kernel = Coopmat::with_plan(&model.device, shape, plan)?;
        let split_k = match role {
            ProductRole::Head => outputs.and_then(|outputs| outputs.split_k.as_ref()),
            _ => scratch.split_k.as_ref(),
        };
        let scratch = split_k.map(Buffer::view);
        let operands = coopmat::Operands { w, x, target, active: active.clone(), scratch, bias: None };
        Ok(kernel.record(self.recorder, role.name(), &operands)?)
    }
}

/// The input of further products with the same input: each computes the norm, only the first writes the
/// residual stream.
fn without_stream<'a>(x: &Input<'a>) -> Input<'a> {
    match x {
        Input::Vectors(x) => Input::Vectors(x),
        Input::Normed { x, factors, prologue } => {
            Input::Normed { x, factors: factors.clone(), prologue: *prologue }
        }
        Input::Norm(norm) => {
            let sublayer = norm.sublayer.clone().map(|sublayer| Sublayer { stream: None, ..sublayer });
            Input::Norm(gemv::Norm { sublayer, ..norm.clone() })
        }
    }
}
