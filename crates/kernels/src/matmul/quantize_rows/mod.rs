//! Converts f32 activations, such as the output of attention, to int16 or f16, as the next product needs
//! them. f16 is only rounded.

mod cases;
pub mod policy;
pub mod reference;
#[cfg(test)]
mod tests;

use gpu::{Address, Device, Error, Pipeline, Recorder, Result, View};

use crate::{
    Activations, HALF_GROUP, Kernel, Vectors,
    shaders::quantize_rows::{Constants, Push, TIERS},
    variant::Variant,
    vectors::VectorData,
};
use policy::Plan;

/// Registration for the self-test and the compile checks.
pub static KERNEL: Kernel = Kernel {
    name: "quantize_rows",
    about: "f32 activations to int16 or f16",
    variants: policy::variants,
    cases: cases::cases,
};

/// The kernel for one row length and output format.
pub struct QuantizeRows {
    output: Activations,
    k: usize,
    plan: Plan,
    pipeline: Pipeline,
}

impl QuantizeRows {
    /// Compiles the kernel for rows of `k` values: a multiple of 16 for int16, of 4 for f16.
    pub fn new(device: &Device, output: Activations, k: usize) -> Result<Self> {
        Self::with_plan(device, output, k, policy::plan(device.caps(), output))
    }

    /// The same with a given plan.
    pub fn with_plan(device: &Device, output: Activations, k: usize, plan: Plan) -> Result<Self> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: "quantize_rows".into(), reason });
        let multiple = match output {
            Activations::Int16 => HALF_GROUP,
            Activations::F16 => 4,
            Activations::F32 | Activations::Int8 => {
                return wrong(format!("the output must be int16 or f16, not {output}"));
            }
        };
        if k == 0 || !k.is_multiple_of(multiple) {
            return wrong(format!(
                "rows of {k} values cannot be {output}: the length must be a multiple of {multiple}"
            ));
        }
        Ok(Self { output, k, plan, pipeline: variant(output, plan).pipeline(device)? })
    }

    /// Records the conversion of rows first..end of `x` (f32), which `active` (two u32) holds; `y` has no
    /// more columns than `x`.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        name: &str,
        x: &Vectors,
        y: &Vectors,
        active: &View,
    ) -> Result<()> {
        let wrong = |reason: String| Err(Error::InvalidUse { what: name.to_string(), reason });
        let (floats, values, scales) = match (&x.data, &y.data) {
            (VectorData::F32(floats), VectorData::Int16 { values, scales })
                if self.output == Activations::Int16 =>
            {
                (floats, values, scales.into())
            }
            (VectorData::F32(floats), VectorData::F16(values)) if self.output == Activations::F16 => {
                (floats, values, Address::NONE)
            }
            _ => {
                let (from, to, expected) = (x.kind(), y.kind(), self.output);
                return wrong(format!(
                    "the input is {from} and the output {to}, but must be f32 and {expected}"
                ));
            }
        };
        if x.k != self.k || y.k != self.k || x.columns < y.columns || active.len() < 8 {
            return wrong(format!(
                "{} columns of {} to {} columns of {}, but the kernel was created for {}; active has {} bytes, but \
                 needs 8",
                x.columns,
                x.k,
                y.columns,
                y.k,
                self.k,
                active.len()
            ));
        }
        let push = Push {
            x: floats.into(),
            y: values.into(),
            y_scales: scales,
            active_rows: active.clone().into(),
            k: self.k as u32,
            stride: y.stride() as u32,
            plane_words: (y.stride() * y.columns / 4) as u32,
        };
        recorder.dispatch(name, &self.pipeline, [self.plan.groups(y.stride()), y.columns as u32, 1], &push)
    }
}

fn variant(output: Activations, plan: Plan) -> Variant {
    let Plan { tier, threads, per_thread, subgroup } = plan;
    let label = format!("f32 → {output}, {threads} threads");
    let constants = Constants { threads, output: output as u32, per_thread };
    Variant::new(label, TIERS, tier, &constants, subgroup)
}
