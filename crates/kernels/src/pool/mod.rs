//! Average pooling of squares of an image's grid of rows, then RMSNorm: from the patches of an image encoder to the
//! soft tokens of the language model, before their projection (Gemma 3 and 4). Output in f32 or f16.
//!
//! One workgroup per output row, which stays in its registers. Each output row names its own square, so that images
//! with grids of any size share a call.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Subgroup, View};

use crate::{
    Activations, Kernel, Target, Vectors,
    shaders::pool::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "pool",
    about: "average pooling of squares of rows, then RMSNorm",
    variants: policy::variants,
    cases: cases::cases,
};

/// The dimensions of the pooling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Side of a square: `side` × `side` input rows become one output row.
    pub side: usize,
    /// Length of a row, a multiple of 4.
    pub n: usize,
    /// Factor of the mean: 1 for Gemma 3, √n for Gemma 4.
    pub factor: f32,
    /// Standardises the mean before the norm (large models of Gemma 4).
    pub standardise: bool,
    /// The norm has a weight (Gemma 3).
    pub weight: bool,
    /// Added to the mean square.
    pub epsilon: f32,
    /// Storage format of the output: f32 or f16.
    pub output: Activations,
}

/// The squares of an image, line by line, as [`Operands::squares`] takes them: its grid of `columns` × `rows` patches
/// is in the input rows from `first_row` on, line by line too. Fails if the grid cannot be divided into squares.
pub fn squares(
    first_row: usize,
    columns: usize,
    rows: usize,
    side: usize,
) -> Result<impl Iterator<Item = [u32; 2]>> {
    let wrong = |reason: String| Err(Error::InvalidUse { what: "pool".into(), reason });
    if side == 0 || [columns, rows].iter().any(|length| *length == 0 || !length.is_multiple_of(side)) {
        return wrong(format!(
            "a grid of {columns} × {rows} cannot be divided into squares of {side} × {side}"
        ));
    }
    if u32::try_from(first_row.saturating_add(columns.saturating_mul(rows))).is_err() {
        return wrong(format!("a grid of {columns} × {rows} from row {first_row} on has rows past 2³²"));
    }
    let lines = (0..rows).step_by(side).map(move |y| first_row + y * columns);
    Ok(lines
        .flat_map(move |line| (0..columns).step_by(side).map(move |x| [(line + x) as u32, columns as u32])))
}

/// The kernel for one shape.
pub struct Pool {
    shape: Shape,
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// f32: input rows, at least `side` · `side` per output row.
    pub x: View,
    /// Values from one input row to the next, a multiple of 4: the length of a row, or [`Vectors::stride`].
    pub x_stride: usize,
    /// Two u32 per output row: the first input row of its square, and the columns of its image's grid, which is the
    /// number of input rows from one line of the square to the next. See [`squares`]. They are read at execution: the
    /// host must write only squares within `x`. One that is not becomes a row of NaN.
    pub squares: View,
    /// Bias and scale of the standardisation, if the shape has one.
    pub standardise: Option<Standardise>,
    /// Weight of the norm, f32, one row, as multiplied (1 + w for Gemma 3's files), if the shape has one.
    pub weight: Option<View>,
    /// One u32: the number of active output rows, at most the columns of `y`. The others are left unchanged.
    pub active: View,
    /// Output rows, one per square.
    pub y: &'a Vectors,
}

/// Standardisation of a row: (row − bias) · scale.
pub struct Standardise {
    /// f32, one row.
    pub bias: View,
    /// f32, one row.
    pub scale: View,
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
        let Shape { side, output, .. } = shape;
        let wrong = |reason: String| Err(Error::InvalidUse { what: "pool".into(), reason });
        if !matches!(output, Activations::F32 | Activations::F16) {
            return wrong(format!("the output must be f32 or f16, not {output}"));
        }
        if side == 0 || side > MAX_SIDE {
            return wrong(format!("squares of {side} × {side}: the side must be from 1 to {MAX_SIDE}"));
        }
        Ok(Self { shape, pipeline: variant(&shape, plan).pipeline(device)? })
    }

    /// Records the kernel for as many output rows as `y` has columns.
    pub fn record(&self, recorder: &mut Recorder, name: &str, operands: &Operands<'_>) -> Result<()> {
        let Shape { side, n, factor, epsilon, output, .. } = self.shape;
        let Operands { x, x_stride, squares, standardise, weight, active, y } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if y.k != n {
            return wrong(format!("the output has rows of {}, but the kernel was created for {n}", y.k));
        }
        if standardise.is_some() != self.shape.standardise || weight.is_some() != self.shape.weight {
            return wrong("standardise and weight must be given if and only if the shape has them".into());
        }
        if *x_stride < n || !x_stride.is_multiple_of(4) {
            return wrong(format!(
                "input rows of {n} values at a stride of {x_stride}: it must be a multiple of 4, and no less"
            ));
        }
        let target = Target::vectors(y)?;
        target.check(name, output, n, y.columns)?;
        // Squares do not overlap. The last row needs no padding.
        let values = (y.columns * side * side).saturating_sub(1) * x_stride + n;
        let (bias, scale) = standardise.as_ref().map(|rows| (&rows.bias, &rows.scale)).unzip();
        crate::row::check(
            name,
            &[
                ("x", Some(x), values),
                ("the bias", bias, n),
                ("the scale", scale, n),
                ("weight", weight.as_ref(), n),
            ],
        )?;
        for (what, view, words) in [("squares", squares, 2 * y.columns as u64), ("active", active, 1)] {
            if view.len() < words * 4 {
                return wrong(format!("{what} has {} bytes, but needs {}", view.len(), words * 4));
            }
        }
        let x_rows = (x.len() / 4 + (x_stride - n) as u64) / *x_stride as u64;
        // The shader indexes vec4s with 32 bits.
        if u32::try_from(x_rows * (x_stride / 4) as u64).is_err() {
            return wrong(format!("x has {x_rows} rows, more than the kernel can index"));
        }
        let optional = |view: Option<&View>| view.cloned().map_or(Address::NONE, Address::from);
        let push = Push {
            x: x.clone().into(),
            squares: squares.clone().into(),
            bias: optional(bias),
            scale: optional(scale),
            weight: optional(weight.as_ref()),
            y: target.y.into(),
            active_rows: active.clone().into(),
            n: n as u32,
            x_rows: x_rows as u32,
            x_stride: *x_stride as u32,
            y_stride: target.stride as u32,
            side: side as u32,
            factor: (f64::from(factor) / (side * side) as f64) as f32,
            epsilon,
        };
        recorder.dispatch(name, &self.pipeline, [y.columns as u32, 1, 1], &push)
    }
}

/// Maximum side of a square, far above that of any model: numbers of input rows do not overflow.
const MAX_SIDE: usize = 1024;

fn variant(shape: &Shape, plan: Plan) -> Variant {
    let Shape { standardise, weight, output, .. } = *shape;
    let Plan { tier, row } = plan;
    let label = format!(
        "pool{}{}{} {} threads × {}",
        if standardise { ", standardise" } else { "" },
        if weight { ", weight" } else { "" },
        if output == Activations::F32 { String::new() } else { format!(" → {output}") },
        row.threads,
        row.vec4s_per_thread * 4,
    );
    let constants = Constants {
        threads: row.threads,
        vec4s_per_thread: row.vec4s_per_thread,
        output: output as u32,
        standardise,
        weight,
    };
    Variant::new(label, TIERS, tier, &constants, Subgroup::Any)
}
