//! Flash attention on cooperative matrices, for prefill and, where logits must be batch-invariant, for rows
//! of several sequences: computes what [`paged`](crate::attention::paged) computes for many rows of a few
//! sequences. Queries, keys, values and weights are f16; scores and sums are f32.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, View};
use tensor::KvScheme;

use crate::{
    Activations, Kernel, Vectors, attention::paged::Operands, matmul::coopmat, shaders::attention_flash,
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
    /// For [`record_rows`](Self::record_rows).
    from_rows: bool,
    pipeline: Pipeline,
}

/// The buffers of [`FlashAttention::record_rows`].
pub struct RowOperands<'a> {
    /// Rows of query heads, key heads and value heads, f16.
    pub qkv: &'a Vectors,
    /// Factor of the scores.
    pub scale: f32,
    /// u32 per row: its index in its chunk.
    pub positions: View,
    /// u32 per row: the index of the last row of its chunk.
    pub last_visible: View,
    /// Two u32: the first active row, and the end of the active rows.
    pub active: View,
    /// One u32 per chunk: its end row.
    pub chunk_ends: View,
    /// The output, f16: heads · head_dim values per row.
    pub o: &'a Vectors,
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
        Self::create(device, shape, output, plan, false)
    }

    /// For [`record_rows`](Self::record_rows), to f16.
    pub fn for_rows(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        if shape.scheme != KvScheme::F16 || shape.window != 0 || plan.independent_rows {
            let reason = "rows of queries, keys and values are f16, in chunks, and have no window".into();
            return Err(Error::InvalidUse { what: "attention_flash".into(), reason });
        }
        Self::create(device, shape, Output::F16, plan, true)
    }

    fn create(device: &Device, shape: Shape, output: Output, plan: Plan, from_rows: bool) -> Result<Self> {
        shape.check()?;
        if let Err(reason) = plan.check(&shape) {
            return Err(Error::InvalidUse { what: "attention_flash".into(), reason });
        }
        let pipeline = variant(&shape, output, plan, from_rows).pipeline(device)?;
        Ok(Self { shape, plan, output, from_rows, pipeline })
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
        if self.from_rows {
            let reason = "the kernel was created for rows of queries, keys and values".into();
            return Err(Error::InvalidUse { what: name.to_string(), reason });
        }
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
            row_units: 0,
            scale: 1.0,
        };
        let tiles = match self.plan.independent_rows {
            true => rows,
            false => operands.tiles(rows * (shape.heads / shape.kv_heads), self.plan.pairs()),
        };
        recorder.dispatch(name, &self.pipeline, [shape.kv_heads, tiles, 1], &push)
    }

    /// Records attention of each row with all rows of its chunk. Queries, keys and values are the rows of one product, and
    /// were never in a cache.
    pub fn record_rows(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: u32,
        operands: &RowOperands<'_>,
    ) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let Shape { heads, kv_heads, head_dim, .. } = self.shape;
        let RowOperands { qkv, scale, positions, last_visible, active, chunk_ends, o } = operands;
        if !self.from_rows {
            return wrong("the kernel was created for keys and values in pages".into());
        }
        let (VectorData::F16(values), VectorData::F16(output)) = (&qkv.data, &o.data) else {
            return wrong(format!("rows are {} and the output {}: both must be f16", qkv.kind(), o.kind()));
        };
        let widths = [(heads + 2 * kv_heads) * head_dim, heads * head_dim].map(|width| width as usize);
        let columns = rows as usize;
        if [qkv.k, o.k] != widths || qkv.columns < columns || o.columns < columns {
            return wrong(format!(
                "{} rows of {} values, {} of {} in the output: {columns} of {} and {} are needed",
                qkv.columns, qkv.k, o.columns, o.k, widths[0], widths[1]
            ));
        }
        let lengths =
            [("positions", positions, rows), ("last_visible", last_visible, rows), ("active", active, 2)];
        for (what, view, words) in lengths.into_iter().chain([("chunk_ends", chunk_ends, 1)]) {
            if view.len() < u64::from(words) * 4 {
                return wrong(format!("{what} has {} bytes, but needs {}", view.len(), words * 4));
            }
        }
        let (k, v) = (u64::from(heads * head_dim) * 2, u64::from((heads + kv_heads) * head_dim) * 2);
        let chunks = (chunk_ends.len() / 4) as u32;
        let push = attention_flash::Push {
            q: values.into(),
            k: values.slice(k..values.len())?.into(),
            v: values.slice(v..values.len())?.into(),
            positions: positions.clone().into(),
            last_visible: last_visible.clone().into(),
            slots: Address::NONE,
            table: Address::NONE,
            active_rows: active.clone().into(),
            chunk_ends: chunk_ends.clone().into(),
            o: output.into(),
            heads,
            kv_heads,
            o_stride: o.stride() as u32,
            table_stride: 0,
            window: 0,
            chunks,
            row_units: (qkv.stride() / 8) as u32,
            scale: *scale,
        };
        // The last tile of each chunk may be partly filled.
        let pairs = rows * (heads / kv_heads);
        let tiles = (pairs.div_ceil(self.plan.pairs()) + chunks.min(pairs)).saturating_sub(1);
        recorder.dispatch(name, &self.pipeline, [kv_heads, tiles, 1], &push)
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

fn variant(shape: &Shape, output: Output, plan: Plan, from_rows: bool) -> Variant {
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
        from_rows,
    };
    let label = format!(
        "{} pairs × {} keys{}{}{}, heads of {} {}, queries in {}, to {}",
        plan.pairs(),
        plan.keys,
        if plan.independent_rows { ", independent rows" } else { "" },
        if plan.softmax_in_registers { ", softmax in registers" } else { "" },
        if from_rows { ", from rows" } else { "" },
        shape.head_dim,
        shape.scheme,
        if plan.queries_in_registers { "registers" } else { "shared memory" },
        Activations::from(output),
    );
    Variant::new(label, attention_flash::TIERS, plan.tier, &constants, plan.subgroup())
}
