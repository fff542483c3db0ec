//! RMSNorm with residual add: plain, after the add (Llama), or before and after it (Gemma 3), which may end with a
//! factor (Gemma 4); output in f32, f16, int8 or int16.
//!
//! Two shaders: one keeps a row in the registers of its workgroup and reads memory once, the other loops over
//! rows of any length.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, View};
use tensor::GROUP;

use crate::{
    Activations, HALF_GROUP, Kernel, Vectors,
    shaders::{norm, norm_registers},
    variant::Variant,
    vectors::VectorData,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "norm",
    about: "RMSNorm with residual add",
    variants: policy::variants,
    cases: cases::cases,
};

/// The operations fused around the norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// The input has its own norm before the add.
    pub post_norm: bool,
    /// The input is added to the residual stream, which is updated in place.
    pub residual: bool,
    /// The residual stream is multiplied by a factor after the add.
    pub scaled: bool,
    /// Storage format of the output.
    pub output: Activations,
    /// The output has only some rows of the input, selected by a list of row indices.
    pub gather: bool,
    /// Split-K partial sums of the input, at least 1.
    pub partials: u32,
    /// Each partial sum has a weight: they are the outputs of a row's experts.
    pub weighted: bool,
}

/// The kernel for one row length.
pub struct Norm {
    fusion: Fusion,
    n: usize,
    epsilon: f32,
    plan: Plan,
    pipeline: Pipeline,
}

/// The buffers of one call. Each row of `x`, `residual` and the output has the kernel's length.
pub struct Operands<'a> {
    /// Input rows, f32; partial sums of a row are consecutive.
    pub x: View,
    /// f32 per partial sum of each row: their weights, if the fusion has them.
    pub partial_weights: Option<View>,
    /// Weight of the norm before the add, if the fusion has one.
    pub post_weight: Option<View>,
    /// Residual rows, f32, read and written, if the fusion has them.
    pub residual: Option<View>,
    /// One f32: the factor of the residual stream after the add, if the fusion has one.
    pub residual_scale: Option<View>,
    /// Weight of the norm, as multiplied (1 + w for Gemma's files).
    pub weight: View,
    /// u32: the number of active output rows, at most the columns of `y`.
    pub active: View,
    /// u32 per output row: the index of its row in `x` and `residual`, if the fusion gathers. With a residual
    /// stream no row may occur twice.
    pub rows: Option<View>,
    /// Output rows, in the format of the fusion.
    pub y: &'a Vectors,
}

impl Norm {
    /// Selects the variant for this device and compiles it.
    pub fn new(device: &Device, fusion: Fusion, n: usize, epsilon: f32) -> Result<Self> {
        Self::with_plan(device, fusion, n, epsilon, policy::plan(device.caps(), n, fusion))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, fusion: Fusion, n: usize, epsilon: f32, plan: Plan) -> Result<Self> {
        let multiple = fusion.output_group();
        if n == 0 || fusion.partials == 0 || !n.is_multiple_of(multiple) {
            let reason = format!(
                "{} partial sums of {n} values cannot be normed to {}: there must be at least one, and its length must be a multiple of {multiple}",
                fusion.partials, fusion.output
            );
            return Err(Error::InvalidUse { what: "norm".into(), reason });
        }
        if fusion.scaled && !fusion.residual {
            let reason = "a factor of the residual stream needs the stream".into();
            return Err(Error::InvalidUse { what: "norm".into(), reason });
        }
        Ok(Self { fusion, n, epsilon, plan, pipeline: variant(fusion, plan).pipeline(device)? })
    }

    /// Records the kernel for as many rows as `y` has columns.
    pub fn record(&self, recorder: &mut Recorder, name: &str, operands: &Operands<'_>) -> Result<()> {
        let y = operands.y;
        let wrong = |reason: &str| Err(Error::InvalidUse { what: name.to_string(), reason: reason.into() });
        // The rows that a list selects are not known here.
        let values = if self.fusion.gather { 0 } else { (self.n * y.columns * 4) as u64 };
        let as_long = |view: Option<&View>, bytes: u64| view.is_none_or(|view| view.len() >= bytes);
        if y.k != self.n || y.kind() != self.fusion.output {
            return wrong("the output's length or format is not the one that the kernel was created for");
        }
        if operands.post_weight.is_some() != self.fusion.post_norm
            || operands.residual.is_some() != self.fusion.residual
        {
            return wrong("post_weight and residual must be given if and only if the fusion has them");
        }
        if operands.residual_scale.is_some() != self.fusion.scaled
            || !as_long(operands.residual_scale.as_ref(), 4)
        {
            return wrong("residual_scale, one f32, must be given if and only if the fusion has it");
        }
        if operands.rows.is_some() != self.fusion.gather
            || !as_long(operands.rows.as_ref(), y.columns as u64 * 4)
        {
            return wrong(
                "a list of rows must be given if and only if the fusion gathers, with one index per output row",
            );
        }
        if operands.partial_weights.is_some() != self.fusion.weighted
            || !as_long(
                operands.partial_weights.as_ref(),
                values / self.n as u64 * u64::from(self.fusion.partials),
            )
        {
            return wrong(
                "weights of partial sums must be given if and only if the fusion has them, one for each",
            );
        }
        if operands.active.len() < 4
            || operands.x.len() < values * u64::from(self.fusion.partials)
            || !as_long(operands.residual.as_ref(), values)
        {
            return wrong(
                "x, the residual or the number of active rows is too short for the rows of the output",
            );
        }
        let row = (self.n * 4) as u64;
        if operands.weight.len() < row || !as_long(operands.post_weight.as_ref(), row) {
            return wrong("a weight is shorter than a row");
        }
        // Buffers start at multiples of 16; a slice of one might not.
        let views = [
            Some(&operands.x),
            Some(&operands.weight),
            operands.post_weight.as_ref(),
            operands.residual.as_ref(),
        ];
        if self.plan.vec4s_per_thread.is_some()
            && views.into_iter().flatten().any(|view| !view.address().is_multiple_of(16))
        {
            return wrong("x, the residual or a weight does not start at a multiple of 16 bytes");
        }
        let optional = |view: &Option<View>| view.clone().map_or(Address::NONE, Address::from);
        let (y_floats, y_bytes, y_scales) = match &y.data {
            VectorData::F32(floats) => (floats.into(), Address::NONE, Address::NONE),
            VectorData::Int8 { values, scales } | VectorData::Int16 { values, scales } => {
                (Address::NONE, values.into(), scales.into())
            }
            VectorData::F16(values) => (Address::NONE, values.into(), Address::NONE),
        };
        // The push constants of the two shaders differ only in their type names.
        macro_rules! dispatch {
            ($shader:ident) => {{
                let push = $shader::Push {
                    x: operands.x.clone().into(),
                    post_weight: optional(&operands.post_weight),
                    residual: optional(&operands.residual),
                    weight: operands.weight.clone().into(),
                    y: y_floats,
                    y_bytes,
                    y_scales,
                    active_rows: operands.active.clone().into(),
                    rows: optional(&operands.rows),
                    n: self.n as u32,
                    epsilon: self.epsilon,
                    plane_words: (y.stride() * y.columns / 4) as u32,
                    partial_weights: optional(&operands.partial_weights),
                    residual_scale: optional(&operands.residual_scale),
                };
                recorder.dispatch(name, &self.pipeline, [y.columns as u32, 1, 1], &push)
            }};
        }
        if self.plan.vec4s_per_thread.is_some() { dispatch!(norm_registers) } else { dispatch!(norm) }
    }
}

impl Fusion {
    /// The row length must be a multiple of this.
    fn output_group(&self) -> usize {
        match self.output {
            Activations::F32 => 1,
            Activations::Int8 => GROUP,
            Activations::Int16 => HALF_GROUP,
            Activations::F16 => 4,
        }
    }
}

fn variant(fusion: Fusion, plan: Plan) -> Variant {
    let Fusion { post_norm, residual, scaled, output, gather, partials, weighted } = fusion;
    let label = format!(
        "{}{}norm{}{}{} {} threads{}",
        if post_norm { "post-norm + " } else { "" },
        match (residual, scaled) {
            (true, true) => "scaled residual + ",
            (true, false) => "residual + ",
            (false, _) => "",
        },
        if output == Activations::F32 { String::new() } else { format!(" → {output}") },
        if gather { ", gathered" } else { "" },
        match (partials, weighted) {
            (1, false) => String::new(),
            (_, true) => format!(", of {partials} weighted partials"),
            (_, false) => format!(", of {partials} partials"),
        },
        plan.threads,
        plan.vec4s_per_thread.map_or(String::new(), |vec4s| format!(" × {}", vec4s * 4)),
    );
    let (threads, output) = (plan.threads, output as u32);
    if let Some(vec4s_per_thread) = plan.vec4s_per_thread {
        let constants = norm_registers::Constants {
            threads,
            post_norm,
            residual,
            output,
            gather,
            vec4s_per_thread,
            partials,
            weighted,
            scaled,
        };
        return Variant::new(label, norm_registers::TIERS, plan.tier, &constants, plan.subgroup);
    }
    let constants =
        norm::Constants { threads, post_norm, residual, output, gather, partials, weighted, scaled };
    Variant::new(label, norm::TIERS, plan.tier, &constants, plan.subgroup)
}
