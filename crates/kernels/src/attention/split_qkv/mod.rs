//! From the QKV product to queries and to the KV cache, for heads without norms and RoPE (image encoders): adds the
//! bias, scales the queries, and writes keys and values into their pages.
//!
//! One shader at tier T0 serves every device: it is limited by memory bandwidth.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

pub use policy::Shape;

use crate::{
    Kernel,
    attention::kv::{KvLayer, KvTable},
    shaders::split_qkv::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "split_qkv",
    about: "QKV bias, query scale, KV cache write",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for one shape.
pub struct SplitQkv {
    shape: Shape,
    plan: Plan,
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// Rows of query heads, key heads, value heads, f32.
    pub qkv: View,
    /// Values from one row of `qkv` to the next; a multiple of 4.
    pub qkv_stride: u32,
    /// One value per element of a row, f32.
    pub bias: View,
    /// Scale of the queries, after the bias.
    pub scale: f32,
    /// Rows of heads · head_dim values, f32, written.
    pub q: View,
    /// Destination of keys and values.
    pub kv: &'a KvLayer,
    /// The page table.
    pub table: &'a KvTable,
    /// u32 per row.
    pub positions: View,
    /// u32 per row.
    pub slots: View,
    /// Two u32: the first active row, and the end of the active rows.
    pub active: View,
}

impl SplitQkv {
    /// Compiles the kernel for heads of a multiple of 8 values, and a cache in f16 or f32.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        Self::with_plan(device, shape, policy::plan(device.caps()))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        if let Err(reason) = shape.check() {
            return Err(Error::InvalidUse { what: "split_qkv".into(), reason });
        }
        Ok(Self { shape, plan, pipeline: variant(&shape, plan).pipeline(device)? })
    }

    /// Records the kernel for `rows` rows; `active` selects those that are computed.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: u32,
        operands: &Operands<'_>,
    ) -> Result<()> {
        self.check(name, rows, operands)?;
        let groups = self.plan.groups(&self.shape, rows).ok_or_else(|| Error::InvalidUse {
            what: name.to_string(),
            reason: format!("{rows} rows have more values than the kernel can index"),
        })?;
        let push = Push {
            qkv: operands.qkv.clone().into(),
            bias: operands.bias.clone().into(),
            q: operands.q.clone().into(),
            k: (&operands.kv.k).into(),
            v: (&operands.kv.v).into(),
            positions: operands.positions.clone().into(),
            slots: operands.slots.clone().into(),
            table: operands.table.view.clone().into(),
            active_rows: operands.active.clone().into(),
            rows,
            qkv_stride: operands.qkv_stride,
            table_stride: operands.table.stride,
            scale: operands.scale,
        };
        recorder.dispatch(name, &self.pipeline, groups, &push)
    }

    fn check(&self, name: &str, rows: u32, operands: &Operands<'_>) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let (shape, kv) = (&self.shape, &operands.kv.shape);
        if (kv.kv_heads, kv.head_dim, kv.page_size, kv.scheme)
            != (shape.kv_heads, shape.head_dim, shape.page_size, shape.scheme)
        {
            return wrong(format!("the cache is {kv:?}, but the kernel was created for {shape:?}"));
        }
        let (stride, row) = (operands.qkv_stride, shape.row());
        if stride < row || !stride.is_multiple_of(4) {
            return wrong(format!(
                "the stride of qkv is {stride} values, but must be a multiple of 4 and hold {row} values"
            ));
        }
        let full_rows = rows.max(1) as usize - 1;
        let values = [
            ("qkv", Some(&operands.qkv), full_rows * stride as usize + row as usize),
            ("the bias", Some(&operands.bias), row as usize),
            ("q", Some(&operands.q), rows as usize * (shape.heads * shape.head_dim) as usize),
        ];
        crate::row::check(name, &values)?;
        let words = [
            ("positions", &operands.positions, rows),
            ("slots", &operands.slots, rows),
            ("active", &operands.active, 2),
            ("the page table", &operands.table.view, operands.table.stride),
        ];
        match words.into_iter().find(|(_, view, count)| view.len() < u64::from(*count) * 4) {
            Some((what, view, count)) => {
                wrong(format!("{what} has {} bytes, but needs {}", view.len(), u64::from(count) * 4))
            }
            None => Ok(()),
        }
    }
}

fn variant(shape: &Shape, plan: Plan) -> Variant {
    let constants = Constants {
        threads: plan.threads,
        head_dim: shape.head_dim,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        page_size: shape.page_size,
        kv_bits: shape.scheme.bits(),
    };
    let label = format!("{shape}, {} threads", plan.threads);
    Variant::new(label, TIERS, Tier::T0, &constants, Subgroup::Any)
}
