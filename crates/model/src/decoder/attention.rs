//! The attention block: single-dispatch attention of decode rows, flash attention on cooperative matrices, or
//! RoPE and paged attention one after the other.

use checkpoint::{Attention, Role};
use gpu::{Buffer, Recorder, View};
use kernels::{
    Activations, VectorData,
    attention::{
        decode::{self, DecodeAttention},
        flash::{self, FlashAttention},
        paged::{self, Mode, PagedAttention},
        rope::{self, Angles, Rope},
    },
    matmul::quantize_rows::QuantizeRows,
};
use weights::blueprint::MatrixId;

use crate::{
    Result,
    attention_offload::AttentionCuts,
    state::Batch,
    step::{SplitRows, Step, StepBuffers, WORKGROUPS_MIN_ROWS, attention_shape, partial_sums},
};

/// block = W · softmax(queries · keys) · values.
pub(super) fn block(step: &mut Step<'_>, layer: u32, attention: &Attention) -> Result<()> {
    step.prefetch(MatrixId::Qkv(layer))?;
    step.qkv(layer, attention.qkv_rows() as usize)?;
    attend(step, layer, attention)?;
    step.prefetch(MatrixId::AttentionOutput(layer))?;
    step.attention_output(layer, attention)
}

/// attended = softmax(queries · keys) · values, over the visible positions; keys and values of the rows go
/// into their pages first. One kernel does it all for rows that do not attend to each other.
fn attend(step: &mut Step<'_>, layer: u32, attention: &Attention) -> Result<()> {
    let buffers = step.buffers();
    let rows = buffers.scratch.rows;
    let few = rows <= buffers.model.few_prefill_rows();
    let layer = Layer { buffers, attention, number: layer };
    match step.batch() {
        Batch::Decode => layer.decode(step.recorder(), rows),
        // The kernel of a single row, which attends in one dispatch, for rows that attend to each other.
        Batch::Verify => layer.attend_in_one_dispatch(step.recorder(), rows),
        Batch::Prefill => layer.prefill(step.recorder(), few),
        // Different rows of the same buffers, and different pages. Prefill takes a level more; decode rows
        // use the compute units that it leaves idle.
        Batch::Mixed { decode, few } => step
            .recorder()
            .concurrently(|recorder| layer.prefill(recorder, few), |recorder| layer.decode(recorder, decode)),
    }
}

/// The attention of one layer.
struct Layer<'a> {
    buffers: StepBuffers<'a>,
    attention: &'a Attention,
    number: u32,
}

/// Rows that go through RoPE and attention together.
struct AttendingRows {
    /// Two words: the range of the rows.
    active: View,
    /// Upper bound of the range's end.
    end: usize,
    /// Maximum number of rows.
    rows: usize,
    /// The ends of the prefill chunks; `None` for decode rows.
    chunk_ends: Option<View>,
    /// The last position that each row attends to.
    last_visible: View,
    mode: Mode,
    kv_splits: Option<View>,
}

impl Layer<'_> {
    /// Decode rows, the first of the step.
    fn decode(&self, recorder: &mut Recorder, rows: usize) -> Result<()> {
        let StepBuffers { model, state, kv_splits, .. } = self.buffers;
        if model.attends_in_one_dispatch(rows) {
            return self.attend_in_one_dispatch(recorder, rows);
        }
        let rows = AttendingRows {
            active: state.decode_range.clone(),
            end: rows,
            rows,
            chunk_ends: None,
            last_visible: state.positions.view(),
            mode: Mode::Decode,
            kv_splits: kv_splits.get(SplitRows::Decode(rows)),
        };
        self.rope(recorder, &rows)?;
        self.attend(recorder, &rows)
    }

    /// Rows of prefill chunks, the last of the step.
    fn prefill(&self, recorder: &mut Recorder, few: bool) -> Result<()> {
        let StepBuffers { model, state, scratch, kv_splits, .. } = self.buffers;
        let end = scratch.rows;
        let rows = AttendingRows {
            active: state.prefill_range.clone(),
            end,
            rows: if few { end.min(model.few_prefill_rows()) } else { end },
            chunk_ends: Some(state.chunk_ends.view()),
            last_visible: match self.attention.whole_images {
                true => state.last_visible.view(),
                false => state.positions.view(),
            },
            mode: if few { Mode::Decode } else { Mode::Prefill },
            kv_splits: if few { kv_splits.get(SplitRows::FewPrefill) } else { None },
        };
        self.rope(recorder, &rows)?;
        self.attend(recorder, &rows)
    }

    fn shape(&self) -> decode::Shape {
        let StepBuffers { model, cache, scratch, .. } = self.buffers;
        let output = model.activations(scratch.kernel_rows);
        let partials = partial_sums(model, scratch.kernel_rows, MatrixId::Qkv(self.number));
        decode::Shape { partials, ..attention_shape(model, cache.limits(), self.attention, output) }
    }

    fn attend_in_one_dispatch(&self, recorder: &mut Recorder, rows: usize) -> Result<()> {
        let StepBuffers { model, cache, state, scratch, kv_splits, .. } = self.buffers;
        let shape = self.shape();
        let variant = model.attention_variant(self.attention);
        let tables = model.rope_tables(self.attention);
        let operands = decode::Operands {
            qkv: scratch.qkv.view(),
            qkv_stride: shape.rope().row() * shape.partials,
            bias: self.bias(),
            q_weight: self.head_norm(Role::QueryNorm)?,
            k_weight: self.head_norm(Role::KeyNorm)?,
            coarse: tables.coarse.view(),
            fine: tables.fine.view(),
            kv: cache.layer(self.number as usize),
            table: &cache.table(self.attention.span),
            positions: state.positions.view(),
            slots: state.slots.view(),
            active: state.decode_count.clone(),
            o: scratch.attended(self.attention.query_rows()).activations(),
            scratch: kv_splits.get(SplitRows::Decode(rows)),
            groups: (rows >= WORKGROUPS_MIN_ROWS).then(|| state.attention_workgroups(variant)),
        };
        let kernel_rows = if rows == scratch.rows { scratch.kernel_rows } else { rows };
        let plan = decode::policy::plan_for_rows(model.device.caps(), &shape, kernel_rows as u32);
        let kernel = DecodeAttention::with_plan(&model.device, shape, plan)?;
        match kernel_rows == rows {
            true => kernel.record(recorder, "attention", rows as u32, &operands)?,
            false => kernel.record_dependent(recorder, "attention", rows as u32, &operands)?,
        }
        Ok(())
    }

    /// The norm of query or key heads; `None` if the layer has no such norm.
    fn head_norm(&self, role: Role) -> Result<Option<View>> {
        let has_heads = role == Role::QueryNorm || self.attention.shares_kv_with.is_none();
        (self.attention.head_norms && has_heads)
            .then(|| self.buffers.model.norm(Some(self.number), role))
            .transpose()
    }

    /// The bias of queries, keys and values, where the layer has one.
    fn bias(&self) -> Option<View> {
        self.buffers.model.weights.qkv_biases.get(self.number as usize).map(Buffer::view)
    }

    /// Writes rotated queries to `q`, and keys and values to their pages.
    fn rope(&self, recorder: &mut Recorder, rows: &AttendingRows) -> Result<()> {
        let StepBuffers { model, cache, state, scratch, .. } = self.buffers;
        let shape = self.shape();
        let tables = model.rope_tables(self.attention);
        let operands = rope::Operands {
            qkv: scratch.qkv.view(),
            qkv_stride: shape.rope().row() * shape.partials,
            bias: self.bias(),
            q_weight: self.head_norm(Role::QueryNorm)?,
            k_weight: self.head_norm(Role::KeyNorm)?,
            epsilon: model.config.rms_norm_eps,
            scale: shape.scale,
            angles: Angles::Tables { coarse: tables.coarse.view(), fine: tables.fine.view() },
            q: scratch.q.view(),
            kv: cache.layer(self.number as usize),
            table: &cache.table(self.attention.span),
            positions: state.positions.view(),
            slots: state.slots.view(),
            active: rows.active.clone(),
        };
        let kernel = Rope::new(&model.device, shape.rope())?;
        Ok(kernel.record(recorder, "RoPE", rows.end as u32, &operands)?)
    }

    /// attended = softmax(q · keys) · values.
    fn attend(&self, recorder: &mut Recorder, rows: &AttendingRows) -> Result<()> {
        let StepBuffers { model, cache, state, scratch, attention_cuts, .. } = self.buffers;
        let device = &model.device;
        if let (Some(cuts), Some(_)) = (attention_cuts, &rows.chunk_ends) {
            return self.attend_on_npu(recorder, rows, cuts);
        }
        let shape = self.shape().attention();
        let row_count = rows.rows as u32;
        let attended = scratch.attended(self.attention.query_rows());
        let operands = paged::Operands {
            q: scratch.q.view(),
            kv: cache.layer(self.number as usize),
            table: &cache.table(self.attention.span),
            positions: state.positions.view(),
            last_visible: rows.last_visible.clone(),
            slots: state.slots.view(),
            active: rows.active.clone(),
            chunk_ends: rows.chunk_ends.clone(),
            o: &attended.floats,
            scratch: rows.kv_splits.clone(),
        };
        if let Some(o) = attended.packed.as_ref().filter(|o| o.kind() == Activations::F16)
            && (rows.mode == Mode::Prefill || model.reproducible)
            && let Some(plan) = model.flash_plan(&shape)
        {
            let plan = if rows.chunk_ends.is_some() { plan } else { plan.with_independent_rows(&shape) };
            let kernel = FlashAttention::with_plan(device, shape, flash::Output::F16, plan)?;
            let operands = paged::Operands { o, ..operands };
            return Ok(kernel.record(recorder, "attention", row_count, &operands)?);
        }
        let kernel = match model.reproducible {
            false => PagedAttention::new(device, shape, rows.mode)?,
            true => {
                let plan = paged::policy::reproducible(device.caps(), &shape, rows.chunk_ends.is_some());
                PagedAttention::with_plan(device, shape, plan)?
            }
        };
        kernel.record(recorder, "attention", row_count, &operands)?;
        let Some(packed) = &attended.packed else { return Ok(()) };
        let kernel = QuantizeRows::new(device, packed.kind(), packed.k)?;
        Ok(kernel.record(recorder, "quantize", &attended.floats, packed, &rows.active)?)
    }

    /// The same on the NPU.
    fn attend_on_npu(
        &self,
        recorder: &mut Recorder,
        rows: &AttendingRows,
        cuts: &AttentionCuts<'_>,
    ) -> Result<()> {
        let StepBuffers { model, scratch, .. } = self.buffers;
        let attended = scratch.attended(self.attention.query_rows());
        let VectorData::F32(floats) = &attended.floats.data else {
            unreachable!("these were allocated as f32")
        };
        cuts.cut(recorder, self.number, self.attention, &scratch.q, (&attended.floats, floats))?;
        let Some(packed) = &attended.packed else { return Ok(()) };
        let kernel = QuantizeRows::new(&model.device, packed.kind(), packed.k)?;
        Ok(kernel.record(recorder, "quantize", &attended.floats, packed, &rows.active)?)
    }
}
