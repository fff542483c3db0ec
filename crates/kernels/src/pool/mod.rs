//! Average pooling of an image's grid of rows, then RMSNorm: from the patches of an image encoder to the soft
//! tokens of the language model, before their projection (Gemma 3). Output in f32 or f16.
//!
//! One workgroup per output row, which stays in its registers.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Device, Error, Pipeline, Recorder, Result, Subgroup, View};

use crate::{
    Activations, Kernel, Target, Vectors,
    shaders::pool::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "pool",
    about: "average pooling of a grid of rows, then RMSNorm",
    variants: policy::variants,
    cases: cases::cases,
};

/// The dimensions of the pooling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Columns of an image's grid of input rows.
    pub columns: usize,
    /// Rows of that grid.
    pub rows: usize,
    /// Side and stride of the pooling: each square of `side` × `side` input rows becomes one output row.
    pub side: usize,
    /// Length of a row, a multiple of 4.
    pub n: usize,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Storage format of the output: f32 or f16.
    pub output: Activations,
}

impl Shape {
    /// Output rows per image.
    pub fn rows_per_image(&self) -> usize {
        (self.columns / self.side) * (self.rows / self.side)
    }
}

/// The kernel for one shape.
pub struct Pool {
    shape: Shape,
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// f32, `[image][y · columns + x]`: input rows.
    pub x: View,
    /// Values from one input row to the next, a multiple of 4: the length of a row, or [`Vectors::stride`].
    pub x_stride: usize,
    /// Weight of the norm, f32, one row, as multiplied (1 + w for Gemma's files).
    pub weight: View,
    /// One u32: the number of active output rows, at most the columns of `y`. The others are left unchanged.
    pub active: View,
    /// Output rows, `[image][y · (columns / side) + x]`, of whole images.
    pub y: &'a Vectors,
}

impl Pool {
    /// Selects the variant for this device and compiles it.
    pub fn new(device: &Device, shape: Shape) -> Result<Self> {
        let plan = policy::plan(device.caps(), shape.n).ok_or_else(|| {
            let max = crate::row::max_length(device.caps());
            let reason =
                format!("rows of {} values: the length must be a multiple of 4 from 4 to {max}", shape.n);
            Error::InvalidUse { what: "pool".into(), reason }
        })?;
        Self::with_plan(device, shape, plan)
    }

    /// The same with a given plan for the shape's rows.
    fn with_plan(device: &Device, shape: Shape, plan: Plan) -> Result<Self> {
        let Shape { columns, rows, side, output, .. } = shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: "pool".into(), reason });
        if !matches!(output, Activations::F32 | Activations::F16) {
            return wrong(format!("the output must be f32 or f16, not {output}"));
        }
        if side == 0
            || [columns, rows].iter().any(|length| *length == 0 || !length.is_multiple_of(side))
            || u32::try_from(columns.saturating_mul(rows)).is_err()
        {
            return wrong(format!(
                "a grid of {columns} × {rows} cannot be divided into squares of {side} × {side}"
            ));
        }
        Ok(Self { shape, pipeline: variant(output, plan).pipeline(device)? })
    }

    /// Records the kernel for as many output rows as `y` has columns.
    pub fn record(&self, recorder: &mut Recorder, name: &str, operands: &Operands<'_>) -> Result<()> {
        let Shape { columns, rows, side, n, epsilon, output } = self.shape;
        let Operands { x, x_stride, weight, active, y } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if y.k != n {
            return wrong(format!("the output has rows of {}, but the kernel was created for {n}", y.k));
        }
        let rows_per_image = self.shape.rows_per_image();
        if !y.columns.is_multiple_of(rows_per_image) {
            return wrong(format!("{} output rows are not whole images of {rows_per_image} rows", y.columns));
        }
        if *x_stride < n || !x_stride.is_multiple_of(4) {
            return wrong(format!(
                "input rows of {n} values at a stride of {x_stride}: it must be a multiple of 4, and no less"
            ));
        }
        let target = Target::vectors(y)?;
        target.check(name, output, n, y.columns)?;
        let input_rows = y.columns * side * side;
        // The last row needs no padding.
        let values = input_rows.saturating_sub(1) * x_stride + n;
        crate::row::check(name, &[("x", Some(x), values), ("weight", Some(weight), n)])?;
        if active.len() < 4 {
            return wrong(format!("active has {} bytes, but needs 4", active.len()));
        }
        let push = Push {
            x: x.clone().into(),
            weight: weight.clone().into(),
            y: target.y.into(),
            active_rows: active.clone().into(),
            n: n as u32,
            x_stride: *x_stride as u32,
            y_stride: target.stride as u32,
            columns: columns as u32,
            rows: rows as u32,
            side: side as u32,
            epsilon,
        };
        recorder.dispatch(name, &self.pipeline, [y.columns as u32, 1, 1], &push)
    }
}

fn variant(output: Activations, plan: Plan) -> Variant {
    let Plan { tier, row } = plan;
    let to = if output == Activations::F32 { String::new() } else { format!(" → {output}") };
    let label = format!("pool{to} {} threads × {}", row.threads, row.vec4s_per_thread * 4);
    let constants =
        Constants { threads: row.threads, vec4s_per_thread: row.vec4s_per_thread, output: output as u32 };
    Variant::new(label, TIERS, tier, &constants, Subgroup::Any)
}
