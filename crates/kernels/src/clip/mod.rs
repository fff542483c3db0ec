//! Clipped linear layers: clamps the input and the output of a product to ranges, as the image encoders of the small
//! models of Gemma 4 were trained. Output in f32 or f16.
//!
//! [`Clip`] clamps rows with a range per column, so that it takes the output of several matrices side by side.
//! [`ClipGated`] is the activation of an MLP whose three matrices are clipped. One shader at tier T0 serves every
//! device: it is limited by memory bandwidth.
//!
//! Clamping is that of `torch.clamp`: NaN stays NaN, and a range whose low end exceeds its high end gives the high end.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Activations, Kernel, Target, Vectors,
    shaders::clip::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "clip",
    about: "clamps rows to ranges, or gate, up and GeGLU",
    variants: policy::variants,
    cases: cases::cases,
};

/// A range to clamp to; infinite where there is no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipRange {
    /// Lowest value.
    pub low: f32,
    /// Highest value.
    pub high: f32,
}

impl ClipRange {
    /// No limits.
    pub const NONE: ClipRange = ClipRange { low: f32::NEG_INFINITY, high: f32::INFINITY };
}

/// y = clamp(x), for one row length and output format.
pub struct Clip(Clamp);

/// The buffers of one call of [`Clip`].
pub struct Operands<'a> {
    /// Input rows, f32.
    pub x: View,
    /// Values from one input row to the next, a multiple of 4.
    pub x_stride: usize,
    /// f32, the low and the high end of each column's range.
    pub ranges: View,
    /// Output rows: activations of the next product, or f32 rows. These may be the rows of `x` themselves, at the same
    /// address and stride; no other overlap is allowed.
    pub target: &'a Target,
    /// One u32: the number of active rows. The others are left unchanged.
    pub active: View,
}

impl Clip {
    /// Compiles the kernel for rows of `n` values, a multiple of 4, to f32 or f16.
    pub fn new(device: &Device, output: Activations, n: usize) -> Result<Self> {
        Clamp::new(device, output, n, false).map(Self)
    }

    /// Records the kernel for `rows` rows.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: usize,
        operands: &Operands<'_>,
    ) -> Result<()> {
        let Operands { x, x_stride, ranges, target, active } = operands;
        crate::row::check(name, &[("ranges", Some(ranges), 2 * self.0.n)])?;
        let rows = Rows { rows, x, x_stride: *x_stride, target, active };
        self.0.record(recorder, name, &rows, ranges.clone().into(), [ClipRange::NONE; 3])
    }
}

/// y = clamp(gelu(clamp(gate)) · clamp(up)), GELU by tanh, for one row length and output format.
pub struct ClipGated(Clamp);

/// The buffers and ranges of one call of [`ClipGated`].
pub struct GatedOperands<'a> {
    /// Input rows, f32: the kernel's number of gate values, then as many up values.
    pub x: View,
    /// Values from one input row to the next, a multiple of 4.
    pub x_stride: usize,
    /// Range of the gate.
    pub gate: ClipRange,
    /// Range of up.
    pub up: ClipRange,
    /// Range of the product.
    pub product: ClipRange,
    /// One u32: the number of active rows, at most the columns of `y`. The others are left unchanged.
    pub active: View,
    /// Output rows.
    pub y: &'a Vectors,
}

impl ClipGated {
    /// Compiles the kernel for output rows of `n` values, a multiple of 4, to f32 or f16.
    pub fn new(device: &Device, output: Activations, n: usize) -> Result<Self> {
        Clamp::new(device, output, n, true).map(Self)
    }

    /// Records the kernel for as many rows as `y` has columns.
    pub fn record(&self, recorder: &mut Recorder, name: &str, operands: &GatedOperands<'_>) -> Result<()> {
        let GatedOperands { x, x_stride, gate, up, product, active, y } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if y.k != self.0.n {
            let n = self.0.n;
            return wrong(format!("the output has rows of {}, but the kernel was created for {n}", y.k));
        }
        for (what, range) in [("gate", gate), ("up", up), ("the product", product)] {
            if range.low.is_nan() || range.high.is_nan() {
                return wrong(format!("the range of {what} is {} to {}", range.low, range.high));
            }
        }
        let target = Target::vectors(y)?;
        let rows = Rows { rows: y.columns, x, x_stride: *x_stride, target: &target, active };
        self.0.record(recorder, name, &rows, Address::NONE, [*gate, *up, *product])
    }
}

/// What both kernels have in common.
struct Clamp {
    output: Activations,
    /// Values per output row.
    n: usize,
    gated: bool,
    plan: Plan,
    pipeline: Pipeline,
}

/// The rows of one call.
struct Rows<'a> {
    rows: usize,
    x: &'a View,
    x_stride: usize,
    target: &'a Target,
    active: &'a View,
}

impl Clamp {
    fn new(device: &Device, output: Activations, n: usize, gated: bool) -> Result<Self> {
        let wrong = |reason: String| Error::InvalidUse { what: "clip".into(), reason };
        if !matches!(output, Activations::F32 | Activations::F16) {
            return Err(wrong(format!("the output must be f32 or f16, not {output}")));
        }
        let plan = policy::plan(device.caps(), n)
            .ok_or_else(|| wrong(format!("rows of {n} values: the length must be a multiple of 4")))?;
        Ok(Self { output, n, gated, plan, pipeline: variant(output, gated, plan).pipeline(device)? })
    }

    /// Records the kernel with a buffer of ranges per column, or with those of gate, up and product.
    fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        rows: &Rows<'_>,
        ranges: Address,
        [gate, up, product]: [ClipRange; 3],
    ) -> Result<()> {
        self.check(name, rows)?;
        let target = rows.target;
        let push = Push {
            x: rows.x.clone().into(),
            ranges,
            y: target.y.clone().into(),
            active_rows: rows.active.clone().into(),
            n: self.n as u32,
            x_stride: rows.x_stride as u32,
            y_stride: target.stride as u32,
            y_first: target.first as u32,
            gate_low: gate.low,
            gate_high: gate.high,
            up_low: up.low,
            up_high: up.high,
            low: product.low,
            high: product.high,
        };
        recorder.dispatch(name, &self.pipeline, [rows.rows as u32, self.plan.groups_per_row, 1], &push)
    }

    fn check(&self, name: &str, rows: &Rows<'_>) -> Result<()> {
        let Rows { rows, x, x_stride, target, active } = *rows;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let x_length = if self.gated { 2 * self.n } else { self.n };
        if x_stride < x_length || !x_stride.is_multiple_of(4) {
            return wrong(format!(
                "input rows of {x_length} values at a stride of {x_stride}: it must be a multiple of 4, and no less"
            ));
        }
        target.check(name, self.output, self.n, rows)?;
        if !target.first.is_multiple_of(4) || !target.stride.is_multiple_of(4) {
            let Target { first, stride, .. } = target;
            return wrong(format!(
                "output rows at a stride of {stride} from value {first}: both must be multiples of 4"
            ));
        }
        // The last row needs no padding.
        let values = rows.saturating_sub(1) * x_stride + x_length;
        crate::row::check(name, &[("x", Some(x), values), ("y", Some(&target.y), 0)])?;
        // The shader indexes with 32 bits.
        if u32::try_from(values).is_err() {
            return wrong(format!("x has {values} values, more than the kernel can index"));
        }
        let y = target.y.address() + target.first as u64 * 4;
        let same = self.output == Activations::F32 && y == x.address() && target.stride == x_stride;
        let x_bytes = x.address()..x.address() + values as u64 * 4;
        let overlap = x_bytes.start < target.y.address() + target.y.len() && target.y.address() < x_bytes.end;
        if overlap && (self.gated || !same) {
            return wrong("x and y overlap, but are not the same f32 rows at the same stride".into());
        }
        if active.len() < 4 {
            return wrong(format!("active has {} bytes, but needs 4", active.len()));
        }
        Ok(())
    }
}

fn variant(output: Activations, gated: bool, plan: Plan) -> Variant {
    let Plan { threads, vec4s_per_thread, .. } = plan;
    let what = if gated { "clipped GeGLU" } else { "clip" };
    let to = if output == Activations::F32 { String::new() } else { format!(" → {output}") };
    let label = format!("{what}{to} {threads} threads × {}", vec4s_per_thread * 4);
    let constants = Constants { threads, vec4s_per_thread, output: output as u32, gated };
    Variant::new(label, TIERS, Tier::T0, &constants, Subgroup::Any)
}
