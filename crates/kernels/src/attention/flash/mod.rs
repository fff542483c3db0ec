//! Flash attention on cooperative matrices, for prefill and, where logits must be batch-invariant, for rows
//! of several sequences: computes what [`paged`](crate::attention::paged) computes for many rows of a few
//! sequences. Queries, keys, values and weights are f16; scores and sums are f32.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result};

use crate::{
    Activations, Kernel, attention::paged::Operands, matmul::coopmat, shaders::attention_flash,
    variant::Variant, vectors::VectorData,
};
use policy::{Plan, Shape};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "attention_flash",
    about: "flash attention on cooperative matrices",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for one shape.
///
/// A row's result depends neither on how rows are divided into steps nor on their place in a tile: blocks of
/// keys start at fixed positions, and keys outside a row's range do not change its sums. This assumes that
/// matrix units treat all their rows alike.
pub struct FlashAttention {
    shape: Shape,
    plan: Plan,
    output: Output,
    pipeline: Pipeline,
}

/// Output formats of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// [`Activations::F16`].
    F16,
    /// [`Activations::F32`].
    F32,
}

impl From<Output> for Activations {
    fn from(output: Output) -> Self {
        match output {
            Output::F16 => Activations::F16,
            Output::F32 => Activations::F32,
        }
    }
}

impl FlashAttention {
    /// Selects the variant for this device; none where [`policy::plan`] has none.
    pub fn new(device: &Device, shape: Shape, output: Output) -> Result<Option<Self>> {
        policy::plan(device.caps(), coopmat::fragments(device)?, &shape)
            .map(|plan| Self::with_plan(device, shape, output, plan))
            .transpose()
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, shape: Shape, output: Output, plan: Plan) -> Result<Self> {
        shape.check()?;
        if let Err(reason) = plan.check(&shape) {
            return Err(Error::InvalidUse { what: "attention_flash".into(), reason });
        }
        let pipeline = variant(&shape, output, plan).pipeline(device)?;
        Ok(Self { shape, plan, output, pipeline })
    }

    /// Records the kernel for up to `rows` rows; `active` selects them. Rows belong to one or a few
    /// sequences, at consecutive positions, or to any, depending on the plan. Needs no scratch memory.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: u32,
        operands: &Operands<'_>,
    ) -> Result<()> {
        let shape = &self.shape;
        let o = self.check(name, rows, operands)?;
        let push = attention_flash::Push {
            q: operands.q.clone().into(),
            k: (&operands.kv.k).into(),
            v: (&operands.kv.v).into(),
            positions: operands.positions.clone().into(),
            last_visible: operands.last_visible.clone().into(),
            slots: operands.slots.clone().into(),
            table: operands.table.view.clone().into(),
            active_rows: operands.active.clone().into(),
            chunk_ends: operands.chunk_ends()?.into(),
            o,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            o_stride: operands.o.stride() as u32,
            table_stride: operands.table.stride,
            window: shape.window,
            chunks: operands.chunks(),
        };
        let tiles = match self.plan.independent_rows {
            true => rows,
            false => operands.tiles(rows * (shape.heads / shape.kv_heads), self.plan.pairs()),
        };
        recorder.dispatch(name, &self.pipeline, [shape.kv_heads, tiles, 1], &push)
    }

    /// The address of the output, if all operands are consistent.
    fn check(&self, name: &str, rows: u32, operands: &Operands<'_>) -> Result<Address> {
        operands.check(name, &self.shape, rows)?;
        match (&operands.o.data, self.output) {
            (VectorData::F16(values), Output::F16) | (VectorData::F32(values), Output::F32) => {
                Ok(values.into())
            }
            _ => {
                let reason = format!(
                    "the output is {}, but the kernel writes {}",
                    operands.o.kind(),
                    Activations::from(self.output)
                );
                Err(Error::InvalidUse { what: name.to_string(), reason })
            }
        }
    }
}

fn variant(shape: &Shape, output: Output, plan: Plan) -> Variant {
    let constants = attention_flash::Constants {
        threads: plan.threads(),
        lanes: plan.lanes,
        head_dim: shape.head_dim,
        keys: plan.keys,
        page_size: shape.page_size,
        kv_bits: shape.scheme.bits(),
        queries_in_registers: plan.queries_in_registers,
        o_f16: output == Output::F16,
        chains: plan.chains,
        independent_rows: plan.independent_rows,
        head_parts: plan.head_parts,
        softmax_in_registers: plan.softmax_in_registers,
        row_tiles: plan.row_tiles,
    };
    let label = format!(
        "{} pairs × {} keys{}{}, heads of {} {}, queries in {}, to {}",
        plan.pairs(),
        plan.keys,
        if plan.independent_rows { ", independent rows" } else { "" },
        if plan.softmax_in_registers { ", softmax in registers" } else { "" },
        shape.head_dim,
        shape.scheme,
        if plan.queries_in_registers { "registers" } else { "shared memory" },
        Activations::from(output),
    );
    Variant::new(label, attention_flash::TIERS, plan.tier, &constants, plan.subgroup())
}
