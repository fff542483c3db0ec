//! Attention of a step: in one dispatch, by matrix units, or by RoPE and attention one after the other.

use gpu::{Arena, Buffer, View};
use kernels::{
    Activations,
    attend::{self, Attend},
    attention::{self, Attention, Mode},
    flash::{self, Flash},
    gemv,
    quantize_rows::QuantizeRows,
    rope::{self, Rope},
};
use weights::{config::LayerType, names::Role};

use super::{Rows, Step};
use crate::{Limits, Model, Result};

impl Step<'_> {
    /// attended = softmax(queries · keys) · values, over the positions that the layer sees; keys and values of the rows go into
    /// their pages first. One kernel does it all for rows that do not see each other.
    pub fn attention(&mut self, layer: u32) -> Result<()> {
        if self.rows == Rows::Mixed && self.model.one_dispatch {
            self.attend(layer)
        } else {
            self.rope(layer)?;
            self.attend_apart(layer)
        }
    }

    fn attend(&mut self, layer: u32) -> Result<()> {
        let kind = self.model.config.layer_types[layer as usize];
        let shape = attend_shape(self.model, self.cache.limits(), kind, self.scratch.rows);
        let tables = self.model.rope_tables(kind);
        let operands = attend::Operands {
            qkv: self.scratch.qkv.view(),
            qkv_stride: shape.rope().row(),
            bias: None,
            weights: Some(self.head_norms(layer)?),
            coarse: tables.coarse.view(),
            fine: tables.fine.view(),
            kv: self.cache.layer(layer as usize),
            table: &self.cache.table(kind),
            positions: self.state.positions.view(),
            slots: self.state.slots.view(),
            active: self.state.active.view(),
            o: self.scratch.attended_packed.as_ref().unwrap_or(&self.scratch.attended),
            scratch: self.scratch.splits.as_ref().map(Buffer::view),
        };
        let kernel = Attend::new(&self.model.device, shape)?;
        Ok(kernel.record(self.recorder, "attention", &operands)?)
    }

    /// The norms of query and key heads.
    fn head_norms(&self, layer: u32) -> Result<(View, View)> {
        Ok((self.model.norm(Some(layer), Role::QueryNorm)?, self.model.norm(Some(layer), Role::KeyNorm)?))
    }

    /// Queries into `q`, keys and values into their pages.
    fn rope(&mut self, layer: u32) -> Result<()> {
        let kind = self.model.config.layer_types[layer as usize];
        let shape = attend_shape(self.model, self.cache.limits(), kind, self.scratch.rows);
        let tables = self.model.rope_tables(kind);
        let operands = rope::Operands {
            qkv: self.scratch.qkv.view(),
            qkv_stride: shape.rope().row(),
            bias: None,
            weights: Some(self.head_norms(layer)?),
            epsilon: self.model.config.rms_norm_eps,
            scale: shape.scale,
            coarse: tables.coarse.view(),
            fine: tables.fine.view(),
            q: self.scratch.q.view(),
            kv: self.cache.layer(layer as usize),
            table: &self.cache.table(kind),
            positions: self.state.positions.view(),
            slots: self.state.slots.view(),
            active: self.state.active.view(),
        };
        let kernel = Rope::new(&self.model.device, shape.rope())?;
        Ok(kernel.record(self.recorder, "RoPE", self.scratch.rows as u32, &operands)?)
    }

    /// attended = softmax(q · keys) · values.
    fn attend_apart(&mut self, layer: u32) -> Result<()> {
        let device = &self.model.device;
        let kind = self.model.config.layer_types[layer as usize];
        let shape = attend_shape(self.model, self.cache.limits(), kind, self.scratch.rows).attention();
        let operands = attention::Operands {
            q: self.scratch.q.view(),
            kv: self.cache.layer(layer as usize),
            table: &self.cache.table(kind),
            positions: self.state.positions.view(),
            slots: self.state.slots.view(),
            active: self.state.active.view(),
            o: &self.scratch.attended,
            scratch: self.scratch.splits_apart.as_ref().map(Buffer::view),
        };
        let mode = mode(self.rows, self.scratch.rows);
        let reproducible = self.model.reproducible;
        if let Some(o) = self.scratch.attended_packed.as_ref().filter(|o| o.kind() == Activations::F16)
            && (mode == Mode::Prefill || reproducible)
            && let Some(plan) = self.model.flash_plan(&shape)
        {
            let plan = if self.rows == Rows::Chunk { plan } else { plan.alone(&shape) };
            let kernel = Flash::with_plan(device, shape, flash::Output::F16, plan)?;
            let operands = attention::Operands { o, ..operands };
            return Ok(kernel.record(self.recorder, "attention", &operands)?);
        }
        let kernel = match reproducible {
            false => Attention::new(device, shape, mode)?,
            true => {
                let plan = attention::policy::reproducible(device.caps(), &shape, self.rows == Rows::Chunk);
                Attention::with_plan(device, shape, plan)?
            }
        };
        kernel.record(self.recorder, "attention", &operands)?;
        let Some(attended) = &self.scratch.attended_packed else { return Ok(()) };
        let kernel = QuantizeRows::new(device, attended.kind(), attended.k)?;
        let active = self.state.active.view();
        Ok(kernel.record(self.recorder, "quantize", &self.scratch.attended, attended, &active)?)
    }
}

fn attend_shape(model: &Model, limits: Limits, kind: LayerType, rows: usize) -> attend::Shape {
    let config = &model.config;
    attend::Shape {
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        page: limits.page,
        scheme: limits.kv,
        window: match kind {
            LayerType::Global => 0,
            LayerType::Sliding => config.sliding_window.unwrap_or(0),
        },
        context: limits.context,
        norm: Some(config.rms_norm_eps),
        bias: false,
        interleaved: false,
        scale: config.query_pre_attn_scalar.powf(-0.5),
        output: model.activations(rows),
    }
}

/// A few rows of one sequence are too few to fill a device: they are split as rows of several are.
fn mode(kind: Rows, rows: usize) -> Mode {
    if kind == Rows::Chunk && rows > gemv::MAX_COLUMNS { Mode::Prefill } else { Mode::Decode }
}

/// Scratch memory that the splits of a bucket want, where they are split: those of one dispatch, and those of several.
pub(super) fn splits(
    model: &Model,
    arena: &mut Arena,
    rows: usize,
    limits: Limits,
) -> Result<(Option<Buffer>, Option<Buffer>)> {
    let device = &model.device;
    // There are no more rows of several sequences than sequences.
    let mixed = rows <= (limits.sequences as usize).next_power_of_two();
    let (mut together, mut apart) = (0, 0);
    for kind in [LayerType::Global, LayerType::Sliding] {
        let shape = attend_shape(model, limits, kind, rows);
        if mixed && model.one_dispatch {
            together = Attend::new(device, shape)?.scratch_bytes(rows as u32).max(together);
        }
        if rows <= gemv::MAX_COLUMNS || (mixed && !model.one_dispatch) {
            let kernel = Attention::new(device, shape.attention(), Mode::Decode)?;
            apart = kernel.scratch_bytes(rows as u32).max(apart);
        }
    }
    let mut buffer = |bytes| match bytes {
        0 => Ok(None),
        bytes => arena.buffer("splits of attention", bytes).map(Some),
    };
    Ok((buffer(together)?, buffer(apart)?))
}
