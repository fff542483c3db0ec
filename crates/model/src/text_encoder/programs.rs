//! Recording the programs of a text encoder: what its kinds have in common.

mod bert;
mod decoder;

use checkpoint::{AttentionSpan, EmbeddingConfig, Slot, TextLayers};
use gpu::{Device, Recorder, View};
use kernels::{
    Activations, Epilogue, Matrix, Target, Vectors,
    attention::{
        flash::{self, FlashAttention},
        paged::{self, Mode, PagedAttention},
    },
    embed::{self, Embed},
    matmul::{
        coopmat::{
            self, Coopmat,
            policy::{Bias, SplitK},
        },
        gemm::{self, Gemm},
        quantize_rows::QuantizeRows,
    },
    row_mean::{self, RowMean},
};
use weights::embedding::{EmbeddingMatrix, EmbeddingWeights};

use super::{
    Rope,
    scratch::{Scratch, attention_shape, float_buffer},
};
use crate::{
    Result,
    loaded::{MatrixUnits, epilogue},
    offload::{self, Cuts, Rows},
};

/// Whether a matrix is multiplied by the activations of rows. Dense layers take few rows, in f32.
pub(super) fn takes_activations(id: EmbeddingMatrix) -> bool {
    !id.is_table() && !matches!(id, EmbeddingMatrix::Dense(_))
}

/// The product of a matrix on cooperative matrices.
pub(super) fn coopmat_shape(
    config: &EmbeddingConfig,
    weights: &EmbeddingWeights,
    id: EmbeddingMatrix,
    matrix: &Matrix,
    columns: usize,
) -> coopmat::policy::Shape {
    let epilogue = product_epilogue(config, weights, id);
    let output = if epilogue == Epilogue::None { Activations::F32 } else { Activations::F16 };
    let (weights, split_k) = (matrix.layout(), SplitK::Reduced);
    coopmat::policy::Shape { weights, columns, epilogue, output, split_k, bias: Bias::None }
}

/// The gate, where gate and up form one matrix.
pub(super) fn product_epilogue(
    config: &EmbeddingConfig,
    weights: &EmbeddingWeights,
    id: EmbeddingMatrix,
) -> Epilogue {
    match id {
        EmbeddingMatrix::GateUp(_) if weights.by_id(id).count() == 1 => gate(config),
        _ => Epilogue::None,
    }
}

/// The activation of the gate, if there is one.
fn gate(config: &EmbeddingConfig) -> Epilogue {
    match &config.layers {
        TextLayers::Bert(_) => Epilogue::None,
        TextLayers::Decoder { config, .. } => epilogue(config.architecture.family().activation),
    }
}

/// What the programs are recorded from.
pub(super) struct Recording<'a> {
    pub device: &'a Device,
    pub config: &'a EmbeddingConfig,
    pub weights: &'a EmbeddingWeights,
    pub scratch: &'a Scratch,
    pub rope: &'a Rope,
    pub units: MatrixUnits,
    pub activations: Activations,
    /// Where the NPU multiplies.
    pub cuts: Option<&'a Cuts<'a>>,
}

impl Recording<'_> {
    /// Records a layer: the first starts from the tokens, the last ends with the vectors.
    pub fn program(&self, layer: u32, mut recorder: Recorder) -> Result<Recorder> {
        let to = &mut recorder;
        match &self.config.layers {
            TextLayers::Bert(bert) => self.bert_layer(to, bert, layer)?,
            TextLayers::Decoder { config, .. } => self.decoder_layer(to, config, layer)?,
        }
        if layer + 1 == self.config.layer_count() {
            self.pool(to)?;
            self.dense(to)?;
        }
        Ok(recorder)
    }

    /// to = factor · the rows of a table that `numbers` names.
    fn embed(
        &self,
        recorder: &mut Recorder,
        table: EmbeddingMatrix,
        factor: f32,
        numbers: View,
        to: View,
    ) -> Result<()> {
        let embeddings = self.single(table)?;
        let operands = embed::Operands {
            embeddings,
            active: self.scratch.active(),
            tokens: numbers,
            soft_token: None,
            residual: to,
        };
        let kernel = Embed::new(self.device, embeddings.layout().scheme)?;
        Ok(kernel.record(recorder, "embed", self.scratch.rows, factor, &operands)?)
    }

    /// attended = softmax(queries · keys) · values, for queries, keys and values that have been written.
    fn attend(&self, recorder: &mut Recorder, span: AttentionSpan) -> Result<()> {
        let (scratch, attention) = (self.scratch, &self.scratch.attention);
        let shape = attention_shape(self.config, span, attention.kv.shape.scheme);
        let floats = attention.attended_floats.as_ref();
        let last_visible = match span.is_sliding() {
            true => &attention.last_in_window,
            false => &attention.last_visible,
        };
        let operands = paged::Operands {
            q: attention.q.view(),
            kv: &attention.kv,
            table: &attention.table,
            positions: attention.positions.view(),
            last_visible: last_visible.view(),
            slots: attention.slots.view(),
            active: scratch.active_range(),
            chunk_ends: Some(scratch.text_ends.view()),
            o: floats.unwrap_or(&attention.attended),
            scratch: None,
        };
        let rows = scratch.rows as u32;
        match self.units.flash_plan(self.device.caps(), &shape) {
            Some(plan) if self.activations == Activations::F16 => {
                let output = if floats.is_some() { flash::Output::F32 } else { flash::Output::F16 };
                let kernel = FlashAttention::with_plan(self.device, shape, output, plan)?;
                kernel.record(recorder, "attention", rows, &operands)?;
            }
            _ => {
                let kernel = PagedAttention::new(self.device, shape, Mode::Prefill)?;
                kernel.record(recorder, "attention", rows, &operands)?;
            }
        }
        if let Some(floats) = floats {
            let attended = &attention.attended;
            let kernel = QuantizeRows::new(self.device, attended.kind(), attended.k)?;
            kernel.record(recorder, "attention", floats, attended, &scratch.active_range())?;
        }
        Ok(())
    }

    /// pooled = the mean of the rows that each text's vector comes from.
    fn pool(&self, recorder: &mut Recorder) -> Result<()> {
        let scratch = self.scratch;
        let hidden = self.config.hidden() as usize;
        let (x, x_stride) = match &scratch.encoded {
            Some(encoded) => (float_buffer(encoded).view(), encoded.stride()),
            None => (scratch.residual.view(), hidden),
        };
        let operands = row_mean::Operands {
            x,
            x_stride,
            ranges: scratch.pooled_rows.view(),
            active: scratch.active_texts(),
            y: &scratch.pooled[0],
        };
        Ok(RowMean::new(self.device, Activations::F32, hidden)?.record(recorder, "pool", &operands)?)
    }

    /// The dense layers after pooling, and the copy of their output for the host.
    fn dense(&self, recorder: &mut Recorder) -> Result<()> {
        let scratch = self.scratch;
        for (index, pair) in (0..).zip(scratch.pooled.windows(2)) {
            let matrix = self.single(EmbeddingMatrix::Dense(index))?;
            let shape = gemm::policy::Shape {
                weights: matrix.layout(),
                columns: pair[0].columns,
                activations: Activations::F32,
                epilogue: Epilogue::None,
                output: Activations::F32,
            };
            let target = Target::vectors(&pair[1])?;
            let kernel = Gemm::new(self.device, shape)?;
            kernel.record(recorder, "dense", matrix, &pair[0], &target, &scratch.active_texts())?;
        }
        let last = float_buffer(&scratch.pooled[scratch.pooled.len() - 1]);
        Ok(recorder.copy("vectors", last, &scratch.vectors)?)
    }

    /// The products of all matrices with an id, whose outputs follow each other in a row of the target.
    fn products(
        &self,
        recorder: &mut Recorder,
        name: &str,
        id: EmbeddingMatrix,
        x: &Vectors,
        mut target: Target,
    ) -> Result<()> {
        let matrices = &self.weights.matrices;
        let numbers = (0..matrices.len()).filter(|number| matrices[*number].0 == id);
        // They fill a row together, in the host's copy of it or in the GPU's.
        let cuts = self.cuts.filter(|cuts| cuts.has_all(numbers));
        for matrix in self.weights.by_id(id) {
            let is_cut = match (cuts, offload::index_of(matrices, matrix)) {
                (Some(cuts), Some(number)) => cuts.cut(recorder, number, x, &target, Rows::All)?,
                _ => false,
            };
            if !is_cut {
                self.product(recorder, name, id, matrix, x, &target)?;
            }
            target.first += matrix.layout().rows;
        }
        Ok(())
    }

    fn product(
        &self,
        recorder: &mut Recorder,
        name: &str,
        id: EmbeddingMatrix,
        matrix: &Matrix,
        x: &Vectors,
        target: &Target,
    ) -> Result<()> {
        let active = self.scratch.active();
        if x.kind() == Activations::F16 {
            let shape = coopmat_shape(self.config, self.weights, id, matrix, x.columns);
            let plan = self.units.coopmat_plan(self.device.caps(), &shape);
            let plan = plan.expect("activations are f16 only where cooperative matrices take every matrix");
            let kernel = Coopmat::with_plan(self.device, shape, plan)?;
            let scratch = self.scratch.split_k.as_ref().map(|scratch| scratch.view());
            let operands = coopmat::Operands { w: matrix, x, target, active, scratch, bias: None };
            return Ok(kernel.record(recorder, name, &operands)?);
        }
        let shape = gemm::policy::Shape {
            weights: matrix.layout(),
            columns: x.columns,
            activations: x.kind(),
            epilogue: product_epilogue(self.config, self.weights, id),
            output: target.kind(),
        };
        Ok(Gemm::new(self.device, shape)?.record(recorder, name, matrix, x, target, &active)?)
    }

    /// A norm or a bias.
    fn vector(&self, slot: Slot) -> Result<View> {
        let missing =
            || gpu::Error::InvalidUse { what: format!("{:?}", slot.role), reason: "was not loaded".into() };
        Ok(self.weights.vectors.get(&slot).ok_or_else(missing)?.view())
    }

    /// The single matrix with this id.
    fn single(&self, id: EmbeddingMatrix) -> Result<&Matrix> {
        let missing = || gpu::Error::InvalidUse { what: id.to_string(), reason: "was not loaded".into() };
        Ok(self.weights.by_id(id).next().ok_or_else(missing)?)
    }
}
