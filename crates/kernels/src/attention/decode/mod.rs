//! Decode attention in one dispatch: norms, RoPE, the write of the new key and value into their page,
//! softmax(q · kᵀ) · v, and the output in the format of the next product.
//!
//! Equivalent to [`rope`], [`paged`](crate::attention::paged) and
//! [`quantize_rows`](crate::matmul::quantize_rows) in sequence, for rows of different sequences: no row may
//! attend to a position that another row of the dispatch writes. Rows of one sequence use those kernels
//! instead or, where they must get the bits that each gets by itself, two dispatches of this one:
//! [`Part::WriteKeys`] and [`Part::Attend`].

mod cases;
pub mod policy;
pub mod reference;
mod shape;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, View};

pub use policy::Plan;
pub use shape::Shape;

use crate::{
    Activations, Kernel, Vectors,
    attention::{
        kv::{KvLayer, KvTable},
        rope::{self, Angles, KeysAndValues, Rotation},
    },
    shaders::attention_decode::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "attention_decode",
    about: "QK norm, RoPE, KV cache write and attention of a decode step",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for one shape.
pub struct DecodeAttention {
    shape: Shape,
    plan: Plan,
    pipeline: Pipeline,
}

/// What a dispatch does. One pipeline serves all, so that rows get the same bits from one dispatch as from two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Everything.
    #[default]
    All,
    /// Writes the rows' keys and values into the cache.
    WriteKeys,
    /// Everything else: the cache has the keys and values of all rows.
    Attend,
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// Rows of query heads, key heads, value heads, f32, as far as the shape has them; split-K partial sums of
    /// a row are consecutive.
    pub qkv: View,
    /// Values from one row of `qkv` to the next, a multiple of 4.
    pub qkv_stride: u32,
    /// One value per element of a row, if the shape has a bias.
    pub bias: Option<View>,
    /// Weight of the query norm, head_dim values, if the shape has norms.
    pub q_weight: Option<View>,
    /// Weight of the key norm, if the shape has norms and keys.
    pub k_weight: Option<View>,
    /// [`Tables::coarse`](crate::attention::rope::Tables::coarse).
    pub coarse: View,
    /// [`Tables::fine`](crate::attention::rope::Tables::fine).
    pub fine: View,
    /// Keys and values of the positions before the rows' own; the rows' own are written. Where they are shared,
    /// the cache of the layer that writes them, the rows' own included.
    pub kv: &'a KvLayer,
    /// The page table, including the rows' own positions.
    pub table: &'a KvTable,
    /// u32 per row. The RoPE tables must cover each.
    pub positions: View,
    /// u32 per row; active rows must have distinct slots, unless keys and values are written first.
    pub slots: View,
    /// One u32: the number of active rows.
    pub active: View,
    /// The output, heads · head_dim values per row, in the format of the shape; at least one column per row,
    /// for int16 exactly one.
    pub o: &'a Vectors,
    /// At least [`DecodeAttention::scratch_bytes`], unless that is 0. Its first
    /// [`DecodeAttention::counter_bytes`] must be zero before the first use; every call leaves them zero.
    pub scratch: Option<View>,
    /// Three u32, read at execution: [`Plan::groups`] for the recorded rows and the last position of the
    /// step. None: the maximum number of workgroups; with many rows, most of them do nothing.
    pub groups: Option<View>,
}

impl DecodeAttention {
    /// Selects the variant for this device and compiles it.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), &shape))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        shape.check()?;
        Ok(Self { shape, plan, pipeline: variant(&shape, plan).pipeline(device)? })
    }

    /// Scratch bytes for `rows` rows; 0 with one split.
    pub fn scratch_bytes(&self, rows: u32) -> u64 {
        let (shape, plan) = (&self.shape, &self.plan);
        if plan.splits == 1 {
            return 0;
        }
        let split_outputs = u64::from(rows) * u64::from(shape.heads) * u64::from(plan.splits);
        self.counter_bytes(rows) + split_outputs * u64::from(shape.head_dim + 4) * 4
    }

    /// Counter bytes at the start of the scratch memory. Independent of the plan, because layers of all kinds
    /// share them.
    pub fn counter_bytes(&self, rows: u32) -> u64 {
        (u64::from(rows) * u64::from(self.shape.heads) * 4).next_multiple_of(16)
    }

    /// Records the kernel for `rows` rows, of which the first `active` are computed.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: u32,
        operands: &Operands<'_>,
    ) -> Result<()> {
        self.record_part(recorder, name, rows, operands, Part::All)
    }

    /// Records the kernel for `rows` rows of any sequences: some may attend to positions that others write. Twice, so that
    /// all keys and values are written before any row attends; a row gets the same bits as from [`DecodeAttention::record`].
    pub fn record_dependent(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: u32,
        operands: &Operands<'_>,
    ) -> Result<()> {
        if self.shape.keys_and_values != KeysAndValues::Shared {
            self.record_part(recorder, "keys", rows, operands, Part::WriteKeys)?;
        }
        self.record_part(recorder, name, rows, operands, Part::Attend)
    }

    fn record_part(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: u32,
        operands: &Operands<'_>,
        part: Part,
    ) -> Result<()> {
        let (shape, plan) = (&self.shape, &self.plan);
        self.check(name, rows, operands)?;
        let optional = |view: Option<&View>| view.cloned().map_or(Address::NONE, Address::from);
        let (o, o_scales) = match &operands.o.data {
            VectorData::F32(values) | VectorData::F16(values) => (values.into(), Address::NONE),
            VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales } => {
                (values.into(), scales.into())
            }
        };
        let push = Push {
            qkv: operands.qkv.clone().into(),
            bias: optional(operands.bias.as_ref()),
            q_weight: optional(operands.q_weight.as_ref()),
            k_weight: optional(operands.k_weight.as_ref()),
            coarse: operands.coarse.clone().into(),
            fine: operands.fine.clone().into(),
            k: (&operands.kv.k).into(),
            v: (&operands.kv.v).into(),
            positions: operands.positions.clone().into(),
            slots: operands.slots.clone().into(),
            table: operands.table.view.clone().into(),
            active_rows: operands.active.clone().into(),
            o,
            o_scales,
            scratch: optional(operands.scratch.as_ref().filter(|_| plan.splits > 1)),
            qkv_stride_and_part: operands.qkv_stride + part as u32,
            table_stride: operands.table.stride,
        };
        let workgroups = shape.heads / plan.heads;
        match &operands.groups {
            _ if part == Part::WriteKeys => {
                recorder.dispatch(name, &self.pipeline, [workgroups, rows, 1], &push)
            }
            Some(groups) => recorder.dispatch_indirect(name, &self.pipeline, groups, &push),
            None => recorder.dispatch(name, &self.pipeline, [workgroups, rows, plan.splits], &push),
        }
    }

    fn check(&self, name: &str, rows: u32, operands: &Operands<'_>) -> Result<()> {
        let shape = &self.shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let angles = Angles::Tables { coarse: operands.coarse.clone(), fine: operands.fine.clone() };
        let inputs = rope::Inputs {
            qkv: &operands.qkv,
            qkv_stride: operands.qkv_stride,
            bias: operands.bias.as_ref(),
            q_weight: operands.q_weight.as_ref(),
            k_weight: operands.k_weight.as_ref(),
            angles: &angles,
            kv: operands.kv,
            table: operands.table,
            positions: &operands.positions,
            slots: &operands.slots,
            active: (&operands.active, 1),
        };
        // Four values are loaded at once.
        inputs.check(name, &shape.rope(), rows, 4)?;
        let (k, kind) = (shape.heads as usize * shape.head_dim as usize, shape.output);
        if operands.o.k != k || operands.o.kind() != kind {
            return wrong(format!("the output must be {kind} with {k} values per row"));
        }
        // The offset of the int16 low bytes depends on the number of columns, which the kernel equates with
        // the number of rows.
        let columns = operands.o.columns as u32;
        if columns < rows || (kind == Activations::Int16 && columns != rows) {
            let required = if kind == Activations::Int16 { "exactly" } else { "at least" };
            return wrong(format!(
                "{rows} rows need {required} as many {kind} output columns, but there are {columns}"
            ));
        }
        let (bytes, splits) = (self.scratch_bytes(rows), self.plan.splits);
        if operands.scratch.as_ref().map_or(0, View::len) < bytes {
            let has = operands.scratch.as_ref().map_or(0, View::len);
            return wrong(format!(
                "scratch memory has {has} bytes, but {splits} splits of {rows} rows need {bytes}"
            ));
        }
        Ok(())
    }
}

fn variant(shape: &Shape, plan: Plan) -> Variant {
    let constants = Constants {
        threads: plan.threads,
        lanes: plan.lanes,
        head_dim: shape.head_dim,
        heads: plan.heads,
        keys: plan.keys,
        page_size: shape.page_size,
        kv_bits: shape.scheme.bits(),
        query_heads: shape.heads,
        kv_heads: shape.kv_heads,
        window: shape.window,
        splits: plan.splits,
        min_blocks: plan.min_blocks(),
        keys_and_values: shape.keys_and_values as u32,
        qk_norm: shape.norm.is_some(),
        value_norm: shape.value_norm,
        temperature_beta: shape.temperature.map_or(0.0, |temperature| temperature.beta),
        temperature_original: shape.temperature.map_or(0, |temperature| temperature.original),
        qkv_bias: shape.bias,
        interleaved: shape.rotation == Rotation::Interleaved,
        partials: shape.partials,
        output: shape.output as u32,
        epsilon: shape.norm.unwrap_or(0.0),
        scale: shape.scale,
    };
    let label = format!(
        "{} → {}{}, {} threads, {} keys, {} splits",
        shape.rope(),
        shape.output,
        if shape.window > 0 { ", window" } else { "" },
        plan.threads,
        plan.keys,
        plan.splits,
    );
    Variant::new(label, TIERS, plan.tier, &constants, plan.subgroup)
}
