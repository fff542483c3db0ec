//! Attention over the pages of the KV cache: one kernel for decode and prefill, and a small one that combines
//! KV splits.

pub(crate) mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Kernel, Vectors,
    attention::kv::{KvLayer, KvTable},
    shaders::{attention_combine, attention_paged, attention_paged_wide},
    variant::Variant,
    vectors::VectorData,
};
use policy::{Plan, Shape};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "attention_paged",
    about: "paged attention: softmax(q · kᵀ) · v over KV pages",
    variants: policy::variants,
    cases: cases::cases,
};

/// How the rows of a step are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Rows of any sequences, at any positions.
    Decode,
    /// Rows of one or a few sequences, each at consecutive positions.
    Prefill,
}

/// The kernel for one shape.
pub struct PagedAttention {
    shape: Shape,
    plan: Plan,
    pipeline: Pipeline,
    combine: Option<Pipeline>,
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// Rows of heads · head_dim values, f32, already scaled.
    pub q: View,
    /// Keys and values, including those of the rows themselves.
    pub kv: &'a KvLayer,
    /// The page table.
    pub table: &'a KvTable,
    /// u32 per row.
    pub positions: View,
    /// u32 per row: the last position that it sees, not before its own, and never decreasing within a chunk.
    /// `positions` itself for causal attention; for a row of an image the last position of the image, whose
    /// rows see each other in both directions. Keys and values must be in the cache up to there.
    pub last_visible: View,
    /// u32 per row; in prefill only the first of each tile is read.
    pub slots: View,
    /// Two u32: the first active row, and the end of the active rows.
    pub active: View,
    /// For a prefill of several chunks, each of one sequence: one u32 per chunk, its end row; the last equals
    /// the end of the active rows, and entries after it are ignored. None: all rows are one chunk.
    pub chunk_ends: Option<View>,
    /// The output, heads · head_dim f32 values per row; one column per row of the step.
    pub o: &'a Vectors,
    /// At least [`PagedAttention::scratch_bytes`], unless that is 0.
    pub scratch: Option<View>,
}

impl PagedAttention {
    /// Selects the variant for this device and compiles it.
    pub fn new(device: &Device, shape: Shape, mode: Mode) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps(), &shape, mode))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        shape.check()?;
        let combine = if plan.splits > 1 { Some(combine_variant(&shape).pipeline(device)?) } else { None };
        Ok(Self { shape, plan, pipeline: variant(&shape, plan).pipeline(device)?, combine })
    }

    /// Scratch bytes for `rows` rows; 0 with one split.
    pub fn scratch_bytes(&self, rows: u32) -> u64 {
        if self.plan.splits == 1 { 0 } else { self.split_output_bytes(rows) + self.max_and_sum_bytes(rows) }
    }

    fn split_outputs(&self, rows: u32) -> u64 {
        u64::from(rows) * u64::from(self.shape.heads) * u64::from(self.plan.splits)
    }

    fn split_output_bytes(&self, rows: u32) -> u64 {
        self.split_outputs(rows) * u64::from(self.shape.head_dim) * 4
    }

    fn max_and_sum_bytes(&self, rows: u32) -> u64 {
        self.split_outputs(rows) * 8
    }

    /// Records the kernel for up to `rows` rows; `active` selects them.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: u32,
        operands: &Operands<'_>,
    ) -> Result<()> {
        let (shape, plan) = (&self.shape, &self.plan);
        let o = self.check(name, rows, operands)?;
        let o_stride = operands.o.stride() as u32;
        let scratch = match (&operands.scratch, self.scratch_bytes(rows)) {
            (_, 0) => None,
            (Some(scratch), bytes) if scratch.len() >= bytes => {
                let outputs = self.split_output_bytes(rows);
                Some((scratch.slice(0..outputs)?, scratch.slice(outputs..bytes)?))
            }
            (scratch, bytes) => {
                let has = scratch.as_ref().map_or(0, View::len);
                let reason = format!(
                    "scratch memory has {has} bytes, but {} splits of {rows} rows need {bytes}",
                    plan.splits
                );
                return Err(Error::InvalidUse { what: name.to_string(), reason });
            }
        };
        let (split_outputs, max_and_sum) = match scratch.clone() {
            Some((outputs, max_and_sum)) => (Address::from(outputs), Address::from(max_and_sum)),
            None => (o.clone(), Address::NONE),
        };
        let push = attention_paged::Push {
            q: operands.q.clone().into(),
            k: (&operands.kv.k).into(),
            v: (&operands.kv.v).into(),
            positions: operands.positions.clone().into(),
            last_visible: operands.last_visible.clone().into(),
            slots: operands.slots.clone().into(),
            table: operands.table.view.clone().into(),
            active_rows: operands.active.clone().into(),
            chunk_ends: operands.chunk_ends()?.into(),
            o: split_outputs,
            max_and_sum,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            o_stride,
            table_stride: operands.table.stride,
            window: shape.window,
            splits: plan.splits,
            min_blocks: plan.min_blocks(),
            chunks: operands.chunks(),
        };
        let tiles = if plan.rows == 1 { rows } else { operands.tiles(rows, plan.rows) };
        let groups = [shape.heads / plan.heads, tiles, plan.splits];
        recorder.dispatch(name, &self.pipeline, groups, &push)?;
        let (Some(combine), Some((split_outputs, max_and_sum))) = (&self.combine, scratch) else {
            return Ok(());
        };
        let push = attention_combine::Push {
            split_outputs: split_outputs.into(),
            max_and_sum: max_and_sum.into(),
            positions: operands.positions.clone().into(),
            last_visible: operands.last_visible.clone().into(),
            active_rows: operands.active.clone().into(),
            o,
            heads: shape.heads,
            o_stride,
            window: shape.window,
            splits: plan.splits,
            min_blocks: plan.min_blocks(),
            block: plan.block(),
        };
        let vec4s = shape.heads * shape.head_dim / 4;
        recorder.dispatch(name, combine, [vec4s.div_ceil(combine.threads()), rows, 1], &push)
    }

    /// The address of the output, if all operands are consistent.
    fn check(&self, name: &str, rows: u32, operands: &Operands<'_>) -> Result<Address> {
        operands.check(name, &self.shape, rows)?;
        match &operands.o.data {
            VectorData::F32(floats) => Ok(floats.into()),
            _ => {
                let reason = format!("the output is {}, but must be f32", operands.o.kind());
                Err(Error::InvalidUse { what: name.to_string(), reason })
            }
        }
    }
}

impl Operands<'_> {
    /// End row of each chunk.
    pub(crate) fn chunk_ends(&self) -> Result<View> {
        // A single chunk ends with the active rows.
        self.chunk_ends.clone().map_or_else(|| self.active.slice(4..8), Ok)
    }

    /// Maximum number of prefill chunks.
    pub(crate) fn chunks(&self) -> u32 {
        self.chunk_ends.as_ref().map_or(1, |ends| (ends.len() / 4) as u32)
    }

    /// Maximum number of tiles of `size` pairs: the last tile of each chunk may be partly filled.
    pub(crate) fn tiles(&self, pairs: u32, size: u32) -> u32 {
        (pairs.div_ceil(size) + self.chunks().min(pairs)).saturating_sub(1)
    }

    /// Checks that the operands are consistent and match the shape; the kernel checks the output format.
    pub(crate) fn check(&self, name: &str, shape: &Shape, max_rows: u32) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let kv = &self.kv.shape;
        if (kv.kv_heads, kv.head_dim, kv.page_size, kv.scheme)
            != (shape.kv_heads, shape.head_dim, shape.page_size, shape.scheme)
        {
            return wrong(format!("the cache is {kv:?}, but the kernel was created for {shape:?}"));
        }
        let row = u64::from(shape.heads * shape.head_dim);
        let rows = self.o.columns as u64;
        if self.o.k as u64 != row {
            return wrong(format!("the output has {} values per row, not {row}", self.o.k));
        }
        if u64::from(max_rows) > rows {
            return wrong(format!("{max_rows} rows, but the output has {rows} columns"));
        }
        let lengths = [
            ("q", &self.q, rows * row),
            ("positions", &self.positions, rows),
            ("last_visible", &self.last_visible, rows),
            ("slots", &self.slots, rows),
            ("active", &self.active, 2),
            ("the page table", &self.table.view, u64::from(self.table.stride)),
        ];
        let ends = self.chunk_ends.iter().map(|ends| ("chunk_ends", ends, 1));
        match lengths.into_iter().chain(ends).find(|(_, view, words)| view.len() < *words * 4) {
            Some((what, view, words)) => {
                wrong(format!("{what} has {} bytes, but needs {}", view.len(), words * 4))
            }
            None => Ok(()),
        }
    }
}

fn variant(shape: &Shape, plan: Plan) -> Variant {
    let constants = attention_paged::Constants {
        threads: plan.threads,
        lanes: plan.lanes,
        head_dim: shape.head_dim,
        rows: plan.rows,
        heads: plan.heads,
        keys: plan.keys,
        page_size: shape.page_size,
        kv_bits: shape.scheme.bits(),
        split: plan.splits > 1,
    };
    let label = format!(
        "{} × {} heads of {} {}{}, {} threads, {} keys",
        plan.rows,
        plan.heads,
        shape.head_dim,
        shape.scheme,
        if plan.splits > 1 { ", split" } else { "" },
        plan.threads,
        plan.keys,
    );
    let tiers = if plan.wide_cpu { attention_paged_wide::TIERS } else { attention_paged::TIERS };
    Variant::new(label, tiers, plan.tier, &constants, plan.subgroup)
}

/// Threads per workgroup of the combine kernel: each does little, independent work.
const COMBINE_THREADS: u32 = 64;

fn combine_variant(shape: &Shape) -> Variant {
    let constants = attention_combine::Constants { threads: COMBINE_THREADS, head_dim: shape.head_dim };
    let label = format!("combine, heads of {}", shape.head_dim);
    Variant::new(label, attention_combine::TIERS, Tier::T0, &constants, Subgroup::Any)
}
