//! The mean of each of several ranges of rows: pooling of the texts of a batch. Output in f32 or f16.
//!
//! One shader at tier T0 serves every device: it reads each row once, after all layers.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Device, Error, Pipeline, Recorder, Result, Subgroup, Tier, View};

use crate::{
    Activations, Kernel, Target, Vectors,
    shaders::row_mean::{Constants, Push, TIERS},
    variant::Variant,
};

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "row_mean",
    about: "mean of ranges of rows: pooling of texts",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for one row length and output format.
pub struct RowMean {
    output: Activations,
    n: usize,
    pipeline: Pipeline,
}

/// The buffers of one call.
pub struct Operands<'a> {
    /// Input rows, f32.
    pub x: View,
    /// Values from one input row to the next, a multiple of 4: the length of a row, or [`Vectors::stride`].
    pub x_stride: usize,
    /// Two u32 per column of `y`: the first row of its range and the end, which is larger. Rows must exist.
    pub ranges: View,
    /// One u32: the number of ranges, at most the columns of `y`. The other columns are left unchanged.
    pub active: View,
    /// One column per range.
    pub y: &'a Vectors,
}

impl RowMean {
    /// Compiles the kernel for rows of `n` values, a multiple of 4, to f32 or f16.
    pub fn new(device: &Device, output: Activations, n: usize) -> Result<Self> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: "row_mean".into(), reason });
        if !matches!(output, Activations::F32 | Activations::F16) {
            return wrong(format!("the output must be f32 or f16, not {output}"));
        }
        if n == 0 || !n.is_multiple_of(4) {
            return wrong(format!("rows of {n} values: the length must be a multiple of 4"));
        }
        let pipeline = variant(output, policy::threads(device.caps(), n)).pipeline(device)?;
        Ok(Self { output, n, pipeline })
    }

    /// Records the kernel for as many ranges as `y` has columns.
    pub fn record(&self, recorder: &mut Recorder, name: &str, operands: &Operands<'_>) -> Result<()> {
        let Operands { x, x_stride, ranges, active, y } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if y.k != self.n {
            return wrong(format!(
                "the output has rows of {}, but the kernel was created for {}",
                y.k, self.n
            ));
        }
        if *x_stride < self.n || !x_stride.is_multiple_of(4) {
            return wrong(format!(
                "input rows of {} values at a stride of {x_stride}: it must be a multiple of 4, and no less",
                self.n
            ));
        }
        let target = Target::vectors(y)?;
        target.check(name, self.output, self.n, y.columns)?;
        crate::row::check(name, &[("x", Some(x), self.n)])?;
        if active.len() < 4 || ranges.len() < y.columns as u64 * 8 {
            return wrong(format!(
                "active has {} bytes and ranges {}, but 4 and {} are needed",
                active.len(),
                ranges.len(),
                y.columns * 8
            ));
        }
        let push = Push {
            x: x.clone().into(),
            ranges: ranges.clone().into(),
            active_ranges: active.clone().into(),
            y: target.y.into(),
            n: self.n as u32,
            x_stride: *x_stride as u32,
            y_stride: target.stride as u32,
        };
        let groups = (self.n as u32 / 4).div_ceil(self.pipeline.threads());
        recorder.dispatch(name, &self.pipeline, [y.columns as u32, groups, 1], &push)
    }
}

fn variant(output: Activations, threads: u32) -> Variant {
    let to = if output == Activations::F32 { String::new() } else { format!(" → {output}") };
    let constants = Constants { threads, output: output as u32 };
    Variant::new(format!("mean{to} {threads} threads"), TIERS, Tier::T0, &constants, Subgroup::Any)
}
