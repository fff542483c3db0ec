//! LayerNorm with bias, optionally after a residual add: the norm of image encoders (SigLIP, Gemma 4 12B) and of BERT.
//! Output in f32 or f16.
//!
//! One workgroup per row, which stays in its registers.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, Subgroup, View};

use crate::{
    Activations, Kernel, Target, Vectors,
    shaders::layer_norm::{Constants, Push, TIERS},
    variant::Variant,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "layer_norm",
    about: "LayerNorm with residual add and bias",
    variants: policy::variants,
    cases: cases::cases,
};

/// The operations fused with the norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// Storage format of an input, f32 or f16: it and its bias are added to the residual stream first, which is updated in
    /// place.
    pub add: Option<Activations>,
    /// The residual stream becomes the normed rows (BERT), not the sum that they are the norm of.
    pub normed_residual: bool,
    /// Storage format of the output: f32 or f16.
    pub output: Activations,
}

/// The kernel for one row length.
pub struct LayerNorm {
    fusion: Fusion,
    n: usize,
    epsilon: f32,
    pipeline: Pipeline,
}

/// The buffers of one call. Each row has the kernel's length; those of `residual` follow each
/// other without padding.
pub struct Operands<'a> {
    /// Input rows, in the format of the fusion, if it adds them.
    pub x: Option<View>,
    /// Values from one input row to the next, a multiple of 4: the length of a row, or [`Vectors::stride`].
    pub x_stride: usize,
    /// Bias of the input, f32, one row, if the fusion adds them.
    pub x_bias: Option<View>,
    /// Residual rows, f32, read, and written if the fusion adds to them or replaces them.
    pub residual: View,
    /// Weight of the norm, f32, one row.
    pub weight: View,
    /// Bias of the norm, f32, one row.
    pub bias: View,
    /// One u32: the number of active rows, at most the columns of `y`. The others are left unchanged.
    pub active: View,
    /// Output rows, in the format of the fusion.
    pub y: &'a Vectors,
}

impl LayerNorm {
    /// Selects the variant for this device and compiles it. `n` must be a multiple of 4.
    pub fn new(device: &Device, fusion: Fusion, n: usize, epsilon: f32) -> Result<Self> {
        let wrong = |reason: String| Error::InvalidUse { what: "layer_norm".into(), reason };
        let plan = policy::plan(device.caps(), n).ok_or_else(|| {
            let max = crate::row::max_length(device.caps());
            wrong(format!("rows of {n} values: the length must be a multiple of 4 from 4 to {max}"))
        })?;
        Self::with_plan(device, fusion, n, epsilon, plan)
    }

    /// The same with a given plan for rows of `n` values.
    fn with_plan(device: &Device, fusion: Fusion, n: usize, epsilon: f32, plan: Plan) -> Result<Self> {
        let formats = [("output", Some(fusion.output)), ("input", fusion.add)];
        for (what, format) in formats.into_iter().filter_map(|(what, format)| Some((what, format?))) {
            if !matches!(format, Activations::F32 | Activations::F16) {
                let reason = format!("the {what} must be f32 or f16, not {format}");
                return Err(Error::InvalidUse { what: "layer_norm".into(), reason });
            }
        }
        Ok(Self { fusion, n, epsilon, pipeline: variant(fusion, plan).pipeline(device)? })
    }

    /// Records the kernel for as many rows as `y` has columns.
    pub fn record(&self, recorder: &mut Recorder, name: &str, operands: &Operands<'_>) -> Result<()> {
        let Operands { x, x_stride, x_bias, residual, weight, bias, active, y } = operands;
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        if [x, x_bias].iter().any(|view| view.is_some() != self.fusion.add.is_some()) {
            return wrong("x and x_bias must be given if and only if the fusion adds them".into());
        }
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
        target.check(name, self.fusion.output, self.n, y.columns)?;
        // The last row needs no padding.
        let x_values = y.columns.saturating_sub(1) * x_stride + self.n;
        let x_words = if self.fusion.add == Some(Activations::F16) { x_values / 2 } else { x_values };
        let rows = self.n * y.columns;
        crate::row::check(
            name,
            &[
                ("x", x.as_ref(), x_words),
                ("x_bias", x_bias.as_ref(), self.n),
                ("residual", Some(residual), rows),
                ("weight", Some(weight), self.n),
                ("bias", Some(bias), self.n),
            ],
        )?;
        if active.len() < 4 {
            return wrong(format!("active has {} bytes, but needs 4", active.len()));
        }
        let optional = |view: &Option<View>| view.clone().map_or(Address::NONE, Address::from);
        let push = Push {
            x: optional(x),
            x_bias: optional(x_bias),
            residual: residual.clone().into(),
            weight: weight.clone().into(),
            bias: bias.clone().into(),
            y: target.y.into(),
            active_rows: active.clone().into(),
            n: self.n as u32,
            x_stride: *x_stride as u32,
            y_stride: target.stride as u32,
            epsilon: self.epsilon,
        };
        recorder.dispatch(name, &self.pipeline, [y.columns as u32, 1, 1], &push)
    }
}

fn variant(fusion: Fusion, plan: Plan) -> Variant {
    let Plan { tier, row } = plan;
    let label = format!(
        "{}norm{}{} {} threads × {}",
        match fusion.add {
            None => "",
            Some(Activations::F16) => "residual + f16 ",
            Some(_) => "residual + ",
        },
        if fusion.normed_residual { " → residual" } else { "" },
        if fusion.output == Activations::F32 { String::new() } else { format!(" → {}", fusion.output) },
        row.threads,
        row.vec4s_per_thread * 4,
    );
    let constants = Constants {
        threads: row.threads,
        vec4s_per_thread: row.vec4s_per_thread,
        add: fusion.add.is_some(),
        output: fusion.output as u32,
        normed_residual: fusion.normed_residual,
        x_f16: fusion.add == Some(Activations::F16),
    };
    Variant::new(label, TIERS, tier, &constants, Subgroup::Any)
}
